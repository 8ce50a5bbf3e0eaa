//! `restored`: a file by which somebody said that this copy of the metadata is to be used, though the drives know a newer one.
//!
//! It names the epoch up to which the drives may be newer. The next opening begins a later one, so what is in the file
//! means nothing from then on, whether it is removed or not.

use std::fs;
use std::io;

use crate::error::MetaError;
use crate::pool::{PoolDir, sync_folder, write_new};

impl PoolDir {
    /// Lets this folder be used although its drives were opened with newer metadata, up to this epoch. Durable.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] and [`MetaError::Io`].
    pub fn accept_epoch(&self, epoch: u32) -> Result<(), MetaError> {
        write_new(&self.paths().restored, &format!("{epoch}\n"))?;
        sync_folder(&self.paths().dir)
    }

    /// Up to which epoch the drives may be newer than this folder; `None`: not at all.
    ///
    /// # Errors
    /// [`MetaError::Io`]; [`MetaError::Corrupt`] for a file that says something else.
    pub fn accepted_epoch(&self) -> Result<Option<u32>, MetaError> {
        let path = &self.paths().restored;
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(MetaError::io(path, "read the file", error)),
        };
        let epoch = text.trim_end().parse().map_err(|_| {
            MetaError::corrupt(
                path,
                "it is no epoch",
                "remove it, and say once more that this copy of the metadata is to be used: `onefold pool restore`",
            )
        })?;
        Ok(Some(epoch))
    }

    /// The pool was opened: nobody needs the file any more.
    pub fn forget_accepted_epoch(&self) {
        // Best effort: it means nothing now.
        let _ = fs::remove_file(&self.paths().restored);
    }
}
