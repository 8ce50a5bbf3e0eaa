//! Bringing near: a page of a volume that many ancestors have entries of becomes the volume's own, so that bringing it
//! into memory costs one look into the store.
//!
//! Guarantees:
//! * Nobody sees a difference, also when only some of the records are there.
//! * A reference on each block that is copied is held until the record has it (I4).
//! * What is copied is on stable drives before: nothing of the copy has to be proven by an opening, which knows no other
//!   place for it.

use std::sync::Arc;

use meta::{Fingerprint, MapEntry, Mapping, NewBlock, Pba, Record};

use crate::log::append::commit;
use crate::log::flush::flush_upto;
use crate::metadata::block_table::IN_FLIGHT;
use crate::metadata::page_map::PAGE;
use crate::metadata::state::State;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::pool::references::References;
use crate::residency::pages::bring_in;
use crate::residency::rows::pin_rows;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// Gives a volume a copy of all that it inherits of a page, and holes where it inherits nothing. `start` is the page's
/// first sub-block.
pub(crate) async fn bring_near(shared: &Arc<Shared>, core: &VolumeCore, start: u64) -> Result<()> {
    let end = start.saturating_add(PAGE);
    let _guard = core.range_lock.exclusive(start, end).await;
    // Nobody takes away meanwhile what is being trimmed there, nor forks the volume.
    let _trim = core.trim_lock.lock().await;
    let Some(since) = core.inherits_since() else {
        return Ok(());
    };
    flush_upto(shared, since).await?;
    bring_in(shared, core, start, end).await?;
    let runs = match lock(&shared.state).map(core.map()) {
        Some(map) => map.to_copy(start),
        None => return Ok(()),
    };
    for (start, run) in runs {
        let mut pins = Vec::new();
        let (entries, references) = loop {
            let made = copy(shared, &mut lock(&shared.state), core, &run)?;
            match made {
                Copy::Made(entries, references) => break (entries, references),
                Copy::NotResident(missing) => pins.push(pin_rows(shared, missing).await?),
            }
        };
        let record = Record::Own {
            map: core.map(),
            start,
            entries,
        };
        commit(shared, record, None, Some(references)).await?;
    }
    Ok(())
}

enum Copy {
    /// Entries for the run, and what they refer to.
    Made(Vec<MapEntry>, References),
    /// Of these addresses only the store knows.
    NotResident(Vec<Pba>),
}

fn copy(
    shared: &Arc<Shared>,
    state: &mut State,
    core: &VolumeCore,
    run: &[Option<Mapping>],
) -> Result<Copy> {
    state.check_writable()?;
    let blocks: Vec<Pba> = run.iter().flatten().map(|mapping| mapping.pba).collect();
    let missing = blocks.iter().filter(|pba| !state.blocks.is_resident(**pba));
    let missing: Vec<Pba> = missing.copied().collect();
    if !missing.is_empty() {
        return Ok(Copy::NotResident(missing));
    }
    // A page can refer to one block as often as it has entries.
    let is_full = |pba: &Pba| state.blocks.get(*pba).references >= IN_FLIGHT - 1 - PAGE as u32;
    if let Some(pba) = blocks.iter().find(|pba| is_full(pba)) {
        return Err(EngineError::unavailable(format!(
            "volume `{}`: block {pba} has as many references as can be counted; write its content anew in \
             another volume, and give back what refers to it",
            core.name()
        )));
    }
    let entry = |mapping: &Option<Mapping>| {
        let copied = mapping.map(|Mapping { pba, crc32c }| {
            let fingerprint: Fingerprint = state.blocks.get(pba).fingerprint;
            NewBlock {
                pba,
                fingerprint,
                crc32c,
            }
        });
        MapEntry {
            old: None,
            new: copied.or(Some(NewBlock::HOLE)),
        }
    };
    let entries = run.iter().map(entry).collect();
    for pba in &blocks {
        state.take(*pba);
    }
    Ok(Copy::Made(entries, References::new(shared, blocks)))
}

#[cfg(test)]
pub(crate) mod tests;
