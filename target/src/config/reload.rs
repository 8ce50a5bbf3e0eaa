//! What a file that is read again changes of a daemon that runs.

use std::fmt;
use std::path::PathBuf;

use api::Reloaded;
use subsystem::errors::Failure;

use super::keys::{KEYS, Key};
use crate::options::ServeArgs;

/// What came of a reload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changes(Reloaded);

impl From<Reloaded> for Changes {
    fn from(reloaded: Reloaded) -> Self {
        Self(reloaded)
    }
}

impl From<Changes> for Reloaded {
    fn from(changes: Changes) -> Self {
        changes.0
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reloaded {
            file,
            applied,
            waiting,
        } = &self.0;
        write!(f, "{}: ", file.display())?;
        match (applied.is_empty(), waiting.is_empty()) {
            (true, true) => write!(f, "nothing changed"),
            (false, true) => write!(f, "changed {}", applied.join(", ")),
            (true, false) => write!(f, "a restart changes {}", waiting.join(", ")),
            (false, false) => write!(
                f,
                "changed {}; a restart changes {}",
                applied.join(", "),
                waiting.join(", ")
            ),
        }
    }
}

/// Understands the daemon's command line again, with the configuration file as it is now. An error is all mistakes.
pub type ReadAgain = fn() -> Result<ServeArgs, String>;

/// What the daemon runs with.
#[derive(Debug)]
pub(crate) struct Running {
    options: ServeArgs,
    read_again: ReadAgain,
}

impl Running {
    /// What it was started with.
    pub(crate) fn new(options: ServeArgs, read_again: ReadAgain) -> Self {
        Self {
            options,
            read_again,
        }
    }

    /// What it runs with now.
    pub(crate) fn options(&self) -> &ServeArgs {
        &self.options
    }

    /// The options with the file as it is now.
    ///
    /// # Errors
    /// All mistakes of the file.
    pub(crate) fn read_again(&self) -> Result<ServeArgs, String> {
        (self.read_again)()
    }

    /// The file that is read again.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn file(&self) -> Result<PathBuf, Failure> {
        let without = "the daemon was started without --config: there is no file to read again";
        self.options
            .config
            .clone()
            .ok_or_else(|| Failure::invalid(without))
    }

    /// What applies at once and what waits, if this is what the daemon shall run with.
    pub(crate) fn differences(&self, wanted: &ServeArgs) -> (Vec<&'static Key>, Vec<&'static Key>) {
        let changed = KEYS
            .iter()
            .filter(|key| !(key.is_same)(&self.options, wanted));
        changed.partition(|key| key.is_applied(&self.options, wanted))
    }

    /// Takes over what was applied. What waits stays as it runs: the next reload names it again.
    pub(crate) fn applied(&mut self, keys: &[&Key], wanted: &ServeArgs) {
        for key in keys {
            (key.take)(&mut self.options, wanted);
        }
    }
}

/// Names of keys.
pub(crate) fn names(keys: &[&Key]) -> Vec<String> {
    keys.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::super::keys::parse_options;
    use super::*;

    fn args(words: &[&str]) -> ServeArgs {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        parse_options(&words).expect("options")
    }

    fn unread() -> Result<ServeArgs, String> {
        Err("there is no command line".to_owned())
    }

    fn differences(running: &Running, wanted: &ServeArgs) -> (Vec<String>, Vec<String>) {
        let (at_once, later) = running.differences(wanted);
        (names(&at_once), names(&later))
    }

    #[test]
    fn what_a_reload_applies_is_taken_over_and_what_waits_is_named_again() {
        let mut running = Running::new(args(&["--buffers=64M"]), unread);
        let wanted = args(&[
            "--buffers=65536k",
            "--log=warn",
            "--spin=20us",
            "--tls=required",
        ]);
        let keys = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (at_once, later): (Vec<String>, Vec<String>) =
            (keys(&["tls.mode", "log.filter"]), keys(&["reactors.spin"]));
        assert_eq!(differences(&running, &wanted), (at_once, later.clone()));
        let (applied, _) = running.differences(&wanted);
        running.applied(&applied, &wanted);
        assert_eq!(differences(&running, &wanted), (Vec::new(), later));
        let as_it_was = args(&["--buffers=64M", "--log=warn", "--tls=required"]);
        assert_eq!(differences(&running, &as_it_was), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_reload_is_told_in_one_line() {
        let told = |applied: &[&str], waiting: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let reloaded = Reloaded {
                file: "/f".into(),
                applied: names(applied),
                waiting: names(waiting),
            };
            Changes::from(reloaded).to_string()
        };
        assert_eq!(told(&[], &[]), "/f: nothing changed");
        assert_eq!(told(&["a.b", "c.d"], &[]), "/f: changed a.b, c.d");
        assert_eq!(told(&[], &["e.f"]), "/f: a restart changes e.f");
        assert_eq!(
            told(&["a.b"], &["e.f"]),
            "/f: changed a.b; a restart changes e.f"
        );
    }
}
