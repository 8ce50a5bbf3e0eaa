//! Blocks that are known to be damaged: found by reads and by the scrub, told to who asks, healed when
//! their content comes by again.
//!
//! Guarantees:
//! * A damaged block leaves the index at once: no new write is mapped to it. The list survives a restart
//!   (a small file beside the pool), and is only a hint there: every block in it is read again first.
//! * A block is healed in place, by writing exactly the content that it lost, taken from another block of
//!   the same fingerprint and proven before and after. Nothing else ever changes, so a crash in the middle
//!   leaves a block that is still damaged, and all mappings follow by themselves.
//! * While it is healed a reference is held on both blocks: neither can be freed and used for something
//!   else meanwhile.
//! * Memory is bounded by [`LISTED_MAX`]; what is beyond is an error when it is read, as all damage is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use drives::BLOCK_BYTES;
use meta::{Fingerprint, NewBlock, Pba};
use reactor::Buffer;
use serde::{Deserialize, Serialize};

use crate::block_table::{BlockInfo, IN_FLIGHT};
use crate::domain::Hashers;
use crate::engine::Shared;
use crate::hints::Sought;
use crate::pack_read::Fetch;
use crate::state::State;
use crate::trouble::Work;
use crate::wait::{lock, yield_once};
use crate::{Engine, EngineError, Result, fingerprint};

/// Damaged blocks that are remembered.
const LISTED_MAX: usize = 16 * 1024;
/// Ranges of volumes that are told.
const RANGES_MAX: usize = 1000;
/// Damaged blocks that are looked at in one go under the lock.
const LOOK_BLOCKS: usize = 512;
/// Mappings that are looked at in one go under the lock: about 0.2 ms.
const LOOK_MAPPINGS: usize = 8192;

/// What is known of damage in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageStatus {
    /// Blocks that are damaged now.
    pub damaged_blocks: u64,
    /// Blocks that were healed since the pool was opened.
    pub healed_blocks: u64,
    /// Ranges of volumes that refer to damaged blocks, listed or not.
    pub ranges_total: u64,
    /// The first thousand of them.
    pub ranges: Vec<DamagedRange>,
}

/// Bytes of a volume that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedRange {
    /// Name of the volume.
    pub volume: String,
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What a damaged block should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    fingerprint: Fingerprint,
    crc32c: u32,
    /// Known from an earlier opening: to be read again.
    is_old: bool,
    /// This other block could not heal it.
    tried: Option<Pba>,
}

impl Known {
    fn describes(&self, info: &BlockInfo) -> bool {
        info.references & !IN_FLIGHT > 0
            && info.references & IN_FLIGHT == 0
            && (info.fingerprint, info.crc32c) == (self.fingerprint, self.crc32c)
    }
}

/// The list.
#[derive(Default)]
pub(crate) struct Damage {
    blocks: BTreeMap<Pba, Known>,
    healed: u64,
    /// Where it is kept, if it is.
    file: Option<PathBuf>,
    is_changed: bool,
}

impl Damage {
    /// The list of an earlier opening. What the pool no longer holds leaves it when everything is loaded;
    /// what is listed does not enter the index.
    pub(crate) fn load(file: Option<PathBuf>) -> Self {
        let text = file
            .as_deref()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .unwrap_or_default();
        let mut damage = Self {
            file,
            ..Self::default()
        };
        for (pba, known) in text.lines().filter_map(parse).take(LISTED_MAX) {
            damage.blocks.insert(pba, known);
        }
        damage
    }

    /// An opening found these damaged, and keeps them at once: with the batch that the store takes next they
    /// are as any other block. They are read again before anything is believed of them.
    pub(crate) fn found_at_opening(&mut self, found: Vec<NewBlock>) {
        for new in found {
            if self.blocks.len() >= LISTED_MAX && !self.blocks.contains_key(&new.pba) {
                break;
            }
            let known = Known {
                fingerprint: new.fingerprint,
                crc32c: new.crc32c,
                is_old: true,
                tried: None,
            };
            self.blocks.insert(new.pba, known);
            self.is_changed = true;
        }
        if !self.is_changed {
            return;
        }
        let Some(file) = &self.file else { return };
        match replace_file(file, &self.text()) {
            Ok(()) => self.is_changed = false,
            // Maintenance tries again.
            Err(error) => tracing::warn!(%error, "the list of damaged blocks cannot be kept"),
        }
    }

