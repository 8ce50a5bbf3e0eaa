//! Reads a stream.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};

use crate::frame::{
    BLOCK_BYTES, Digest, Frame, HEADER_BYTES, Head, MAGIC, OPEN_MAX, Offered, Range, StreamError,
    TAG_BYTES, Tag, Totals, VERSION, VERSION_WITH_ANSWERS, content_hash, decode, is_name,
    kind_and_length, tag_of, version_of,
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
    /// Blocks that were offered, and whose data or reference did not come yet.
    offered: VecDeque<(u64, Digest)>,
    /// All blocks that were offered lie before this byte.
    offered_upto: u64,
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
        if head.version != head.version_needed() {
            return Err(StreamError::Wrong(
                0,
                "its version does not fit what it says of answers",
            ));
        }
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
            offered_upto: head.start_bytes,
            offered: VecDeque::new(),
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
                let range = Range {
                    offset: *offset,
                    length,
                };
                self.advance(range)?;
                self.is_as_offered(range, data)?;
                self.totals.data_bytes += length;
            }
            Frame::Zeros(range) => {
                self.advance(*range)?;
                self.offers_nothing_before(range.offset + range.length)?;
                self.totals.zero_bytes += range.length;
            }
            Frame::Same(all) => {
                for same in all {
                    self.advance(same.range)?;
                    self.offers_nothing_before(same.range.offset + same.range.length)?;
                    let end = same.from.checked_add(same.range.length);
                    let is_before = end.is_some_and(|end| end <= same.range.offset);
                    if !is_before || !same.from.is_multiple_of(BLOCK_BYTES) {
                        return Err("it refers to what does not come before it");
                    }
                    self.totals.same_bytes += same.range.length;
                }
            }
            Frame::Offer(blocks) => self.offers(blocks)?,
            Frame::Known(range) => {
                self.advance(*range)?;
                self.is_offered(*range)?;
                self.totals.known_bytes += range.length;
            }
            Frame::End(totals) => {
                self.offers_nothing_before(u64::MAX)?;
                if *totals != self.totals {
                    return Err("it does not have as much as its end says");
                }
                self.has_ended = true;
            }
        }
        Ok(())
    }

    /// Blocks are offered in order, and no more than the receiver has to remember.
    fn offers(&mut self, blocks: &[Offered]) -> Result<(), &'static str> {
        if self.head.exchange.is_none() {
            return Err("it asks, and its head does not say that the sender listens");
        }
        if self.offered.len() + blocks.len() > OPEN_MAX {
            return Err("it offers more than may be open at a time");
        }
        self.offered_upto = self.offered_upto.max(self.upto);
        for block in blocks {
            let end = block.offset.checked_add(BLOCK_BYTES);
            let end = end.filter(|end| *end <= self.head.size_bytes);
            let is_in_order =
                block.offset >= self.offered_upto && block.offset.is_multiple_of(BLOCK_BYTES);
            match end {
                Some(end) if is_in_order => self.offered_upto = end,
                Some(_) => return Err("the blocks that it offers are not in order"),
                None => return Err("it offers a block beyond the volume's end"),
            }
            self.offered.push_back((block.offset, block.hash));
        }
        Ok(())
    }

    /// Nothing is left out of what was offered.
    fn offers_nothing_before(&self, end: u64) -> Result<(), &'static str> {
        match self.offered.front() {
            Some((offset, _)) if *offset < end => Err("it leaves out what it has offered"),
            _ => Ok(()),
        }
    }

    /// All blocks of a range were offered.
    fn is_offered(&mut self, range: Range) -> Result<(), &'static str> {
        for at in (range.offset..range.offset + range.length).step_by(BLOCK_BYTES as usize) {
            match self.offered.pop_front() {
                Some((offset, _)) if offset == at => {}
                Some((offset, _)) if offset < at => {
                    return Err("it leaves out what it has offered");
                }
                _ => return Err("it refers to what it has not offered"),
            }
        }
        Ok(())
    }

    /// What was offered of the data's range has the hash that was said of it.
    fn is_as_offered(&mut self, range: Range, data: &[u8]) -> Result<(), &'static str> {
        self.offers_nothing_before(range.offset)?;
        let Some(exchange) = &self.head.exchange else {
            return Ok(());
        };
        let end = range.offset + range.length;
        while let Some((offset, hash)) = self.offered.front().filter(|(offset, _)| *offset < end) {
            let at = (offset - range.offset) as usize;
            let block = data.get(at..at + BLOCK_BYTES as usize);
            if block.is_none_or(|block| content_hash(&exchange.key, block) != *hash) {
                return Err("its data are not what it has offered");
            }
            self.offered.pop_front();
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
    let known = [VERSION, VERSION_WITH_ANSWERS];
    if let Some(version) = version_of(kind, &payload).filter(|version| !known.contains(version)) {
        return Err(StreamError::Version(version));
    }
    let frame = decode(kind, payload).map_err(|what| StreamError::Wrong(number, what))?;
    Ok((frame, tag))
}
