//! Every rule of the engine is broken once: the stories notice.

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

#[test]
fn every_rule_that_is_broken_on_purpose_is_found_out() {
    // Panics of broken engines are expected; those of other tests are to be seen.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !crate::ablation::is_active() {
            hook(info);
        }
    }));
    let only = std::env::var("ONEFOLD_BROKEN").ok();
    let mut broken_rules = 0;
    for broken in [
        Broken::BelieveHoles,
        Broken::BelieveHints,
        Broken::ForgetUnindexed,
        Broken::ForgetHeldHints,
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
        Broken::RebuildWithGap,
        Broken::MoveBesideWrites,
        Broken::FreeBeforeProven,
        Broken::MoveUnflushed,
        Broken::ReturnDamaged,
        Broken::NeverHeal,
    ] {
        if only
            .as_ref()
            .is_some_and(|name| *name != format!("{broken:?}"))
        {
            continue;
        }
        broken_rules += 1;
        let seed = first_to_notice(broken, 0..4000);
        eprintln!("{broken:?}: noticed by seed {seed:?}");
        assert!(seed.is_some(), "{broken:?} was not noticed in 4,000 seeds");
    }
    assert!(broken_rules > 0, "ONEFOLD_BROKEN names no rule: {only:?}");
    if only.is_none() {
        // Stories with an older copy of a folder notice that too: here it is an import.
        let imports = (0..4000).filter(|seed| on_drives::is_on_drives(*seed));
        let seed = first_to_notice(Broken::EpochIgnored, imports);
        assert!(seed.is_some(), "an import of an older epoch was believed");
    }
}
