//! Images of disks: what they are, and their content in order.
//!
//! Guarantees:
//! - An image is read in bounded memory, and what it has no data for is not read.
//! - An image that ends early is an error, not a short image.
//! - What an image says of itself is believed of no other file: one that names a backing file is refused unless its
//!   owner asks for it, and one that keeps its data in other files always.

mod file;
mod format;
mod nbd;
mod partitions;
mod qemu;
mod sparse;
mod stream;

use std::path::Path;

use subsystem::errors::Failure;

pub(crate) use format::Format;
pub(crate) use partitions::Partitions;
pub(crate) use sparse::{data_ranges, is_zero};

/// Bytes of an image that are read at a time.
pub(crate) const PART_BYTES: usize = 4 << 20;

/// What parts begin at multiples of: the engine's sub-block.
pub(crate) const GRAIN: u64 = 4096;

/// Bytes at the beginning of an image that tell what it is.
pub(crate) const HEAD_BYTES: usize = 64 << 10;

/// A part of an image.
#[derive(Debug)]
pub(crate) enum Part {
    /// Its bytes, at most [`PART_BYTES`].
    Data(Vec<u8>),
    /// So many bytes of zeros.
    Zeros(u64),
}

/// An image's content, from its beginning to its end. Parts begin at multiples of [`GRAIN`].
pub(crate) trait Source: Send {
    /// The image's length, if it is known before its end.
    fn bytes(&self) -> Option<u64>;

    /// What it is known by: another image, or this one when it was changed, has something else here.
    fn identity(&self) -> &str;

    /// Its first bytes, at most [`HEAD_BYTES`].
    fn head(&mut self) -> Result<Vec<u8>, Failure>;

    /// Goes on at this byte, which is a multiple of [`GRAIN`], or the end.
    fn skip_to(&mut self, offset: u64) -> Result<(), Failure>;

    /// The next part; `None` at the end.
    fn next(&mut self) -> Result<Option<Part>, Failure>;
}

/// How an image is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    /// What its owner says that it is.
    pub(crate) format: Option<Format>,
    /// Whether the files that it names may be read.
    pub(crate) backing: bool,
}

/// Opens an image: a file, a block device, or `-` for standard input.
pub(crate) fn open(path: &Path, opening: Opening) -> Result<Box<dyn Source>, Failure> {
    if path.as_os_str() == "-" {
        let mut stream = stream::Stream::new(std::io::stdin(), "standard input".to_owned());
        let found = Format::of(&stream.head()?);
        return match opening.format.unwrap_or(found) {
            Format::Raw => Ok(Box::new(stream)),
            format => Err(Failure::invalid(format!(
                "an image of format {format} cannot be read from standard input: name its file, or `--format raw` to \
                 take its bytes as they are"
            ))),
        };
    }
    let mut file = file::ImageFile::open(path)?;
    let head = file.head()?;
    match opening.format.unwrap_or_else(|| Format::of(&head)) {
        Format::Raw if file.is_pipe() => Ok(Box::new(file.into_stream())),
        Format::Raw => Ok(Box::new(file)),
        format => {
            format.check(path, &head, opening.backing)?;
            let image = qemu::Image::open(path, format, opening.backing, file.identity())?;
            Ok(Box::new(image))
        }
    }
}
