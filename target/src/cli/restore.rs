//! `onefold pool restore`: lets a part of a pool be used that is an older copy, its metadata or a drive.
//!
//! Exit 0: it can be served now. 1: nobody agreed, or it could not be looked at.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use dedup::Restore;
use serde_json::json;
use subsystem::errors::Failure;

use super::ask::answer;
use super::{Exit, Outcome, print, print_json};

/// Compares the metadata in `dir` with the drives, and lets them be used together.
pub(super) fn pool_restore(dir: &Path, yes: bool, json: bool) -> Outcome {
    let restore = Restore::look(dir).map_err(|error| Exit::could_not_run(error.into()))?;
    let (epoch, drives_epoch) = (restore.epoch(), restore.drives_epoch());
    let older = restore.older().to_vec();
    let shown = dir.display();
    if !json && older.is_empty() {
        print(&format!(
            "{shown}: metadata and drives are of one moment: the pool can be served as it is\n"
        ));
    } else if !json {
        for told in &older {
            print(&format!("{shown}: {told}\n"));
        }
        print(
            "What was written since that copy was made is LOST when it is used, and blocks that are not there any more read \
             as errors.\nWhat is newer cannot be used any more then.\n",
        );
    }
    let agreed = older.is_empty() || yes || (!json && agree()?);
    if agreed {
        restore
            .accept()
            .map_err(|error| Exit::could_not_run(error.into()))?;
    }
    if json {
        print_json(&json!({
            "pool": dir,
            "epoch": epoch,
            "drives_epoch": drives_epoch,
            "older": older,
            "accepted": agreed,
        }))?;
    } else if !older.is_empty() && agreed {
        print(
            "It can be served now. Run `onefold scrub start` then, so that nothing new is shared with blocks that are lost.\n",
        );
    }
    match agreed {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Exit::could_not_run(Failure::invalid(
            "nothing was changed: repeat it with --yes to use this copy",
        ))),
    }
}

/// Asks on a terminal; without one nobody agreed.
fn agree() -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    Ok(answer("Use this copy? Type 'yes': ")? == "yes")
}
