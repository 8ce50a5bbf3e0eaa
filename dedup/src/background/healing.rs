//! Healing: damaged blocks are looked after, and written again when their content comes by.
//!
//! Guarantees:
//! * A block is healed in place, by writing exactly the content that it lost, taken from another block of
//!   the same fingerprint and proven before and after. Nothing else ever changes, so a crash in the middle
//!   leaves a block that is still damaged, and all mappings follow by themselves.
//! * While it is healed a reference is held on both blocks: neither can be freed and used for something
//!   else meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use drives::{BLOCK_BYTES, replace_file};
use meta::{MapId, Pba};
use reactor::Buffer;

use crate::background::copies::{prove_copies, siblings};
use crate::drive_io::reader::read_proven;
use crate::drive_io::suspects::Found;
use crate::metadata::block_table::{BlockInfo, IN_FLIGHT};
use crate::metadata::on_disk_index::Sought;
use crate::metadata::page_map::View;
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::pool::alerts::{Action, Work};
use crate::pool::damage_list::{DamageStatus, Known};
use crate::residency::on_disk_index::ask_on_disk_index;
use crate::residency::pages::window;
use crate::residency::rows::pin_rows;
use crate::sync::wait::{lock, yield_once};
use crate::{EngineError, Result};

/// Damaged blocks that are looked at in one go under the lock.
const LOOK_BLOCKS: usize = 512;

/// A damaged block that there is something to do for.
struct Task {
    pba: Pba,
    known: Known,
    /// Another block of the same content.
    twin: Option<Pba>,
}

/// What a block turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It holds what it should.
    Good,
    /// It does not, or it cannot be read.
    Bad,
    /// It was freed or written anew meanwhile.
    Changed,
}

/// Takes a reference on a block that holds the same as before; false if it does not.
pub(super) fn hold(state: &mut State, pba: Pba, known: &Known) -> bool {
    let info = state.blocks.get(pba);
    if !known.describes(&info) || info.references >= IN_FLIGHT - 1 {
        return false;
    }
    state.take(pba);
    true
}

/// Reads a block and compares it with what its row says. A reference keeps it from being reused meanwhile.
pub(crate) async fn examine(
    shared: &Arc<Shared>,
    pba: Pba,
    info: &BlockInfo,
    buf: Buffer,
) -> (Verdict, Buffer) {
    let known = Known::of(info);
    let Ok(_pins) = pin_rows(shared, siblings(pba)).await else {
        return (Verdict::Changed, buf); // the store cannot say what it should hold
    };
    // While the reference is held a volume can go, and with it the domain that the block was of.
    let hashers = shared.domains.in_use();
    if !hold(&mut lock(&shared.state), pba, &known) {
        return (Verdict::Changed, buf);
    }
    let (is_good, buf) = prove_copies(shared, &hashers, (pba, &known), buf).await;
    let mut state = lock(&shared.state);
    if is_good {
        shared.is_well(&mut state, pba);
    } else {
        shared.found_damage(&mut state, pba);
    }
    state.give_back(pba);
    let verdict = if is_good { Verdict::Good } else { Verdict::Bad };
    (verdict, buf)
}

/// Looks at the copies that commands found wrong, and tells what drives said.
pub(crate) async fn tend_suspects(shared: &Arc<Shared>) {
    let Found { blocks, errors } = shared.drives.suspects.take();
    for (drive, error) in errors {
        shared.drive_failed(drive, Action::Read, &error);
    }
    for pba in blocks {
        let pins = pin_rows(shared, [pba]).await;
        if let Err(error) = pins {
            return shared.alerts.work(Work::Damage, Err(error));
        }
        let info = lock(&shared.state).blocks.get(pba);
        let buf = shared.bounce(BLOCK_BYTES).await;
        examine(shared, pba, &info, buf).await;
    }
}

