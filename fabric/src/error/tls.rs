//! Why TLS ended a connection, with the remedy.
//!
//! Guarantee: what a peer said of itself is shown escaped, and no more of it than an identity has.

use std::fmt;
use std::sync::Arc;

/// Why TLS ended a connection, or did not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsFailure {
    /// A host came in clear.
    Clear,
    /// A host named no key.
    NoIdentity,
    /// None of the keys that a host named is known.
    UnknownIdentity {
        /// The first one.
        identity: Arc<str>,
    },
    /// The peer has another key by that name.
    WrongKey {
        /// The key's.
        identity: Arc<str>,
    },
    /// The peer ended the handshake or the connection with this alert (RFC 8446, section 6).
    Alert(u8),
    /// The peer ended the connection during the handshake, without a word.
    Ended,
    /// The handshake took too long.
    Stalled,
    /// The peer's address has to wait because its handshakes failed.
    HeldOff,
    /// The handshake has more bytes than any that is right.
    TooLong,
    /// The handshake failed for another reason, as OpenSSL calls it.
    Handshake(&'static str),
    /// The connection's keys have protected as much as they may, and its host does not change them.
    KeyUsedUp,
    /// A record was damaged on its way, or forged, or is none, as OpenSSL calls it.
    Record(&'static str),
    /// OpenSSL cannot do it: no memory, or a policy of the system forbids it.
    Library(&'static str),
}

/// Alerts that a user may meet.
const ALERTS: [(u8, &str); 9] = [
    (10, "unexpected_message"),
    (20, "bad_record_mac"),
    (40, "handshake_failure"),
    (47, "illegal_parameter"),
    (50, "decode_error"),
    (51, "decrypt_error"),
    (70, "protocol_version"),
    (80, "internal_error"),
    (115, "unknown_psk_identity"),
];

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clear => f.write_str(
                "the host does not begin with TLS, which this port requires: attach it with --tls",
            ),
            Self::NoIdentity => f.write_str(
                "the host offers TLS without a pre-shared key; give it a key for this subsystem",
            ),
            Self::UnknownIdentity { identity } => write!(
                f,
                "the host names a TLS key that is not known here ({:?}); both ends need the same key, host NQN \
                 and subsystem NQN",
                Short(identity)
            ),
            Self::WrongKey { identity } => write!(
                f,
                "the peer has another TLS key for {:?}; give both ends the same one",
                Short(identity)
            ),
            Self::Alert(alert) => {
                let name = ALERTS.iter().find(|(number, _)| number == alert);
                let name = name.map_or("", |(_, name)| name);
                write!(
                    f,
                    "the peer ended TLS with alert {alert} {name}; both ends need the same key, host NQN and \
                     subsystem NQN"
                )
            }
            Self::Ended => f.write_str(
                "the peer hung up during the TLS handshake; see whether its port speaks TLS, and its log",
            ),
            Self::Stalled => f.write_str("the peer did not finish the TLS handshake in time"),
            Self::HeldOff => f.write_str(
                "TLS handshakes of this address failed before: it has to wait before the next one",
            ),
            Self::TooLong => f.write_str("the peer's TLS handshake does not end"),
            Self::Handshake(reason) => write!(f, "the TLS handshake failed: {reason}"),
            Self::KeyUsedUp => f.write_str(
                "the keys of this TLS connection have protected as much as AES-GCM is good for: the host connects \
                 again, with new ones",
            ),
            Self::Record(reason) => write!(f, "a TLS record is damaged or forged: {reason}"),
            Self::Library(reason) => write!(
                f,
                "OpenSSL cannot do TLS 1.3 with a pre-shared key: {reason}; see the system's policy for it"
            ),
        }
    }
}

/// An identity in a message: what a host says may be long.
struct Short<'a>(&'a str);

impl fmt::Debug for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// As long as the longest of version 1: two NQNs of 223 bytes and a digest of 64.
        const CHARACTERS_MAX: usize = 9 + 223 + 1 + 223 + 1 + 64;
        let end = self.0.char_indices().nth(CHARACTERS_MAX);
        fmt::Debug::fmt(&self.0[..end.map_or(self.0.len(), |(at, _)| at)], f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_no_more_of_a_host_s_words_than_an_identity_has() {
        let identity = Arc::from("\u{1b}[31m".repeat(10_000));
        let text = TlsFailure::UnknownIdentity { identity }.to_string();
        assert!(text.len() < 10_000 && !text.contains('\u{1b}'), "{text}");
    }
}
