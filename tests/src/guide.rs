//! The commands of the guide (`docs/src`): what is in its blocks of code, by where it is typed.
//!
//! | block | typed | run by |
//! |---|---|---|
//! | `sh,node` | on a machine with the package, as root | `tests/package.rs`, in a booted Debian |
//! | `sh,run` | beside a running daemon | `tests/guide.rs` |
//! | `sh,remote` | on another machine, which reaches the node by ssh | `tests/package.rs`, in a network of its own |
//! | `sh,host` | on a host, as root | `tests/guests.rs`, by a real kernel and by QEMU |
//! | `sh,elsewhere` | on machines that no test has | nobody: `tests/guide.rs` reads each `onefold` line |

use std::fs;
use std::path::{Path, PathBuf};

/// Where a command of the guide is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On a node with the package.
    Node,
    /// Beside a daemon.
    Run,
    /// On a machine that reaches the node by ssh.
    Remote,
    /// On a host of the node.
    Host,
    /// Where no test is.
    Elsewhere,
}

/// A block of commands.
#[derive(Debug)]
pub struct Block {
    /// Where it is typed.
    pub place: Place,
    /// Its text.
    pub text: String,
    /// The line of its chapter where it begins, from 1.
    pub line: usize,
}

/// The guide's folder.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src")
}

/// The names of all chapters, without `.md`, in the order of their names.
///
/// # Panics
/// When the folder cannot be read.
pub fn chapters() -> Vec<String> {
    let files = fs::read_dir(folder()).expect("docs/src can be read");
    let names = files.map(|file| file.expect("an entry").file_name());
    let names = names.filter_map(|name| name.to_str()?.strip_suffix(".md").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A chapter's text.
///
/// # Panics
/// When there is no such chapter.
pub fn chapter(name: &str) -> String {
    let path = folder().join(format!("{name}.md"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of shell commands in a chapter.
///
/// # Panics
/// When a block says `sh` and not where it is typed: every command has its place.
pub fn blocks(name: &str) -> Vec<Block> {
    let text = chapter(name);
    let mut blocks: Vec<Block> = Vec::new();
    let mut fence: Option<Option<Block>> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let Some(info) = line.strip_prefix("```") else {
            if let Some(Some(block)) = &mut fence {
                block.text += &format!("{line}\n");
            }
            continue;
        };
        fence = match fence.take() {
            Some(block) => {
                blocks.extend(block);
                None
            }
            None => Some(place(info, name, number).map(|place| Block {
                place,
                text: String::new(),
                line: number,
            })),
        };
    }
    assert!(fence.is_none(), "{name}.md: a block has no end");
    blocks
}

fn place(info: &str, name: &str, number: usize) -> Option<Place> {
    match info {
        "sh,node" => Some(Place::Node),
        "sh,run" => Some(Place::Run),
        "sh,remote" => Some(Place::Remote),
        "sh,host" => Some(Place::Host),
        "sh,elsewhere" => Some(Place::Elsewhere),
        _ => {
            let is_shell = ["sh", "bash", "console", "shell"]
                .iter()
                .any(|shell| info.starts_with(shell));
            assert!(!is_shell, "{name}.md:{number}: say where '{info}' is typed");
            None
        }
    }
}

/// The texts of a chapter's blocks for that place.
///
/// # Panics
/// As [`blocks`].
pub fn commands(name: &str, place: Place) -> Vec<String> {
    let blocks = blocks(name).into_iter();
    let here = blocks.filter(|block| block.place == place);
    here.map(|block| block.text).collect()
}

/// The arguments of the first command of a program in a chapter's blocks of text, which no shell types.
///
/// # Panics
/// When there is no such command.
pub fn arguments(name: &str, program: &str) -> Vec<String> {
    let text = chapter(name).replace("\\\n", " ");
    let start = format!("{program} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    let line = line.unwrap_or_else(|| panic!("{name}.md has no command of {program}"));
    line.split_whitespace().map(str::to_owned).collect()
}
