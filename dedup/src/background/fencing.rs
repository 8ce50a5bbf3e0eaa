//! Fencing: blocks that a drive may still write to or discard become usable when the drive says that it will not.

use crate::pool::Shared;
use crate::sync::wait::lock;

/// Fences the drives that have anything in doubt. Those that cannot do that keep it so until the pool is opened again.
pub(crate) async fn fence_drives(shared: &Shared) {
    let (drives, number) = lock(&shared.state).space().doubtful_drives();
    for index in drives {
        let Some(drive) = shared.drives.get(usize::from(index)) else {
            continue;
        };
        match drive.fence().await {
            Ok(()) => {
                let blocks = lock(&shared.state).space().fenced(index, number);
                tracing::info!(
                    drive = drive.name(),
                    blocks,
                    "what was in doubt on the drive is settled"
                );
            }
            Err(error) => tracing::debug!(drive = drive.name(), %error, "the drive is not fenced"),
        }
    }
}
