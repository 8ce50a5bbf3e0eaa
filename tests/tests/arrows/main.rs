//! Folders use each other only downwards, as ARCHITECTURE.md says, and so do the rooms of a crate: the folders of its sources.

mod tables;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use tables::{ARROWS, HOUSES, House};

/// Every workspace package with the workspace packages it depends on.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("packages is a list");
    let name = |value: &serde_json::Value| value["name"].as_str().expect("a name").to_owned();
    let ours: Vec<String> = packages.iter().map(name).collect();
    packages
        .iter()
        .map(|package| {
            let used = package["dependencies"]
                .as_array()
                .expect("dependencies is a list");
            let used = used
                .iter()
                .map(name)
                .filter(|other| ours.contains(other))
                .collect();
            (name(package), used)
        })
        .collect()
}

#[test]
fn folders_use_only_what_lies_below_them() {
    for (package, used) in dependencies() {
        let allowed = ARROWS
            .iter()
            .find_map(|(name, allowed)| (*name == package).then_some(*allowed))
            .unwrap_or_else(|| panic!("{package} is not in the table of arrows: add it there"));
        for other in used {
            assert!(
                allowed.contains(&other.as_str()),
                "{package} must not use {other}"
            );
        }
    }
}

/// A source file: its path below the crate's `src/`, and its text without comments, literals and tests.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: without_tests(&without_comments(text)),
        }
    }

    /// The module that the file is, from the crate's root.
    fn module(&self) -> Vec<&str> {
        let path = self.path.trim_end_matches(".rs");
        let path = path.strip_suffix("/mod").unwrap_or(path);
        path.split('/').collect()
    }

    fn room(&self) -> &str {
        self.module()[0]
    }

    fn is_root(&self) -> bool {
        ["lib.rs", "main.rs"].contains(&self.path.as_str())
    }
}

