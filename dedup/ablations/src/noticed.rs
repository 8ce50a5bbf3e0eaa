//! Every rule of the engine is broken once, and somebody notices.
//!
//! `ONEFOLD_BROKEN=name` breaks one rule only: `ONEFOLD_BROKEN=NoRangeLock cargo test -p ablations -- --nocapture`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};
use std::time::Instant;

use meta::VerifyPolicy;

use crate::ablation::{self, Broken};
use crate::background::bring_near::tests::is_copied_early;
use crate::background::deferred_dedup::tests::is_healed;
use crate::background::merging::tests::drop_some;
use crate::background::moving::tests::{counts_though_missed, ends_beside_a_reader};
use crate::io::verify::tests::policy_while_a_comparison_is_to_come;
use crate::log::flush::tests::read_after_a_sync_that_failed;
use crate::residency::on_disk_index::tests::written_twice;
use crate::schedules::{self, ENGINE_SCHEDULES, SCHEDULES};
use crate::simulation;
use crate::simulation::mirrors::is_mirrored;
use crate::simulation::on_drives::is_on_drives;

/// Seeds of stories that are told until one goes wrong.
const SEEDS: u64 = 4000;
/// Schedules of a story of the whole engine.
const MANY: usize = 20 * ENGINE_SCHEDULES;

/// Who notices that a rule is broken.
#[derive(Clone, Copy)]
enum Notices {
    /// One of these stories of the simulation goes wrong.
    Stories(fn(u64) -> bool),
    /// What a test of `dedup` looks at goes wrong.
    This(fn() -> bool),
}
use Notices::{Stories, This};

/// Any story of the simulation.
const ANY: Notices = Stories(|_| true);
/// Stories of pools with copies.
const MIRRORED: Notices = Stories(is_mirrored);
/// Stories of pools that have their metadata on the drives.
const ON_DRIVES: Notices = Stories(is_on_drives);

fn who_notices(broken: Broken) -> &'static [Notices] {
    match broken {
        Broken::BelieveHoles
        | Broken::BelieveIndexEntries
        | Broken::ForgetUnindexed
        | Broken::ForgetHeldIndexEntries
        | Broken::ReuseBeforeDurable
        | Broken::ReuseUnknown
        | Broken::TrustUnflushed
        | Broken::UndoAfterCrash
        | Broken::UndoUnreadable
        | Broken::ForgetPowerLoss
        | Broken::FlushJournalOnly
        | Broken::StoreBeforeJournal
        | Broken::KeepReferences
        | Broken::MapWhatIsTrimmed
        | Broken::IgnoreMismatch
        | Broken::UnlockBeforeCompared
        | Broken::EvictUnstored
        | Broken::EvictInUse
        | Broken::EvictUnstoredBlocks
        | Broken::BelieveStaleBlocks
        | Broken::CopyUncounted
        | Broken::PartHidesRest
        | Broken::ForgetNewOwner
        | Broken::DropWhatShows
        | Broken::UnmappedInherits
        | Broken::FreeParentInUse
        | Broken::SnapshotOneByOne
        | Broken::LiftThoughSeen
        | Broken::FreePackInUse
        | Broken::ForgetOffline
        | Broken::MoveBesideWrites
        | Broken::FreeBeforeProven
        | Broken::MoveUnflushed
        | Broken::ReturnDamaged
        | Broken::NeverHeal => &[ANY],
        Broken::ProveOneCopy | Broken::RebuildBesideWrites | Broken::RebuildUnflushed => {
            &[MIRRORED]
        }
        // An older copy of a folder, and an import of an older epoch.
        Broken::EpochIgnored => &[ANY, ON_DRIVES],
        Broken::NoRangeLock => &[
            ANY,
            This(|| schedules::goes_wrong(schedules::ranges, SCHEDULES)),
            This(|| schedules::goes_wrong(schedules::pool, MANY)),
        ],
        Broken::ShareInFlight | Broken::EvictHeld | Broken::AppendBlindly => {
            &[ANY, This(|| schedules::goes_wrong(schedules::pool, MANY))]
        }
        // Only reactors side by side meet that.
        Broken::LoseUnguarded => &[This(|| {
            schedules::goes_wrong(schedules::last_references, MANY)
        })],
        // Of the following no story of the simulation is unlucky enough, or few are.
        Broken::BelieveOldAnswers => &[This(|| {
            on_reactor(async {
                for steps in 0.. {
                    match written_twice(steps).await {
                        (2.., _) => return true,
                        (_, true) => break,
                        (_, false) => {}
                    }
                }
                false
            })
        })],
        Broken::NoteUnsynced => &[This(|| {
            (0..16).any(|seed| read_after_a_sync_that_failed(seed).is_err())
        })],
        Broken::DropUnflushed => &[This(|| drop_some(false).0)],
        Broken::CopyUnflushed => &[This(|| (0..50).any(is_copied_early))],
        Broken::ChangePolicyAtOnce => &[This(|| {
            policy_while_a_comparison_is_to_come() == VerifyPolicy::Compare
        })],
        Broken::MissIncoming => &[This(counts_though_missed)],
        Broken::ReusePlaceAtOnce => &[This(ends_beside_a_reader)],
        Broken::ForgetUnmerged => &[
            This(|| !on_reactor(is_healed(u64::MAX))),
            This(|| !on_reactor(is_healed(0))),
        ],
    }
}

