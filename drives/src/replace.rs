//! Small files that are replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Replaces what a file holds. The file is the old one or the new one, whole; after a loss of power the new one. Blocks. One at a
/// time for each file.
///
/// # Errors
/// The system's: then the file is the old one or the new one, and a loss of power may bring the old one back.
pub fn replace_file(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut written = File::create(&new)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    fs::rename(&new, file)?;
    // The name, too, must survive.
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
