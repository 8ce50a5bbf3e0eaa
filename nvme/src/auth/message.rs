//! The messages of an authentication (Base 2.0, section 8.13.5), as both sides send them.

use std::fmt;

use super::{Group, Hash};

/// Bytes of a message at most, in either direction: what Linux has room for. The longest one that makes
/// sense has 1168.
pub const AUTH_DATA_BYTES_MAX: usize = 4096;

/// Byte 0, the kind of message.
const COMMON: u8 = 0;
const DHCHAP: u8 = 1;

/// Byte 1, the message of its kind.
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// Authentication protocol identifier of DH-HMAC-CHAP.
const DHCHAP_PROTOCOL: u8 = 1;
/// Bytes of a protocol descriptor, and of its two lists.
const DESCRIPTOR_BYTES: usize = 64;
const LIST_BYTES: usize = 30;
/// Bytes before the values of a challenge, a reply or a success.
const HEADER_BYTES: usize = 16;
/// Bytes of a failure, and before the descriptors of a negotiation.
const SHORT_HEADER_BYTES: usize = 8;
/// The only reason there is for a failure: authentication failed.
const REASON_FAILED: u8 = 1;

/// Why an authentication failed (AUTH_Failure, Reason Code Explanation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Explanation {
    /// 01h: an answer is wrong.
    Failed,
    /// 02h: none of the protocols is known.
    ProtocolUnusable,
    /// 03h: secure channel concatenation is not possible, or was not asked for.
    SecureChannelMismatch,
    /// 04h: none of the hashes can be used.
    HashUnusable,
    /// 05h: none of the groups can be used.
    GroupUnusable,
    /// 06h: a message's content is wrong.
    IncorrectPayload,
    /// 07h: this message does not come now.
    IncorrectMessage,
    /// Another one.
    Other(u8),
}

impl Explanation {
    fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Failed,
            2 => Self::ProtocolUnusable,
            3 => Self::SecureChannelMismatch,
            4 => Self::HashUnusable,
            5 => Self::GroupUnusable,
            6 => Self::IncorrectPayload,
            7 => Self::IncorrectMessage,
            other => Self::Other(other),
        }
    }

    fn byte(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::ProtocolUnusable => 2,
            Self::SecureChannelMismatch => 3,
            Self::HashUnusable => 4,
            Self::GroupUnusable => 5,
            Self::IncorrectPayload => 6,
            Self::IncorrectMessage => 7,
            Self::Other(other) => other,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "wrong answer to a challenge",
            Self::ProtocolUnusable => "authentication protocol not usable",
            Self::SecureChannelMismatch => "secure channel concatenation mismatch",
            Self::HashUnusable => "hash function not usable",
            Self::GroupUnusable => "Diffie-Hellman group not usable",
            Self::IncorrectPayload => "incorrect payload",
            Self::IncorrectMessage => "incorrect protocol message",
            Self::Other(code) => return write!(f, "reason {code:02x}h"),
        })
    }
}

/// AUTH_Negotiate: what the host can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiate {
    /// The transaction, the host's choice.
    pub transaction: u16,
    /// Secure channel concatenation (SC_C): 0 for none, [`Negotiate::NEW_TLS_PSK`], or [`Negotiate::REPLACE_TLS_PSK`].
    pub secure_channel: u8,
    /// Identifiers of hashes, also unknown ones, as the host prefers them; at most 30. None at all when the
    /// host does not offer DH-HMAC-CHAP.
    pub hashes: Vec<u8>,
    /// The same of groups.
    pub groups: Vec<u8>,
}

impl Negotiate {
    /// SC_C 2: a TLS key shall be made, with which the host comes again (NEWTLSPSK).
    pub const NEW_TLS_PSK: u8 = 2;
    /// SC_C 3: the same, in the place of the one that it came with (REPLACETLSPSK).
    pub const REPLACE_TLS_PSK: u8 = 3;
}