    /// All that are listed.
    pub(crate) fn listed(&self) -> impl Iterator<Item = Pba> + '_ {
        self.blocks.keys().copied()
    }

    pub(crate) fn count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Whether a block is listed with what it holds now.
    pub(crate) fn describes(&self, pba: Pba, info: &BlockInfo) -> bool {
        let known = self.blocks.get(&pba);
        known.is_some_and(|known| known.describes(info))
    }

    /// Whether a block is listed.
    pub(crate) fn contains(&self, pba: Pba) -> bool {
        self.blocks.contains_key(&pba)
    }

    fn insert(&mut self, pba: Pba, info: &BlockInfo) -> bool {
        if self.blocks.len() >= LISTED_MAX {
            return false;
        }
        let known = Known {
            fingerprint: info.fingerprint,
            crc32c: info.crc32c,
            is_old: false,
            tried: None,
        };
        let is_new = self.blocks.insert(pba, known).is_none();
        self.is_changed |= is_new;
        is_new
    }

    fn remove(&mut self, pba: Pba) -> bool {
        let is_known = self.blocks.remove(&pba).is_some();
        self.is_changed |= is_known;
        is_known
    }

    fn text(&self) -> String {
        let mut text =
            "# Damaged blocks: DRIVE:BLOCK[/SLOT] FINGERPRINT CRC32C. Written by the program.\n"
                .to_owned();
        for (pba, known) in &self.blocks {
            let _ = writeln!(text, "{pba} {} {:08x}", known.fingerprint, known.crc32c);
        }
        text
    }
}

fn parse(line: &str) -> Option<(Pba, Known)> {
    let mut words = line.split_ascii_whitespace();
    let pba = words.next()?.parse().ok()?;
    let fingerprint = u128::from_str_radix(words.next()?, 16).ok()?;
    let crc32c = u32::from_str_radix(words.next()?, 16).ok()?;
    let known = Known {
        fingerprint: Fingerprint(fingerprint.to_be_bytes()),
        crc32c,
        is_old: true,
        tried: None,
    };
    Some((pba, known))
}

/// A damaged block that there is something to do for.
struct Task {
    pba: Pba,
    known: Known,
    /// Another block of the same content.
    twin: Option<Pba>,
}

impl State {
    /// Takes a reference on a block that holds the same as before; false if it does not.
    fn hold(&mut self, pba: Pba, known: &Known) -> bool {
        let info = self.blocks.get(pba);
        if !known.describes(&info) || info.references >= IN_FLIGHT - 1 {
            return false;
        }
        self.take(pba);
        true
    }
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

impl Shared {
    /// A read found a block whose content is not what its row says. The state is locked.
    pub(crate) fn found_damage(&self, state: &mut State, pba: Pba) {
        let info = state.blocks.get(pba);
        if info.references & IN_FLIGHT != 0 {
            return;
        }
        // Content that is written again must not be taken for stored there.
        state.unindex(pba);
        state.hints.hide(pba);
        #[cfg(test)]
        state.hints.displaces(true);
        if lock(&self.damage).insert(pba, &info) {
            lock(&self.news).block(pba);
        }
    }

    /// A block is unreadable because a host wants it so.
    pub(crate) fn list_damage(&self, pba: Pba, info: &BlockInfo) {
        lock(&self.damage).insert(pba, info);
    }

    /// Reads a block and compares it with what its row says, with nobody able to reuse it meanwhile.
    pub(crate) async fn examine(
        self: &Arc<Self>,
        pba: Pba,
        info: &BlockInfo,
        buf: Buffer,
    ) -> (Verdict, Buffer) {
        let known = Known {
            fingerprint: info.fingerprint,
            crc32c: info.crc32c,
            is_old: false,
            tried: None,
        };
        let Ok(_here) = self.keep_here([pba]).await else {
            return (Verdict::Changed, buf); // the store cannot say what it should hold
        };
        // While the reference is held a volume can go, and with it the domain that the block was of.
        let hashers = self.domains.in_use();
        if !lock(&self.state).hold(pba, &known) {
            return (Verdict::Changed, buf);
        }
        let (is_good, buf) = self.holds(&hashers, pba, &known, buf).await;
        let mut state = lock(&self.state);
        if is_good {
            self.is_well(&mut state, pba);
        } else {
            self.found_damage(&mut state, pba);
        }
        state.give_back(pba);
        let verdict = if is_good { Verdict::Good } else { Verdict::Bad };
        (verdict, buf)
    }

    /// Whether a block on the drive holds this content; the first block of the buffer is what it holds.
    async fn holds(
        &self,
        hashers: &Hashers,
        pba: Pba,
        known: &Known,
        buf: Buffer,
    ) -> (bool, Buffer) {
        let Some(drive) = self.drives.get(usize::from(pba.drive())) else {
            return (false, buf);
        };
        let fetch = Fetch::new([(pba, 0)].into_iter());
        let (result, mut buf) = drive.read(buf, fetch.extents()).await;
        fetch.unpack(&mut buf);
        let block = fingerprint::split(&buf).first();
        let is_good = block.is_some_and(|block| {
            result.is_ok() && hashers.prove(block, known.fingerprint, known.crc32c)
        });
        (is_good, buf)
    }

