//! Drives of other targets and servers, for the commands that work without a daemon: the program says once how they
//! are opened, because this crate knows none of them.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use drives::{Drive, DriveError};

use crate::{EngineError, Result};

/// Opens the drive at an address for reading. Its futures are ready at once, on any thread without a reactor.
pub type OpenRemote = fn(&Path) -> std::result::Result<Arc<dyn Drive>, DriveError>;

static OPENER: OnceLock<OpenRemote> = OnceLock::new();

/// Check, repair and restore open drives with addresses by this function from now on. The first call counts.
pub fn open_remote_drives_by(open: OpenRemote) {
    let _ = OPENER.set(open);
}

/// # Errors
/// The drive's; or the program opens none.
pub(crate) fn open(path: &Path) -> Result<Arc<dyn Drive>> {
    let Some(open) = OPENER.get() else {
        return Err(EngineError::invalid(format!(
            "{} is a drive of another program, which this program cannot read without a daemon",
            path.display()
        )));
    };
    open(path).map_err(|error| EngineError::unavailable(error.to_string()))
}