/// DH-HMAC-CHAP_Challenge: what the controller chose, and its challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    /// The transaction.
    pub transaction: u16,
    /// The hash.
    pub hash: Hash,
    /// The group.
    pub group: Group,
    /// The sequence number of the challenge.
    pub sequence: u32,
    /// The challenge, as long as the hash.
    pub value: Vec<u8>,
    /// The controller's public value; empty without a group.
    pub public: Vec<u8>,
}

/// DH-HMAC-CHAP_Reply: the host's answer, and its own challenge if it wants to know the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The transaction.
    pub transaction: u16,
    /// The answer, 32, 48 or 64 bytes.
    pub answer: Vec<u8>,
    /// A challenge as long as the answer, and its sequence number: 0 if it is for a TLS key alone, and the
    /// controller need not prove itself.
    pub challenge: Option<(Vec<u8>, u32)>,
    /// The host's public value; empty without a group.
    pub public: Vec<u8>,
}

/// DH-HMAC-CHAP_Success1: the controller believes, and proves itself if it was asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Success1 {
    /// The transaction.
    pub transaction: u16,
    /// Bytes of the hash.
    pub hash_bytes: u8,
    /// The answer to the host's challenge.
    pub answer: Option<Vec<u8>>,
}

/// AUTH_Failure1 (of the controller) and AUTH_Failure2 (of the host).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The transaction.
    pub transaction: u16,
    /// Why.
    pub explanation: Explanation,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// From the host.
    Negotiate(Negotiate),
    /// From the controller.
    Challenge(Challenge),
    /// From the host.
    Reply(Reply),
    /// From the controller.
    Success1(Success1),
    /// From the host: the controller proved itself. Its transaction.
    Success2(u16),
    /// From the controller.
    Failure1(Failure),
    /// From the host.
    Failure2(Failure),
}

/// A message that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Malformed {
    /// What the answer to it says.
    pub explanation: Explanation,
    /// What is wrong.
    pub what: &'static str,
}

const fn payload(what: &'static str) -> Malformed {
    Malformed {
        explanation: Explanation::IncorrectPayload,
        what,
    }
}

impl Message {
    /// Reads a message. What lies behind it is ignored: hosts ask for more than they get.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let header: &[u8; SHORT_HEADER_BYTES] = bytes
            .first_chunk()
            .ok_or(payload("a message of less than 8 bytes"))?;
        let transaction = u16::from_le_bytes([header[4], header[5]]);
        let failure = || Failure {
            transaction,
            explanation: Explanation::from_byte(header[7]),
        };
        match (header[0], header[1]) {
            (COMMON, NEGOTIATE) => parse_negotiate(header, bytes).map(Self::Negotiate),
            (COMMON, FAILURE1) => Ok(Self::Failure1(failure())),
            (COMMON, FAILURE2) => Ok(Self::Failure2(failure())),
            (DHCHAP, CHALLENGE) => parse_challenge(transaction, bytes).map(Self::Challenge),
            (DHCHAP, REPLY) => parse_reply(transaction, bytes).map(Self::Reply),
            (DHCHAP, SUCCESS1) => parse_success1(transaction, bytes).map(Self::Success1),
            (DHCHAP, SUCCESS2) => Ok(Self::Success2(transaction)),
            _ => Err(Malformed {
                explanation: Explanation::IncorrectMessage,
                what: "an unknown message",
            }),
        }
    }

    /// The transaction that the message belongs to.
    #[must_use]
    pub fn transaction(&self) -> u16 {
        match self {
            Self::Negotiate(message) => message.transaction,
            Self::Challenge(message) => message.transaction,
            Self::Reply(message) => message.transaction,
            Self::Success1(message) => message.transaction,
            Self::Success2(transaction) => *transaction,
            Self::Failure1(failure) | Self::Failure2(failure) => failure.transaction,
        }
    }

    /// The wire form. Values longer than their length fields can say do not exist among those that this
    /// module computes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        let (kind, id) = match self {
            Self::Negotiate(_) => (COMMON, NEGOTIATE),
            Self::Challenge(_) => (DHCHAP, CHALLENGE),
            Self::Reply(_) => (DHCHAP, REPLY),
            Self::Success1(_) => (DHCHAP, SUCCESS1),
            Self::Success2(_) => (DHCHAP, SUCCESS2),
            Self::Failure1(_) => (COMMON, FAILURE1),
            Self::Failure2(_) => (COMMON, FAILURE2),
        };
        out.extend_from_slice(&[kind, id, 0, 0]);
        out.extend_from_slice(&self.transaction().to_le_bytes());
        match self {
            Self::Negotiate(message) => message.encode(&mut out),
            Self::Challenge(message) => message.encode(&mut out),
            Self::Reply(message) => message.encode(&mut out),
            Self::Success1(message) => {
                out.extend_from_slice(&[message.hash_bytes, 0, u8::from(message.answer.is_some())]);
                out.resize(HEADER_BYTES, 0);
                out.extend_from_slice(message.answer.as_deref().unwrap_or_default());
            }
            Self::Success2(_) => out.resize(HEADER_BYTES, 0),
            Self::Failure1(failure) | Self::Failure2(failure) => {
                out.extend_from_slice(&[REASON_FAILED, failure.explanation.byte()]);
            }
        }
        out
    }
}

