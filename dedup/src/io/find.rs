//! Finding contents by their fingerprints, for who may have them elsewhere.
//!
//! Guarantees:
//! * A content is found only in one domain, and only if what was read has the fingerprint by that domain's key. Nothing is mapped, and no count stays changed.
//! * What is being written, damaged, or cannot be read is not found. Looking for it fails nothing.

use std::sync::Arc;

use drives::BLOCK_BYTES;
use meta::{Fingerprint, Pba};
use reactor::Buffer;

use crate::Result;
use crate::content::fingerprint::{self, Hasher};
use crate::io::verify::{self, Found};
use crate::metadata::on_disk_index::{Answer, Sought};
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::pool::references::References;
use crate::residency::on_disk_index::ask_on_disk_index;
use crate::residency::rows::pin_rows;
use crate::sync::wait::lock;

/// How often the store is asked before what is not known by then is not found: what it answers may be old by then.
const ROUNDS: usize = 8;

/// A block that has a wanted fingerprint, and the checksum of its content.
#[derive(Clone, Copy)]
struct Candidate {
    at: usize,
    pba: Pba,
    crc32c: u32,
}

/// What is to be asked or brought in before a look-up can be answered.
#[derive(Default)]
struct Missing {
    rows: Vec<Pba>,
    on_disk: Vec<usize>,
}

/// Reads the contents that have these fingerprints, each to its place in the buffer. Whether each was found.
pub(crate) async fn find_blocks(
    shared: &Arc<Shared>,
    hasher: &Hasher,
    fingerprints: &[Fingerprint],
    mut buf: Buffer,
) -> (Result<Vec<bool>>, Buffer) {
    let mut has = vec![false; fingerprints.len()];
    let looked = look_up(shared, fingerprints).await;
    let (candidates, references) = match looked {
        Ok(looked) => looked,
        Err(error) => return (Err(error), buf),
    };
    if candidates.is_empty() {
        return (Ok(has), buf);
    }
    let Found {
        buf: read,
        unreadable,
    } = verify::read(shared, candidates.iter().map(|it| it.pba)).await;
    for (index, block) in fingerprint::split(&read).iter().enumerate() {
        let Some(candidate) = candidates
            .get(index)
            .filter(|_| !unreadable.contains(&index))
        else {
            continue;
        };
        if fingerprint::crc32c(block) != candidate.crc32c {
            shared.found_damage(&mut lock(&shared.state), candidate.pba);
        } else if hasher.one(block) == fingerprints[candidate.at] {
            let at = candidate.at * BLOCK_BYTES;
            buf[at..at + BLOCK_BYTES].copy_from_slice(block);
            has[candidate.at] = true;
        }
    }
    drop(references);
    (Ok(has), buf)
}

/// The blocks that have these fingerprints, each with a reference, so that it stays what it is.
async fn look_up(
    shared: &Arc<Shared>,
    fingerprints: &[Fingerprint],
) -> Result<(Vec<Candidate>, References)> {
    let mut answers: Vec<Option<Answer>> = vec![None; fingerprints.len()];
    let mut pins = Vec::new();
    for round in 0..=ROUNDS {
        let (missing, generation) = {
            let state = lock(&shared.state);
            let (candidates, missing) = seek_all(&state, fingerprints, &answers);
            let is_last = round == ROUNDS || missing.rows.is_empty() && missing.on_disk.is_empty();
            if is_last {
                let damage = lock(&shared.damage);
                let mut held = Vec::with_capacity(candidates.len());
                for candidate in candidates {
                    // Each reference counts for the next one.
                    if state.can_share(candidate.pba) && !damage.contains(candidate.pba) {
                        state.take(candidate.pba);
                        held.push(candidate);
                    }
                }
                drop(damage);
                drop(state);
                let blocks = held.iter().map(|it| it.pba).collect();
                return Ok((held, References::new(shared, blocks)));
            }
            (missing, state.on_disk_index.generation)
        };
        if !missing.rows.is_empty() {
            pins.push(pin_rows(shared, missing.rows).await?);
        }
        if !missing.on_disk.is_empty() {
            let wanted = missing.on_disk.iter().map(|at| fingerprints[*at]).collect();
            let said = ask_on_disk_index(shared, generation, wanted).await?;
            for (at, answer) in missing.on_disk.into_iter().zip(said) {
                answers[at] = Some(answer);
            }
        }
    }
    Ok((Vec::new(), References::new(shared, Vec::new())))
}

fn seek_all(
    state: &State,
    fingerprints: &[Fingerprint],
    answers: &[Option<Answer>],
) -> (Vec<Candidate>, Missing) {
    let mut candidates = Vec::new();
    let mut missing = Missing::default();
    for (at, (fingerprint, answer)) in fingerprints.iter().zip(answers).enumerate() {
        if !fingerprint.is_some() {
            continue;
        }
        match state.seek(fingerprint, *answer) {
            Sought::Indexed(pba) | Sought::Unindexed(pba) => candidates.push(Candidate {
                at,
                pba,
                crc32c: state.blocks.get(pba).crc32c,
            }),
            Sought::NotResident(pba) => missing.rows.push(pba),
            Sought::Ask => missing.on_disk.push(at),
            Sought::Nowhere => {}
        }
    }
    (candidates, missing)
}
