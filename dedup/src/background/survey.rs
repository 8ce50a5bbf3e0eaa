//! The survey: what each volume shares, and on which drives it lies.
//!
//! A background pass over all mappings, in short steps, that costs the data path nothing. It looks at
//! all mappings, and remembers a sample of the physical blocks: which one is in the sample follows from
//! its address alone, so that all mappings of a block are sampled together. As long as the pool has no
//! more than [`SAMPLE_MAX`] blocks the sample is all of them, and the figures are exact; beyond, half of
//! the sample is let go again and again, and the error is stated. Memory: about 16 MiB while it runs.
//!
//! Volumes are *relatives* if their maps have an ancestor in common: a volume, its snapshots, and clones of any of them.
//! What is shared is told apart by that: with relatives, or with other volumes alone, which happen to hold the same.
//! Relatives are gone through one after the other.
//!
//! What changes during the pass is counted before or after its change. At the end of a pass
//! `unique bytes of all volumes + shared bytes of the pool = used bytes of the pool`.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meta::{MapId, Pba};
use serde::{Deserialize, Serialize};

use crate::background::Background;
use crate::metadata::page_map::View;
use crate::pool::Shared;
use crate::pool::alerts::Work;
use crate::residency::pages::window;
use crate::sync::wait::{lock, yield_once};
use crate::{Result, SUB_BLOCK_BYTES};

/// Blocks in the sample at most.
const SAMPLE_MAX: usize = 1 << 18;

/// Mappings per step: others wait for the state that long, some tens of microseconds.
const STEP: usize = 512;

/// A survey comes so many times its own length after the last one, so that it takes a hundredth of the time;
/// that of a small pool takes milliseconds.
const PAUSE_TIMES: u32 = 100;
/// ... but no sooner than this.
const PAUSE_MIN: Duration = Duration::from_secs(5);

/// Levels of the sample: level `n` holds one block in `2^n`.
const LEVELS: usize = 64;

/// Figures of a finished survey. All sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// Blocks in use when it ended: the unique bytes of all volumes, and the shared bytes.
    pub used_bytes: u64,
    /// Blocks that more than one volume refers to, each counted once.
    pub shared_bytes: u64,
    /// One block in so many was looked at; 1 = all of them, and the figures are exact.
    pub sampled_one_in: u64,
    /// Seconds since the survey ended.
    pub age_seconds: u64,
    /// One entry per volume, those being deleted included.
    pub volumes: Vec<VolumeShares>,
}

/// What a volume has alone, and with others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeShares {
    /// The volume's name.
    pub name: String,
    /// The engine's number of it, which hosts need not see: not for people.
    #[serde(skip)]
    pub nsid: u32,
    /// Its mapped sub-blocks.
    pub logical_bytes: u64,
    /// Physical blocks that it alone refers to: what its deletion would free.
    pub unique_bytes: u64,
    /// Physical blocks that it and others refer to.
    pub shared_bytes: u64,
    /// Of these, the ones that a relative refers to: a snapshot of it, what it was cloned from, a clone. The rest is what
    /// only other volumes have too.
    pub related_bytes: u64,
    /// Twice the standard error of these figures: in 19 of 20 cases they are right within that.
    pub error_bytes: u64,
    /// Its mapped sub-blocks on each drive, by the drive's index.
    pub drive_bytes: Vec<u64>,
}

/// The last survey, and what it is compared with.
#[derive(Default)]
pub(crate) struct Surveys {
    last: Option<Arc<Survey>>,
    ended: Option<Instant>,
    /// How long it took.
    took: Duration,
    /// The pool's last change when it began.
    change: u64,
    /// A new one is asked for.
    pub(crate) is_wanted: bool,
}

impl Surveys {
    /// What a volume had mapped when it was surveyed last.
    pub(crate) fn logical_bytes(&self, nsid: u32) -> Option<u64> {
        let volumes = &self.last.as_ref()?.volumes;
        let found = volumes.iter().find(|volume| volume.nsid == nsid)?;
        Some(found.logical_bytes)
    }
}

/// A block of the sample.
struct Seen {
    /// The volume that refers to it, by its index in the pass; `None`: several do.
    owner: Option<usize>,
    /// The last volume that was seen to refer to it.
    last: usize,
    /// Whether a relative of that one was seen to refer to it, too.
    is_related: bool,
}

