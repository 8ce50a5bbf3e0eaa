//! Compressing single contents, and telling cheaply that it is not worth trying.
//!
//! LZ4 is the quick one. Zstandard (level 3) saves more and costs several times as much. Both work on one
//! sub-block at a time, so that each can be read alone.

use std::cell::RefCell;

use meta::Compression;

use super::fingerprint::Block;
use crate::SUB_BLOCK_BYTES;

/// Zstandard's own default.
const ZSTD_LEVEL: i32 = 3;

/// The most bytes that a content may compress to: a quarter is saved, so that such a fragment can share
/// a block with one of the well compressed contents that come with it.
pub(crate) const FRAGMENT_BYTES_MAX: usize = SUB_BLOCK_BYTES * 3 / 4;

/// How a fragment is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// The block format of LZ4.
    Lz4,
    /// A frame of Zstandard.
    Zstd,
}

/// What a thread compresses with, made when it is first needed.
struct Workshop {
    /// LZ4 wants room for contents that grow.
    room: Box<[u8]>,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    decompressor: Option<zstd::bulk::Decompressor<'static>>,
}

thread_local! {
    static WORKSHOP: RefCell<Workshop> = RefCell::new(Workshop {
        room: vec![0; lz4_flex::block::get_maximum_output_size(SUB_BLOCK_BYTES)].into(),
        compressor: None,
        decompressor: None,
    });
}

impl Algorithm {
    /// The one that a volume asks for.
    pub(crate) fn of(compression: Compression) -> Option<Self> {
        match compression {
            Compression::Off => None,
            Compression::Lz4 => Some(Self::Lz4),
            Compression::Zstd => Some(Self::Zstd),
        }
    }

    /// Its number in a pack.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The content compressed, if that is worth it: to three quarters at most.
    pub fn compress(self, content: &Block) -> Option<Vec<u8>> {
        if is_noise(content) {
            return None;
        }
        WORKSHOP.with_borrow_mut(|workshop| {
            let Workshop {
                room, compressor, ..
            } = workshop;
            let len = match self {
                Self::Lz4 => lz4_flex::block::compress_into(content, room).ok()?,
                Self::Zstd => {
                    let compressor = match compressor {
                        Some(compressor) => compressor,
                        None => compressor.insert(zstd::bulk::Compressor::new(ZSTD_LEVEL).ok()?),
                    };
                    compressor.compress_to_buffer(content, &mut room[..]).ok()?
                }
            };
            (len <= FRAGMENT_BYTES_MAX).then(|| room[..len].to_vec())
        })
    }

    /// Whether the bytes decompress to exactly one content.
    pub(crate) fn decompress(self, bytes: &[u8], content: &mut Block) -> bool {
        let len = match self {
            Self::Lz4 => lz4_flex::block::decompress_into(bytes, content).ok(),
            Self::Zstd => WORKSHOP.with_borrow_mut(|workshop| {
                let decompressor = match &mut workshop.decompressor {
                    Some(decompressor) => decompressor,
                    none => none.insert(zstd::bulk::Decompressor::new().ok()?),
                };
                decompressor
                    .decompress_to_buffer(bytes, &mut content[..])
                    .ok()
            }),
        };
        len == Some(SUB_BLOCK_BYTES)
    }
}

/// Bytes that are looked at to tell noise: 16 in a row, at 32 places.
const SAMPLE_RUNS: usize = 32;
const SAMPLE_RUN: usize = 16;

/// Whether a content looks like noise (random, encrypted, or compressed already), by how often byte
/// values come again in a sample of 512 bytes.
///
/// Of `n` random bytes n(n-1)/256/2 pairs are equal: 511 here, with a standard deviation of 22.6. Below 600
/// (four deviations more) the content is taken for noise. A content that repeats only strings of evenly
/// distributed bytes is so mistaken for noise, and stored as it is; so what looks like noise gets a second
/// look, at whether its halves, quarters or eighths begin alike.
fn is_noise(content: &Block) -> bool {
    const PAIRS_MAX: u32 = 600;
    let mut counts = [0u16; 256];
    let mut pairs = 0;
    for run in content.chunks_exact(SUB_BLOCK_BYTES / SAMPLE_RUNS) {
        for byte in &run[..SAMPLE_RUN] {
            let count = &mut counts[usize::from(*byte)];
            pairs += u32::from(*count);
            *count += 1;
        }
    }
    pairs < PAIRS_MAX && !repeats(content)
}

/// Whether two parts of a content begin with the same bytes, at distances that files and databases
/// repeat their pages at.
fn repeats(content: &Block) -> bool {
    const BYTES: usize = 16;
    let begin = &content[..BYTES];
    [512, 1024, 2048]
        .iter()
        .any(|at| &content[*at..at + BYTES] == begin)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Bytes that no compressor makes smaller.
    pub(crate) fn noise(seed: u64) -> Block {
        let mut block = [0; SUB_BLOCK_BYTES];
        let digest = blake3::Hasher::new()
            .update(&seed.to_le_bytes())
            .finalize_xof();
        let mut digest = digest;
        digest.fill(&mut block);
        block
    }

    /// A content whose first `noisy` bytes are noise, and the rest a text.
    pub(crate) fn mixed(seed: u64, noisy: usize) -> Block {
        let mut block = noise(seed);
        let text = b"the same words again and again, as files have them; ";
        for (place, byte) in block[noisy..].iter_mut().zip(text.iter().cycle()) {
            *place = *byte;
        }
        block
    }

    #[test]
    fn contents_come_back_as_they_were_whatever_they_are_made_of() {
        for algorithm in [Algorithm::Lz4, Algorithm::Zstd] {
            for noisy in [0, 100, 2000, 2500] {
                let content = mixed(7, noisy);
                let bytes = algorithm.compress(&content).unwrap();
                assert!(bytes.len() <= FRAGMENT_BYTES_MAX);
                let mut found = [0; SUB_BLOCK_BYTES];
                assert!(algorithm.decompress(&bytes, &mut found));
                assert!(found == content);
                // Cut short, it is no content.
                assert!(!algorithm.decompress(&bytes[..bytes.len() - 9], &mut found));
            }
        }
    }

    #[test]
    fn noise_is_told_by_a_look_at_some_of_its_bytes_and_nothing_else_is_mistaken_for_it() {
        let told = (0..1000).filter(|seed| is_noise(&noise(*seed))).count();
        assert!(told >= 995, "{told} of 1000");
        for noisy in [0, 1000, 2000, 3000, 3400] {
            let taken = (0..200)
                .filter(|seed| is_noise(&mixed(*seed, noisy)))
                .count();
            assert_eq!(taken, 0, "{noisy} bytes of noise");
        }
        // Sectors that are noise, but all the same one.
        let mut repeated = noise(1);
        let (first, rest) = repeated.split_at_mut(512);
        rest.chunks_exact_mut(512)
            .for_each(|sector| sector.copy_from_slice(first));
        assert!(!is_noise(&repeated));
        assert!(Algorithm::Lz4.compress(&repeated).unwrap().len() < 700);
    }

    #[test]
    fn a_content_that_hardly_shrinks_is_left_as_it_is() {
        for algorithm in [Algorithm::Lz4, Algorithm::Zstd] {
            assert_eq!(algorithm.compress(&noise(1)), None);
            assert_eq!(algorithm.compress(&mixed(1, 3500)), None);
        }
    }
}
