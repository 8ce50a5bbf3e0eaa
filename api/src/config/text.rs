//! From a file's text to what it asks for, or to its mistakes.

use std::collections::HashSet;

use nvme::Nqn;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::document::{
    END, Export, Host, Limit, Listener, Namespace, ReferralEntry, Schedule, Subsystem, VERSION,
    Volume,
};
use super::wrapped::Wrapped;
use crate::scrub::ScrubSchedule;

/// The tables, in the order of an export.
const TABLES: [&str; 10] = [
    "volume",
    "subsystem",
    "host",
    "listener",
    "referral",
    "export",
    "limit",
    "snapshot_schedule",
    "scrub",
    "secrets",
];

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// From 1.
    pub(super) line: usize,
    pub(super) what: String,
}

/// Something that a file asks for, and where.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) line: usize,
    pub(super) value: T,
}

/// What a file asks for.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) volumes: Vec<At<Volume>>,
    pub(super) subsystems: Vec<At<Subsystem>>,
    /// Each with its subsystem's name.
    pub(super) namespaces: Vec<At<(Nqn, Namespace)>>,
    pub(super) hosts: Vec<At<Host>>,
    pub(super) listeners: Vec<At<Listener>>,
    pub(super) referrals: Vec<At<ReferralEntry>>,
    pub(super) exports: Vec<At<Export>>,
    pub(super) limits: Vec<At<Limit>>,
    pub(super) schedules: Vec<At<Schedule>>,
    pub(super) scrubs: Option<At<ScrubSchedule>>,
    pub(super) secrets: Option<At<Wrapped>>,
}

/// Reads a file.
///
/// # Errors
/// All mistakes, by their lines.
pub(super) fn read(text: &str) -> Result<Wanted, Vec<Mistake>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader::new(text);
    let mut broken = HashSet::new();
    for error in errors {
        let line = reader.line(error.span().unwrap_or_default().start);
        // What follows from a broken line is no mistake of its own.
        if broken.insert(line) {
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            reader.wrong(line, format!("this is not TOML: {message}"));
        }
    }
    let wanted = match broken.is_empty() {
        true => reader.root(root.into_inner()),
        false => Wanted::default(),
    };
    if text.trim_end().lines().next_back() != Some(END) {
        let line = reader.line(text.trim_end().len());
        reader.wrong(
            line,
            format!("the file is not whole: its last line is not '{END}'; export it again, or write that line"),
        );
    }
    let mut mistakes = reader.mistakes;
    if mistakes.is_empty() {
        return Ok(wanted);
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    Err(mistakes)
}

struct Reader {
    /// Where lines end, in bytes.
    ends: Vec<usize>,
    mistakes: Vec<Mistake>,
}

impl Reader {
    fn new(text: &str) -> Self {
        Self {
            ends: text.match_indices('\n').map(|(at, _)| at).collect(),
            mistakes: Vec::new(),
        }
    }

    fn line(&self, at: usize) -> usize {
        self.ends.partition_point(|end| *end < at) + 1
    }

    fn wrong(&mut self, line: usize, what: String) {
        self.mistakes.push(Mistake { line, what });
    }

    fn root(&mut self, root: DeTable<'_>) -> Wanted {
        let mut wanted = Wanted::default();
        let mut has_version = false;
        for (name, value) in root {
            let line = self.line(name.span().start);
            match name.get_ref().as_ref() {
                "version" => {
                    has_version = true;
                    self.version(line, value.get_ref());
                }
                "volume" => wanted.volumes = self.entries("volume", value),
                "subsystem" => self.subsystems(value, &mut wanted),
                "host" => wanted.hosts = self.entries("host", value),
                "listener" => wanted.listeners = self.entries("listener", value),
                "referral" => wanted.referrals = self.entries("referral", value),
                "export" => wanted.exports = self.entries("export", value),
                "limit" => wanted.limits = self.entries("limit", value),
                "snapshot_schedule" => wanted.schedules = self.entries("snapshot_schedule", value),
                "scrub" => {
                    wanted.scrubs = self.entry("scrub", value).map(|value| At { line, value })
                }
                "secrets" => {
                    wanted.secrets = self.entry("secrets", value).map(|value| At { line, value });
                }
                other => {
                    let what = format!(
                        "there is no '{other}' here: there are version, {}",
                        TABLES.join(", ")
                    );
                    self.wrong(line, what);
                }
            }
        }
        if !has_version {
            self.wrong(
                1,
                format!("the file does not begin with its version: write 'version = {VERSION}'"),
            );
        }
        wanted
    }

    fn version(&mut self, line: usize, value: &DeValue<'_>) {
        let number = value.as_integer().map(|number| number.as_str());
        if number != Some(VERSION.to_string().as_str()) {
            let what = format!(
                "this version of onefold reads version {VERSION} of the file: export it with the same version as it \
                 is imported with"
            );
            self.wrong(line, what);
        }
    }

    /// The tables of an array, each with its line.
    fn tables<'t>(&mut self, name: &str, value: Spanned<DeValue<'t>>) -> Vec<Spanned<DeValue<'t>>> {
        let line = self.line(value.span().start);
        match value.into_inner() {
            DeValue::Array(array) if array.iter().all(|one| one.get_ref().is_table()) => {
                array.into_iter().collect()
            }
            _ => {
                self.wrong(
                    line,
                    format!("'{name}' is a table: write [[{name}]] on a line of its own"),
                );
                Vec::new()
            }
        }
    }

    fn entries<T: DeserializeOwned>(
        &mut self,
        name: &str,
        value: Spanned<DeValue<'_>>,
    ) -> Vec<At<T>> {
        let tables = self.tables(name, value);
        let mut entries = Vec::with_capacity(tables.len());
        for table in tables {
            let line = self.line(table.span().start);
            entries.extend(self.entry(name, table).map(|value| At { line, value }));
        }
        entries
    }

    fn entry<T: DeserializeOwned>(&mut self, name: &str, table: Spanned<DeValue<'_>>) -> Option<T> {
        let at = table.span().start;
        match T::deserialize(ValueDeserializer::from(table)) {
            Ok(entry) => Some(entry),
            Err(error) => {
                let line = self.line(error.span().map_or(at, |span| span.start));
                let message = error.message().lines().collect::<Vec<_>>().join(", ");
                self.wrong(line, format!("[{name}]: {message}"));
                None
            }
        }
    }

    /// Subsystems, and their namespaces, each of which can have a mistake of its own.
    fn subsystems(&mut self, value: Spanned<DeValue<'_>>, wanted: &mut Wanted) {
        for mut table in self.tables("subsystem", value) {
            let line = self.line(table.span().start);
            let namespaces = match table.get_mut() {
                DeValue::Table(keys) => keys.remove("namespace"),
                _ => None,
            };
            let namespaces: Vec<At<Namespace>> = match namespaces {
                Some(namespaces) => self.entries("subsystem.namespace", namespaces),
                None => Vec::new(),
            };
            let Some(value) = self.entry::<Subsystem>("subsystem", table) else {
                continue;
            };
            let nqn = &value.nqn;
            let named = namespaces.into_iter().map(|At { line, value }| At {
                line,
                value: (nqn.clone(), value),
            });
            wanted.namespaces.extend(named);
            wanted.subsystems.push(At { line, value });
        }
    }
}