/// Forgets damaged blocks that nothing refers to any more, heals those whose content was written
/// again, and writes the list.
pub(crate) async fn tend_damage(shared: &Arc<Shared>) {
    if !shared.loaded.load(Ordering::Acquire) {
        return;
    }
    let mut after = None;
    loop {
        let (next, work) = match look_at_damage(shared, after).await {
            Ok(found) => found,
            Err(error) => {
                shared.alerts.work(Work::Damage, Err(error));
                break;
            }
        };
        for task in work {
            tend(shared, task).await;
        }
        if next.is_none() {
            shared.alerts.work(Work::Damage, Ok(()));
            break;
        }
        after = next;
        yield_once().await;
    }
    keep_list(shared).await;
}

/// Damaged blocks that there is something to do for, and the last one that was looked at.
async fn look_at_damage(
    shared: &Arc<Shared>,
    after: Option<Pba>,
) -> Result<(Option<Pba>, Vec<Task>)> {
    let from = after.map_or(Pba(0), |pba| Pba(pba.0.saturating_add(1)));
    let listed: Vec<(Pba, Known)> = {
        let damage = lock(&shared.damage);
        let listed = damage.blocks.range(from..).take(LOOK_BLOCKS);
        listed.map(|(pba, known)| (*pba, *known)).collect()
    };
    let _pins = pin_rows(shared, listed.iter().map(|(pba, _)| *pba)).await?;
    let mut work = Vec::new();
    for (pba, known) in &listed {
        work.extend(task(shared, *pba, known).await?);
    }
    let last = listed.last().filter(|_| listed.len() == LOOK_BLOCKS);
    Ok((last.map(|(pba, _)| *pba), work))
}

/// What there is to do for a damaged block, which is kept here.
async fn task(shared: &Arc<Shared>, pba: Pba, known: &Known) -> Result<Option<Task>> {
    let mut pins = Vec::new();
    let mut answer = None;
    loop {
        let (missing, generation) = {
            let state = lock(&shared.state);
            let mut damage = lock(&shared.damage);
            if !known.describes(&state.blocks.get(pba)) {
                damage.remove(pba);
                state.on_disk_index.show(pba);
                return Ok(None);
            }
            // A fragment cannot be written in place: others share its block.
            let can_heal = known.fingerprint.is_some() && !pba.is_fragment();
            let twin = match can_heal {
                true => state.seek(&known.fingerprint, answer),
                false => Sought::Nowhere,
            };
            let twin = match twin {
                Sought::Indexed(twin) | Sought::Unindexed(twin) => Ok(Some(twin)),
                Sought::NotResident(missing) => Err(Some(missing)),
                Sought::Ask => Err(None),
                Sought::Nowhere => Ok(None),
            };
            match twin {
                Err(missing) => (missing, state.on_disk_index.generation),
                Ok(Some(twin)) if twin == pba => {
                    // It was freed, and the same content was written to it again.
                    damage.remove(pba);
                    state.on_disk_index.show(pba);
                    return Ok(None);
                }
                Ok(twin) => {
                    let known = *known;
                    let is_work = known.is_old || (twin.is_some() && twin != known.tried);
                    return Ok(is_work.then_some(Task { pba, known, twin }));
                }
            }
        };
        match missing {
            Some(missing) => pins.push(pin_rows(shared, [missing]).await?),
            None => {
                let asked = vec![known.fingerprint];
                answer = ask_on_disk_index(shared, generation, asked).await?.pop();
            }
        }
    }
}

async fn tend(shared: &Arc<Shared>, Task { pba, known, twin }: Task) {
    let mut buf = shared.bounce(BLOCK_BYTES).await;
    if known.is_old {
        let info = BlockInfo {
            references: 0,
            crc32c: known.crc32c,
            fingerprint: known.fingerprint,
        };
        let (verdict, back) = examine(shared, pba, &info, buf).await;
        buf = back;
        if let Some(known) = lock(&shared.damage).blocks.get_mut(&pba) {
            known.is_old = false;
        }
        if verdict != Verdict::Bad {
            return;
        }
    }
    let Some(twin) = twin else {
        return;
    };
    let Ok(_pins) = pin_rows(shared, [pba, twin]).await else {
        return; // the next round tries again
    };
    {
        let mut state = lock(&shared.state);
        if !hold(&mut state, pba, &known) {
            return;
        }
        if !hold(&mut state, twin, &known) {
            state.give_back(pba);
            return;
        }
    }
    let is_healed = heal(shared, pba, &known, twin, buf).await;
    let mut state = lock(&shared.state);
    if is_healed {
        shared.is_well(&mut state, pba);
        let mut damage = lock(&shared.damage);
        damage.healed += 1;
    } else if let Some(known) = lock(&shared.damage).blocks.get_mut(&pba) {
        known.tried = Some(twin);
    }
    state.give_back(pba);
    state.give_back(twin);
}

