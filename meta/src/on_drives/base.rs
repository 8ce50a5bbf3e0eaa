//! A base: all rows of the store at one moment, as they are stored, and the pool's identity.
//!
//! A run of pieces, each of them rows that were compressed together by LZ4:
//!
//! ```text
//! byte  0  u32  bytes of rows
//! byte  4  u32  bytes as they are here
//! byte  8  u32  CRC-32C of the number of the piece (u32) and of the bytes as they are here
//! byte 12       the bytes
//! ```
//!
//! A row is a u16 with the bytes of its key, a u32 with those of its value, and both. The first row has no key: its value is the
//! text of the identity. The last piece is empty.

use std::io;
use std::sync::Arc;

use super::area::{BLOCK, MetadataArea};
use super::layout::{Layout, Superblock};
use crate::codec::{Reader, crc32c_of_parts};
use crate::store::raw::Put;

const HEADER: usize = 12;
/// Bytes of rows in a piece, about, and at most: one row more may be in it.
const PIECE_BYTES: usize = 1 << 20;
const PIECE_BYTES_MAX: usize = 64 << 20;
/// Bytes that are written at a time.
const WRITE_BYTES: usize = 1 << 20;

/// Takes blocks that follow each other.
pub(super) trait Blocks {
    /// Writes whole blocks behind those before.
    fn put(&mut self, bytes: Vec<u8>) -> Result<(), BaseError>;
}

/// Why there is no base.
#[derive(Debug, thiserror::Error)]
pub(super) enum BaseError {
    #[error("it has no room for all rows")]
    TooLarge,
    #[error("no drive takes it")]
    NoDrive,
    #[error("{0}")]
    Rows(#[from] crate::error::MetaError),
}

/// Makes a base of rows.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Blocks,
    piece: Vec<u8>,
    number: u32,
    ready: Vec<u8>,
    bytes: u64,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut dyn Blocks, identity: &str) -> Result<Self, BaseError> {
        let mut writer = Self {
            out,
            piece: Vec::new(),
            number: 0,
            ready: Vec::new(),
            bytes: 0,
        };
        writer.row(&[], identity.as_bytes())?;
        Ok(writer)
    }

    pub(super) fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), BaseError> {
        self.piece
            .extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.piece
            .extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.piece.extend_from_slice(key);
        self.piece.extend_from_slice(value);
        match self.piece.len() >= PIECE_BYTES {
            true => self.end_piece(),
            false => Ok(()),
        }
    }

    /// Writes what is left; returns the bytes of the base.
    pub(super) fn finish(mut self) -> Result<u64, BaseError> {
        if !self.piece.is_empty() {
            self.end_piece()?;
        }
        self.end_piece()?;
        let bytes = self.bytes + self.ready.len() as u64;
        let whole = self.ready.len().next_multiple_of(BLOCK);
        self.ready.resize(whole, 0);
        let rest = std::mem::take(&mut self.ready);
        self.out.put(rest)?;
        Ok(bytes)
    }

    fn end_piece(&mut self) -> Result<(), BaseError> {
        let stored = lz4_flex::block::compress(&self.piece);
        let crc = crc_of(self.number, &stored);
        self.ready
            .extend_from_slice(&(self.piece.len() as u32).to_le_bytes());
        self.ready
            .extend_from_slice(&(stored.len() as u32).to_le_bytes());
        self.ready.extend_from_slice(&crc.to_le_bytes());
        self.ready.extend_from_slice(&stored);
        self.piece.clear();
        self.number += 1;
        while self.ready.len() >= WRITE_BYTES {
            let rest = self.ready.split_off(WRITE_BYTES);
            let full = std::mem::replace(&mut self.ready, rest);
            self.bytes += full.len() as u64;
            self.out.put(full)?;
        }
        Ok(())
    }
}

fn crc_of(number: u32, stored: &[u8]) -> u32 {
    crc32c_of_parts(&[&number.to_le_bytes(), stored])
}

/// The pieces of an area's base, in order.
pub(super) struct Pieces<'a> {
    source: Source<'a>,
    next: u32,
    is_over: bool,
}

/// A piece as it is stored. It is proven when its rows are asked for.
pub(super) struct Piece {
    number: u32,
    len: usize,
    crc: u32,
    stored: Vec<u8>,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(area: &'a dyn MetadataArea, superblock: &Superblock) -> Self {
        Self {
            source: Source::new(area, &superblock.layout, superblock),
            next: 0,
            is_over: false,
        }
    }

