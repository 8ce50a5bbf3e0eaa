//! From a file's text to options, or to its mistakes.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use clap::error::{ContextKind, ContextValue};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::keys::{ACTS, KEYS, Key, Kind, TABLES, of_table, parse_options};
use crate::options::{Contradiction, ServeArgs};

/// Mistakes that are told of one file.
const MISTAKES_MAX: usize = 50;

/// Letters that a name may differ in from the one that was meant.
const EDITS_MAX: usize = 2;

/// What the parser says of a name that is there twice.
const TWICE: &str = "duplicate key";

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// From 1.
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.line, self.what)
    }
}

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Each key that is there, as options of a command line.
    keys: Vec<(&'static Key, Vec<String>)>,
}

impl Settings {
    /// How many keys are there.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The options, without those that are given already.
    pub(crate) fn words(&self, is_given: impl Fn(&str) -> bool) -> Vec<String> {
        let wanted = self.keys.iter().filter(|(key, _)| !is_given(key.id()));
        wanted
            .flat_map(|(_, words)| words.iter().cloned())
            .collect()
    }
}

/// Which options do not go together.
type Rules = fn(&ServeArgs) -> Vec<Contradiction>;

/// Understands a file.
///
/// # Errors
/// All mistakes, by their lines.
pub(crate) fn understand(text: &str) -> Result<Settings, Vec<Mistake>> {
    understand_by(text, ServeArgs::contradictions)
}

/// The same for this machine, which has to have what the file names.
///
/// # Errors
/// All mistakes, by their lines.
pub(crate) fn understand_here(text: &str) -> Result<Settings, Vec<Mistake>> {
    understand_by(text, |args| {
        let mut found = args.contradictions();
        found.extend(args.contradictions_here());
        found
    })
}

fn understand_by(text: &str, rules: Rules) -> Result<Settings, Vec<Mistake>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader {
        text,
        settings: Settings::default(),
        mistakes: Vec::new(),
        broken: HashSet::new(),
        wrong_keys: HashSet::new(),
        lines: HashMap::new(),
        sound_lines: usize::MAX,
    };
    for error in errors {
        let at = error.span().unwrap_or_default();
        let line = reader.line(&at);
        if nth_line(text, line).starts_with('[') && !error.message().contains(TWICE) {
            reader.sound_lines = reader.sound_lines.min(line);
        }
        // What follows from a broken line is no mistake of its own.
        if reader.broken.insert(line) {
            reader.wrong(&at, syntax(text, line, error.message()));
        }
    }
    reader.root(table.get_ref());
    reader.compare(rules);
    let Reader {
        settings,
        mut mistakes,
        ..
    } = reader;
    if mistakes.is_empty() {
        return Ok(settings);
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    mistakes.truncate(MISTAKES_MAX);
    Err(mistakes)
}

/// What is wrong with a line that is no TOML.
fn syntax(text: &str, line: usize, message: &str) -> String {
    let message = message.lines().collect::<Vec<_>>().join(", ");
    let line = nth_line(text, line);
    if message.contains(TWICE) {
        let name = line.split(['=', '#']).next().unwrap_or_default().trim();
        return match name.starts_with('[') {
            true => format!("the table {name} is there twice: write its keys under one of them"),
            false => format!("the key '{name}' is there twice: remove one of them"),
        };
    }
    let value = line
        .split_once('=')
        .map(|(name, value)| (name.trim(), value.trim()));
    let remedy = match value {
        Some((name, value)) if !value.starts_with(['"', '\'', '[', '{']) => {
            let key = KEYS.iter().find(|key| key.name == name);
            let remedy = key.map_or("write texts, sizes and times in quotes", |key| {
                key.kind.remedy()
            });
            format!("; {remedy}")
        }
        _ => String::new(),
    };
    format!("'{line}' is not TOML: {message}{remedy}")
}

