//! `onefold pool import`: makes a pool's folder of what its drives hold.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use super::{Outcome, print, print_json, progress};
use crate::import::import;

/// Makes the folder `target` of the metadata on these drives.
pub(super) fn pool_import(
    paths: &[PathBuf],
    target: &Path,
    force: Option<&str>,
    json: bool,
) -> Outcome {
    let made = || import(paths, target, force);
    let imported = progress::spinning("making the pool's folder of its drives", made)?;
    if json {
        print_json(&json!({
            "pool": imported.dir,
            "uuid": imported.uuid,
            "drives": imported.drives,
            "missing": imported.missing,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("{}: the pool {}\n", imported.dir.display(), imported.uuid);
    for path in &imported.missing {
        text += &format!(
            "  its drive {} was not named: the pool opens without it if other drives have its data\n",
            path.display()
        );
    }
    text += &format!(
        "it can be served now: onefold serve --pool {}\n",
        imported.dir.display()
    );
    print(&text);
    Ok(ExitCode::SUCCESS)
}
