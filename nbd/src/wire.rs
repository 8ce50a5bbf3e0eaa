//! The messages of the transmission phase, and the numbers of the protocol. All are big-endian.

use thiserror::Error;

/// The first 8 bytes of a server (`NBDMAGIC`).
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// What begins an option (`IHAVEOPT`).
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// What begins the answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// What begins a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// What begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// What begins a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a request, without the data of a write.
pub const REQUEST_BYTES: usize = 28;

/// The smallest block that a client may address.
pub const BLOCK_BYTES_MIN: u32 = 512;
/// The block that requests should be multiples of.
pub const BLOCK_BYTES_PREFERRED: u32 = 4096;
/// The longest data of one request: what the protocol asks servers to take at least.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The longest string that the protocol has.
pub const STRING_BYTES_MAX: usize = 4096;

/// Flags of an export (`NBD_FLAG_`).
pub mod export_flag {
    /// There are flags.
    pub const HAS_FLAGS: u16 = 1;
    /// It takes no writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// It takes Flush.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// It takes writes that survive a loss of power at once.
    pub const SEND_FUA: u16 = 1 << 3;
    /// It takes Trim.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// It takes Write Zeroes.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// It takes reads whose answer must be one chunk.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection is one for all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// It takes Write Zeroes that must be fast.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a request (`NBD_CMD_FLAG_`).
pub mod command_flag {
    /// Survives a loss of power when it is answered.
    pub const FUA: u16 = 1;
    /// Zeros shall not be a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One chunk of data at most.
    pub const DF: u16 = 1 << 2;
    /// One extent at most.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeros only if that is fast.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of chunks (`NBD_REPLY_TYPE_`).
mod chunk {
    pub(super) const NONE: u16 = 0;
    pub(super) const OFFSET_DATA: u16 = 1;
    pub(super) const OFFSET_HOLE: u16 = 2;
    pub(super) const BLOCK_STATUS: u16 = 5;
    pub(super) const ERROR: u16 = (1 << 15) + 1;
}

/// Of a chunk: no other follows.
const CHUNK_DONE: u16 = 1;

/// What a request may be told that it failed for (`NBD_E`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// It may not be done here.
    Perm = 1,
    /// Data could not be read or written.
    Io = 5,
    /// It makes no sense.
    Invalid = 22,
    /// There is no room.
    NoSpace = 28,
    /// It is too long.
    Overflow = 75,
    /// The export ends.
    Shutdown = 108,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `NBD_CMD_READ`
    Read,
    /// `NBD_CMD_WRITE`; its data follow.
    Write,
    /// `NBD_CMD_DISC`
    Disconnect,
    /// `NBD_CMD_FLUSH`
    Flush,
    /// `NBD_CMD_TRIM`
    Trim,
    /// `NBD_CMD_WRITE_ZEROES`
    WriteZeroes,
    /// `NBD_CMD_BLOCK_STATUS`
    BlockStatus,
    /// A number that means nothing here.
    Unknown(u16),
}

impl From<u16> for Command {
    fn from(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }
}

impl Command {
    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Unknown(number) => number,
        }
    }

    /// The flags that it may have. FUA is allowed everywhere, because clients set it everywhere.
    const fn flags(self, structured: bool) -> u16 {
        use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
        match self {
            Self::Read if structured => FUA | DF,
            Self::WriteZeroes => FUA | NO_HOLE | FAST_ZERO,
            Self::BlockStatus => FUA | REQ_ONE,
            _ => FUA,
        }
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub command: Command,
    /// How: see [`command_flag`].
    pub flags: u16,
    /// What the client knows it by.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub len: u32,
}

/// What the client sends is not NBD: nothing after it can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Lost {
    /// A request that does not begin as one.
    #[error("what should be a request has no magic number")]
    NoRequest,
    /// More data than can be taken.
    #[error("a write of {0} bytes, where {PAYLOAD_BYTES_MAX} is the bound that it was told")]
    TooLong(u32),
}