    /// The next piece with rows; `None` behind the last one.
    ///
    /// # Errors
    /// The drive cannot be read, or what is there is no base.
    pub(super) fn read_next(&mut self) -> io::Result<Option<Piece>> {
        if self.is_over {
            return Ok(None);
        }
        let header = self.source.take(HEADER)?;
        let mut reader = Reader::new(&header);
        let mut field = || reader.u32().map_err(damaged);
        let (len, stored_len, crc) = (field()? as usize, field()? as usize, field()?);
        if len > PIECE_BYTES_MAX || stored_len > lz4_flex::block::get_maximum_output_size(len) {
            return Err(damaged("it says a size that no piece has"));
        }
        let piece = Piece {
            number: self.next,
            len,
            crc,
            stored: self.source.take(stored_len)?,
        };
        self.next += 1;
        if len == 0 {
            piece.rows()?;
            self.is_over = true;
            return Ok(None);
        }
        Ok(Some(piece))
    }
}

impl Piece {
    /// Bytes of its rows.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Its rows, as they follow each other.
    fn rows(&self) -> io::Result<Vec<u8>> {
        if crc_of(self.number, &self.stored) != self.crc {
            return Err(damaged("a piece does not match its checksum"));
        }
        lz4_flex::block::decompress(&self.stored, self.len).map_err(damaged)
    }

    /// Shows each of its rows: key and value. The one without a key is the identity.
    ///
    /// # Errors
    /// It is damaged, and what `row` says.
    pub(super) fn each_row<E: From<io::Error>>(&self, row: &mut Put<'_, E>) -> Result<(), E> {
        let rows = self.rows()?;
        let mut reader = Reader::new(&rows);
        while reader.remaining() > 0 {
            let key = u16::from_le_bytes(reader.array().map_err(damaged)?);
            let value = reader.u32().map_err(damaged)? as usize;
            let key = reader.bytes(usize::from(key)).map_err(damaged)?;
            let value = reader.bytes(value).map_err(damaged)?;
            row(key, value)?;
        }
        Ok(())
    }
}

/// The text of the identity in an area's base.
///
/// # Errors
/// The drive cannot be read, or what is there is no base.
pub(super) fn identity(area: &dyn MetadataArea, superblock: &Superblock) -> io::Result<String> {
    let first = Pieces::new(area, superblock).read_next()?;
    let mut identity = None;
    if let Some(first) = first {
        first.each_row(&mut |key, value| {
            if key.is_empty() {
                let text = std::str::from_utf8(value).map_err(damaged)?;
                identity = Some(text.to_owned());
            }
            Ok::<_, io::Error>(())
        })?;
    }
    identity.ok_or_else(|| damaged("it has no identity"))
}

fn damaged(error: impl std::fmt::Display) -> io::Error {
    let text = format!("the metadata there is damaged: {error}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The bytes of a base, in order.
struct Source<'a> {
    area: &'a dyn MetadataArea,
    next: u64,
    end: u64,
    /// What was read and not taken yet: the rest of a block.
    rest: Vec<u8>,
}

impl<'a> Source<'a> {
    fn new(area: &'a dyn MetadataArea, layout: &Layout, superblock: &Superblock) -> Self {
        let next = layout.slot(superblock.base_slot);
        Self {
            area,
            next,
            end: next + superblock.base_bytes.div_ceil(BLOCK as u64),
            rest: Vec::new(),
        }
    }

    fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        let mut taken = std::mem::take(&mut self.rest);
        if bytes > taken.len() {
            let blocks = (bytes - taken.len()).div_ceil(BLOCK) as u64;
            if blocks > self.end - self.next {
                return Err(damaged("it ends too early"));
            }
            let read = taken.len();
            taken.resize(read + blocks as usize * BLOCK, 0);
            self.area.read(self.next, &mut taken[read..])?;
            self.next += blocks;
        }
        self.rest = taken.split_off(bytes);
        Ok(taken)
    }
}

/// Writes the same blocks of several areas, and forgets those that do not take them.
pub(super) struct ToAreas<'a> {
    pub(super) areas: Vec<(u16, Arc<dyn MetadataArea>)>,
    pub(super) next: u64,
    pub(super) end: u64,
    pub(super) failed: &'a mut dyn FnMut(u16, &dyn MetadataArea, &io::Error),
}

impl Blocks for ToAreas<'_> {
    fn put(&mut self, bytes: Vec<u8>) -> Result<(), BaseError> {
        let blocks = (bytes.len() / BLOCK) as u64;
        if self.next + blocks > self.end {
            return Err(BaseError::TooLarge);
        }
        let bytes = Arc::new(bytes);
        let writes: Vec<_> = self
            .areas
            .iter()
            .map(|(_, area)| area.write(self.next, bytes.clone()))
            .collect();
        let mut results = writes.into_iter().map(super::area::PendingIo::wait);
        let failed = &mut self.failed;
        self.areas.retain(|(index, area)| match results.next() {
            Some(Err(error)) => {
                failed(*index, &**area, &error);
                false
            }
            _ => true,
        });
        self.next += blocks;
        match self.areas.is_empty() {
            true => Err(BaseError::NoDrive),
            false => Ok(()),
        }
    }
}
