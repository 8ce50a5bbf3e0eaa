//! Writes a stream.

use std::io::{self, Write};

use crate::contents::{Contents, Piece};
use crate::frame::{
    DATA_BYTES_MAX, Frame, Head, MAGIC, Offered, RANGES_MAX, Range, Same, Tag, Totals, encode,
    header, tag_of,
};

/// Writes a stream. What it is given has to be in the volume's order.
#[derive(Debug)]
pub struct Encoder<W> {
    output: W,
    tag: Tag,
    contents: Contents,
    /// References that were not written yet, so that a frame has many.
    same: Vec<Same>,
    totals: Totals,
}

impl<W: Write> Encoder<W> {
    /// Begins a stream. References are found as far as `contents` remembers.
    ///
    /// # Errors
    /// The output fails.
    pub fn new(mut output: W, head: &Head, contents: Contents) -> io::Result<Self> {
        output.write_all(MAGIC)?;
        let mut begun = Self {
            output,
            tag: tag_of(MAGIC, &[], &[]),
            contents,
            same: Vec::new(),
            totals: Totals::default(),
        };
        begun.frame(&Frame::Head(head.clone()))?;
        Ok(begun)
    }

    /// Sends data that belong at an offset: whole blocks.
    ///
    /// # Errors
    /// The output fails.
    pub fn data(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        for piece in self.contents.split(offset, data) {
            match piece {
                Piece::New(offset, data) => self.new_data(offset, data)?,
                Piece::Same(same) => self.same(same)?,
            }
        }
        Ok(())
    }

    /// The contents that came, so that blocks can be offered before they are sent.
    pub fn contents(&mut self) -> &mut Contents {
        &mut self.contents
    }

    /// Sends data that did not come before: whole blocks.
    ///
    /// # Errors
    /// The output fails.
    pub fn new_data(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_same()?;
        self.totals.data_bytes += data.len() as u64;
        for (number, part) in data.chunks(DATA_BYTES_MAX).enumerate() {
            let at = offset + (number * DATA_BYTES_MAX) as u64;
            self.frame(&Frame::Data(at, part.to_vec()))?;
        }
        Ok(())
    }

    /// Sends that a range has what came before.
    ///
    /// # Errors
    /// The output fails.
    pub fn same(&mut self, same: Same) -> io::Result<()> {
        self.totals.same_bytes += same.range.length;
        self.same.push(same);
        match self.same.len() {
            RANGES_MAX => self.write_same(),
            _ => Ok(()),
        }
    }

    /// Asks the receiver which of some blocks it has. The answer does not change what else may be sent meanwhile.
    ///
    /// # Errors
    /// The output fails.
    pub fn offer(&mut self, blocks: Vec<Offered>) -> io::Result<()> {
        self.frame(&Frame::Offer(blocks))
    }

    /// Sends that a range has what was offered, which the receiver said it has.
    ///
    /// # Errors
    /// The output fails.
    pub fn known(&mut self, range: Range) -> io::Result<()> {
        self.write_same()?;
        self.totals.known_bytes += range.length;
        self.frame(&Frame::Known(range))
    }

    /// Where the stream goes.
    pub fn output(&mut self) -> &mut W {
        &mut self.output
    }

    /// Sends that a range has zeros.
    ///
    /// # Errors
    /// The output fails.
    pub fn zeros(&mut self, range: Range) -> io::Result<()> {
        if range.length == 0 {
            return Ok(());
        }
        self.write_same()?;
        self.totals.zero_bytes += range.length;
        self.frame(&Frame::Zeros(range))
    }

    /// Ends the stream. Returns what it had, and the output, which is flushed.
    ///
    /// # Errors
    /// The output fails.
    pub fn end(mut self) -> io::Result<(Totals, W)> {
        self.write_same()?;
        self.frame(&Frame::End(self.totals))?;
        self.output.flush()?;
        Ok((self.totals, self.output))
    }

    fn write_same(&mut self) -> io::Result<()> {
        if self.same.is_empty() {
            return Ok(());
        }
        let same = std::mem::take(&mut self.same);
        self.frame(&Frame::Same(same))
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        let (kind, mut payload, data) = encode(frame)?;
        payload.extend_from_slice(data);
        let header = header(kind, payload.len());
        self.tag = tag_of(&self.tag, &header, &payload);
        self.output.write_all(&header)?;
        self.output.write_all(&payload)?;
        self.output.write_all(&self.tag)
    }
}
