//! Fields that several connection management messages have.

use std::fmt;
use std::time::Duration;

use crate::wire::WireError;
use crate::wire::mad::BODY_LEN;

/// Private data of a message: always `N` bytes on the wire, the rest zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>([u8; N]);

/// More private data than the message has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "private data of {have} bytes does not fit into the {room} bytes of the message; shorten it"
)]
pub struct PrivateDataTooLong {
    /// Bytes given.
    pub have: usize,
    /// Bytes that the message has room for.
    pub room: usize,
}

impl<const N: usize> PrivateData<N> {
    /// Private data that begins with `data`.
    ///
    /// # Errors
    /// If there are more than `N` bytes.
    pub fn new(data: &[u8]) -> Result<Self, PrivateDataTooLong> {
        let mut bytes = [0; N];
        bytes
            .get_mut(..data.len())
            .ok_or(PrivateDataTooLong {
                have: data.len(),
                room: N,
            })?
            .copy_from_slice(data);
        Ok(Self(bytes))
    }

    /// All `N` bytes.
    pub fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The field at a constant offset of a message's body.
    pub(super) fn at(body: &[u8; BODY_LEN], offset: usize) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&body[offset..offset + N]);
        Self(bytes)
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Most of it is zero; only what precedes the last other byte is worth reading.
        let used = self
            .0
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        write!(f, "PrivateData<{N}>(")?;
        for byte in &self.0[..used] {
            write!(f, "{byte:02x}")?;
        }
        write!(f, ")")
    }
}

/// Which message an MRA or REJ is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectedMessage {
    /// A request.
    Req,
    /// A reply.
    Rep,
    /// Something else: a load-alternate-path message in an MRA, none in a REJ (which then says that
    /// the connection is gone).
    Other,
}

impl RejectedMessage {
    pub(super) fn from_code(message: &'static str, code: u8) -> Result<Self, WireError> {
        match code {
            0 => Ok(Self::Req),
            1 => Ok(Self::Rep),
            2 => Ok(Self::Other),
            value => Err(WireError::Field {
                message,
                field: "Message",
                value: u64::from(value),
            }),
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other => 2,
        }
    }
}

/// A time as a 5-bit code: 4.096 microseconds times two to the power of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CmTimeout(u8);

/// How long the sender of a message waits for an acknowledgement of a packet: the same code as
/// [`CmTimeout`].
pub type AckTimeout = CmTimeout;

/// How long the sender of an MRA needs: the same code as [`CmTimeout`].
pub type ServiceTimeout = CmTimeout;

impl CmTimeout {
    /// The time of the lower five bits of a code.
    pub const fn from_code(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The smallest code whose time is at least that long; the largest there is (2.4 hours) if none
    /// is.
    pub fn at_least(time: Duration) -> Self {
        (0..31)
            .map(Self)
            .find(|code| code.duration() >= time)
            .unwrap_or(Self(31))
    }

    /// The 5-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }
}
