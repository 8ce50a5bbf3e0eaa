//! Every rule of the engine is broken once: the stories notice.

use super::{Story, buffers};
use crate::ablation::Broken;

/// The first of 4,000 seeds whose story goes wrong when the engine is broken.
fn first_to_notice(broken: Broken) -> Option<u64> {
    let pool = buffers();
    crate::ablation::set(Some(broken));
    let goes_wrong = |seed: &u64| {
        let story = std::panic::AssertUnwindSafe(|| Story::new(*seed, pool.clone()).tell());
        std::panic::catch_unwind(story).is_err()
    };
    let first = (0..4000).find(goes_wrong);
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
        let seed = first_to_notice(broken);
        eprintln!("{broken:?}: noticed by seed {seed:?}");
        assert!(seed.is_some(), "{broken:?} was not noticed in 4,000 seeds");
    }
    assert!(broken_rules > 0, "ONEFOLD_BROKEN names no rule: {only:?}");
}