impl Negotiate {
    fn encode(&self, out: &mut Vec<u8>) {
        let list = |ids: &[u8]| {
            let mut list = [0; LIST_BYTES];
            let count = ids.len().min(LIST_BYTES);
            list[..count].copy_from_slice(&ids[..count]);
            (count as u8, list)
        };
        let (hash_count, hashes) = list(&self.hashes);
        let (group_count, groups) = list(&self.groups);
        out.extend_from_slice(&[self.secure_channel, 1]);
        out.extend_from_slice(&[DHCHAP_PROTOCOL, 0, hash_count, group_count]);
        out.extend_from_slice(&hashes);
        out.extend_from_slice(&groups);
    }
}

impl Challenge {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.value.len() as u8, 0, self.hash.id(), self.group.id()]);
        out.extend_from_slice(&(self.public.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.value);
        out.extend_from_slice(&self.public);
    }
}

impl Reply {
    fn encode(&self, out: &mut Vec<u8>) {
        let asks = u8::from(self.challenge.is_some());
        let sequence = self.challenge.as_ref().map_or(0, |(_, sequence)| *sequence);
        out.extend_from_slice(&[self.answer.len() as u8, 0, asks, 0]);
        out.extend_from_slice(&(self.public.len() as u16).to_le_bytes());
        out.extend_from_slice(&sequence.to_le_bytes());
        out.extend_from_slice(&self.answer);
        match &self.challenge {
            Some((value, _)) => out.extend_from_slice(value),
            // There is room for one in any case.
            None => out.resize(out.len() + self.answer.len(), 0),
        }
        out.extend_from_slice(&self.public);
    }
}

fn parse_negotiate(
    header: &[u8; SHORT_HEADER_BYTES],
    bytes: &[u8],
) -> Result<Negotiate, Malformed> {
    let count = usize::from(header[7]);
    let descriptors = bytes
        .get(SHORT_HEADER_BYTES..SHORT_HEADER_BYTES + count * DESCRIPTOR_BYTES)
        .filter(|descriptors| !descriptors.is_empty())
        .ok_or(payload("a negotiation without its protocol descriptors"))?;
    let mut lists = (Vec::new(), Vec::new());
    let ours = descriptors
        .chunks_exact(DESCRIPTOR_BYTES)
        .find(|descriptor| descriptor[0] == DHCHAP_PROTOCOL);
    if let Some(descriptor) = ours {
        let [hash_count, group_count] = [descriptor[2], descriptor[3]].map(usize::from);
        if hash_count > LIST_BYTES || group_count > LIST_BYTES {
            return Err(payload("more hashes or groups than a descriptor holds"));
        }
        let ids = &descriptor[4..];
        lists.0.extend_from_slice(&ids[..hash_count]);
        lists
            .1
            .extend_from_slice(&ids[LIST_BYTES..LIST_BYTES + group_count]);
    }
    Ok(Negotiate {
        transaction: u16::from_le_bytes([header[4], header[5]]),
        secure_channel: header[6],
        hashes: lists.0,
        groups: lists.1,
    })
}

