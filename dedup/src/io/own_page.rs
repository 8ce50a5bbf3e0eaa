//! Copy-on-write: a map gets an inherited page for itself before anything in it changes.
//!
//! Guarantees:
//! * One record holds the whole copy, so that a page is the map's own with all that it inherited, or not at all (I2).
//! * A reference on each block of the page is held until the record has it (I4).
//! * What is copied is on stable drives before: nothing of the copy has to be proven by an opening, which knows no other
//!   place for it. A fork is durable when it returns, so only a write that is earlier than that has to wait.

use std::sync::Arc;

use meta::{Fingerprint, MapEntry, Mapping, NewBlock, Pba, Record};

use crate::log::append::commit;
use crate::log::flush::flush_upto;
use crate::metadata::block_table::IN_FLIGHT;
use crate::metadata::page_map::{PAGE, page_start};
use crate::metadata::state::State;
use crate::metadata::volume::VolumeCore;
use crate::pool::Shared;
use crate::pool::references::References;
use crate::residency::rows::pin_rows;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// Makes the pages of `start..end` the map's own. They are in memory, and a range or a window keeps each of them
/// there; nobody forks the volume meanwhile.
pub(crate) async fn own_pages(
    shared: &Arc<Shared>,
    core: &VolumeCore,
    start: u64,
    end: u64,
) -> Result<()> {
    let Some(since) = core.inherits_since() else {
        return Ok(());
    };
    #[cfg(test)]
    if crate::ablation::is(crate::ablation::Broken::ForgetToCopy) {
        return Ok(());
    }
    let mut at = page_start(start);
    while at < end {
        if to_copy(&lock(&shared.state), core, at).is_some() {
            own_page(shared, core, at, since).await?;
        }
        at = at.saturating_add(PAGE);
    }
    Ok(())
}

fn to_copy(state: &State, core: &VolumeCore, at: u64) -> Option<Vec<(u64, Mapping)>> {
    state.map(core.map())?.to_copy(at)
}

async fn own_page(shared: &Arc<Shared>, core: &VolumeCore, at: u64, since: u64) -> Result<()> {
    // A command on another part of the page may be at it.
    let _lock = core.own_lock.lock().await;
    #[cfg(test)]
    let since = match crate::ablation::is(crate::ablation::Broken::CopyUnflushed) {
        true => 0,
        false => since,
    };
    flush_upto(shared, since).await?;
    let mut pins = Vec::new();
    let (entries, references) = loop {
        let made = copy(shared, &mut lock(&shared.state), core, at)?;
        match made {
            Copy::Made(entries, references) => break (entries, references),
            Copy::NotResident(missing) => pins.push(pin_rows(shared, missing).await?),
            Copy::Nothing => return Ok(()),
        }
    };
    let record = Record::Own {
        map: core.map(),
        start: at,
        entries,
    };
    commit(shared, record, None, Some(references)).await?;
    Ok(())
}

enum Copy {
    /// Entries for the whole page, and what they refer to.
    Made(Vec<MapEntry>, References),
    /// Of these addresses only the store knows.
    NotResident(Vec<Pba>),
    /// It is the map's own already.
    Nothing,
}

fn copy(shared: &Arc<Shared>, state: &mut State, core: &VolumeCore, at: u64) -> Result<Copy> {
    state.check_writable()?;
    let Some(mapped) = to_copy(state, core, at) else {
        return Ok(Copy::Nothing);
    };
    let blocks: Vec<Pba> = mapped.iter().map(|(_, mapping)| mapping.pba).collect();
    let missing = blocks.iter().filter(|pba| !state.blocks.is_resident(**pba));
    let missing: Vec<Pba> = missing.copied().collect();
    if !missing.is_empty() {
        return Ok(Copy::NotResident(missing));
    }
    let first = at;
    let mut entries = vec![
        MapEntry {
            old: None,
            new: None
        };
        PAGE as usize
    ];
    // A page can refer to one block as often as it has entries.
    let is_full = |pba: &Pba| state.blocks.get(*pba).references >= IN_FLIGHT - 1 - PAGE as u32;
    if let Some(pba) = blocks.iter().find(|pba| is_full(pba)) {
        return Err(EngineError::unavailable(format!(
            "volume `{}`: block {pba} has as many references as can be counted; write its content anew in \
             another volume, and give back what refers to it",
            core.name()
        )));
    }
    for (at, Mapping { pba, crc32c }) in mapped {
        let fingerprint: Fingerprint = state.blocks.get(pba).fingerprint;
        state.take(pba);
        entries[(at - first) as usize].new = Some(NewBlock {
            pba,
            fingerprint,
            crc32c,
        });
    }
    Ok(Copy::Made(entries, References::new(shared, blocks)))
}

#[cfg(test)]
mod tests;
