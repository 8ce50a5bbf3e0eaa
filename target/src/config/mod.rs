//! The configuration file of `onefold serve`: `--config FILE`, in TOML.
//!
//! Guarantees:
//! - The options of the command line are the one definition: a key names an option, and has its values, its default and
//!   its help. A value of the file stands where the option is not given; what neither says is the default.
//! - A file is taken whole or not at all. Every mistake is named by its line, its key and what to write instead, and all
//!   of them at once. What `serve` refuses about the options, it refuses of the file.
//! - A reload applies what can change while the daemon runs, and names what waits for a restart. A file with a mistake
//!   changes nothing.

mod example;
mod file;
mod keys;
mod reload;

use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, error::ErrorKind};

pub(crate) use example::example;
pub(crate) use file::{Mistake, understand, understand_here};
#[cfg(test)]
pub(crate) use keys::parse_options;
pub use reload::ReadAgain;
pub(crate) use reload::{Changes, Running, names};

/// The longest file that is read, in bytes: the example is far below.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file's text.
///
/// # Errors
/// Says why it cannot be read.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let failed = |why: &dyn std::fmt::Display| {
        format!(
            "the configuration file '{}' cannot be read: {why}",
            path.display()
        )
    };
    let length = std::fs::metadata(path).map_err(|e| failed(&e))?.len();
    if length > FILE_BYTES_MAX {
        return Err(failed(&"it is larger than 1 MiB"));
    }
    std::fs::read_to_string(path).map_err(|e| failed(&e))
}

/// A file's mistakes as people read them, each on a line of its own that begins with where it is.
pub(crate) fn told(path: &Path, mistakes: &[Mistake]) -> String {
    let line = |mistake: &Mistake| format!("{}:{mistake}", path.display());
    mistakes.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The options that a file adds to those of a command line.
///
/// # Errors
/// It cannot be read, or has mistakes: all of them.
pub(crate) fn words_of(path: &Path, given: &ArgMatches) -> Result<Vec<String>, clap::Error> {
    let wrong = |text: String| clap::Error::raw(ErrorKind::ValueValidation, text + "\n");
    let text = read(path).map_err(wrong)?;
    let settings = understand(&text).map_err(|mistakes| wrong(told(path, &mistakes)))?;
    let is_given = |id: &str| {
        let source = given.value_source(id);
        matches!(
            source,
            Some(ValueSource::CommandLine | ValueSource::EnvVariable)
        )
    };
    Ok(settings.words(is_given))
}

#[cfg(test)]
mod tests;
