//! The online check: proves counts against maps while the engine works.
//!
//! Mappings are counted block by block in short steps under the state's lock. Changes of mappings in
//! between are counted as they happen, if the count has passed their place already, and found by it later
//! if not; so when the last volume is through, the counts equal the mappings at that moment, and go on
//! being equal, until they are compared.
//!
//! What it proves: no block has fewer references than mappings (none would be freed too early); every
//! block that is mapped exists; blocks with more references than mappings are looked at again until the
//! commands that hold the rest have ended.
//!
//! What it cannot prove: that the store on disk says the same (only the offline check reads it), what
//! the data are (the scrub does), and that a block is not leaked whose content is being written all the
//! time: a block that had more references than mappings at each of many looks is reported as such.
//!
//! Memory is four bytes for each block of a window, and the maps are gone through once for each window.

use std::sync::Arc;
use std::time::Duration;

use meta::{MapId, Pba};
use serde::{Deserialize, Serialize};

use crate::background::Background;
use crate::background::healing::damage;
use crate::metadata::block_table::{IN_FLIGHT, ROW_PAGE, address};
use crate::metadata::online_count::OnlineCount;
use crate::metadata::page_map::View;
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::pool::damage_list::DamageStatus;
use crate::pool::finding::CheckFinding;
use crate::residency::loading::load_all;
use crate::residency::pages::window;
use crate::residency::rows::pin_rows;
use crate::sync::wait::lock;
use crate::{EngineError, Result};

/// Blocks of a window: 16 MiB of memory, 16 GiB of a drive.
const WINDOW_BLOCKS: u64 = 4 << 20;
/// Mappings, or blocks, that are looked at in one go under the lock: about 0.1 ms.
const STEP: usize = 4096;
/// Pause between two steps, so that others get the lock.
const PAUSE: Duration = Duration::from_micros(100);
/// Looks at a block with too many references, and the time between two.
const LOOKS: u32 = 20;
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Findings that are described; more are only counted.
const FINDINGS_MAX: usize = 100;
/// Blocks with too many references that are looked at again; more are reported at once.
const SUSPECTS_MAX: usize = 64 * 1024;

/// All mappings are counted, whatever maps come.
const COUNTED: (MapId, u64) = (MapId::MAX, u64::MAX);

/// What an online check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlineCheckReport {
    /// Whether nothing wrong was found, in what was looked at.
    pub consistent: bool,
    /// What was not looked at, and how to have it looked at.
    #[serde(default)]
    pub not_looked_at: Vec<String>,
    /// Damaged data that reads and scrubs have found, and what refers to it.
    #[serde(default)]
    pub damage: DamageStatus,
    /// Blocks in use that were compared.
    pub blocks: u64,
    /// Mappings that were counted.
    pub mappings: u64,
    /// How many findings there are.
    pub findings_total: u64,
    /// The first of them.
    pub findings: Vec<CheckFinding>,
}

impl OnlineCheckReport {
    fn find(&mut self, detail: String) {
        self.findings_total += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(CheckFinding {
                object: "metadata".to_owned(),
                detail,
            });
        }
    }
}

/// Ends a count however its check ends.
struct Counting<'a>(&'a Shared);

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).online = None;
    }
}

async fn pause(shared: &Shared) -> Result<()> {
    reactor::sleep(PAUSE).await;
    match shared.is_closed() {
        true => Err(EngineError::unavailable("the pool is being closed")),
        false => Ok(()),
    }
}

async fn check_window(
    shared: &Arc<Shared>,
    background: &Background,
    report: &mut OnlineCheckReport,
    first: Pba,
    blocks: u64,
    is_first: bool,
) -> Result<()> {
    {
        let mut state = lock(&shared.state);
        if state.online.is_some() {
            return Err(EngineError::invalid("an online check runs already"));
        }
        state.online = Some(Box::new(OnlineCount {
            first,
            counts: vec![0; blocks as usize],
            cursor: (0, 0),
        }));
    }
    let _counting = Counting(shared);
    loop {
        let next = next_to_count(&mut lock(&shared.state));
        let Some((map, at)) = next else {
            break;
        };
        if let Some(window) = window(shared, map, (at, u64::MAX), View::Own).await? {
            let counted = count_some(&mut lock(&shared.state), window.end, report, is_first);
            background.check_progress.add(counted);
        }
        pause(shared).await?;
    }
    let mut suspects = Vec::new();
    let mut at = 0;
    while at < blocks {
        let end = blocks.min(at + STEP as u64);
        let step = (at..end).step_by(ROW_PAGE as usize);
        let _pins = pin_rows(shared, step.map(|at| Pba(first.0 + at))).await?;
        {
            let mut state = lock(&shared.state);
            for pba in (at..end).map(|at| Pba(first.0 + at)) {
                let (references, mappings) = compare(&mut state, pba);
                report.blocks += u64::from(references > 0);
                if mappings > references {
                    report.find(too_few(pba, references, mappings));
                } else if references > mappings && suspects.len() < SUSPECTS_MAX {
                    suspects.push(pba);
                } else if references > mappings {
                    report.find(too_many(pba, references, mappings, 1));
                }
            }
        }
        at = end;
        pause(shared).await?;
    }
    look_again(shared, report, suspects).await
}