    /// A block that may be listed as damaged holds what it should.
    fn is_well(&self, state: &mut State, pba: Pba) {
        if !lock(&self.damage).remove(pba) {
            return;
        }
        state.index_again(pba);
    }

    /// Forgets damaged blocks that nobody refers to any more, heals those whose content was written
    /// again, and keeps the list.
    pub(crate) async fn tend_damage(self: &Arc<Self>) {
        if !self.loaded.load(Ordering::Acquire) {
            return;
        }
        let mut after = None;
        loop {
            let (next, work) = match self.look_at_damage(after).await {
                Ok(found) => found,
                Err(error) => {
                    self.troubles.work(Work::Damage, Err(error));
                    break;
                }
            };
            for task in work {
                self.tend(task).await;
            }
            if next.is_none() {
                self.troubles.work(Work::Damage, Ok(()));
                break;
            }
            after = next;
            yield_once().await;
        }
        self.keep_list().await;
    }

    /// Damaged blocks that there is something to do for, and the last one that was looked at.
    async fn look_at_damage(
        self: &Arc<Self>,
        after: Option<Pba>,
    ) -> Result<(Option<Pba>, Vec<Task>)> {
        let from = after.map_or(Pba(0), |pba| Pba(pba.0.saturating_add(1)));
        let listed: Vec<(Pba, Known)> = {
            let damage = lock(&self.damage);
            let listed = damage.blocks.range(from..).take(LOOK_BLOCKS);
            listed.map(|(pba, known)| (*pba, *known)).collect()
        };
        let _here = self.keep_here(listed.iter().map(|(pba, _)| *pba)).await?;
        let mut work = Vec::new();
        for (pba, known) in &listed {
            work.extend(self.task(*pba, known).await?);
        }
        let last = listed.last().filter(|_| listed.len() == LOOK_BLOCKS);
        Ok((last.map(|(pba, _)| *pba), work))
    }

    /// What there is to do for a damaged block, which is kept here.
    async fn task(self: &Arc<Self>, pba: Pba, known: &Known) -> Result<Option<Task>> {
        let mut stays = Vec::new();
        let mut answer = None;
        loop {
            let (away, generation) = {
                let mut state = lock(&self.state);
                let mut damage = lock(&self.damage);
                if !known.describes(&state.blocks.get(pba)) {
                    damage.remove(pba);
                    state.hints.show(pba);
                    return Ok(None);
                }
                // A fragment cannot be written in place: others share its block.
                let can_heal = known.fingerprint.is_some() && !pba.is_fragment();
                let twin = match can_heal {
                    true => state.seek(&known.fingerprint, answer),
                    false => Sought::Nowhere,
                };
                let twin = match twin {
                    Sought::Here(twin) | Sought::Unindexed(twin) => Ok(Some(twin)),
                    Sought::Away(away) => Err(Some(away)),
                    Sought::Ask => Err(None),
                    Sought::Nowhere => Ok(None),
                };
                match twin {
                    Err(away) => (away, state.hints.generation),
                    Ok(Some(twin)) if twin == pba => {
                        // It was freed, and the same content was written to it again.
                        damage.remove(pba);
                        state.hints.show(pba);
                        return Ok(None);
                    }
                    Ok(twin) => {
                        let known = *known;
                        let is_work = known.is_old || (twin.is_some() && twin != known.tried);
                        return Ok(is_work.then_some(Task { pba, known, twin }));
                    }
                }
            };
            match away {
                Some(away) => stays.push(self.keep_here([away]).await?),
                None => {
                    let asked = vec![known.fingerprint];
                    answer = self.ask_for_hints(generation, asked).await?.pop();
                }
            }
        }
    }

    async fn tend(self: &Arc<Self>, Task { pba, known, twin }: Task) {
        #[cfg(test)]
        let twin = twin.filter(|_| !crate::ablation::is(crate::ablation::Broken::NeverHeal));
        let mut buf = self.bounce(BLOCK_BYTES).await;
        if known.is_old {
            let info = BlockInfo {
                references: 0,
                crc32c: known.crc32c,
                fingerprint: known.fingerprint,
            };
            let (verdict, back) = self.examine(pba, &info, buf).await;
            buf = back;
            if let Some(known) = lock(&self.damage).blocks.get_mut(&pba) {
                known.is_old = false;
            }
            if verdict != Verdict::Bad {
                return;
            }
        }
        let Some(twin) = twin else {
            return;
        };
        let Ok(_here) = self.keep_here([pba, twin]).await else {
            return; // the next round tries again
        };
        {
            let mut state = lock(&self.state);
            if !state.hold(pba, &known) {
                return;
            }
            if !state.hold(twin, &known) {
                state.give_back(pba);
                return;
            }
        }
        let is_healed = self.heal(pba, &known, twin, buf).await;
        let mut state = lock(&self.state);
        if is_healed {
            self.is_well(&mut state, pba);
            let mut damage = lock(&self.damage);
            damage.healed += 1;
        } else if let Some(known) = lock(&self.damage).blocks.get_mut(&pba) {
            known.tried = Some(twin);
        }
        state.give_back(pba);
        state.give_back(twin);
    }

