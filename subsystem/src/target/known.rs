//! Blocks of an image that the pool has already, and so need not come.
//!
//! Guarantees:
//! - A block is written only when its content was read here and has the hash that the image's sender says: who names a
//!   place, or a fingerprint, gets nothing by that alone.
//! - What is not found, cannot be read, or is another content by now is told as not there: then it comes as data.

use dedup::{MAX_COMMAND_BYTES, SUB_BLOCK_BYTES, Volume};
use meta::Fingerprint;
use reactor::BufferPool;
use streams::{Digest, OFFERED_MAX, content_hash};
use uuid::Uuid;

use super::Target;
use crate::errors::Failure;

const BLOCK: usize = SUB_BLOCK_BYTES;

/// Blocks that are looked for together: what one command has.
const AT_ONCE: usize = MAX_COMMAND_BYTES / BLOCK;

/// A block that an image has, and where the pool may have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sought {
    /// Where it belongs in the volume.
    pub offset: u64,
    /// The hash of its content.
    pub hash: Digest,
    /// Its fingerprint in the domain of the volume that it comes to, if its sender knows the domain's key.
    pub fingerprint: Option<Fingerprint>,
    /// The volume or snapshot that may have it, and where.
    pub like: Option<(String, u64)>,
}

impl Target {
    /// Writes those of the blocks that are found to where they belong. Whether each of them was.
    ///
    /// # Errors
    /// No import is under way, a block lies outside of the volume, or the engine refuses to write.
    pub async fn write_known(
        &self,
        name: &str,
        session: Uuid,
        key: Digest,
        blocks: &[Sought],
        buffers: &BufferPool,
    ) -> Result<Vec<bool>, Failure> {
        let sessions = self.importing.read().await;
        let volume = self.receiving(&sessions, name, session)?;
        let size = volume.info().size_bytes;
        let is_within = |block: &Sought| {
            let end = block.offset.checked_add(BLOCK as u64);
            block.offset.is_multiple_of(BLOCK as u64) && end.is_some_and(|end| end <= size)
        };
        if blocks.len() > OFFERED_MAX || !blocks.iter().all(is_within) {
            return Err(Failure::invalid(format!(
                "at most {OFFERED_MAX} blocks of {BLOCK} bytes are looked for at a time, all within volume '{name}' of \
                 {size} bytes"
            )));
        }
        let mut all = Vec::with_capacity(blocks.len());
        for some in blocks.chunks(AT_ONCE) {
            let buffer = buffers.alloc(some.len() * BLOCK).await;
            let fingerprint = |block: &Sought| block.fingerprint.unwrap_or(Fingerprint::NONE);
            let fingerprints: Vec<Fingerprint> = some.iter().map(fingerprint).collect();
            let (found, buffer) = volume.find(&fingerprints, buffer).await;
            let mut has = found?;
            // Memory of its own: requests that hold buffers while they wait for more can wait for each other.
            let mut contents = buffer.to_vec();
            drop(buffer);
            self.read_likely(some, &mut has, &mut contents, buffers)
                .await;
            let read = contents.chunks(BLOCK);
            for ((has, block), content) in has.iter_mut().zip(some).zip(read) {
                *has = *has && content_hash(&key, content) == block.hash;
            }
            write_runs(&volume, some, &has, &contents, buffers).await?;
            all.extend(has);
        }
        Ok(all)
    }

    /// Reads what the places have that were named for blocks which were not found yet, each to its place in `contents`.
    async fn read_likely(
        &self,
        blocks: &[Sought],
        has: &mut [bool],
        contents: &mut [u8],
        buffers: &BufferPool,
    ) {
        let place = |at: usize| blocks[at].like.as_ref().filter(|_| !has[at]);
        let follows = |a: &usize, b: &usize| match (place(*a), place(*b)) {
            (Some((a, at)), Some((b, next))) => {
                a == b && at.checked_add(BLOCK as u64) == Some(*next)
            }
            (None, None) => true,
            _ => false,
        };
        let all: Vec<usize> = (0..blocks.len()).collect();
        let mut read = Vec::new();
        for run in all.chunk_by(follows) {
            let Some((first, (name, offset))) = run.first().and_then(|at| Some((*at, place(*at)?)))
            else {
                continue;
            };
            if let Ok(volume) = self.open_to_read(name) {
                let piece = buffers.alloc(run.len() * BLOCK).await;
                let (result, piece) = volume.at_sectors().read(*offset, piece).await;
                if result.is_ok() {
                    contents[first * BLOCK..][..piece.len()].copy_from_slice(&piece);
                    read.push(first..first + run.len());
                }
            }
        }
        read.into_iter().for_each(|run| has[run].fill(true));
    }
}

/// Writes the blocks that are there, those that follow each other together.
async fn write_runs(
    volume: &Volume,
    blocks: &[Sought],
    has: &[bool],
    contents: &[u8],
    buffers: &BufferPool,
) -> Result<(), Failure> {
    let there: Vec<usize> = (0..blocks.len()).filter(|at| has[*at]).collect();
    let follows =
        |a: &usize, b: &usize| *b == a + 1 && blocks[*b].offset == blocks[*a].offset + BLOCK as u64;
    for run in there.chunk_by(follows) {
        let Some(first) = run.first() else { continue };
        let bytes = first * BLOCK..(first + run.len()) * BLOCK;
        let mut buffer = buffers.alloc(bytes.len()).await;
        buffer.copy_from_slice(&contents[bytes]);
        volume.write(blocks[*first].offset, buffer, false).await.0?;
    }
    Ok(())
}
