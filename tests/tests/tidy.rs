//! The shape of the tree: files that can be read, and `unsafe` only where it is announced.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A reader should not have to scroll further than this without a reason.
const LINES_MAX: usize = 800;

/// The only places where `unsafe` may stand.
const UNSAFE_HOMES: &[&str] = &[
    "dedup/src/content/clnh/kernels.rs",
    "reactor/src/",
    "fabric/src/soft/socket",
    "fabric/src/tcp/tls/raw.rs",
    "fabric/src/verbs/raw/",
    "meta/power-cut/src/",
    "vhost-drives/src/peer.rs",
    "rados-drives/src/librados/",
    "virtio/src/mapping.rs",
];

/// Where the target may ask the engine for the figures of all volumes: it is at work for its owner there, and a
/// telemetry snapshot is what a host asks for once. All other commands of hosts would hold up the writes of others.
const STATUS_READERS: [&str; 9] = [
    "api/src/audit.rs",
    "api/src/drives.rs",
    "api/src/health.rs",
    "api/src/history.rs",
    "api/src/metrics/mod.rs",
    "api/src/pool.rs",
    "api/src/status.rs",
    "api/src/volumes.rs",
    "subsystem/src/commands/log_page/snapshots.rs",
];

/// Words of unfinished work. They are put together here so that this file does not contain them.
const UNFINISHED: [[&str; 2]; 4] = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["HA", "CK"]];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources() -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a source folder can be read") {
            let path = entry.expect("a folder's entry can be read").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = root();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("the root manifest");
    let mut found = Vec::new();
    for member in manifest
        .lines()
        .filter_map(|line| line.trim().strip_prefix('"'))
    {
        if let Some(member) = member.strip_suffix("\",")
            && root.join(member).join("Cargo.toml").exists()
        {
            walk(&root.join(member), &mut found);
        }
    }
    assert!(found.len() > 50, "the workspace's members are found");
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).expect("it lies under the root");
            let text = fs::read_to_string(&path).expect("a source file is text");
            (name.to_string_lossy().into_owned(), text)
        })
        .collect()
}

#[test]
fn no_source_file_is_too_long_to_read() {
    let long: Vec<String> = sources()
        .iter()
        .map(|(name, text)| (name, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(name, lines)| format!("{name}: {lines} lines"))
        .collect();
    assert!(
        long.is_empty(),
        "split these by what a reader looks for: {long:#?}"
    );
}

#[test]
fn unsafe_code_stands_only_where_it_is_announced() {
    for (name, text) in sources() {
        if UNSAFE_HOMES.iter().any(|home| name.starts_with(home)) || name.ends_with("tidy.rs") {
            continue;
        }
        let found = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.contains("unsafe {") || code.contains("unsafe impl") || code.contains("unsafe fn")
        });
        assert!(
            !found,
            "{name} has unsafe code; move it to one of {UNSAFE_HOMES:?}"
        );
    }
}

#[test]
fn commands_of_hosts_ask_for_no_figures_of_all_volumes() {
    let readers: Vec<String> = sources()
        .into_iter()
        .filter(|(name, _)| {
            let places = ["subsystem/src/", "api/src/", "target/src/"];
            places.iter().any(|place| name.starts_with(place))
        })
        .filter(|(_, text)| text.contains("engine.status()"))
        .map(|(name, _)| name)
        .filter(|name| !STATUS_READERS.contains(&name.as_str()))
        .collect();
    assert!(
        readers.is_empty(),
        "ask for `Engine::summary` or `Volume::logical_bytes`: {readers:?}"
    );
}

/// Where the engine has something else for tests than items and constants: its hooks, and a way of blocking.
const HOMES_OF_TESTS: [&str; 2] = ["dedup/src/hooks.rs", "dedup/src/pool/config.rs"];

/// The lines of a source at which a function or a type is another one in tests.
fn differs_in_tests(text: &str) -> Vec<&str> {
    const ITEMS: [&str; 6] = ["mod ", "use ", "fn ", "async fn ", "struct ", "impl "];
    let mut lines = text.lines().map(str::trim);
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let is_item = |line: &str| {
            let line = line.strip_prefix("pub").map_or(line, |line| {
                line.split_once(' ').map_or(line, |(_, rest)| rest)
            });
            ITEMS.iter().any(|item| line.starts_with(item))
        };
        match line {
            "#[cfg(test)]" => {
                let next = lines
                    .find(|line| !line.starts_with("#["))
                    .unwrap_or_default();
                found.extend((!is_item(next)).then_some(next));
            }
            "#[cfg(not(test))]" => found.push(line),
            _ => {}
        }
    }
    found
}

