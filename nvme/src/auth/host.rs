//! The host's side of an authentication, without sending anything: messages come in, messages go out.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::{
    CryptoError, DhError, Exchange, Explanation, Failure, Group, Hash, KeyPair, Message, Negotiate,
    Party, Reply, Secret,
};

/// What a host authenticates with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKeys {
    /// The host's secret.
    pub secret: Secret,
    /// The controller's: with it the controller has to prove itself.
    pub controller_secret: Option<Secret>,
    /// Hashes to offer.
    pub hashes: Vec<Hash>,
    /// Groups to offer.
    pub groups: Vec<Group>,
}

impl HostKeys {
    /// Offers everything.
    #[must_use]
    pub fn new(secret: Secret, controller_secret: Option<Secret>) -> Self {
        Self {
            secret,
            controller_secret,
            hashes: Hash::ALL.to_vec(),
            groups: Group::ALL.to_vec(),
        }
    }
}

/// Why a host gives up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostAuthError {
    /// The controller refuses.
    #[error("the controller refuses: {0}")]
    Refused(Explanation),
    /// Its message does not fit.
    #[error("the controller sent {0}")]
    Wrong(&'static str),
    /// It does not know the controller's secret.
    #[error("the controller does not know its secret; is it another target?")]
    NotTheController,
    /// The library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

impl HostAuthError {
    /// What to tell the controller, if it waits for an answer.
    #[must_use]
    pub fn to_message(&self, transaction: u16) -> Option<Message> {
        let explanation = match self {
            Self::Refused(_) => return None,
            Self::Wrong(_) => Explanation::IncorrectPayload,
            Self::NotTheController | Self::Crypto(_) => Explanation::Failed,
        };
        Some(Message::Failure2(Failure {
            transaction,
            explanation,
        }))
    }
}

/// What the controller's proof is compared with.
struct Asked {
    hash: Hash,
    value: Vec<u8>,
    sequence: u32,
    shared: Option<Zeroizing<Vec<u8>>>,
}

/// An exchange, from the host's side.
pub struct HostExchange {
    keys: Arc<HostKeys>,
    host: String,
    subsystem: String,
    transaction: u16,
    asked: Option<Asked>,
}

impl HostExchange {
    /// Of a host with that name, to that subsystem; the transaction is any number.
    #[must_use]
    pub fn new(keys: Arc<HostKeys>, host: &str, subsystem: &str, transaction: u16) -> Self {
        Self {
            keys,
            host: host.to_owned(),
            subsystem: subsystem.to_owned(),
            transaction,
            asked: None,
        }
    }

    /// The first message.
    #[must_use]
    pub fn negotiate(&self) -> Message {
        Message::Negotiate(Negotiate {
            transaction: self.transaction,
            secure_channel: 0,
            hashes: self.keys.hashes.iter().map(|hash| hash.id()).collect(),
            groups: self.keys.groups.iter().map(|group| group.id()).collect(),
        })
    }

    /// The reply to the controller's challenge; takes milliseconds of computing.
    ///
    /// # Errors
    /// [`HostAuthError`].
    pub fn reply(
        &mut self,
        message: &[u8],
        random: &[[u8; 64]; 2],
    ) -> Result<Message, HostAuthError> {
        let challenge = match self.parse(message)? {
            Message::Challenge(challenge) => challenge,
            _ => return Err(HostAuthError::Wrong("no challenge")),
        };
        if !self.keys.hashes.contains(&challenge.hash)
            || !self.keys.groups.contains(&challenge.group)
        {
            return Err(HostAuthError::Wrong("a hash or group that was not offered"));
        }
        let pair = KeyPair::from_random(challenge.group, &random[0])?;
        let shared = match &pair {
            None => None,
            Some(pair) => Some(pair.shared_secret(&challenge.public).map_err(
                |error| match error {
                    DhError::PublicValue => {
                        HostAuthError::Wrong("a public value that is not one of the group")
                    }
                    DhError::Crypto(error) => error.into(),
                },
            )?),
        };
        let exchange = self.exchange(challenge.hash);
        let answer = exchange.answer(
            Party::Host,
            &self.keys.secret,
            &challenge.value,
            challenge.sequence,
            shared.as_ref().map(|shared| shared.as_slice()),
        )?;
        if self.keys.controller_secret.is_some() {
            let [.., a, b, c, d] = random[1];
            let value = random[1][..challenge.hash.len()].to_vec();
            if value == challenge.value {
                return Err(HostAuthError::Wrong("the host's own challenge"));
            }
            self.asked = Some(Asked {
                hash: challenge.hash,
                value,
                // 0 stands for none.
                sequence: u32::from_le_bytes([a, b, c, d]).max(1),
                shared,
            });
        }
        let asked = self.asked.as_ref();
        Ok(Message::Reply(Reply {
            transaction: self.transaction,
            answer: answer.to_vec(),
            challenge: asked.map(|asked| (asked.value.clone(), asked.sequence)),
            public: pair.map_or_else(Vec::new, |pair| pair.public().to_vec()),
        }))
    }

    /// What the controller says to the reply; gives back the last message, if there is one to send.
    ///
    /// # Errors
    /// [`HostAuthError`].
    pub fn finish(&mut self, message: &[u8]) -> Result<Option<Message>, HostAuthError> {
        let success = match self.parse(message)? {
            Message::Success1(success) => success,
            _ => return Err(HostAuthError::Wrong("no success")),
        };
        let (Some(asked), Some(secret)) = (self.asked.take(), &self.keys.controller_secret) else {
            return Ok(None);
        };
        let right = self.exchange(asked.hash).is_right(
            Party::Controller,
            secret,
            &asked.value,
            asked.sequence,
            asked.shared.as_ref().map(|shared| shared.as_slice()),
            &success.answer.unwrap_or_default(),
        )?;
        match right {
            true => Ok(Some(Message::Success2(self.transaction))),
            false => Err(HostAuthError::NotTheController),
        }
    }

    fn exchange(&self, hash: Hash) -> Exchange<'_> {
        Exchange {
            hash,
            transaction: self.transaction,
            secure_channel: 0,
            host: &self.host,
            subsystem: &self.subsystem,
        }
    }

    fn parse(&self, bytes: &[u8]) -> Result<Message, HostAuthError> {
        let message =
            Message::parse(bytes).map_err(|malformed| HostAuthError::Wrong(malformed.what))?;
        if let Message::Failure1(failure) = &message {
            return Err(HostAuthError::Refused(failure.explanation));
        }
        if message.transaction() != self.transaction {
            return Err(HostAuthError::Wrong("a message of another transaction"));
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Challenge, Success1};
    use super::*;

    const TRANSACTION: u16 = 7;
    const RANDOM: [[u8; 64]; 2] = [[3; 64], [4; 64]];
    const SECRET: &str = "DHHC-1:01:vpgzxkS/CQmKUshSUy0pIXpspptwirK1IPMPWeAoJJLDedmC:";

    /// A host that offers SHA-256 with groups, and asks the controller to prove itself.
    fn host(groups: &[Group]) -> HostExchange {
        let secret: Secret = Secret::parse(SECRET).unwrap();
        let keys = HostKeys {
            hashes: vec![Hash::Sha256],
            groups: groups.to_vec(),
            ..HostKeys::new(secret.clone(), Some(secret))
        };
        HostExchange::new(Arc::new(keys), "nqn.h", "nqn.s", TRANSACTION)
    }

    fn challenge(hash: Hash, value: u8) -> Challenge {
        Challenge {
            transaction: TRANSACTION,
            hash,
            group: Group::Null,
            sequence: 1,
            value: vec![value; hash.len()],
            public: Vec::new(),
        }
    }

    fn refused(groups: &[Group], challenge: Challenge) -> &'static str {
        let message = Message::Challenge(challenge).encode();
        match host(groups).reply(&message, &RANDOM) {
            Err(HostAuthError::Wrong(what)) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_hash_or_a_group_that_the_host_did_not_offer_is_refused() {
        let what = "a hash or group that was not offered";
        assert_eq!(refused(&[Group::Null], challenge(Hash::Sha384, 1)), what);
        let groups = [Group::Ffdhe2048];
        assert_eq!(refused(&groups, challenge(Hash::Sha256, 1)), what);
        let message = Message::Challenge(challenge(Hash::Sha256, 1)).encode();
        assert!(host(&[Group::Null]).reply(&message, &RANDOM).is_ok());
    }

    #[test]
    fn a_controller_that_gives_back_the_hosts_own_challenge_is_refused() {
        // Otherwise it could give back the host's own answer, too.
        let what = "the host's own challenge";
        assert_eq!(refused(&[Group::Null], challenge(Hash::Sha256, 4)), what);
    }

    #[test]
    fn a_message_of_another_transaction_is_refused() {
        let other = Challenge {
            transaction: TRANSACTION + 1,
            ..challenge(Hash::Sha256, 1)
        };
        let what = "a message of another transaction";
        assert_eq!(refused(&[Group::Null], other), what);
    }

    #[test]
    fn a_controller_proves_itself_by_the_answer_to_the_hosts_challenge_alone() {
        for (right, answer) in [(true, true), (false, true), (false, false)] {
            let mut host = host(&[Group::Null]);
            let message = Message::Challenge(challenge(Hash::Sha256, 1)).encode();
            let Ok(Message::Reply(reply)) = host.reply(&message, &RANDOM) else {
                panic!("no reply");
            };
            let (value, sequence) = reply.challenge.unwrap();
            let secret = Secret::parse(SECRET).unwrap();
            let exchange = host.exchange(Hash::Sha256);
            let proof = exchange.answer(Party::Controller, &secret, &value, sequence, None);
            let mut proof = proof.unwrap().to_vec();
            if !right {
                proof[0] ^= 1;
            }
            let success = Message::Success1(Success1 {
                transaction: TRANSACTION,
                hash_bytes: Hash::Sha256.len() as u8,
                answer: answer.then_some(proof),
            });
            let finished = host.finish(&success.encode());
            match right {
                true => assert_eq!(finished, Ok(Some(Message::Success2(TRANSACTION)))),
                false => assert_eq!(finished, Err(HostAuthError::NotTheController)),
            }
        }
    }

    #[test]
    fn a_controller_hears_why_the_host_gives_up_unless_it_refused_itself() {
        let refusal = HostAuthError::Refused(Explanation::Failed);
        assert_eq!(refusal.to_message(TRANSACTION), None);
        for (error, explanation) in [
            (HostAuthError::Wrong("x"), Explanation::IncorrectPayload),
            (HostAuthError::NotTheController, Explanation::Failed),
        ] {
            let failure = Failure {
                transaction: TRANSACTION,
                explanation,
            };
            let message = error.to_message(TRANSACTION);
            assert_eq!(message, Some(Message::Failure2(failure)));
        }
    }
}
