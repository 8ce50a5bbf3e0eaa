//! Every rule of the engine is broken once: the stories notice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use super::{Story, buffers, on_drives};
use crate::ablation::Broken;

/// The first of these seeds whose story goes wrong when the engine is broken.
fn first_to_notice(broken: Broken, mut seeds: impl Iterator<Item = u64>) -> Option<u64> {
    let pool = buffers();
    crate::ablation::set(Some(broken));
    let goes_wrong = |seed: &u64| {
        let story = std::panic::AssertUnwindSafe(|| Story::new(*seed, pool.clone()).tell());
        std::panic::catch_unwind(story).is_err()
    };
    let first = seeds.find(goes_wrong);
    crate::ablation::set(None);
    first
}

/// The rules that stories notice; the others have a test of their own.
const RULES: &[Broken] = &[
    Broken::BelieveHoles,
    Broken::BelieveIndexEntries,
    Broken::ForgetUnindexed,
    Broken::ForgetHeldIndexEntries,
    Broken::ReuseBeforeDurable,
    Broken::ReuseUnknown,
    Broken::TrustUnflushed,
    Broken::UndoAfterCrash,
    Broken::UndoUnreadable,
    Broken::ForgetPowerLoss,
    Broken::FlushJournalOnly,
    Broken::StoreBeforeJournal,
    Broken::KeepReferences,
    Broken::NoRangeLock,
    Broken::ShareInFlight,
    Broken::MapWhatIsTrimmed,
    Broken::IgnoreMismatch,
    Broken::UnlockBeforeCompared,
    Broken::EvictUnstored,
    Broken::EvictInUse,
    Broken::EvictHeld,
    Broken::EvictUnstoredBlocks,
    Broken::BelieveStaleBlocks,
    Broken::AppendBlindly,
    Broken::CopyUncounted,
    Broken::PartHidesRest,
    Broken::ForgetNewOwner,
    Broken::DropWhatShows,
    Broken::UnmappedInherits,
    Broken::FreeParentInUse,
    Broken::SnapshotOneByOne,
    Broken::LiftThoughSeen,
    Broken::FreePackInUse,
    Broken::EpochIgnored,
    Broken::ForgetOffline,
    Broken::ProveOneCopy,
    Broken::RebuildBesideWrites,
    Broken::RebuildUnflushed,
    Broken::MoveBesideWrites,
    Broken::FreeBeforeProven,
    Broken::MoveUnflushed,
    Broken::ReturnDamaged,
    Broken::NeverHeal,
];

/// Panics of broken engines are expected; those of other tests are to be seen.
fn hide_expected_panics() {
    static HIDDEN: Once = Once::new();
    HIDDEN.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !crate::ablation::is_active() {
                hook(info);
            }
        }));
    });
}

#[test]
fn every_rule_that_is_broken_on_purpose_is_found_out() {
    hide_expected_panics();
    let only = std::env::var("ONEFOLD_BROKEN").ok();
    let is_asked = |broken: &&Broken| {
        only.as_ref()
            .is_none_or(|only| *only == format!("{broken:?}"))
    };
    let rules: Vec<Broken> = RULES.iter().filter(is_asked).copied().collect();
    assert!(!rules.is_empty(), "ONEFOLD_BROKEN names no rule: {only:?}");
    // A rule is broken on one thread alone.
    let next = AtomicUsize::new(0);
    let unnoticed = Mutex::new(Vec::new());
    let work = || {
        while let Some(broken) = rules.get(next.fetch_add(1, Ordering::Relaxed)) {
            let seed = first_to_notice(*broken, 0..4000);
            eprintln!("{broken:?}: noticed by seed {seed:?}");
            if seed.is_none() {
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
    assert!(
        unnoticed.is_empty(),
        "not noticed in 4,000 seeds: {unnoticed:?}"
    );
}

/// Stories with an older copy of a folder notice that too: here it is an import.
#[test]
fn an_import_of_an_older_epoch_is_found_out() {
    hide_expected_panics();
    let imports = (0..4000).filter(|seed| on_drives::is_on_drives(*seed));
    let seed = first_to_notice(Broken::EpochIgnored, imports);
    assert!(seed.is_some(), "it was believed in 4,000 seeds");
}
