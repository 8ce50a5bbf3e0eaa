//! What a command of a batch claims: a block, known or new, for each content that it has none for; and how
//! that is undone when there is no room for all of them.

use meta::{Pba, VerifyPolicy};

use super::{Crc, Item, Job, New, Progress};
use crate::io::packing::Packing;
use crate::io::verify::Check;
use crate::metadata::block_table::BlockTable;
use crate::metadata::page_map::PageMap;
use crate::metadata::state::{Claim, Flight, State, Wanted};

/// Notes what a command's sub-blocks are mapped to, for hosts and in the map itself. Its range is locked, so that stays so.
pub(super) fn note_old(map: &PageMap, start: u64, items: &mut [Item]) {
    let mut targets = items.iter_mut();
    let end = start + targets.len() as u64;
    let found = map.find_run_of(start, end, |_, mapping, is_own| {
        if let Some(item) = targets.next() {
            item.shown = mapping.map(|mapping| mapping.pba);
            item.old = item.shown.filter(|_| is_own);
        }
    });
    debug_assert!(found.is_ok(), "what is written to was not brought in");
}

/// What is mapped now, and only the store knows of.
pub(super) fn not_resident(blocks: &BlockTable, items: &[Item]) -> Vec<Pba> {
    if blocks.is_whole() {
        return Vec::new();
    }
    let old = items.iter().filter_map(|item| item.old);
    old.filter(|pba| !blocks.is_resident(*pba)).collect()
}

/// Looks up every content of a command that has no block yet.
pub(super) fn claim_job(
    state: &mut State,
    flight: &mut Flight,
    (number, job): (u32, &Job),
    items: &mut [Item],
    packing: &mut Packing,
    new: &mut Vec<New>,
) -> Progress {
    let mut waits = Vec::new();
    let mut loads = Vec::new();
    let mut asks = false;
    let (is_compared, is_again) = job.command.as_ref().map_or((false, false), |command| {
        (command.verify != VerifyPolicy::Trust, command.is_again)
    });
    for at in job.items.clone() {
        let item = &mut items[at];
        if item.is_zero || item.taken.is_some() {
            continue;
        }
        let wanted = Wanted {
            fingerprint: item.fingerprint,
            item: at as u32,
            is_distinct: item.check == Check::Distinct,
            has_promise: is_again,
            answer: item.answer,
        };
        match state.claim(flight, wanted, packing.pack_of(at)) {
            Claim::Known { pba, crc32c } => {
                item.taken = Some(pba);
                if is_compared {
                    item.check = Check::Stored;
                }
                item.crc = Crc::Known(crc32c);
            }
            Claim::Own { pba, item: other } => {
                item.taken = Some(pba);
                if is_compared {
                    item.check = Check::Within(other);
                }
                item.crc = Crc::Of(other);
            }
            Claim::New(pba) => {
                item.taken = Some(pba);
                item.check = Check::Done;
                new.push(New {
                    job: number,
                    item: at as u32,
                    pba,
                });
            }
            Claim::Wait(event) => waits.push(event),
            Claim::Load(pba) => loads.push(pba),
            Claim::Ask => asks = true,
            Claim::Full => return Progress::Full,
        }
    }
    if !loads.is_empty() {
        // What it would wait for is asked again afterwards. New blocks of it may come from several row pages.
        loads.extend(state.not_resident_ahead(flight, job.items.len()));
        Progress::Loads(loads)
    } else if asks {
        Progress::Asks
    } else if waits.is_empty() {
        Progress::Claimed
    } else {
        Progress::Waits(waits)
    }
}

/// A command that found no room gives back what it claimed so far. Nobody else refers to its new
/// blocks yet: those who could come after it.
pub(super) fn undo_claims(
    state: &mut State,
    flight: &mut Flight,
    items: &mut [Item],
    packing: &mut Packing,
    new: impl DoubleEndedIterator<Item = New>,
) {
    for New { item, pba, .. } in new.rev() {
        flight.stay(pba);
        state.abandon(pba, false);
        if pba.is_fragment()
            && let Some(pack) = packing.pack_of(item as usize)
        {
            pack.take_back();
        }
    }
    for pba in items.iter_mut().filter_map(|item| item.taken.take()) {
        state.give_back_if_any(pba);
    }
    let durable = state.durable;
    state.space.release(durable);
}