    /// Writes the twin's content over the damaged block, in place. References on both are held.
    async fn heal(&self, pba: Pba, known: &Known, twin: Pba, buf: Buffer) -> bool {
        let hashers = self.domains.in_use();
        let (is_good, buf) = self.holds(&hashers, twin, known, buf).await;
        if !is_good {
            self.found_damage(&mut lock(&self.state), twin);
            return false;
        }
        let Some(drive) = self.drives.get(usize::from(pba.drive())) else {
            return false;
        };
        let fetch = Fetch::new([(pba, 0)].into_iter());
        let (written, buf) = drive.write(buf, fetch.extents()).await;
        if written.is_err() || drive.flush().await.is_err() {
            return false;
        }
        let (is_good, _) = self.holds(&hashers, pba, known, buf).await;
        if is_good {
            lock(&self.news).healed(pba);
        }
        is_good
    }

    /// Writes the list if it changed.
    async fn keep_list(self: &Arc<Self>) {
        let (file, text) = {
            let mut damage = lock(&self.damage);
            if !std::mem::take(&mut damage.is_changed) {
                return;
            }
            let Some(file) = damage.file.clone() else {
                return;
            };
            (file, damage.text())
        };
        let name = file.display().to_string();
        let written = self.block_on(move || replace_file(&file, &text)).await;
        if written.is_err() {
            lock(&self.damage).is_changed = true;
        }
        let written = written.map_err(|error| EngineError::unavailable(format!("{name}: {error}")));
        self.troubles.work(Work::DamageList, written);
    }
}

/// The file is the old one or the new one, whole; after a loss of power the new one.
fn replace_file(file: &Path, text: &str) -> std::io::Result<()> {
    let new = file.with_extension("new");
    let mut written = File::create(&new)?;
    written.write_all(text.as_bytes())?;
    written.sync_all()?;
    std::fs::rename(&new, file)?;
    // The name, too, must survive.
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

impl Engine {
    /// Damaged blocks, and what refers to them at present. Looks through all maps if there are any, in
    /// steps that delay nobody.
    pub async fn damage(&self) -> DamageStatus {
        let shared = &self.shared;
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
        let ids: Vec<u32> = lock(&shared.state).volumes.keys().copied().collect();
        for id in ids {
            let mut from = 0;
            // What cannot be read is an error for who reads it, too.
            while let Ok(Some(window)) = shared.window(id, from, u64::MAX).await {
                from = look_for(
                    &lock(&shared.state),
                    id,
                    from,
                    window.end,
                    |name, at, pba| {
                        if blocks.binary_search(&pba).is_err() {
                            return;
                        }
                        let goes_on = last == Some((id, at.wrapping_sub(1)));
                        last = Some((id, at));
                        status.add(name, at * BLOCK_BYTES as u64, goes_on);
                    },
                );
                if from == u64::MAX {
                    break;
                }
                drop(window);
                yield_once().await;
            }
        }
        status
    }
}

impl DamageStatus {
    /// One mapping more, in their order.
    pub(crate) fn add(&mut self, volume: &str, offset: u64, goes_on: bool) {
        if goes_on {
            if self.ranges_total == self.ranges.len() as u64
                && let Some(range) = self.ranges.last_mut()
            {
                range.bytes += BLOCK_BYTES as u64;
            }
            return;
        }
        self.ranges_total += 1;
        if self.ranges.len() < RANGES_MAX {
            self.ranges.push(DamagedRange {
                volume: volume.to_owned(),
                offset,
                bytes: BLOCK_BYTES as u64,
            });
        }
    }
}

/// Shows mappings of a volume; returns where to go on.
pub(crate) fn look_for(
    state: &State,
    volume: u32,
    start: u64,
    end: u64,
    mut each: impl FnMut(&str, u64, Pba),
) -> u64 {
    let Some(entry) = state.volumes.get(&volume) else {
        return u64::MAX;
    };
    for (count, (at, mapping)) in entry.map.range(start, end).enumerate() {
        if count == LOOK_MAPPINGS {
            return at;
        }
        each(&entry.info.name, at, mapping.pba);
    }
    end
}