impl Request {
    /// Takes a request from its bytes.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Lost> {
        let [m0, m1, m2, m3, f0, f1, c0, c1, rest @ ..] = *bytes;
        if u32::from_be_bytes([m0, m1, m2, m3]) != REQUEST_MAGIC {
            return Err(Lost::NoRequest);
        }
        let [
            k0,
            k1,
            k2,
            k3,
            k4,
            k5,
            k6,
            k7,
            o0,
            o1,
            o2,
            o3,
            o4,
            o5,
            o6,
            o7,
            len @ ..,
        ] = rest;
        let request = Self {
            command: u16::from_be_bytes([c0, c1]).into(),
            flags: u16::from_be_bytes([f0, f1]),
            cookie: u64::from_be_bytes([k0, k1, k2, k3, k4, k5, k6, k7]),
            offset: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            len: u32::from_be_bytes(len),
        };
        match request.payload() > PAYLOAD_BYTES_MAX {
            true => Err(Lost::TooLong(request.len)),
            false => Ok(request),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        let fields: [&[u8]; 6] = [
            &REQUEST_MAGIC.to_be_bytes(),
            &self.flags.to_be_bytes(),
            &self.command.number().to_be_bytes(),
            &self.cookie.to_be_bytes(),
            &self.offset.to_be_bytes(),
            &self.len.to_be_bytes(),
        ];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        bytes
    }

    /// Bytes of data that follow it.
    #[must_use]
    pub const fn payload(&self) -> u32 {
        match self.command {
            Command::Write => self.len,
            _ => 0,
        }
    }

    /// Whether a flag is set.
    #[must_use]
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether it makes sense, wherever it goes to.
    ///
    /// # Errors
    /// What its client is told.
    pub fn check(&self, structured: bool) -> Result<(), Refused> {
        if self.flags & !self.command.flags(structured) != 0 {
            return Err(Refused::invalid("a flag that this command does not have"));
        }
        let is_aligned = self.offset.is_multiple_of(BLOCK_BYTES_MIN.into())
            && self.len.is_multiple_of(BLOCK_BYTES_MIN);
        match self.command {
            Command::Unknown(_) => Err(Refused::invalid("no such command")),
            Command::Flush if (self.offset, self.len) != (0, 0) => {
                Err(Refused::invalid("a flush has no range"))
            }
            Command::Read if self.len > PAYLOAD_BYTES_MAX => Err(Refused {
                errno: match structured {
                    true => Errno::Overflow,
                    false => Errno::Invalid,
                },
                text: "more than one read may ask for".to_owned(),
            }),
            _ if !is_aligned => Err(Refused::invalid(
                "a range that is not of whole blocks of 512 bytes",
            )),
            _ if self.offset.checked_add(self.len.into()).is_none() => Err(Refused::invalid(
                "a range behind all bytes that there can be",
            )),
            _ => Ok(()),
        }
    }
}

/// Why a request is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// By number.
    pub errno: Errno,
    /// For a person to read.
    pub text: String,
}

impl Refused {
    pub(crate) fn invalid(text: &str) -> Self {
        Self {
            errno: Errno::Invalid,
            text: text.to_owned(),
        }
    }
}

