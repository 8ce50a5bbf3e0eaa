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