/// Commands under way hold references for a moment: looks until they have ended.
async fn look_again(
    shared: &Arc<Shared>,
    report: &mut OnlineCheckReport,
    mut suspects: Vec<Pba>,
) -> Result<()> {
    for look in 1..=LOOKS {
        if suspects.is_empty() {
            break;
        }
        reactor::sleep(LOOK_INTERVAL).await;
        let mut left = Vec::new();
        for pbas in suspects.chunks(STEP) {
            let _pins = pin_rows(shared, pbas.iter().copied()).await?;
            {
                let mut state = lock(&shared.state);
                for pba in pbas {
                    let (references, mappings) = compare(&mut state, *pba);
                    if mappings > references {
                        report.find(too_few(*pba, references, mappings));
                    } else if references > mappings && look == LOOKS {
                        report.find(too_many(*pba, references, mappings, LOOKS));
                    } else if references > mappings {
                        left.push(*pba);
                    }
                }
            }
            pause(shared).await?;
        }
        suspects = left;
    }
    Ok(())
}

fn too_few(pba: Pba, references: u32, mappings: u32) -> String {
    format!(
        "block {pba} has {references} references and {mappings} mappings: stop the daemon, and run `onefold \
         pool check` and `onefold pool repair`"
    )
}

fn too_many(pba: Pba, references: u32, mappings: u32, looks: u32) -> String {
    format!(
        "block {pba} has {references} references and {mappings} mappings, seen {looks} times: a leak, unless \
         its content is being written all the time; `onefold pool repair` frees it when the daemon is stopped"
    )
}

/// The map and sub-block to go on counting at; `None` when all mappings are counted.
fn next_to_count(state: &mut State) -> Option<(MapId, u64)> {
    let (map, at) = state.online.as_ref()?.cursor;
    let (from, start) = match at {
        u64::MAX => (map.saturating_add(1), 0),
        at => (map, at),
    };
    let next = state.next_map(from).filter(|_| (map, at) != COUNTED);
    let online = state.online.as_mut()?;
    // Maps that come later are counted from their first mapping on.
    online.cursor = next.map_or(COUNTED, |next| (next, if next == from { start } else { 0 }));
    next.map(|_| online.cursor)
}

/// Counts mappings from the cursor on, before `end`: all of them are in memory. Returns how many.
fn count_some(state: &mut State, end: u64, report: &mut OnlineCheckReport, is_first: bool) -> u64 {
    let Some((map, start)) = state.online.as_ref().map(|online| online.cursor) else {
        return 0;
    };
    let name = state.volume_of(map).map_or_else(
        || format!("map {map}"),
        |entry| format!("volume `{}`", entry.info.name),
    );
    let (volumes, ancestry, space, Some(online)) = state.for_count() else {
        return 0;
    };
    let Some(pages) = ancestry.map_mut(volumes, map) else {
        return 0;
    };
    let mut counted = 0;
    for (count, (at, mapping)) in pages.range(start, end, View::Own).enumerate() {
        if count == STEP {
            online.cursor = (map, at);
            return counted;
        }
        counted += 1;
        let pba = mapping.pba;
        if is_first {
            report.mappings += 1;
            if !space.contains(pba) {
                report.find(format!(
                    "sub-block {at} of {name} maps to block {pba}, which no drive has"
                ));
            }
        }
        if let Some(count) = online.count(pba) {
            *count += 1;
        }
    }
    online.cursor = (map, end);
    counted
}

/// References and mappings of a block of the window.
fn compare(state: &mut State, pba: Pba) -> (u32, u32) {
    let references = state.blocks.get(pba).references & !IN_FLIGHT;
    let counted = state.online.as_mut().and_then(|online| online.count(pba));
    (references, counted.map_or(0, |count| *count))
}

/// The mappings that will be counted: each once for each window.
fn steps(state: &State) -> u64 {
    let tables = 0..state.blocks.tables();
    let windows = tables.map(|table| state.blocks.numbers(table).div_ceil(WINDOW_BLOCKS));
    windows.sum::<u64>().saturating_mul(state.mapped())
}