#[test]
fn functions_of_the_engine_are_the_same_in_tests() {
    let item =
        "#[cfg(test)]\npub(crate) fn held() {}\n#[cfg(test)]\n#[derive(Clone)]\nstruct Lamp;";
    assert!(differs_in_tests(item).is_empty());
    for text in [
        "#[cfg(test)]\nlet a = 1;",
        "    #[cfg(test)]\n    lamp: Lamp,",
        "#[cfg(not(test))]\nfn held() {}",
    ] {
        assert_eq!(differs_in_tests(text).len(), 1, "{text}");
    }
    let sources = sources();
    let engine = sources.iter().filter(|(name, _)| {
        name.starts_with("dedup/src/") && !HOMES_OF_TESTS.contains(&name.as_str())
    });
    let found: Vec<String> = engine
        .flat_map(|(name, text)| {
            differs_in_tests(text)
                .into_iter()
                .map(move |it| format!("{name}: {it}"))
        })
        .collect();
    assert!(
        found.is_empty(),
        "make it a function of `Hooks` (dedup/src/hooks.rs): {found:#?}"
    );
}

#[test]
fn nothing_is_left_unfinished() {
    for (name, text) in sources() {
        for word in UNFINISHED {
            let word = word.concat();
            assert!(
                !text.contains(&word),
                "{name} contains {word}: finish it or say why not"
            );
        }
    }
}

#[test]
fn every_bad_input_has_a_test_with_its_number() {
    let table = fs::read_to_string(root().join("tests/BAD_INPUTS.md")).expect("the table");
    let sources = sources();
    for number in 1..=30 {
        assert!(
            table.contains(&format!("\n| {number} |")),
            "number {number} is not in tests/BAD_INPUTS.md"
        );
        let names = [
            format!("fn n{number:02}_"),
            format!("fn bad_input_{number}_"),
        ];
        let tested = sources
            .iter()
            .filter(|(name, _)| !name.ends_with("tidy.rs"))
            .any(|(_, text)| names.iter().any(|name| text.contains(name)));
        assert!(tested, "bad input {number}: write its test");
    }
}

/// Idioms that a stranger does not understand at first reading, with what to write instead.
const RIDDLES: [(&str, &str); 16] = [
    ("that is none", "name what is unknown, missing or malformed"),
    (
        "that are none",
        "name what is unknown, missing or malformed",
    ),
    (
        "which is none",
        "name what is unknown, missing or malformed",
    ),
    (
        "which are none",
        "name what is unknown, missing or malformed",
    ),
    ("it is none", "name what is unknown, missing or malformed"),
    ("there is none but", "say what there is"),
    ("does not go on", "say what stopped"),
    ("do not go on", "say what stopped"),
    ("did not go on", "say what did not happen in time"),
    ("is waited for", "say who waits"),
    ("are waited for", "say who waits"),
    ("was waited for", "say who waits"),
    ("were waited for", "say who waits"),
    ("waited for longer", "say who gets more time"),
    ("go forth", "return to a later one"),
    ("one of the other", "a chain of them"),
];

/// Files that people read: sources, scripts, pages, the guide, examples.
fn texts() -> Vec<(String, String)> {
    const KINDS: [&str; 9] = ["rs", "md", "toml", "txt", "sh", "js", "html", "css", "json"];
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder can be read") {
            let path = entry.expect("a folder's entry can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                if !name.starts_with('.') && name != "build" && name != "corpus" {
                    walk(&path, found);
                }
            } else if path
                .extension()
                .is_some_and(|extension| KINDS.iter().any(|kind| extension == *kind))
            {
                found.push(path);
            }
        }
    }
    let root = root();
    let mut found = Vec::new();
    walk(&root, &mut found);
    let named = |path: PathBuf| {
        let name = path.strip_prefix(&root).expect("it lies under the root");
        let text = fs::read_to_string(&path).expect("it is text");
        (name.to_string_lossy().into_owned(), text)
    };
    found.into_iter().map(named).collect()
}

/// A text as one line of lower case, without the signs of comments.
fn flowing(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.trim().trim_start_matches(['/', '!', '#', '*']));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ").to_lowercase()
}

/// Where the words stand in a flowing text, as words of their own.
fn stands_in(words: &str, text: &str) -> Option<usize> {
    let is_in_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(words).map(|(at, _)| at).find(|at| {
        let (before, behind) = (&text[..*at], &text[*at + words.len()..]);
        !is_in_word(before.chars().next_back()) && !is_in_word(behind.chars().next())
    })
}

#[test]
fn no_text_is_a_riddle() {
    let folded = flowing("/// Names\n/// that\n//! are none.");
    assert!(stands_in("that are none", &folded).is_some());
    assert!(stands_in("it is none", "a limit is none, it is nonesuch").is_none());
    let mut found = Vec::new();
    for (name, text) in texts() {
        if name.ends_with("tidy.rs") {
            continue;
        }
        let text = flowing(&text);
        for (riddle, instead) in RIDDLES {
            if let Some(at) = stands_in(riddle, &text) {
                let around: String = text[at..].chars().take(80).collect();
                found.push(format!("{name}: '{riddle}' ({instead}): {around}..."));
            }
        }
    }
    assert!(found.is_empty(), "write these in plain English: {found:#?}");
}
