//! Reads a stream.

use std::io::{self, ErrorKind, Read};

use crate::frame::{
    BLOCK_BYTES, Frame, HEADER_BYTES, Head, MAGIC, Range, StreamError, TAG_BYTES, Tag, Totals,
    VERSION, decode, is_name, kind_and_length, tag_of, version_of,
};

/// Reads a stream, and refuses what breaks the format's rules.
#[derive(Debug)]
pub struct Decoder<R> {
    input: R,
    tag: Tag,
    head: Head,
    /// Frames that were read.
    frames: u64,
    /// Up to here the volume's content has come.
    upto: u64,
    totals: Totals,
    has_ended: bool,
}

impl<R: Read> Decoder<R> {
    /// Reads a stream's head.
    ///
    /// # Errors
    /// There is no stream, or it cannot be read.
    pub fn new(mut input: R) -> Result<Self, StreamError> {
        let mut magic = [0; MAGIC.len()];
        let (first, rest) = magic.split_at_mut(1);
        match input.read_exact(first) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(StreamError::Empty);
            }
            Err(error) => return Err(error.into()),
        }
        match input.read_exact(rest) {
            Ok(()) if magic == *MAGIC => {}
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => return Err(StreamError::NotAStream),
        }
        let tag = tag_of(MAGIC, &[], &[]);
        let (frame, tag) = read_frame(&mut input, &tag, 0)?;
        let Frame::Head(head) = frame else {
            return Err(StreamError::Wrong(0, "it is not the head"));
        };
        let sizes = [head.size_bytes, head.start_bytes];
        if !sizes.iter().all(|size| size.is_multiple_of(BLOCK_BYTES))
            || head.start_bytes > head.size_bytes
        {
            return Err(StreamError::Wrong(
                0,
                "it begins at a byte where no stream can begin",
            ));
        }
        let base = head.base.as_ref().map(|base| &base.snapshot);
        let mut names = [&head.volume, &head.snapshot].into_iter().chain(base);
        let are_names = names.all(|name| is_name(name));
        drop(names);
        if !are_names {
            return Err(StreamError::Wrong(
                0,
                "its names are none that volumes and snapshots can have",
            ));
        }
        Ok(Self {
            input,
            tag,
            upto: head.start_bytes,
            head,
            frames: 1,
            totals: Totals::default(),
            has_ended: false,
        })
    }

    /// What the stream is about.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next frame; `None` behind the end, where nothing may follow. It is never another head.
    ///
    /// # Errors
    /// The stream is refused from here on.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, StreamError> {
        if self.has_ended {
            let mut more = [0];
            return match self.input.read(&mut more)? {
                0 => Ok(None),
                _ => Err(StreamError::Wrong(self.frames, "it comes behind the end")),
            };
        }
        let (frame, tag) = read_frame(&mut self.input, &self.tag, self.frames)?;
        let checked = self.check(&frame);
        checked.map_err(|what| StreamError::Wrong(self.frames, what))?;
        self.tag = tag;
        self.frames += 1;
        Ok(Some(frame))
    }

    fn check(&mut self, frame: &Frame) -> Result<(), &'static str> {
        match frame {
            Frame::Head(_) => return Err("a head comes first, and only there"),
            Frame::Data(offset, data) => {
                let length = data.len() as u64;
                self.advance(Range {
                    offset: *offset,
                    length,
                })?;
                self.totals.data_bytes += length;
            }
            Frame::Zeros(range) => {
                self.advance(*range)?;
                self.totals.zero_bytes += range.length;
            }
            Frame::Same(all) => {
                for same in all {
                    self.advance(same.range)?;
                    let end = same.from.checked_add(same.range.length);
                    let is_before = end.is_some_and(|end| end <= same.range.offset);
                    if !is_before || !same.from.is_multiple_of(BLOCK_BYTES) {
                        return Err("it refers to what does not come before it");
                    }
                    self.totals.same_bytes += same.range.length;
                }
            }
            Frame::End(totals) => {
                if *totals != self.totals {
                    return Err("it does not have as much as its end says");
                }
                self.has_ended = true;
            }
        }
        Ok(())
    }

    /// A range comes behind all before it, and within the volume.
    fn advance(&mut self, range: Range) -> Result<(), &'static str> {
        let Range { offset, length } = range;
        if length == 0 || !length.is_multiple_of(BLOCK_BYTES) || !offset.is_multiple_of(BLOCK_BYTES)
        {
            return Err("its ranges are no whole blocks");
        }
        let end = offset.checked_add(length);
        let end = end.filter(|end| *end <= self.head.size_bytes);
        match end {
            Some(end) if offset >= self.upto => {
                self.upto = end;
                Ok(())
            }
            Some(_) => Err("its ranges are not in order"),
            None => Err("it goes beyond the volume's end"),
        }
    }
}

/// Reads frame number `number`, and its tag.
fn read_frame(
    input: &mut impl Read,
    before: &Tag,
    number: u64,
) -> Result<(Frame, Tag), StreamError> {
    let cut = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => StreamError::Cut(number),
        _ => error.into(),
    };
    let mut header = [0; HEADER_BYTES];
    input.read_exact(&mut header).map_err(cut)?;
    // Bits that flipped in the first bytes are told as what they make of the frame.
    let (kind, length) =
        kind_and_length(header).map_err(|what| StreamError::Wrong(number, what))?;
    let mut payload = vec![0; length];
    input.read_exact(&mut payload).map_err(cut)?;
    let mut tag = [0; TAG_BYTES];
    input.read_exact(&mut tag).map_err(cut)?;
    if tag != tag_of(before, &header, &payload) {
        return Err(StreamError::Damaged(number));
    }
    if let Some(version) = version_of(kind, &payload).filter(|version| *version != VERSION) {
        return Err(StreamError::Version(version));
    }
    let frame = decode(kind, payload).map_err(|what| StreamError::Wrong(number, what))?;
    Ok((frame, tag))
}