/// Proves counts against maps without stopping anything. Runs on a reactor.
///
/// # Errors
/// `Invalid` if a check runs already, `Unavailable` if the pool is closed meanwhile. What is wrong
/// with the pool is in the report.
pub(crate) async fn check_online(
    shared: &Arc<Shared>,
    background: &Background,
) -> Result<OnlineCheckReport> {
    load_all(shared).await?;
    background.check_progress.begin(steps(&lock(&shared.state)));
    let mut report = OnlineCheckReport::default();
    let mut is_first = true;
    let tables = lock(&shared.state).blocks.tables();
    for table in 0..tables {
        let mut first = 0;
        loop {
            let numbers = lock(&shared.state).blocks.numbers(table);
            let window = WINDOW_BLOCKS.min(numbers.saturating_sub(first));
            if window == 0 {
                break;
            }
            let from = address(table, first);
            check_window(shared, background, &mut report, from, window, is_first).await?;
            is_first = false;
            first += window;
        }
    }
    report.damage = damage(shared).await;
    report.not_looked_at = vec![
        "the metadata store on disk: `onefold pool check` reads it when the daemon is stopped"
            .to_owned(),
        "data that nobody has read: `onefold scrub start` reads all".to_owned(),
    ];
    report.consistent = report.findings_total == 0 && report.damage.damaged_blocks == 0;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use drives::MemoryDrive;
    use meta::{JournalConfig, MemoryMedia, MemoryStore, VerifyPolicy};
    use reactor::BufferPool;

    use super::*;
    use crate::{BOUNCE_BYTES_MIN, Blocking, Engine, EngineConfig, EngineParts, VolumeSpec};

    async fn filled() -> Arc<Engine> {
        let engine = Engine::open(EngineParts {
            drives: vec![Arc::new(MemoryDrive::new(1024))],
            journal: Arc::new(MemoryMedia::new(64 << 10)),
            store: Arc::new(MemoryStore::new()),
            hash_keys: [9; 32].into(),
            fingerprint: meta::FingerprintFunction::Clnh,
            blocking: Blocking::Inline,
            boot: None,
            config: EngineConfig {
                bounce_bytes: BOUNCE_BYTES_MIN,
                journal: JournalConfig {
                    payload_bytes_max: 16 << 10,
                    reserve_bytes: 1 << 10,
                },
                ..EngineConfig::default()
            },
        });
        let engine = engine.await.unwrap();
        let spec = VolumeSpec {
            name: "v".to_owned(),
            size_bytes: 1 << 20,
            lba_bytes: 4096,
            nsid: None,
            uuid: None,
            dedup: true,
            compression: meta::Compression::Off,
            verify: VerifyPolicy::Trust,
            domain: String::new(),
        };
        let volume = engine.create_volume(spec).await.unwrap();
        let mut buf = BufferPool::new(1 << 20)
            .unwrap()
            .try_alloc(16 << 12)
            .unwrap();
        for (content, block) in (1u8..).zip(buf.chunks_exact_mut(4096)) {
            block.fill(content);
        }
        volume.write(0, buf, false).await.0.unwrap();
        engine
    }

    /// A count that no mapping stands for.
    fn one_more(engine: &Engine, pba: Pba) {
        let state = lock(&engine.shared.state);
        state.blocks.take(pba);
        state.blocks.let_go(pba, 1);
    }

    #[test]
    fn a_lost_reference_and_a_leak_are_found_while_the_engine_runs() {
        reactor::run(reactor::Config::default(), async {
            let engine = filled().await;
            let report = engine.check_online().await.unwrap();
            assert!(report.consistent, "{report:?}");
            assert_eq!((report.blocks, report.mappings), (16, 16));

            let pba_of = |at| {
                lock(&engine.shared.state).volumes[&1]
                    .map()
                    .lookup(at)
                    .unwrap()
                    .pba
            };
            let (leaked, lost) = (pba_of(3), pba_of(5));
            one_more(&engine, leaked);
            lock(&engine.shared.state).blocks.lose(lost);
            let report = engine.check_online().await.unwrap();
            assert!(!report.consistent);
            let details: Vec<_> = report.findings.iter().map(|found| &found.detail).collect();
            assert_eq!(details.len(), 2, "{report:?}");
            assert!(details[0].starts_with(&format!("block {lost} has 0 references")));
            assert!(details[1].starts_with(&format!("block {leaked} has 2 references")));

            // What a command holds only for a moment is no leak.
            one_more(&engine, lost);
            let checking = engine.check_online();
            let ending = async {
                reactor::sleep(2 * LOOK_INTERVAL).await;
                lock(&engine.shared.state).blocks.lose(leaked);
            };
            let (report, ()) = futures_util::future::join(checking, ending).await;
            assert!(report.unwrap().consistent);
            assert!(lock(&engine.shared.state).online.is_none());
        })
        .unwrap();
    }
}