/// What challenges, replies and successes have in common.
fn long_header(bytes: &[u8]) -> Result<&[u8; HEADER_BYTES], Malformed> {
    bytes
        .first_chunk()
        .ok_or(payload("a message of less than 16 bytes"))
}

fn is_hash_length(length: u8) -> bool {
    Hash::ALL
        .iter()
        .any(|hash| hash.len() == usize::from(length))
}

/// `length` bytes from `at`.
fn value(bytes: &[u8], at: usize, length: usize) -> Result<Vec<u8>, Malformed> {
    bytes
        .get(at..at + length)
        .map(<[u8]>::to_vec)
        .ok_or(payload("a message shorter than the values that it names"))
}

fn parse_challenge(transaction: u16, bytes: &[u8]) -> Result<Challenge, Malformed> {
    let header = long_header(bytes)?;
    let hash = Hash::from_id(header[8]).ok_or(Malformed {
        explanation: Explanation::HashUnusable,
        what: "a challenge with an unknown hash",
    })?;
    let group = Group::from_id(header[9]).ok_or(Malformed {
        explanation: Explanation::GroupUnusable,
        what: "a challenge with an unknown group",
    })?;
    let public_bytes = usize::from(u16::from_le_bytes([header[10], header[11]]));
    if usize::from(header[6]) != hash.len() || public_bytes != group.value_bytes() {
        return Err(payload(
            "a challenge whose lengths are not those of its hash and group",
        ));
    }
    Ok(Challenge {
        transaction,
        hash,
        group,
        sequence: u32::from_le_bytes([header[12], header[13], header[14], header[15]]),
        value: value(bytes, HEADER_BYTES, hash.len())?,
        public: value(bytes, HEADER_BYTES + hash.len(), public_bytes)?,
    })
}

fn parse_reply(transaction: u16, bytes: &[u8]) -> Result<Reply, Malformed> {
    let header = long_header(bytes)?;
    if !is_hash_length(header[6]) {
        return Err(payload(
            "a reply with an answer that is not as long as a hash",
        ));
    }
    let length = usize::from(header[6]);
    let public_bytes = usize::from(u16::from_le_bytes([header[10], header[11]]));
    let sequence = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
    let challenge = value(bytes, HEADER_BYTES + length, length)?;
    Ok(Reply {
        transaction,
        answer: value(bytes, HEADER_BYTES, length)?,
        challenge: (header[8] & 1 != 0).then_some((challenge, sequence)),
        public: value(bytes, HEADER_BYTES + 2 * length, public_bytes)?,
    })
}