#[derive(Default)]
struct Tally {
    name: String,
    nsid: u32,
    /// The first of the ancestors: the same for all relatives.
    root: MapId,
    mapped: u64,
    drives: Vec<u64>,
    /// Blocks by the level of the sample that they are on.
    unique: BTreeMap<usize, i64>,
    shared: BTreeMap<usize, i64>,
    related: BTreeMap<usize, i64>,
}

struct Pass {
    volumes: Vec<Tally>,
    sample: HashMap<u64, Seen>,
    sample_max: usize,
    /// Blocks below this level are not in the sample any more.
    level: usize,
}

/// Spreads addresses, which follow each other, over all numbers (the finalizer of splitmix64).
fn spread(pba: Pba) -> u64 {
    let mut word = pba.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn level_of(pba: Pba) -> usize {
    (spread(pba).trailing_zeros() as usize).min(LEVELS - 1)
}

impl Pass {
    fn new(sample_max: usize) -> Self {
        Self {
            volumes: Vec::new(),
            sample: HashMap::new(),
            sample_max,
            level: 0,
        }
    }

    /// A mapping of the volume that was begun last, to what is on this drive.
    fn add(&mut self, content: Pba, drive: u16) {
        // Of contents that were compressed into one block, the block counts.
        let pba = content.container();
        let Some(volume) = self.volumes.len().checked_sub(1) else {
            return;
        };
        let tally = &mut self.volumes[volume];
        tally.mapped += 1;
        let drive = usize::from(drive);
        if tally.drives.len() <= drive {
            tally.drives.resize(drive + 1, 0);
        }
        tally.drives[drive] += 1;
        let level = level_of(pba);
        if level < self.level {
            return;
        }
        match self.sample.entry(pba.0) {
            Entry::Vacant(vacant) => {
                vacant.insert(Seen {
                    owner: Some(volume),
                    last: volume,
                    is_related: false,
                });
                *self.volumes[volume].unique.entry(level).or_default() += 1;
            }
            Entry::Occupied(mut occupied) => {
                let seen = occupied.get_mut();
                if seen.last == volume {
                    return;
                }
                let before = std::mem::replace(&mut seen.last, volume);
                let is_related = self.volumes[before].root == self.volumes[volume].root;
                if is_related && !seen.is_related {
                    *self.volumes[before].related.entry(level).or_default() += 1;
                }
                seen.is_related = is_related;
                if is_related {
                    *self.volumes[volume].related.entry(level).or_default() += 1;
                }
                if let Some(owner) = seen.owner.take() {
                    *self.volumes[owner].unique.entry(level).or_default() -= 1;
                    *self.volumes[owner].shared.entry(level).or_default() += 1;
                }
                *self.volumes[volume].shared.entry(level).or_default() += 1;
            }
        }
        while self.sample.len() > self.sample_max {
            self.level += 1;
            let level = self.level;
            self.sample.retain(|pba, _| level_of(Pba(*pba)) >= level);
        }
    }

    /// Figures that add up to `used` blocks.
    fn finish(self, used: u64) -> Survey {
        let scale = 1u64 << self.level;
        let grain = SUB_BLOCK_BYTES as u64;
        let sampled = |by_level: &BTreeMap<usize, i64>| {
            let counts = by_level.range(self.level..).map(|(_, count)| *count);
            u64::try_from(counts.sum::<i64>()).unwrap_or(0)
        };
        let mut volumes: Vec<VolumeShares> = Vec::with_capacity(self.volumes.len());
        let mut unique_total = 0;
        for tally in &self.volumes {
            let (unique, shared) = (sampled(&tally.unique), sampled(&tally.shared));
            let related = sampled(&tally.related);
            // Each block is in the sample with a chance of 1 in `scale`: a binomial distribution.
            let variance = unique.max(shared) as f64 * scale as f64 * (scale - 1) as f64;
            unique_total += unique * scale;
            volumes.push(VolumeShares {
                name: tally.name.clone(),
                nsid: tally.nsid,
                logical_bytes: tally.mapped * grain,
                unique_bytes: unique * scale * grain,
                shared_bytes: shared * scale * grain,
                related_bytes: related * scale * grain,
                error_bytes: (2.0 * variance.sqrt()).ceil() as u64 * grain,
                drive_bytes: tally.drives.iter().map(|blocks| blocks * grain).collect(),
            });
        }
        if unique_total > used {
            // Chance, or blocks that were freed since they were counted.
            for volume in &mut volumes {
                let share = u128::from(volume.unique_bytes / grain) * u128::from(used);
                volume.unique_bytes = (share / u128::from(unique_total)) as u64 * grain;
            }
        }
        let unique_bytes: u64 = volumes.iter().map(|volume| volume.unique_bytes).sum();
        Survey {
            used_bytes: used * grain,
            shared_bytes: used * grain - unique_bytes,
            sampled_one_in: scale,
            age_seconds: 0,
            volumes,
        }
    }
}

/// A survey. `rest`: sleeps as long as it worked, between steps; needs a reactor.
pub(crate) async fn survey(
    shared: &Shared,
    background: &Background,
    rest: bool,
) -> Result<Arc<Survey>> {
    let began = Instant::now();
    let (ids, change) = {
        let state = lock(&shared.state);
        let ids = state.by_root();
        let mapped = state.volumes.values().map(|entry| entry.map().mapped());
        background.survey_progress.begin(mapped.sum());
        (ids, state.last_change())
    };
    lock(&background.surveys).is_wanted = false;
    let mut pass = Pass::new(SAMPLE_MAX);
    for of_root in ids {
        let mut at = Some(0);
        while let Some(from) = at {
            let began = Instant::now();
            at = survey_step(shared, background, &mut pass, of_root, from).await?;
            if rest {
                reactor::sleep(began.elapsed()).await;
            } else {
                yield_once().await;
            }
            if shared.is_closed() {
                break;
            }
        }
    }
    let used = lock(&shared.state).space().used();
    let survey = Arc::new(pass.finish(used));
    let mut surveys = lock(&background.surveys);
    surveys.last = Some(survey.clone());
    surveys.ended = Some(Instant::now());
    surveys.took = began.elapsed();
    surveys.change = change;
    Ok(survey)
}

/// Some mappings of a volume, from a sub-block on; where to go on.
async fn survey_step(
    shared: &Shared,
    background: &Background,
    pass: &mut Pass,
    (root, volume): (MapId, u32),
    from: u64,
) -> Result<Option<u64>> {
    let of_volume = match lock(&shared.state).volumes.get(&volume) {
        // What is left of a deleted volume is its own.
        Some(entry) if !entry.is_active() => (entry.info.map, View::Own),
        Some(entry) => (entry.info.map, View::Visible),
        None => return Ok(None),
    };
    let (map, view) = of_volume;
    let Some(window) = window(shared, map, (from, u64::MAX), view).await? else {
        return Ok(None);
    };
    let state = lock(&shared.state);
    let Some(entry) = state.volumes.get(&volume) else {
        return Ok(None);
    };
    if from == 0 {
        pass.volumes.push(Tally {
            name: entry.info.name.clone(),
            nsid: entry.info.nsid,
            root,
            ..Tally::default()
        });
    }
    let mut next = (window.end < u64::MAX).then_some(window.end);
    let pages = entry.map();
    let mapped = pages.range(from, window.end, view);
    for (count, (at, mapping)) in (1..).zip(mapped.take(STEP)) {
        let place = shared.drives.places(mapping.pba).first().copied();
        pass.add(
            mapping.pba,
            place.map_or(mapping.pba.drive(), |place| place.drive),
        );
        background.survey_progress.add(1);
        if count == STEP {
            next = Some(at + 1);
        }
    }
    drop(pages);
    drop(state);
    Ok(next)
}

/// A survey if one is asked for, or if the last one is old and something changed since.
pub(crate) async fn survey_if_wanted(shared: &Shared, background: &Background) {
    let is_due = {
        let change = lock(&shared.state).last_change();
        let surveys = lock(&background.surveys);
        let pause = (surveys.took * PAUSE_TIMES).max(PAUSE_MIN);
        let pause = pause.min(shared.config.survey_interval);
        let is_old = surveys.ended.is_none_or(|ended| ended.elapsed() >= pause);
        surveys.is_wanted || (is_old && (surveys.last.is_none() || surveys.change != change))
    };
    if is_due {
        let surveyed = survey(shared, background, true).await.map(drop);
        shared.alerts.work(Work::Survey, surveyed);
    }
}

/// The last finished survey.
pub(crate) fn last_survey(background: &Background) -> Option<Survey> {
    let surveys = lock(&background.surveys);
    let mut survey = Survey::clone(surveys.last.as_ref()?);
    survey.age_seconds = surveys.ended.map_or(0, |ended| ended.elapsed().as_secs());
    Some(survey)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Figures of volumes with these mappings, from a sample of so many blocks at most. Two that follow each other are
    /// relatives.
    fn survey_of(volumes: &[Vec<u64>], sample_max: usize) -> Survey {
        let mut pass = Pass::new(sample_max);
        let mut blocks = BTreeSet::new();
        for (number, mappings) in (0..).zip(volumes) {
            pass.volumes.push(Tally {
                root: number / 2,
                ..Tally::default()
            });
            for block in mappings {
                pass.add(Pba::new(0, *block), 0);
                blocks.insert(*block);
            }
        }
        pass.finish(blocks.len() as u64)
    }

    /// Unique blocks of each volume, those that it shares, and those that it shares with its relative, counted one by one.
    fn exact(volumes: &[Vec<u64>]) -> Vec<(u64, u64, u64)> {
        let mut owners: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
        for (volume, mappings) in volumes.iter().enumerate() {
            for block in mappings {
                owners.entry(*block).or_default().insert(volume);
            }
        }
        let count = |volume: usize, is_shared: bool| {
            let of_it = |owners: &&BTreeSet<usize>| {
                owners.contains(&volume) && (owners.len() > 1) == is_shared
            };
            owners.values().filter(of_it).count() as u64
        };
        let related = |volume: usize| {
            let of_both = |owners: &&BTreeSet<usize>| {
                owners.contains(&volume) && owners.contains(&(volume ^ 1))
            };
            owners.values().filter(of_both).count() as u64
        };
        (0..volumes.len())
            .map(|volume| (count(volume, false), count(volume, true), related(volume)))
            .collect()
    }

    fn random_volumes(seed: u64, blocks: u64) -> Vec<Vec<u64>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..4)
            .map(|volume| {
                let first = volume * blocks / 8;
                let count = rng.random_range(blocks / 2..blocks);
                (0..count)
                    .map(|_| first + rng.random_range(0..blocks / 2))
                    .collect()
            })
            .collect()
    }

    #[test]
    fn a_pool_that_fits_the_sample_is_counted_exactly() {
        let volumes = random_volumes(1, 5000);
        let survey = survey_of(&volumes, 1 << 18);
        let found = survey.volumes.iter().map(|volume| {
            assert_eq!(volume.error_bytes, 0);
            let figures = [
                volume.unique_bytes,
                volume.shared_bytes,
                volume.related_bytes,
            ];
            let [unique, shared, related] = figures.map(|bytes| bytes / 4096);
            assert!(related > 0 && related < shared);
            (unique, shared, related)
        });
        assert_eq!(found.collect::<Vec<_>>(), exact(&volumes));
        assert_eq!(survey.sampled_one_in, 1);
    }

    #[test]
    fn a_sample_of_a_large_pool_is_right_within_its_stated_error() {
        let (mut figures, mut outside) = (0, 0);
        for seed in 0..20 {
            let volumes = random_volumes(seed, 100_000);
            let survey = survey_of(&volumes, 4096);
            assert!(survey.sampled_one_in > 1);
            let unique: u64 = survey
                .volumes
                .iter()
                .map(|volume| volume.unique_bytes)
                .sum();
            assert_eq!(unique + survey.shared_bytes, survey.used_bytes);
            for (found, (unique, shared, related)) in survey.volumes.iter().zip(exact(&volumes)) {
                for (found_bytes, exact) in [
                    (found.unique_bytes, unique),
                    (found.shared_bytes, shared),
                    (found.related_bytes, related),
                ] {
                    figures += 1;
                    let error = found_bytes.abs_diff(exact * 4096);
                    outside += u64::from(error > found.error_bytes);
                    assert!(
                        error < 3 * found.error_bytes.max(4096 * 100),
                        "{found:?} {exact}"
                    );
                }
            }
        }
        assert!(outside * 10 < figures, "{outside} of {figures} are outside");
    }
}
