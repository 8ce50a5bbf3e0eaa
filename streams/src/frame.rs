//! What streams are made of, and the codec of one frame.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What every stream begins with.
pub const MAGIC: &[u8; 16] = b"onefold stream\n\0";

/// The version of a stream that goes one way.
pub const VERSION: u32 = 1;

/// The version of a stream whose sender listens to answers.
pub const VERSION_WITH_ANSWERS: u32 = 2;

/// What offsets and lengths are multiples of: the engine's sub-block.
pub const BLOCK_BYTES: u64 = 4096;

/// Bytes of data in one frame at most.
pub const DATA_BYTES_MAX: usize = 1 << 20;

/// Ranges of one frame of references at most.
pub const RANGES_MAX: usize = 4096;

/// Blocks of one offer at most: 4 MiB.
pub const OFFERED_MAX: usize = 1024;

/// Blocks at most that were offered, and whose content or reference did not follow yet: 64 MiB.
pub const OPEN_MAX: usize = 16 * OFFERED_MAX;

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

/// Bytes of an offered block without its fingerprint, and with it.
const OFFERED_BYTES: usize = 8 + 32;
const FINGERPRINTED_BYTES: usize = OFFERED_BYTES + 16;

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
    /// The sender listens to answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Exchange>,
}

impl Head {
    /// The version that a stream with this head has.
    pub(crate) fn version_needed(&self) -> u32 {
        match self.exchange {
            None => VERSION,
            Some(_) => VERSION_WITH_ANSWERS,
        }
    }
}

/// What a sender says that listens to answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// The key of the stream's content hashes, made for this stream.
    pub key: Digest,
    /// Proves the key of the fingerprints to a receiver that has the same one, and tells nothing of it to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Digest>,
}

/// 256 bits, in text as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub [u8; 32]);

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        blake3::Hash::from_bytes(digest.0).to_hex().to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match blake3::Hash::from_hex(&text) {
            Ok(hash) => Ok(Self(*hash.as_bytes())),
            Err(_) => Err("expected 64 hexadecimal digits"),
        }
    }
}

/// The content hash of a block in the stream with that key.
#[must_use]
pub fn content_hash(key: &Digest, block: &[u8]) -> Digest {
    Digest(*blake3::keyed_hash(&key.0, block).as_bytes())
}

/// A block that the receiver may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Where it belongs.
    pub offset: u64,
    /// Its [`content_hash`].
    pub hash: Digest,
    /// Its fingerprint in both pools, if they share a key.
    pub fingerprint: Option<[u8; 16]>,
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
    /// What the receiver had.
    #[serde(default)]
    pub known_bytes: u64,
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
    /// Blocks whose data or reference follow when the receiver has answered: at most [`OFFERED_MAX`], in order. All have
    /// fingerprints, or none.
    Offer(Vec<Offered>),
    /// A range of offered blocks that the receiver said it has.
    Known(Range),
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
        "it is a stream of version {0}, and this program reads versions up to {VERSION_WITH_ANSWERS}: use a newer one \
         here"
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
const OFFER: u8 = 6;
const OFFER_WITH_FINGERPRINTS: u8 = 7;
const KNOWN: u8 = 8;

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
        Frame::Offer(blocks) => {
            let has_fingerprints = blocks.iter().any(|block| block.fingerprint.is_some());
            let mut payload = Vec::with_capacity(blocks.len() * FINGERPRINTED_BYTES);
            for block in blocks {
                payload.extend_from_slice(&block.offset.to_le_bytes());
                payload.extend_from_slice(&block.hash.0);
                if has_fingerprints {
                    payload.extend_from_slice(&block.fingerprint.unwrap_or_default());
                }
            }
            match has_fingerprints {
                false => (OFFER, payload, &[]),
                true => (OFFER_WITH_FINGERPRINTS, payload, &[]),
            }
        }
        Frame::Known(range) => (KNOWN, numbers(&[range.offset, range.length]), &[]),
        Frame::End(totals) => {
            let Totals {
                data_bytes,
                zero_bytes,
                same_bytes,
                known_bytes,
            } = *totals;
            let all = [data_bytes, zero_bytes, same_bytes, known_bytes];
            // Streams that go one way are what they always were.
            let len = if known_bytes == 0 { 3 } else { 4 };
            (END, numbers(&all[..len]), &[])
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

/// Whether an offer has a length that some blocks of so many bytes have.
fn is_count(length: usize, each: usize) -> bool {
    length.is_multiple_of(each) && (1..=OFFERED_MAX).contains(&(length / each))
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
        ZEROS | KNOWN => length == 16,
        OFFER => is_count(length, OFFERED_BYTES),
        OFFER_WITH_FINGERPRINTS => is_count(length, FINGERPRINTED_BYTES),
        SAME => length <= RANGES_MAX * SAME_BYTES && length.is_multiple_of(SAME_BYTES),
        END => length == 24 || length == 32,
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
        ZEROS | KNOWN => {
            let range = Range {
                offset: word(0),
                length: word(1),
            };
            Ok(match kind {
                ZEROS => Frame::Zeros(range),
                _ => Frame::Known(range),
            })
        }
        OFFER => Ok(Frame::Offer(offered::<OFFERED_BYTES>(&payload))),
        OFFER_WITH_FINGERPRINTS => Ok(Frame::Offer(offered::<FINGERPRINTED_BYTES>(&payload))),
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
            known_bytes: word(3),
        })),
        _ => Err("its data are no whole blocks"),
    }
}

/// The blocks of an offer, each of so many bytes.
fn offered<const EACH: usize>(payload: &[u8]) -> Vec<Offered> {
    let (entries, _) = payload.as_chunks::<EACH>();
    let block = |entry: &[u8; EACH]| {
        let (offset, rest) = entry.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let (hash, fingerprint) = rest.split_first_chunk().unwrap_or((&[0; 32], &[]));
        Offered {
            offset: u64::from_le_bytes(*offset),
            hash: Digest(*hash),
            fingerprint: fingerprint.first_chunk().copied(),
        }
    };
    entries.iter().map(block).collect()
}