fn parse_success1(transaction: u16, bytes: &[u8]) -> Result<Success1, Malformed> {
    let header = long_header(bytes)?;
    if !is_hash_length(header[6]) {
        return Err(payload(
            "a success with an answer that is not as long as a hash",
        ));
    }
    let answer = match header[8] & 1 {
        0 => None,
        _ => Some(value(bytes, HEADER_BYTES, usize::from(header[6]))?),
    };
    Ok(Success1 {
        transaction,
        hash_bytes: header[6],
        answer,
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn hash() -> impl Strategy<Value = Hash> {
        (1u8..4).prop_map(|id| Hash::from_id(id).unwrap())
    }

    fn group() -> impl Strategy<Value = Group> {
        (0u8..6).prop_map(|id| Group::from_id(id).unwrap())
    }

    fn message() -> impl Strategy<Value = Message> {
        let any_failure = || {
            (any::<u16>(), any::<u8>()).prop_map(|(transaction, code)| Failure {
                transaction,
                explanation: Explanation::from_byte(code),
            })
        };
        prop_oneof![
            (
                any::<u16>(),
                any::<u8>(),
                vec(any::<u8>(), 0..=30),
                vec(any::<u8>(), 0..=30)
            )
                .prop_map(|(transaction, secure_channel, hashes, groups)| {
                    Message::Negotiate(Negotiate {
                        transaction,
                        secure_channel,
                        hashes,
                        groups,
                    })
                }),
            (any::<u16>(), hash(), group(), any::<u32>(), any::<u8>()).prop_map(
                |(transaction, hash, group, sequence, byte)| Message::Challenge(Challenge {
                    transaction,
                    hash,
                    group,
                    sequence,
                    value: vec![byte; hash.len()],
                    public: vec![!byte; group.value_bytes()],
                })
            ),
            (any::<u16>(), hash(), group(), any::<u32>(), any::<bool>()).prop_map(
                |(transaction, hash, group, sequence, asks)| Message::Reply(Reply {
                    transaction,
                    answer: vec![1; hash.len()],
                    challenge: asks.then(|| (vec![2; hash.len()], sequence)),
                    public: vec![3; group.value_bytes()],
                })
            ),
            (any::<u16>(), hash(), any::<bool>()).prop_map(|(transaction, hash, proves)| {
                Message::Success1(Success1 {
                    transaction,
                    hash_bytes: hash.len() as u8,
                    answer: proves.then(|| vec![4; hash.len()]),
                })
            }),
            any::<u16>().prop_map(Message::Success2),
            any_failure().prop_map(Message::Failure1),
            any_failure().prop_map(Message::Failure2),
        ]
    }

    proptest! {
        #[test]
        fn every_message_reads_back_also_with_room_behind_it(message in message(), room in 0usize..100) {
            let mut bytes = message.encode();
            prop_assert!(bytes.len() <= AUTH_DATA_BYTES_MAX);
            bytes.resize(bytes.len() + room, 0xee);
            prop_assert_eq!(Message::parse(&bytes), Ok(message));
        }

        #[test]
        fn a_message_that_ends_early_is_refused_and_never_panics(message in message(), cut in 1usize..2000) {
            let bytes = message.encode();
            let kept = bytes.len().saturating_sub(cut);
            // All of a Success2 behind the transaction is reserved.
            prop_assume!(!matches!(message, Message::Success2(_)) || kept < SHORT_HEADER_BYTES);
            let error = Message::parse(&bytes[..kept]).unwrap_err();
            prop_assert_eq!(error.explanation, Explanation::IncorrectPayload);
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(kind in 0u8..2, id in prop_oneof![0u8..6, 0xefu8..=0xf2], mut bytes in vec(any::<u8>(), 0..1300)) {
            if bytes.len() > 1 {
                bytes[0] = kind;
                bytes[1] = id;
            }
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(Message::parse(&message.encode()), Ok(message));
            }
        }
    }

    /// Bad input 25 of hosts, as far as it lies in the messages.
    #[test]
    fn lengths_that_lie_are_an_incorrect_payload() {
        let refused = |bytes: &[u8]| Message::parse(bytes).unwrap_err().explanation;
        // A negotiation of 8 bytes that names 1, and 255, descriptors.
        assert_eq!(
            refused(&[0, 0, 0, 0, 1, 0, 0, 1]),
            Explanation::IncorrectPayload
        );
        assert_eq!(
            refused(&[0, 0, 0, 0, 1, 0, 0, 255]),
            Explanation::IncorrectPayload
        );
        assert_eq!(
            refused(&[0, 0, 0, 0, 1, 0, 0, 0]),
            Explanation::IncorrectPayload
        );
        let mut negotiate = Message::Negotiate(Negotiate {
            transaction: 1,
            secure_channel: 0,
            hashes: vec![1],
            groups: vec![0],
        })
        .encode();
        for at in [10, 11] {
            let good = std::mem::replace(&mut negotiate[at], 255);
            assert_eq!(refused(&negotiate), Explanation::IncorrectPayload);
            negotiate[at] = good;
        }
        let reply = Message::Reply(Reply {
            transaction: 1,
            answer: vec![0; 32],
            challenge: None,
            public: vec![],
        })
        .encode();
        for (at, bytes) in [(6, vec![255]), (6, vec![0]), (10, vec![0xff, 0xff])] {
            let mut bad = reply.clone();
            bad[at..at + bytes.len()].copy_from_slice(&bytes);
            assert_eq!(refused(&bad), Explanation::IncorrectPayload);
        }
        assert_eq!(
            refused(&[1, 9, 0, 0, 0, 0, 0, 0]),
            Explanation::IncorrectMessage
        );
    }

    #[test]
    fn protocols_that_are_not_known_are_passed_over() {
        let mut bytes = Message::Negotiate(Negotiate {
            transaction: 9,
            secure_channel: 0,
            hashes: vec![3, 1],
            groups: vec![5],
        })
        .encode();
        // Another protocol before it.
        let mut other = [0u8; DESCRIPTOR_BYTES];
        other[..4].copy_from_slice(&[7, 0, 255, 255]);
        bytes.splice(SHORT_HEADER_BYTES..SHORT_HEADER_BYTES, other);
        bytes[7] = 2;
        let Ok(Message::Negotiate(negotiate)) = Message::parse(&bytes) else {
            panic!("the second descriptor is a good one");
        };
        assert_eq!((negotiate.hashes, negotiate.groups), (vec![3, 1], vec![5]));
        bytes.truncate(SHORT_HEADER_BYTES + DESCRIPTOR_BYTES);
        bytes[7] = 1;
        let Ok(Message::Negotiate(negotiate)) = Message::parse(&bytes) else {
            panic!("a negotiation of another protocol can be read");
        };
        assert!(negotiate.hashes.is_empty());
    }

    #[test]
    fn a_challenge_with_one_length_that_is_not_its_hashs_or_groups_is_refused() {
        let (hash, group) = (Hash::from_id(2).unwrap(), Group::from_id(1).unwrap());
        let challenge = Challenge {
            transaction: 1,
            hash,
            group,
            sequence: 2,
            value: vec![3; hash.len()],
            public: vec![4; group.value_bytes()],
        };
        let bytes = Message::Challenge(challenge).encode();
        assert!(Message::parse(&bytes).is_ok());
        // The field of each length, and a length that is one too small: no value is missing then.
        let (value, public) = (hash.len() - 1, group.value_bytes() - 1);
        for (field, length) in [(6..7, value), (10..12, public)] {
            let mut wrong = bytes.clone();
            wrong[field.clone()].copy_from_slice(&length.to_le_bytes()[..field.len()]);
            assert!(Message::parse(&wrong).is_err(), "bytes {field:?}");
        }
    }

    #[test]
    fn a_negotiation_names_as_many_hashes_and_groups_as_a_descriptor_holds() {
        let full = Message::Negotiate(Negotiate {
            transaction: 1,
            secure_channel: 0,
            hashes: vec![3; LIST_BYTES],
            groups: vec![5; LIST_BYTES],
        });
        let bytes = full.encode();
        assert_eq!(Message::parse(&bytes), Ok(full));
        for count in [2, 3] {
            let mut more = bytes.clone();
            more[SHORT_HEADER_BYTES + count] += 1;
            assert!(Message::parse(&more).is_err(), "byte {count}");
        }
    }
}