/// Writes the twin's content over the damaged block, in place. References on both are held.
async fn heal(shared: &Arc<Shared>, pba: Pba, known: &Known, twin: Pba, buf: Buffer) -> bool {
    let hashers = shared.domains.in_use();
    let prove = |block: &_| hashers.prove(block, known.fingerprint, known.crc32c);
    let (is_good, mut buf) = read_proven(&shared.drives, (twin, 0), buf, prove).await;
    if is_good != Some(true) {
        shared.found_damage(&mut lock(&shared.state), twin);
        return false;
    }
    let _pass = shared.drives.gate.pass();
    for place in shared.drives.writable(pba).iter() {
        let Some(drive) = shared.drives.get(place.drive.into()) else {
            return false;
        };
        let written;
        (written, buf) = drive.write(buf, &[place.extent()]).await;
        if written.as_ref().is_err_and(drives::DriveError::is_in_doubt) {
            // What may still be written is right as long as the block is in use, and not when it is used again.
            lock(&shared.state).space().doubt(pba, place.drive);
        }
        if written.is_err() || drive.flush().await.is_err() {
            return false;
        }
    }
    let (is_good, _) = read_proven(&shared.drives, (pba, 0), buf, prove).await;
    let is_good = is_good == Some(true);
    if is_good {
        lock(&shared.alert_log).healed(pba.drive(), pba.block());
    }
    is_good
}

/// Writes the list if it changed.
pub(crate) async fn keep_list(shared: &Arc<Shared>) {
    let (file, text) = {
        let mut damage = lock(&shared.damage);
        if !std::mem::take(&mut damage.is_changed) {
            return;
        }
        let Some(file) = damage.file.clone() else {
            return;
        };
        (file, damage.text())
    };
    let name = file.display().to_string();
    let written = shared
        .block_on(move || replace_file(&file, text.as_bytes()))
        .await;
    if written.is_err() {
        lock(&shared.damage).is_changed = true;
    }
    let written = written.map_err(|error| EngineError::unavailable(format!("{name}: {error}")));
    shared.alerts.work(Work::DamageList, written);
}

/// Damaged blocks, and what refers to them at present. Looks through all maps if there are any, in
/// short steps.
pub(crate) async fn damage(shared: &Shared) -> DamageStatus {
    let (blocks, mut status) = {
        let damage = lock(&shared.damage);
        let blocks: Vec<Pba> = damage.blocks.keys().copied().collect();
        let status = DamageStatus {
            damaged_blocks: damage.count(),
            healed_blocks: damage.healed,
            ..DamageStatus::default()
        };
        (blocks, status)
    };
    if blocks.is_empty() {
        return status;
    }
    let mut last = None;
    let volumes: Vec<(u32, MapId)> = {
        let state = lock(&shared.state);
        let volumes = state.volumes.iter();
        volumes.map(|(id, entry)| (*id, entry.info.map)).collect()
    };
    for (id, map) in volumes {
        let mut from = 0;
        // What cannot be read is an error for reads, too.
        while let Ok(Some(window)) = window(shared, map, (from, u64::MAX), View::Visible).await {
            from = lock(&shared.state).each_mapping(id, from, window.end, |name, at, pba| {
                if blocks.binary_search(&pba).is_err() {
                    return;
                }
                let goes_on = last == Some((id, at.wrapping_sub(1)));
                last = Some((id, at));
                status.add(name, at * BLOCK_BYTES as u64, goes_on);
            });
            if from == u64::MAX {
                break;
            }
            drop(window);
            yield_once().await;
        }
    }
    status
}
