//! Room for a write that found none: freed blocks are made usable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::io::trim::trim_slice;
use crate::log::flush::flush_and_note;
use crate::pool::Shared;
use crate::residency::rows::find_free;

/// Tries to make freed blocks usable; false when there is nothing to gain.
pub(crate) async fn reclaim_space(shared: &Arc<Shared>) -> bool {
    if !shared.loaded.load(Ordering::Acquire) && matches!(find_free(shared).await, Ok(true)) {
        return true;
    }
    if shared.state.share().space().skip_discards() > 0 {
        return true;
    }
    while !shared.state.share().space().has_reclaimable() {
        // What was trimmed at once may not be free yet.
        if !matches!(trim_slice(shared).await, Ok(true)) {
            return false;
        }
    }
    // A discard under way hands its blocks back at its end.
    drop(shared.discard_lock.lock().await);
    if flush_and_note(shared).await.is_err() {
        return false;
    }
    shared.release_freed();
    shared.state.share().space().skip_discards();
    true
}
