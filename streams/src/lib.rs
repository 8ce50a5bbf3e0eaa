//! Streams: the format in which a snapshot travels from one pool to another, as a file or through a pipe.
//!
//! A stream has all that a volume held when the snapshot was taken, or, if it names a *base*, what changed since an
//! earlier snapshot that both pools have. A content that the stream had before is sent as a reference to that place.
//!
//! ```text
//! stream := MAGIC frame*           the first frame is the head, the last one the end
//! frame  := kind (u8)  zeros (3 bytes)  length of the payload (u32)  payload  tag (16 bytes)
//! ```
//!
//! | kind | payload |
//! |---|---|
//! | 1 head | [`Head`] as JSON |
//! | 2 data | offset (u64), the bytes that belong there |
//! | 3 zeros | offset (u64), length (u64) |
//! | 4 same | for each range: offset (u64), the earlier offset that has the same (u64), length (u64) |
//! | 5 end | [`Totals`]: three u64, or four if the receiver had anything |
//! | 6, 7 offer | for each block: offset (u64), [`content_hash`] (32 bytes); in 7 its fingerprint, too (16 bytes) |
//! | 8 known | offset (u64), length (u64) |
//!
//! Numbers are little-endian; offsets and lengths are bytes of the volume, and multiples of [`BLOCK_BYTES`]. A tag is the
//! first 16 bytes of BLAKE3 over the tag before (of the first frame: over MAGIC), the frame's first 8 bytes, and its payload.
//!
//! A sender that listens to answers says so in the head ([`Exchange`]). Then the stream is of version 2, and the receiver
//! writes answers back, in frames as these (their first tag is over `onefold answers`, a zero byte, and the stream's key):
//!
//! | kind | payload |
//! |---|---|
//! | 1 working | nothing: the receiver is there |
//! | 2 ready | the byte from which on it needs the stream (u64); flags (u64): it looks for what is offered, by fingerprints too |
//! | 3 has | a bit for each block of the oldest open offer |
//! | 4 whole | nothing: all has come |
//!
//! The sender waits for *ready* behind its head. It offers blocks ahead, at most [`OPEN_MAX`], and sends each as data or,
//! if the receiver has it, as *known*, in the volume's order.
//!
//! Guarantees:
//! - Ranges are in order and do not overlap; references lead to what came earlier in the volume. [`Decoder`] refuses all else.
//! - A stream that was cut off, changed, or put together of others is refused at the first frame that is wrong. The tags
//!   have no key: who can write streams can make one. Let them come by ssh or TLS.
//! - Data of a block that was offered have the hash that was offered.
//! - Lengths are bounded before anything is read, so memory is bounded whatever a stream says.

#![forbid(unsafe_code)]

mod answers;
mod contents;
mod decoder;
mod encoder;
mod frame;

pub use answers::{Answer, AnswerDecoder, AnswerEncoder, AnswerError, Asked, Ready, bits_of};
pub use contents::{Contents, Piece};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use frame::{
    BLOCK_BYTES, Base, DATA_BYTES_MAX, Digest, Exchange, Frame, HEAD_BYTES_MAX, Head, MAGIC,
    OFFERED_MAX, OPEN_MAX, Offered, RANGES_MAX, Range, Same, StreamError, Totals, VERSION,
    VERSION_WITH_ANSWERS, content_hash,
};
