//! Transfers in pieces, for drives that are reached by commands of a bounded length.
//!
//! Guarantee: no piece is longer than it may be, and neighbours on the drive are in one piece wherever their data is.

use crate::{BLOCK_BYTES, Extent, GatherExtent};

/// Bytes of one of the caller's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which of the buffers.
    pub buffer: usize,
    /// Bytes from its start.
    pub offset: usize,
    /// How many.
    pub len: usize,
}

/// What one command moves.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte on the drive.
    pub at: u64,
    /// How many bytes.
    pub len: usize,
    /// Where it is in the caller's buffers.
    pub parts: Vec<Part>,
}

/// Runs of blocks in one buffer: first byte on the drive, and where it is.
pub fn runs_of_one(extents: &[Extent]) -> impl Iterator<Item = (u64, Part)> {
    extents.iter().map(|extent| {
        let part = Part {
            buffer: 0,
            offset: extent.buffer_offset,
            len: extent.blocks as usize * BLOCK_BYTES,
        };
        (extent.block * BLOCK_BYTES as u64, part)
    })
}

/// The same in several buffers.
pub fn runs_of_many(extents: &[GatherExtent]) -> impl Iterator<Item = (u64, Part)> {
    extents.iter().map(|extent| {
        let part = Part {
            buffer: extent.buffer as usize,
            offset: extent.buffer_offset as usize,
            len: extent.blocks as usize * BLOCK_BYTES,
        };
        (extent.block * BLOCK_BYTES as u64, part)
    })
}

/// Joins what follows each other on the drive, and cuts it into commands of at most `most` bytes, a multiple of a block.
pub fn pieces(runs: impl Iterator<Item = (u64, Part)>, most: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (mut at, mut part) in runs {
        while part.len > 0 {
            let follows = |last: &&mut Piece| last.at + last.len as u64 == at && last.len < most;
            let piece = match pieces.last_mut().filter(follows) {
                Some(piece) => piece,
                None => {
                    pieces.push(Piece {
                        at,
                        len: 0,
                        parts: Vec::new(),
                    });
                    let last = pieces.len() - 1;
                    &mut pieces[last]
                }
            };
            let len = part.len.min(most - piece.len);
            piece.parts.push(Part { len, ..part });
            piece.len += len;
            at += len as u64;
            part.offset += len;
            part.len -= len;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(buffer: usize, offset: usize, len: usize) -> Part {
        Part {
            buffer,
            offset,
            len,
        }
    }

    #[test]
    fn neighbours_on_the_drive_are_one_command_wherever_their_data_is() {
        let runs = [
            (0, part(0, 4096, 8192)),
            (8192, part(1, 0, 4096)),
            (20480, part(1, 4096, 4096)),
        ];
        let pieces = pieces(runs.into_iter(), 1 << 20);
        let expected = [
            Piece {
                at: 0,
                len: 12288,
                parts: vec![part(0, 4096, 8192), part(1, 0, 4096)],
            },
            Piece {
                at: 20480,
                len: 4096,
                parts: vec![part(1, 4096, 4096)],
            },
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn no_command_moves_more_than_it_may() {
        let runs = [(4096, part(0, 0, 20480)), (24576, part(0, 40960, 8192))];
        let pieces = pieces(runs.into_iter(), 8192);
        let cut: Vec<_> = pieces.iter().map(|piece| (piece.at, piece.len)).collect();
        assert_eq!(
            cut,
            [(4096, 8192), (12288, 8192), (20480, 8192), (28672, 4096)]
        );
        assert_eq!(
            pieces[2].parts,
            [part(0, 16384, 4096), part(0, 40960, 4096)]
        );
    }

    #[test]
    fn a_transfer_of_nothing_is_no_command() {
        assert!(pieces([(4096, part(0, 0, 0))].into_iter(), 4096).is_empty());
    }
}
