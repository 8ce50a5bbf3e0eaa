//! Discards: freed blocks are given back to the drives before they are used again.

use crate::drive_io::drive_list::Run;
use crate::pool::Shared;
use crate::sync::wait::lock;

/// Discards freed blocks on the drives, batch after batch, and lets them be used again.
pub(crate) async fn discard_freed(shared: &Shared) {
    /// Blocks per batch; they cannot be allocated while it runs.
    const BATCH: usize = 4096;
    /// Shortest run that is discarded: 128 KiB.
    const DISCARD_RUN_BLOCKS_MIN: u64 = 32;
    loop {
        let _lock = shared.discard_lock.lock().await;
        let taken = lock(&shared.state).space().take_discards(BATCH);
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
        let state = lock(&shared.state);
        for pba in &taken {
            for place in shared.drives.all_places(*pba).iter() {
                if in_doubt.contains(&place.drive) {
                    state.space().doubt(*pba, place.drive);
                }
            }
        }
        state.space().finish_discards(&taken);
    }
}
