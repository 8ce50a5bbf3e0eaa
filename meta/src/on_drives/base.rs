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
use crate::codec::{Reader, crc32c};

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
    crc32c(&[&number.to_le_bytes(), stored].concat())
}

/// Shows the identity and each row of the base of an area.
///
/// # Errors
/// The drive cannot be read, or what is there is no base.
pub(super) fn read(
    area: &dyn MetadataArea,
    superblock: &Superblock,
    mut identity: impl FnMut(&str) -> io::Result<()>,
    mut row: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut source = Source::new(area, &superblock.layout, superblock);
    let mut is_first = true;
    for number in 0_u32.. {
        let header = source.take(HEADER)?;
        let mut reader = Reader::new(&header);
        let mut field = || reader.u32().map_err(damaged);
        let (len, stored_len, crc) = (field()? as usize, field()? as usize, field()?);
        if len > PIECE_BYTES_MAX || stored_len > lz4_flex::block::get_maximum_output_size(len) {
            return Err(damaged("it says a size that no piece has"));
        }
        let stored = source.take(stored_len)?;
        if crc_of(number, &stored) != crc {
            return Err(damaged("a piece does not match its checksum"));
        }
        let piece = lz4_flex::block::decompress(&stored, len).map_err(damaged)?;
        if piece.is_empty() {
            return Ok(());
        }
        let mut reader = Reader::new(&piece);
        while reader.remaining() > 0 {
            let key = u16::from_le_bytes(reader.array().map_err(damaged)?);
            let value = reader.u32().map_err(damaged)? as usize;
            let key = reader.bytes(usize::from(key)).map_err(damaged)?;
            let value = reader.bytes(value).map_err(damaged)?;
            match is_first {
                true => identity(std::str::from_utf8(value).map_err(damaged)?)?,
                false => row(key, value)?,
            }
            is_first = false;
        }
    }
    Ok(())
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
    /// What was read and not taken yet, from `at` on.
    ready: Vec<u8>,
    at: usize,
}

impl<'a> Source<'a> {
    fn new(area: &'a dyn MetadataArea, layout: &Layout, superblock: &Superblock) -> Self {
        let next = layout.slot(superblock.base_slot);
        Self {
            area,
            next,
            end: next + superblock.base_bytes.div_ceil(BLOCK as u64),
            ready: Vec::new(),
            at: 0,
        }
    }

    fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.ready.len() - self.at < bytes {
            let blocks = (self.end - self.next).min((WRITE_BYTES / BLOCK) as u64);
            if blocks == 0 {
                return Err(damaged("it ends too early"));
            }
            self.ready.drain(..self.at);
            self.at = 0;
            let start = self.ready.len();
            self.ready.resize(start + blocks as usize * BLOCK, 0);
            self.area.read(self.next, &mut self.ready[start..])?;
            self.next += blocks;
        }
        let taken = self.ready[self.at..self.at + bytes].to_vec();
        self.at += bytes;
        Ok(taken)
    }
}

/// Writes blocks to the same place of several areas, and forgets those that do not take them.
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
