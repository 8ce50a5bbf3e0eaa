//! What streams are made of, and the codec of one frame.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What every stream begins with.
pub const MAGIC: &[u8; 16] = b"onefold stream\n\0";

/// The version of the format that this program writes and reads.
pub const VERSION: u32 = 1;

/// What offsets and lengths are multiples of: the engine's sub-block.
pub const BLOCK_BYTES: u64 = 4096;

/// Bytes of data in one frame at most.
pub const DATA_BYTES_MAX: usize = 1 << 20;

/// Ranges of one frame of references at most.
pub const RANGES_MAX: usize = 4096;

/// Bytes of a head at most.
pub const HEAD_BYTES_MAX: usize = 4096;

/// Bytes of a name at most.
const NAME_BYTES_MAX: usize = 64;

/// Bytes before a frame's payload.
pub(crate) const HEADER_BYTES: usize = 8;

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;

/// Bytes of a reference.
const SAME_BYTES: usize = 24;

/// What a stream is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The format's version.
    pub version: u32,
    /// The volume that it was sent from.
    pub volume: String,
    /// The snapshot's name behind the `@`.
    pub snapshot: String,
    /// What names the snapshot's content in every pool that received it.
    pub content: Uuid,
    /// When it was taken, in seconds since 1970.
    pub created: u64,
    /// The size of the volume at that time.
    pub size_bytes: u64,
    /// Bytes of its logical blocks.
    pub lba_bytes: u32,
    /// What the receiver has to have already, if the stream has changes alone.
    pub base: Option<Base>,
    /// The stream has nothing of what lies before this byte.
    pub start_bytes: u64,
}

/// A snapshot that sender and receiver have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// Its name behind the `@`, as the sender knows it.
    pub snapshot: String,
    /// What names its content.
    pub content: Uuid,
}

/// Bytes of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first one.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

/// A range that has the same content as one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Same {
    /// The range.
    pub range: Range,
    /// Where the other one begins. It ends before this one begins.
    pub from: u64,
}

/// What a stream had, in bytes of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Sent as data.
    pub data_bytes: u64,
    /// Zeros.
    pub zero_bytes: u64,
    /// References to what came before.
    pub same_bytes: u64,
}

/// A part of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// What it is about; the first one.
    Head(Head),
    /// Data that belong at an offset: whole blocks, at most [`DATA_BYTES_MAX`].
    Data(u64, Vec<u8>),
    /// Zeros.
    Zeros(Range),
    /// Contents that came before: at most [`RANGES_MAX`].
    Same(Vec<Same>),
    /// All was sent.
    End(Totals),
}

/// Why a stream is refused.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// There is nothing.
    #[error("nothing came: what sends it says why")]
    Empty,
    /// It does not begin as streams do.
    #[error("it is no stream of `onefold send`")]
    NotAStream,
    /// A newer program wrote it.
    #[error(
        "it is a stream of version {0}, and this program reads version {VERSION}: use a newer one here"
    )]
    Version(u32),
    /// It ends too early.
    #[error(
        "it ends in the middle, behind {0} whole frames: what sent it was stopped, or the connection broke"
    )]
    Cut(u64),
    /// A frame is not what the sender wrote.
    #[error("its frame {0} was changed on the way")]
    Damaged(u64),
    /// A frame breaks a rule of the format.
    #[error("its frame {0} is wrong: {1}")]
    Wrong(u64, &'static str),
    /// It cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Whether a volume or a snapshot can have that name: people read it, and type it.
pub(crate) fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// What each frame's tag follows from.
pub(crate) type Tag = [u8; TAG_BYTES];

/// The tag of a frame.
pub(crate) fn tag_of(before: &[u8], header: &[u8], payload: &[u8]) -> Tag {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(header).update(payload);
    let mut tag = [0; TAG_BYTES];
    hasher.finalize_xof().fill(&mut tag);
    tag
}

const HEAD: u8 = 1;
const DATA: u8 = 2;
const ZEROS: u8 = 3;
const SAME: u8 = 4;
const END: u8 = 5;

/// A frame's payload as a part that is made, and one that is only passed on.
pub(crate) fn encode(frame: &Frame) -> Result<(u8, Vec<u8>, &[u8]), std::io::Error> {
    let numbers = |numbers: &[u64]| numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
    Ok(match frame {
        Frame::Head(head) => (HEAD, serde_json::to_vec(head)?, &[]),
        Frame::Data(offset, data) => (DATA, offset.to_le_bytes().to_vec(), data),
        Frame::Zeros(range) => (ZEROS, numbers(&[range.offset, range.length]), &[]),
        Frame::Same(ranges) => {
            let fields = |same: &Same| [same.range.offset, same.from, same.range.length];
            let all: Vec<u64> = ranges.iter().flat_map(fields).collect();
            (SAME, numbers(&all), &[])
        }
        Frame::End(totals) => {
            let Totals {
                data_bytes,
                zero_bytes,
                same_bytes,
            } = *totals;
            (END, numbers(&[data_bytes, zero_bytes, same_bytes]), &[])
        }
    })
}

/// The bytes before a payload.
pub(crate) fn header(kind: u8, length: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = kind;
    // Payloads are bounded far below 4 GiB.
    header[4..].copy_from_slice(&(length as u32).to_le_bytes());
    header
}

/// The kind of a frame and the length of its payload, if there is such a frame.
pub(crate) fn kind_and_length(header: [u8; HEADER_BYTES]) -> Result<(u8, usize), &'static str> {
    let [kind, zeros @ .., a, b, c, d] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if zeros != [0; 3] {
        return Err("bytes that are reserved are set");
    }
    let fits = match kind {
        HEAD => length <= HEAD_BYTES_MAX,
        DATA => (8..=8 + DATA_BYTES_MAX).contains(&length),
        ZEROS => length == 16,
        SAME => length <= RANGES_MAX * SAME_BYTES && length.is_multiple_of(SAME_BYTES),
        END => length == 24,
        _ => return Err("there is no such kind of frame"),
    };
    match fits {
        true => Ok((kind, length)),
        false => Err("its length does not fit its kind"),
    }
}

/// The version of a head, whatever else it says.
pub(crate) fn version_of(kind: u8, payload: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let parsed = (kind == HEAD).then(|| serde_json::from_slice::<Versioned>(payload));
    parsed?.ok().map(|head| head.version)
}

/// A payload of the length that [`kind_and_length`] has checked.
pub(crate) fn decode(kind: u8, payload: Vec<u8>) -> Result<Frame, &'static str> {
    let (words, rest) = payload.as_chunks::<8>();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
    match kind {
        HEAD => match serde_json::from_slice(&payload) {
            Ok(head) => Ok(Frame::Head(head)),
            Err(_) => Err("its head cannot be understood"),
        },
        DATA if rest.is_empty() => {
            let offset = word(0);
            let mut data = payload;
            data.drain(..8);
            Ok(Frame::Data(offset, data))
        }
        ZEROS => Ok(Frame::Zeros(Range {
            offset: word(0),
            length: word(1),
        })),
        SAME => {
            let same = |at: usize| Same {
                range: Range {
                    offset: word(at),
                    length: word(at + 2),
                },
                from: word(at + 1),
            };
            Ok(Frame::Same((0..words.len()).step_by(3).map(same).collect()))
        }
        END => Ok(Frame::End(Totals {
            data_bytes: word(0),
            zero_bytes: word(1),
            same_bytes: word(2),
        })),
        _ => Err("its data are no whole blocks"),
    }
}
