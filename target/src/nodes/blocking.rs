//! What blocks, beside the tasks that wait for it.

use dedup::ErrorKind;
use drives::DriveError;
use subsystem::errors::Failure;

use crate::errors::of_drive;

/// Runs what blocks.
///
/// # Errors
/// As of `run`, or the program ends.
pub(crate) async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, DriveError> + Send + 'static,
) -> Result<T, Failure> {
    let ran = tokio::task::spawn_blocking(run).await;
    let ran = ran.map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))?;
    ran.map_err(of_drive)
}
