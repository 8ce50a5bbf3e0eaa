//! The Diffie-Hellman exchange in the groups of RFC 7919.
//!
//! Guarantees: a public value outside of 2 to p-2 is refused (RFC 7919, section 5.1); the private exponent
//! is used in constant time; results have the group's length, with leading zeros.

use openssl::bn::{BigNum, BigNumContext};
use zeroize::Zeroizing;

use super::{CryptoError, Group, primes};

/// Random bytes that a key pair is made of.
pub const RANDOM_BYTES: usize = 64;

/// Why there is no shared secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DhError {
    /// The peer's value does not belong to the group, or would give the secret away.
    #[error("the peer's public value is not one of the group")]
    PublicValue,
    /// The library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

/// Our half of an exchange. Making it, and finding the shared secret, takes milliseconds of computing.
pub struct KeyPair {
    group: Group,
    prime: BigNum,
    private: BigNum,
    public: Vec<u8>,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPair")
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Drop for KeyPair {
    fn drop(&mut self) {
        self.private.clear();
    }
}

impl KeyPair {
    /// A pair from random bytes; none for [`Group::Null`].
    ///
    /// # Errors
    /// [`CryptoError`].
    pub fn from_random(
        group: Group,
        random: &[u8; RANDOM_BYTES],
    ) -> Result<Option<Self>, CryptoError> {
        let Some((prime, private_bytes)) = parameters(group) else {
            return Ok(None);
        };
        let make = || {
            let prime = BigNum::from_hex_str(prime)?;
            let mut private = BigNum::new_secure()?;
            private.copy_from_slice(&random[..private_bytes])?;
            // Not so small that it could be guessed, whatever the random bytes are.
            private.set_bit(private_bytes as i32 * 8 - 1)?;
            private.set_const_time();
            let public = power(&*BigNum::from_u32(2)?, &private, &prime)?;
            let public = public.to_vec_padded(group.value_bytes() as i32)?;
            Ok(Self {
                group,
                prime,
                private,
                public,
            })
        };
        make()
            .map(Some)
            .map_err(CryptoError::new("a key of Diffie-Hellman"))
    }

    /// The value for the peer.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// What both sides know when they have each other's value.
    ///
    /// # Errors
    /// [`DhError`].
    pub fn shared_secret(&self, peer: &[u8]) -> Result<Zeroizing<Vec<u8>>, DhError> {
        let bytes = self.group.value_bytes();
        if peer.len() != bytes {
            return Err(DhError::PublicValue);
        }
        let failed = CryptoError::new("a shared secret of Diffie-Hellman");
        let peer = BigNum::from_slice(peer).map_err(&failed)?;
        let one = BigNum::from_u32(1).map_err(&failed)?;
        let mut last = self.prime.to_owned().map_err(&failed)?;
        last.sub_word(1).map_err(&failed)?;
        if peer <= one || peer >= last {
            return Err(DhError::PublicValue);
        }
        let compute = || {
            let mut shared = power(&peer, &self.private, &self.prime)?;
            let bytes = shared.to_vec_padded(bytes as i32).map(Zeroizing::new);
            shared.clear();
            bytes
        };
        Ok(compute().map_err(failed)?)
    }
}

/// Digits of the prime, and bytes of a private exponent: twice the group's strength and more (RFC 7919,
/// appendix A, wants 225, 275, 325, 375 and 400 bits), which costs a tenth of one as long as the prime.
fn parameters(group: Group) -> Option<(&'static str, usize)> {
    Some(match group {
        Group::Null => return None,
        Group::Ffdhe2048 => (primes::FFDHE2048, 32),
        Group::Ffdhe3072 => (primes::FFDHE3072, 40),
        Group::Ffdhe4096 => (primes::FFDHE4096, 48),
        Group::Ffdhe6144 => (primes::FFDHE6144, 56),
        Group::Ffdhe8192 => (primes::FFDHE8192, 64),
    })
}

fn power(
    base: &openssl::bn::BigNumRef,
    exponent: &BigNum,
    prime: &BigNum,
) -> Result<BigNum, openssl::error::ErrorStack> {
    let mut context = BigNumContext::new_secure()?;
    let mut result = BigNum::new_secure()?;
    result.mod_exp(base, exponent, prime, &mut context)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_find_the_same_secret_in_every_group() {
        for group in Group::ALL {
            let pair = |byte| KeyPair::from_random(group, &[byte; RANDOM_BYTES]).unwrap();
            let (Some(host), Some(controller)) = (pair(1), pair(2)) else {
                assert_eq!(group, Group::Null);
                continue;
            };
            assert_eq!(host.public().len(), group.value_bytes());
            let shared = host.shared_secret(controller.public()).unwrap();
            assert_eq!(controller.shared_secret(host.public()), Ok(shared.clone()));
            assert_eq!(shared.len(), group.value_bytes());
        }
    }

    #[test]
    fn values_that_would_give_the_secret_away_are_refused() {
        let pair = KeyPair::from_random(Group::Ffdhe2048, &[3; RANDOM_BYTES])
            .unwrap()
            .unwrap();
        let prime = BigNum::from_hex_str(primes::FFDHE2048).unwrap();
        let mut less_one = prime.to_owned().unwrap();
        less_one.sub_word(1).unwrap();
        let mut one = vec![0; 256];
        one[255] = 1;
        let bad = [
            vec![0; 256],
            one,
            less_one.to_vec(),
            prime.to_vec(),
            vec![0xff; 256],
            vec![2; 255],
            vec![],
        ];
        for value in bad {
            assert_eq!(pair.shared_secret(&value), Err(DhError::PublicValue));
        }
    }

    #[test]
    fn the_small_primes_are_safe_primes() {
        // The larger ones take minutes; each stands the test of hosts in `tests/`.
        let mut context = BigNumContext::new().unwrap();
        let prime = BigNum::from_hex_str(primes::FFDHE2048).unwrap();
        let mut half = BigNum::new().unwrap();
        half.rshift1(&prime).unwrap();
        for number in [&prime, &half] {
            assert!(number.is_prime_fasttest(4, &mut context, true).unwrap());
        }
    }
}
