//! Writes whose bytes come from several buffers.
//!
//! Guarantees: a gather shares its file and its buffers, and owns the list that the kernel reads their addresses
//! from, until the kernel has answered for every part; short writes are continued.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::operation::Waiter;
use crate::Buffer;
use crate::file::GatherPiece;

/// Pieces of one vectored write at most; the kernel takes up to 1024 (UIO_MAXIOV).
const PART_PIECES_MAX: usize = 256;
/// Bytes of one vectored write at most: larger ones are split by block layers anyway.
const PART_BYTES_MAX: usize = 1 << 20;

/// Pieces that lie behind each other in the file, written as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Where what is left begins in the file.
    pub(super) file_offset: u64,
    /// The first piece that is not written yet.
    pub(super) first: usize,
    /// How many pieces are left from there on.
    pub(super) pieces: usize,
    /// The buffer of the first of them.
    pub(super) buffer: usize,
    /// Bytes left.
    len: usize,
}

/// A write of several buffers, in parts.
pub(super) struct Gather {
    pub(super) file: Arc<OwnedFd>,
    pub(super) buffers: Rc<Vec<Buffer>>,
    pub(super) parts: Vec<Part>,
    /// Addresses and lengths of all pieces, which the parts share out among them. Never grows, so
    /// that it stays where the kernel was told.
    pub(super) vectors: Vec<libc::iovec>,
    /// Whose bytes each piece is.
    sources: Vec<usize>,
    /// Parts that the kernel has not answered for.
    pub(super) in_flight: u32,
    pub(super) error: Option<io::Error>,
    pub(super) waiter: Waiter,
}

impl Gather {
    /// Every piece has been checked to lie in its buffer; those without bytes are left out.
    pub(super) fn new(
        file: Arc<OwnedFd>,
        buffers: Rc<Vec<Buffer>>,
        pieces: &[GatherPiece],
    ) -> Self {
        let mut gather = Self {
            file,
            buffers,
            parts: Vec::new(),
            vectors: Vec::with_capacity(pieces.len()),
            sources: Vec::with_capacity(pieces.len()),
            in_flight: 0,
            error: None,
            waiter: Waiter::NotYet,
        };
        for piece in pieces.iter().filter(|piece| piece.len > 0) {
            gather.add(piece);
        }
        gather.in_flight = gather.parts.len() as u32;
        gather
    }

    fn add(&mut self, piece: &GatherPiece) {
        let bytes = &self.buffers[piece.buffer][piece.buffer_offset..][..piece.len];
        let start = bytes.as_ptr().cast_mut();
        let part = self.parts.last_mut().filter(|part| {
            part.file_offset + part.len as u64 == piece.file_offset
                && part.len + piece.len <= PART_BYTES_MAX
        });
        let Some(part) = part else {
            self.parts.push(Part {
                file_offset: piece.file_offset,
                first: self.vectors.len(),
                pieces: 1,
                buffer: piece.buffer,
                len: piece.len,
            });
            self.push_vector(piece.buffer, start, piece.len);
            return;
        };
        let continues = self
            .vectors
            .last()
            .is_some_and(|last| last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == start);
        if continues && self.sources.last() == Some(&piece.buffer) {
            part.len += piece.len;
            if let Some(last) = self.vectors.last_mut() {
                last.iov_len += piece.len;
            }
            return;
        }
        if part.pieces < PART_PIECES_MAX {
            part.len += piece.len;
            part.pieces += 1;
        } else {
            self.parts.push(Part {
                file_offset: piece.file_offset,
                first: self.vectors.len(),
                pieces: 1,
                buffer: piece.buffer,
                len: piece.len,
            });
        }
        self.push_vector(piece.buffer, start, piece.len);
    }

    fn push_vector(&mut self, buffer: usize, start: *mut u8, len: usize) {
        self.vectors.push(libc::iovec {
            iov_base: start.cast(),
            iov_len: len,
        });
        self.sources.push(buffer);
    }

    /// Books the kernel's answer for a part. True if the part has to be submitted again.
    pub(super) fn part_done(&mut self, part: usize, result: i32) -> bool {
        let again = self.advance(part, result);
        if !again {
            self.in_flight -= 1;
        }
        again
    }

