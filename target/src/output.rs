//! Standard output: results, for people or as JSON.

use std::io::{self, Write};

use serde::Serialize;
use subsystem::errors::Failure;

/// Prints a result. A reader that went away (a closed pipe) is no failure.
pub(crate) fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// Prints one of several results as JSON on one line.
pub(crate) fn print_line(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| no_json(&e))?;
    print(&(text + "\n"));
    Ok(())
}

fn no_json(error: &serde_json::Error) -> Failure {
    Failure::new(dedup::ErrorKind::Internal, format!("no JSON: {error}"))
}

/// Prints a result as JSON, indented, with a final newline.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| no_json(&e))?;
    print(&(text + "\n"));
    Ok(())
}