/// The text with blanks for comments and for what stands between quotes.
fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '/' if chars.peek() == Some(&'/') => {
                for _ in chars.by_ref().take_while(|char| *char != '\n') {}
                kept.push('\n');
            }
            '"' => {
                kept.push_str("\"\"");
                while let Some(char) = chars.next() {
                    match char {
                        '\\' => drop(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            // A quote of its own: `'"'`, `'\''`. Others are lifetimes, or hold nothing that matters.
            '\'' if matches!(chars.peek(), Some('"' | '\\')) => {
                if chars.next() == Some('\\') {
                    chars.next();
                }
                chars.next();
            }
            char => kept.push(char),
        }
    }
    kept
}

/// The text without modules that are compiled for tests alone: what tests use is no arrow.
fn without_tests(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let is_module = |line: &&str| {
            let line = line.trim_start();
            let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
            line.starts_with("mod ")
        };
        if line.trim() == "#[cfg(test)]"
            && let Some(module) = lines.next_if(is_module)
        {
            if module.trim_end().ends_with('{') {
                let end = format!("{:indent$}}}", "");
                for _ in lines.by_ref().take_while(|line| line.trim_end() != end) {}
            }
            continue;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// What follows `text` in a path: a name, or the first names of each path in braces. Nested braces are parts of
/// paths whose first name was seen.
fn first_names(text: &str) -> Vec<String> {
    let text = text.trim_start();
    let word = |text: &str| text.chars().take_while(|c| is_word(*c)).collect::<String>();
    let Some(group) = text.strip_prefix('{') else {
        return vec![word(text)];
    };
    let mut names = Vec::new();
    let (mut depth, mut begins) = (0, 0);
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                names.push(word(group[begins..at].trim_start()));
                begins = at + 1;
                if char == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Names at the crate's root that lead into a room: `pub use room::…::{Name, …}`.
fn exports(root: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for import in root.split("use ").skip(1) {
        let Some((import, _)) = import.split_once(';') else {
            continue;
        };
        let names = match import.split_once('{') {
            Some((_, names)) => names.trim_end_matches(['}', '\n', ' ']),
            None => import.rsplit("::").next().unwrap_or_default(),
        };
        for name in names.split(',') {
            let name = name.rsplit(" as ").next().unwrap_or_default().trim();
            exports.insert(name.to_owned(), first_names(import)[0].clone());
        }
    }
    exports
}

/// Every use of a path that begins at the crate's root, by the name that follows the root. A file is taken for one
/// module: `super` in a module within it counts from the file's.
fn uses(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (start, _) in source.text.match_indices("crate::") {
        if !source.text[..start].ends_with(|char| is_word(char) || char == '$') {
            found.extend(first_names(&source.text[start + "crate::".len()..]));
        }
    }
    for (start, _) in source.text.match_indices("super::") {
        let before = &source.text[..start];
        if before.ends_with(is_word) || before.ends_with("super::") {
            continue;
        }
        let mut module = source.module();
        let mut rest = &source.text[start..];
        while let Some(next) = rest.strip_prefix("super::") {
            module.pop();
            rest = next;
        }
        if module.is_empty() {
            found.extend(first_names(rest));
        }
    }
    found
}

/// Types with methods of their own in this file: `impl Type {`, not `impl Trait for Type {`.
fn types_with_methods(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim_start) {
        let Some(rest) = line.strip_prefix("impl") else {
            continue;
        };
        let rest = match rest.strip_prefix('<') {
            Some(generics) => {
                let mut depth = 1;
                let end = generics.find(|char| {
                    depth += i32::from(char == '<') - i32::from(char == '>');
                    depth == 0
                });
                end.map_or("", |end| &generics[end + 1..])
            }
            None => rest,
        };
        if rest.starts_with(' ') && !rest.contains(" for ") {
            found.extend(first_names(rest));
        }
    }
    found
}

/// What does not go downwards in a crate, a line for each.
fn wrong_arrows(house: &House, sources: &[Source]) -> Vec<String> {
    let root = sources.iter().find(|source| source.is_root());
    let exports = root.map(|root| exports(&root.text)).unwrap_or_default();
    let table: BTreeMap<&str, &[&str]> = house.rooms.iter().copied().collect();
    let is_room = |name: &str| sources.iter().any(|source| source.room() == name);
    let mut defined: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        for kind in ["struct ", "enum ", "union ", "type ", "trait "] {
            for (start, _) in source.text.match_indices(kind) {
                let name = first_names(&source.text[start + kind.len()..]).remove(0);
                defined.entry(name).or_default().insert(source.room());
            }
        }
    }
    let mut wrong = Vec::new();
    for source in sources.iter().filter(|source| !source.is_root()) {
        let (path, room) = (&source.path, source.room());
        let allowed = table.get(room).copied().unwrap_or_default();
        for name in uses(source) {
            let other = exports.get(&name).unwrap_or(&name).as_str();
            let is_known = other == room || house.ground.contains(&other);
            if is_room(other) && !is_known && !allowed.contains(&other) {
                wrong.push(format!("{path}: `{room}` must not use `{other}` ({name})"));
            }
        }
        for name in types_with_methods(&source.text) {
            let homes = defined.get(&name);
            let is_spread = house.spread.contains(&name.as_str());
            if !is_spread && homes.is_some_and(|homes| !homes.contains(room)) {
                wrong.push(format!("{path}: methods of `{name}` belong to its room"));
            }
        }
        let waits = ["async ", ".await"]
            .iter()
            .any(|it| source.text.contains(it));
        if house.never_wait.contains(&room) && waits {
            wrong.push(format!("{path}: nothing waits in `{room}`"));
        }
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

/// The files of a crate that are compiled into the program: no tests, and no modules that its root has for tests.
fn sources_of(src: &str) -> Vec<Source> {
    fn walk(root: &Path, folder: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).expect("a source folder can be read") {
            let path = entry.expect("a folder's entry can be read").path();
            if path.is_dir() {
                walk(root, &path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).expect("it lies below");
                let text = fs::read_to_string(&path).expect("a source file is text");
                found.push((name.to_string_lossy().into_owned(), text));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(src);
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    let is_root = |(name, _): &&(String, String)| ["lib.rs", "main.rs"].contains(&name.as_str());
    let (_, text) = found.iter().find(is_root).expect("a crate has a root");
    let for_tests: Vec<String> = text
        .split("#[cfg(test)]\n")
        .skip(1)
        .filter_map(|rest| rest.strip_prefix("mod "))
        .map(|rest| first_names(rest).remove(0))
        .collect();
    let sources = found.iter().map(|(name, text)| Source::new(name, text));
    sources
        .filter(|source| !for_tests.contains(&source.room().to_owned()))
        .filter(|source| source.module().last() != Some(&"tests"))
        .filter(|source| !source.path.contains("/tests/"))
        .collect()
}

#[test]
fn rooms_of_a_crate_use_only_what_lies_below_them() {
    for house in HOUSES {
        let sources = sources_of(house.src);
        let rooms: BTreeSet<&str> = sources.iter().map(Source::room).collect();
        for (room, _) in house.rooms {
            assert!(rooms.contains(room), "{} has no room `{room}`", house.src);
        }
        let wrong = wrong_arrows(house, &sources);
        assert!(wrong.is_empty(), "{}: {wrong:#?}", house.src);
    }
}

#[test]
fn an_upward_import_is_noticed_in_whatever_way_it_is_written() {
    let house = House {
        src: "",
        ground: &["error"],
        rooms: &[("low", &[]), ("high", &["low"])],
        never_wait: &["low"],
        spread: &[],
    };
    let wrong = |path: &str, text: &str| {
        let sources = [
            Source::new(
                "lib.rs",
                "pub use high::deep::{Lamp, Chair as Seat};\npub use error::Error;",
            ),
            Source::new("error.rs", "pub struct Error;"),
            Source::new(
                "high/deep.rs",
                "pub struct Lamp; pub struct Chair; use crate::low::table::Table;",
            ),
            Source::new(
                "low/table.rs",
                "pub struct Table; use super::leg; use crate::{Error, low::leg::Leg};",
            ),
            Source::new(path, text),
        ];
        wrong_arrows(&house, &sources).len()
    };
    for text in [
        "",
        "// use crate::high::deep::Lamp;",
        "const TEXT: &str = \"crate::high\";",
        "use crate::error::Error; use super::table::Table; use super::super::low;",
        "#[cfg(test)]\nmod tests {\n    use crate::high::deep::Lamp;\n}\n",
        "#[cfg(test)]\nmod tests;\n",
        "impl Table {",
        "impl From<Table> for Lamp {",
    ] {
        assert_eq!(wrong("low/leg.rs", text), 0, "{text}");
    }
    for text in [
        "use crate::high::deep::Lamp;",
        "use crate::{low::table::Table, high};",
        "use crate::{\n    low::{table, table::Table},\n    high::deep,\n};",
        "use crate::Lamp;",
        "use crate::{Error, Seat};",
        "use super::super::high::deep;",
        "fn lamp() -> crate::high::deep::Lamp {",
        "#[cfg(test)]\nmod tests {\n}\nuse crate::high::deep::Lamp;",
        "const QUOTE: char = '\"'; use crate::high::deep::Lamp;",
        "impl Lamp {",
        "impl<'a, T: Into<Vec<u8>>> Lamp<'a, T> {",
        "async fn wait() {",
    ] {
        assert_eq!(wrong("low/leg.rs", text), 1, "{text}");
    }
}