    fn advance(&mut self, part: usize, result: i32) -> bool {
        let Ok(done) = usize::try_from(result) else {
            let error = io::Error::from_raw_os_error(-result);
            if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
                return true;
            }
            self.error.get_or_insert(error);
            return false;
        };
        let part = &mut self.parts[part];
        let mut done = done.min(part.len);
        if done == 0 {
            let text = format!("nothing could be written at byte {}", part.file_offset);
            self.error
                .get_or_insert(io::Error::new(io::ErrorKind::WriteZero, text));
            return false;
        }
        part.file_offset += done as u64;
        part.len -= done;
        while done > 0 {
            let vector = &mut self.vectors[part.first];
            let step = done.min(vector.iov_len);
            vector.iov_base = vector.iov_base.cast::<u8>().wrapping_add(step).cast();
            vector.iov_len -= step;
            done -= step;
            if vector.iov_len == 0 {
                part.first += 1;
                part.pieces -= 1;
            }
        }
        if part.len == 0 {
            return false;
        }
        part.buffer = self.sources[part.first];
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferPool;

    fn gather(pieces: &[(u64, usize, usize, usize)], buffers: usize) -> Gather {
        let pool = BufferPool::new(4 << 20).expect("memory");
        let buffers = (0..buffers)
            .map(|_| pool.try_alloc(1 << 20).expect("room"))
            .collect();
        let file = std::fs::File::open("/dev/null").expect("it is there");
        let pieces: Vec<GatherPiece> = pieces
            .iter()
            .map(|&(file_offset, buffer, buffer_offset, len)| GatherPiece {
                file_offset,
                buffer,
                buffer_offset,
                len,
            })
            .collect();
        Gather::new(Arc::new(file.into()), Rc::new(buffers), &pieces)
    }

    fn shape(gather: &Gather) -> Vec<(u64, usize, usize)> {
        let parts = gather.parts.iter();
        parts
            .map(|part| (part.file_offset, part.pieces, part.len))
            .collect()
    }

    #[test]
    fn neighbours_in_the_file_are_one_write_and_neighbours_in_a_buffer_one_piece() {
        let gather = gather(
            &[
                (0, 0, 0, 4096),
                (4096, 0, 4096, 4096),
                (8192, 1, 0, 4096),
                (65536, 1, 4096, 4096),
            ],
            2,
        );
        assert_eq!(shape(&gather), [(0, 2, 12288), (65536, 1, 4096)]);
        assert_eq!(gather.in_flight, 2);
    }

    #[test]
    fn a_write_stays_within_its_bounds_of_bytes_and_pieces() {
        let mib = gather(&[(0, 0, 0, 1 << 20), (1 << 20, 1, 0, 4096)], 2);
        assert_eq!(shape(&mib), [(0, 1, 1 << 20), (1 << 20, 1, 4096)]);
        let many: Vec<_> = (0..300)
            .map(|i| (i as u64 * 512, i % 2, i * 1024, 512))
            .collect();
        let many = gather(&many, 2);
        assert_eq!(
            shape(&many),
            [(0, 256, 256 * 512), (256 * 512, 44, 44 * 512)]
        );
    }

    #[test]
    fn a_short_write_goes_on_where_it_stopped_also_within_a_piece() {
        let mut gather = gather(&[(0, 0, 0, 4096), (4096, 1, 0, 4096)], 2);
        let second = gather.vectors[1].iov_base as usize;
        assert!(gather.part_done(0, 4096 + 512));
        assert_eq!(shape(&gather), [(4608, 1, 3584)]);
        assert_eq!(gather.parts[0].buffer, 1);
        assert_eq!(gather.vectors[1].iov_base as usize, second + 512);
        assert!(gather.part_done(0, -libc::EAGAIN));
        assert!(!gather.part_done(0, 3584));
        assert_eq!(gather.in_flight, 0);
        assert!(gather.error.is_none());
    }

    #[test]
    fn a_write_that_stands_still_is_an_error_and_not_an_endless_loop() {
        let mut gather = gather(&[(0, 0, 0, 4096)], 1);
        assert!(!gather.part_done(0, 0));
        let error = gather.error.expect("an error");
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
