//! What host and controller compute to prove that they know a secret.

use zeroize::Zeroizing;

use super::{CryptoError, Hash, Secret};

/// Who proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// The host, with its own secret.
    Host,
    /// The controller, with the secret that the host has of it.
    Controller,
}

/// What an authentication is about: both sides put it into every proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange<'a> {
    /// The hash that was agreed on.
    pub hash: Hash,
    /// The transaction's identifier (T_ID).
    pub transaction: u16,
    /// Secure channel concatenation as the host asked for it (SC_C).
    pub secure_channel: u8,
    /// The host's name.
    pub host: &'a str,
    /// The subsystem's name.
    pub subsystem: &'a str,
}

impl Exchange<'_> {
    /// The answer of a party to a challenge with that sequence number. `shared` is the secret of the
    /// Diffie-Hellman exchange, if there was one.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn answer(
        &self,
        party: Party,
        secret: &Secret,
        challenge: &[u8],
        sequence: u32,
        shared: Option<&[u8]>,
    ) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let (owner, words, other) = match party {
            Party::Host => (self.host, "HostHost", self.subsystem),
            Party::Controller => (self.subsystem, "Controller", self.host),
        };
        let augmented = match shared {
            None => Zeroizing::new(challenge.to_vec()),
            Some(shared) => self.hash.hmac(&self.hash.digest(shared)?, &[challenge])?,
        };
        self.hash.hmac(
            &secret.key_of(owner)?,
            &[
                &augmented,
                &sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[self.secure_channel],
                words.as_bytes(),
                owner.as_bytes(),
                &[0],
                other.as_bytes(),
            ],
        )
    }

    /// Whether an answer is right. Takes as long for any wrong one.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn is_right(
        &self,
        party: Party,
        secret: &Secret,
        challenge: &[u8],
        sequence: u32,
        shared: Option<&[u8]>,
        answer: &[u8],
    ) -> Result<bool, CryptoError> {
        let right = self.answer(party, secret, challenge, sequence, shared)?;
        Ok(right.len() == answer.len() && openssl::memcmp::eq(&right, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCHANGE: Exchange<'_> = Exchange {
        hash: Hash::Sha256,
        transaction: 7,
        secure_channel: 0,
        host: "nqn.2014-08.org.nvmexpress:uuid:host",
        subsystem: "nqn.2026-11.dev.onefold:default",
    };

    #[test]
    fn an_answer_is_right_only_for_its_secret_challenge_number_party_and_exchange() {
        let secret = Secret::from_random(Some(Hash::Sha512), &[1; 64]);
        let other = Secret::from_random(Some(Hash::Sha512), &[2; 64]);
        let answer = EXCHANGE
            .answer(Party::Host, &secret, &[3; 32], 4, Some(&[5; 256]))
            .unwrap();
        let is_right =
            |exchange: Exchange<'_>, party, secret, challenge: &[u8], sequence, shared| {
                exchange
                    .is_right(party, secret, challenge, sequence, shared, &answer)
                    .unwrap()
            };
        let shared = Some(&[5; 256][..]);
        assert!(is_right(
            EXCHANGE,
            Party::Host,
            &secret,
            &[3; 32],
            4,
            shared
        ));
        assert!(!is_right(
            EXCHANGE,
            Party::Host,
            &other,
            &[3; 32],
            4,
            shared
        ));
        assert!(!is_right(
            EXCHANGE,
            Party::Host,
            &secret,
            &[4; 32],
            4,
            shared
        ));
        assert!(!is_right(
            EXCHANGE,
            Party::Host,
            &secret,
            &[3; 32],
            5,
            shared
        ));
        assert!(!is_right(EXCHANGE, Party::Host, &secret, &[3; 32], 4, None));
        assert!(!is_right(
            EXCHANGE,
            Party::Controller,
            &secret,
            &[3; 32],
            4,
            shared
        ));
        let later = Exchange {
            transaction: 8,
            ..EXCHANGE
        };
        assert!(!is_right(later, Party::Host, &secret, &[3; 32], 4, shared));
        let elsewhere = Exchange {
            subsystem: "nqn.2026-11.dev.onefold:other",
            ..EXCHANGE
        };
        assert!(!is_right(
            elsewhere,
            Party::Host,
            &secret,
            &[3; 32],
            4,
            shared
        ));
    }

    #[test]
    fn an_answer_cut_short_is_wrong() {
        let secret = Secret::from_random(None, &[1; 64]);
        let answer = EXCHANGE
            .answer(Party::Host, &secret, &[3; 32], 4, None)
            .unwrap();
        for length in [0, 31] {
            let right =
                EXCHANGE.is_right(Party::Host, &secret, &[3; 32], 4, None, &answer[..length]);
            assert_eq!(right, Ok(false));
        }
    }
}