/// A line of a text, from 1, without the space around it.
fn nth_line(text: &str, line: usize) -> &str {
    let line = text.lines().nth(line.saturating_sub(1));
    line.unwrap_or_default().trim()
}

struct Reader<'a> {
    text: &'a str,
    settings: Settings,
    mistakes: Vec<Mistake>,
    /// Lines that are no TOML.
    broken: HashSet<usize>,
    /// Options whose keys have a mistake.
    wrong_keys: HashSet<String>,
    /// Where the keys of options are.
    lines: HashMap<String, usize>,
    /// From here on it is unknown which table keys belong to.
    sound_lines: usize,
}

impl Reader<'_> {
    fn line(&self, at: &Range<usize>) -> usize {
        let before = self.text.as_bytes().iter().take(at.start);
        before.filter(|byte| **byte == b'\n').count() + 1
    }

    fn wrong(&mut self, at: &Range<usize>, what: String) {
        let line = self.line(at);
        self.mistakes.push(Mistake { line, what });
    }

    fn root(&mut self, root: &DeTable<'_>) {
        for (name, value) in root {
            if self.is_broken(&name.span()) {
                continue;
            }
            let table = name.get_ref().as_ref();
            let is_known = TABLES.iter().any(|(known, _)| *known == table);
            match value.get_ref() {
                DeValue::Table(keys) if is_known => self.table(table, keys),
                DeValue::Table(_) => {
                    let names = TABLES.iter().map(|(known, _)| *known);
                    let what = format!("there is no table [{table}]: {}", meant(table, names));
                    self.wrong(&name.span(), what);
                }
                _ if is_known => {
                    let what = format!(
                        "'{table}' is a table: write [{table}] on a line of its own, and its keys below"
                    );
                    self.wrong(&name.span(), what);
                }
                _ => {
                    let what = match elsewhere(table) {
                        Some(remedy) => format!("'{table}' stands in no table: {remedy}"),
                        None => format!(
                            "there is no key '{table}' outside of tables: every key stands below the line of its \
                             table, such as [memory]"
                        ),
                    };
                    self.wrong(&name.span(), what);
                }
            }
        }
    }

    fn is_broken(&self, at: &Range<usize>) -> bool {
        let line = self.line(at);
        line >= self.sound_lines || self.broken.contains(&line)
    }

    fn table(&mut self, table: &str, keys: &DeTable<'_>) {
        for (name, value) in keys {
            if self.is_broken(&name.span()) || self.is_broken(&value.span()) {
                continue;
            }
            let word = name.get_ref().as_ref();
            let Some(key) = of_table(table).find(|key| key.name == word) else {
                let remedy = elsewhere(word)
                    .unwrap_or_else(|| meant(word, of_table(table).map(|key| key.name)));
                let what = format!("there is no key '{word}' in [{table}]: {remedy}");
                self.wrong(&name.span(), what);
                continue;
            };
            self.lines.insert(key.option(), self.line(&value.span()));
            match words(key, value).and_then(check) {
                Ok(words) => self.settings.keys.push((key, words)),
                Err(why) => {
                    self.wrong_keys.insert(key.option());
                    self.wrong(&value.span(), format!("{key}: {why}"));
                }
            }
        }
    }

    /// Looks for keys that contradict each other. Of one that has a mistake of its own nothing more is said.
    fn compare(&mut self, rules: Rules) {
        let Ok(args) = parse_options(&self.settings.words(|_| false)) else {
            // Each was parsed alone: there is none that the others spoil.
            return;
        };
        for Contradiction { options, what } in rules(&args) {
            if options.iter().any(|it| self.wrong_keys.contains(*it)) {
                continue;
            }
            let there = options.iter().find(|it| self.lines.contains_key(**it));
            let Some((option, line)) = there.and_then(|it| self.lines.get_key_value(*it)) else {
                continue;
            };
            let key = KEYS.iter().find(|key| key.option() == *option);
            let (line, what) = (*line, in_keys(&what));
            let what = match key {
                Some(key) if !what.starts_with(&key.to_string()) => format!("{key}: {what}"),
                _ => what,
            };
            self.mistakes.push(Mistake { line, what });
        }
    }
}

