//! Discards: freed blocks are given back to the drives before they are used again.

use crate::drive_io::drive_list::Run;
use crate::pool::Shared;

/// Discards freed blocks on the drives, batch after batch, and lets them be used again.
pub(crate) async fn discard_freed(shared: &Shared) {
    /// Blocks per batch; they cannot be allocated while it runs.
    const BATCH: usize = 4096;
    /// Of them, those that become free in one go.
    const AT_ONCE: usize = 256;
    /// Shortest run that is discarded: 128 KiB.
    const DISCARD_RUN_BLOCKS_MIN: u64 = 32;
    loop {
        let _lock = shared.discard_lock.lock().await;
        let mut taken = shared.state.share().space().take_discards(BATCH);
        taken.sort_unstable_by_key(|pba| pba.0);
        if taken.is_empty() {
            return;
        }
        let _pass = shared.drives.gate.pass();
        let mut in_doubt = Vec::new();
        for Run {
            drive,
            first,
            blocks,
        } in shared.drives.runs(&taken)
        {
            // Punching small holes costs a file system more than the space is worth, and the
            // blocks will be written again soon.
            if blocks < DISCARD_RUN_BLOCKS_MIN {
                continue;
            }
            let index = drive;
            let Some(drive) = shared.drives.get(usize::from(drive)) else {
                continue;
            };
            if let Err(error) = drive.discard(first, blocks).await {
                // A hint only: the blocks can be used all the same, if the drive does not discard them later.
                tracing::debug!(drive = drive.name(), %error, "a discard failed");
                if error.is_in_doubt() {
                    in_doubt.push(index);
                }
            }
        }
        let mut doubtful = Vec::new();
        for pba in taken.iter().filter(|_| !in_doubt.is_empty()) {
            let places = shared.drives.all_places(*pba);
            let drives = places.iter().map(|place| place.drive);
            let drives = drives.filter(|drive| in_doubt.contains(drive));
            doubtful.extend(drives.map(|drive| (*pba, drive)));
        }
        if !doubtful.is_empty() {
            let state = shared.state.share();
            let mut space = state.space();
            for (pba, drive) in doubtful {
                space.doubt(pba, drive);
            }
        }
        // Some at a time: nobody who wants a block waits for all of them.
        for some in taken.chunks(AT_ONCE) {
            shared.state.share().space().finish_discards(some);
        }
    }
}