/// The answer to a request without structured replies; data follow that of a read that went well.
#[must_use]
pub fn simple_reply(cookie: u64, errno: Option<Errno>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes.extend(errno.map_or(0, |errno| errno as u32).to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

fn chunk(cookie: u64, kind: u16, is_last: bool, payload: usize) -> Vec<u8> {
    let flags = if is_last { CHUNK_DONE } else { 0 };
    let mut bytes = Vec::with_capacity(32);
    bytes.extend(CHUNK_MAGIC.to_be_bytes());
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    // All payloads are far below 4 GiB.
    bytes.extend((payload as u32).to_be_bytes());
    bytes
}

/// The end of a reply that went well.
#[must_use]
pub fn done_chunk(cookie: u64) -> Vec<u8> {
    chunk(cookie, chunk::NONE, true, 0)
}

/// What comes before so many bytes of data.
#[must_use]
pub fn data_chunk(cookie: u64, is_last: bool, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = chunk(cookie, chunk::OFFSET_DATA, is_last, 8 + len);
    bytes.extend(offset.to_be_bytes());
    bytes
}

/// So many bytes that are zeros.
#[must_use]
pub fn hole_chunk(cookie: u64, is_last: bool, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = chunk(cookie, chunk::OFFSET_HOLE, is_last, 12);
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

/// The end of a reply that failed.
#[must_use]
pub fn error_chunk(cookie: u64, refused: &Refused) -> Vec<u8> {
    let text = refused.text.as_bytes();
    let text = &text[..text.len().min(STRING_BYTES_MAX)];
    let mut bytes = chunk(cookie, chunk::ERROR, true, 6 + text.len());
    bytes.extend((refused.errno as u32).to_be_bytes());
    bytes.extend((text.len() as u16).to_be_bytes());
    bytes.extend(text);
    bytes
}

/// What a context says of a part of the export: lengths and flags, one behind the other.
#[must_use]
pub fn status_chunk(cookie: u64, context: u32, descriptors: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = chunk(
        cookie,
        chunk::BLOCK_STATUS,
        false,
        4 + 8 * descriptors.len(),
    );
    bytes.extend(context.to_be_bytes());
    for (len, flags) in descriptors {
        bytes.extend(len.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(command: Command) -> Request {
        Request {
            command,
            flags: 0,
            cookie: 7,
            offset: 4096,
            len: 4096,
        }
    }

    proptest! {
        #[test]
        fn a_request_is_what_its_bytes_say(
            number: u16, flags: u16, cookie: u64, offset: u64, len: u32,
        ) {
            let sent = Request { command: number.into(), flags, cookie, offset, len };
            match Request::parse(&sent.encode()) {
                Ok(got) => prop_assert_eq!(got, sent),
                Err(lost) => {
                    prop_assert_eq!(lost, Lost::TooLong(len));
                    prop_assert!(number == 1 && len > PAYLOAD_BYTES_MAX);
                }
            }
        }

        #[test]
        fn no_request_is_found_in_bytes_that_do_not_begin_as_one(bytes: [u8; REQUEST_BYTES]) {
            prop_assume!(bytes[..4] != REQUEST_MAGIC.to_be_bytes());
            prop_assert_eq!(Request::parse(&bytes), Err(Lost::NoRequest));
        }

        #[test]
        fn a_range_that_passes_ends_before_the_end_of_numbers(
            number in 0u16..9, flags: u16, offset: u64, len: u32, structured: bool,
        ) {
            let request = Request { command: number.into(), flags, cookie: 0, offset, len };
            if request.check(structured).is_ok() {
                prop_assert!(offset.checked_add(len.into()).is_some());
                prop_assert!(offset % 512 == 0 && len % 512 == 0);
                prop_assert!(request.command != Command::Read || len <= PAYLOAD_BYTES_MAX);
            }
        }
    }

    #[test]
    fn flags_of_other_commands_are_refused() {
        let with = |command, flags, structured| {
            let request = Request {
                flags,
                ..request(command)
            };
            request.check(structured).is_ok()
        };
        assert!(with(Command::Read, command_flag::DF, true));
        assert!(
            !with(Command::Read, command_flag::DF, false),
            "not negotiated"
        );
        assert!(with(Command::Write, command_flag::FUA, false));
        assert!(!with(Command::Write, command_flag::NO_HOLE, true));
        let zero = command_flag::NO_HOLE | command_flag::FAST_ZERO | command_flag::FUA;
        assert!(with(Command::WriteZeroes, zero, true));
        assert!(!with(Command::Trim, command_flag::FAST_ZERO, true));
        assert!(with(Command::BlockStatus, command_flag::REQ_ONE, true));
        for flag in 5..16 {
            assert!(!with(Command::Read, 1 << flag, true), "bit {flag}");
        }
    }

    #[test]
    fn a_text_of_an_error_is_cut_where_the_protocol_ends() {
        let refused = Refused {
            errno: Errno::Io,
            text: "x".repeat(70_000),
        };
        let bytes = error_chunk(1, &refused);
        assert_eq!(bytes.len(), 20 + 6 + STRING_BYTES_MAX);
        assert_eq!(bytes[16..20], (6 + STRING_BYTES_MAX as u32).to_be_bytes());
        assert_eq!(bytes[24..26], (STRING_BYTES_MAX as u16).to_be_bytes());
    }
}