/// What is said of options, said of keys.
fn in_keys(text: &str) -> String {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let mut told = String::with_capacity(text.len());
    let mut parts = text.split("--");
    told.extend(parts.next());
    for part in parts {
        let end = part.find(|letter| !is_name(letter)).unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        match KEYS.iter().find(|key| key.option() == name) {
            Some(key) => told += &key.to_string(),
            None => told = told + "--" + name,
        }
        told += rest;
    }
    told
}

/// A value as options of a command line.
fn words(key: &Key, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    let wrong = |value: &DeValue<'_>| {
        let found = match value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number with a point",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or a time of day",
            DeValue::Array(_) => "a list in brackets",
            DeValue::Table(_) => "a table",
        };
        format!("this is {found}: {}", key.kind.remedy())
    };
    let one = |value: &DeValue<'_>| match (key.kind, value) {
        (Kind::Text | Kind::Texts | Kind::Size | Kind::Time, DeValue::String(text)) => {
            Ok(text.to_string())
        }
        (Kind::Number | Kind::Numbers | Kind::Size, DeValue::Integer(number)) => decimal(number),
        (Kind::Switch, DeValue::Boolean(true)) => Ok("on".to_owned()),
        (Kind::Switch, DeValue::Boolean(false)) => Ok("off".to_owned()),
        (_, value) => Err(wrong(value)),
    };
    let values = match (key.kind, value.get_ref()) {
        (Kind::Texts | Kind::Numbers, DeValue::Array(values)) => {
            let values = values.iter().map(|value| one(value.get_ref()));
            values.collect::<Result<Vec<_>, _>>()?
        }
        (Kind::Texts | Kind::Numbers, value) => return Err(wrong(value)),
        (_, value) => vec![one(value)?],
    };
    if values.is_empty() {
        return Err("the list is empty: leave the key away for its default".to_owned());
    }
    let option = key.option();
    Ok(values
        .iter()
        .map(|value| format!("--{option}={value}"))
        .collect())
}

/// A number as options take them.
fn decimal(number: &DeInteger<'_>) -> Result<String, String> {
    let parsed = i128::from_str_radix(number.as_str(), number.radix());
    let parsed = parsed.map_err(|_| format!("{number} is too large"))?;
    Ok(parsed.to_string())
}

/// Whether the option takes the value.
fn check(words: Vec<String>) -> Result<Vec<String>, String> {
    let parsed = parse_options(&words).map(drop);
    parsed.map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        match (source, error.get(ContextKind::InvalidValue)) {
            (Some(why), _) => why,
            (None, Some(ContextValue::String(value))) => format!("'{value}' cannot be"),
            (None, _) => error.kind().to_string(),
        }
    })?;
    Ok(words)
}

/// Where a name belongs that is not known here.
fn elsewhere(name: &str) -> Option<String> {
    let dashed = name.replace('_', "-");
    if ACTS.contains(&dashed.as_str()) {
        return Some(format!(
            "this is done once: give --{dashed} to `onefold serve`"
        ));
    }
    let same = |key: &&Key| key.name == name || key.option() == dashed;
    let key = KEYS.iter().find(same)?;
    Some(format!("write {} below [{}]", key.name, key.table))
}

/// The name that was probably meant, or all there are.
fn meant<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let near = names.iter().map(|name| (edits(wrong, name), name));
    match near.filter(|(edits, _)| *edits <= EDITS_MAX).min() {
        Some((_, name)) => format!("did you mean '{name}'?"),
        None => format!("there are {}", names.join(", ")),
    }
}

/// Letters to insert, remove or replace to make one name of the other (Levenshtein).
fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = index;
        row[0] = index + 1;
        for (column, there) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *there);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