fn on_reactor<T>(future: impl Future<Output = T>) -> T {
    reactor::run(reactor::Config::default(), future).expect("a reactor")
}

/// What went wrong, in words; `None` if nothing did.
fn noticed(notices: Notices) -> Option<String> {
    match notices {
        Stories(are_these) => {
            let pool = simulation::buffers();
            let mut seeds = (0..SEEDS).filter(|seed| are_these(*seed));
            let seed = seeds.find(|seed| simulation::told(*seed, &pool).is_none());
            seed.map(|seed| format!("seed {seed}"))
        }
        This(goes_wrong) => goes_wrong().then(|| "a test".to_owned()),
    }
}

/// Panics of broken engines are expected; those of others are to be seen.
fn hide_expected_panics() {
    static HIDDEN: Once = Once::new();
    HIDDEN.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !ablation::is_active() {
                hook(info);
            }
        }));
    });
}

#[test]
fn every_rule_that_is_broken_on_purpose_is_found_out() {
    hide_expected_panics();
    let only = std::env::var("ONEFOLD_BROKEN").ok();
    let is_asked = |broken: &Broken| {
        only.as_ref()
            .is_none_or(|only| *only == format!("{broken:?}"))
    };
    let rules = Broken::ALL.iter().copied().filter(is_asked);
    let of_rule = |broken| who_notices(broken).iter().map(move |who| (broken, *who));
    let all: Vec<(Broken, Notices)> = rules.flat_map(of_rule).collect();
    assert!(!all.is_empty(), "ONEFOLD_BROKEN names no rule: {only:?}");
    let next = AtomicUsize::new(0);
    let unnoticed = Mutex::new(Vec::new());
    let work = || {
        while let Some((broken, who)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            // A rule is broken on one thread alone, on which nothing is left of a story before. A test that panics cannot tell.
            let begun = Instant::now();
            let one = || {
                ablation::set(Some(*broken));
                noticed(*who)
            };
            let found = std::thread::scope(|scope| scope.spawn(one).join());
            let found = found.unwrap_or_default();
            eprintln!("{broken:?}: noticed by {found:?}, {:?}", begun.elapsed());
            if found.is_none() {
                unnoticed.lock().unwrap().push(broken);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let unnoticed = unnoticed.into_inner().unwrap();
    assert!(unnoticed.is_empty(), "nobody noticed: {unnoticed:?}");
}
