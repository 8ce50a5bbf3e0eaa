//! The guide (`docs/`) says what is so: its commands work, its links lead somewhere.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tests::daemon::{Daemon, onefold, program, text_of};
use tests::guide::{self, Place};
use tests::own_address;

/// The node of the guide, where it answers HTTP, and an address that it has beside that.
const NODE: &str = "192.0.2.1";
const HTTP: &str = "127.0.0.1:8420";
const SECOND: &str = "192.0.2.5";

/// Runs a shell in a folder where `onefold` is the program under test.
fn shell(folder: &Path, pool: &Path, script: &str) -> std::process::Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command.args(["-e", "-o", "pipefail", "-x", "-c", script]);
    command.current_dir(folder).env("ONEFOLD_POOL", pool);
    command.env("PATH", format!("{}/bin:{path}", folder.display()));
    command.stdin(std::process::Stdio::null());
    command.output().expect("bash runs")
}

/// A folder with `onefold` in it.
fn work() -> tempfile::TempDir {
    let work = tempfile::Builder::new()
        .prefix("onefold-guide-")
        .tempdir()
        .expect("a folder");
    std::fs::create_dir(work.path().join("bin")).expect("a folder");
    let program = std::path::absolute(program()).expect("a path");
    symlink(program, work.path().join("bin/onefold")).expect("a link");
    work
}

#[test]
fn what_the_guide_says_to_type_beside_a_daemon_works() {
    let mut typed = 0;
    for (number, chapter) in (1..).zip(guide::chapters()) {
        let blocks = guide::blocks(&chapter);
        let blocks: Vec<_> = blocks.iter().filter(|b| b.place == Place::Run).collect();
        if blocks.is_empty() {
            continue;
        }
        let work = work();
        let pool = work.path().join("pool");
        let (node, second) = (own_address(number).to_string(), own_address(100 + number));
        let listen = format!("tcp://{node}:4420");
        let http = format!("{node}:8420");
        let serve = [
            "--create",
            "2G",
            "--listen",
            &listen,
            "--reactors",
            "1",
            "--http",
            &http,
        ];
        let daemon = Daemon::start(&pool, None, &serve);
        for block in blocks {
            let script = block.text.replace(NODE, &node);
            let script = script.replace(SECOND, &second.to_string());
            let script = script.replace(HTTP, &http);
            let output = shell(work.path(), &pool, &script);
            let place = format!("docs/src/{chapter}.md:{}", block.line);
            assert!(output.status.success(), "{place}: {}", text_of(&output));
            typed += 1;
        }
        assert!(daemon.stop().success(), "{chapter}: the daemon stops");
    }
    assert!(typed >= 15, "only {typed} blocks were typed");
}

#[test]
fn every_onefold_line_that_no_test_can_type_is_one_that_the_program_understands() {
    let work = work();
    let mut read = 0;
    for chapter in guide::chapters() {
        for block in guide::blocks(&chapter) {
            // A line may go on in the next one.
            let text = block.text.replace("\\\n", " ");
            let lines = text.lines().filter_map(|line| {
                // Behind a comment's sign nothing would be read.
                let line = line.split(" #").next().unwrap_or_default();
                let (_, command) = line.split_once("onefold -- onefold ").unwrap_or(("", line));
                match line.starts_with("onefold ") {
                    true => Some(line.trim_start_matches("onefold ")),
                    false => (command != line).then_some(command),
                }
            });
            for line in lines.filter(|_| block.place != Place::Run) {
                // With --help behind it nothing is done, and whatever stands before has been understood.
                let script = format!("onefold {line} --help");
                let output = shell(work.path(), Path::new("/nowhere"), &script);
                assert!(output.status.success(), "{chapter}: {}", text_of(&output));
                read += 1;
            }
        }
    }
    assert!(read >= 5, "only {read} lines were read");
    let wrong = shell(
        work.path(),
        Path::new("/nowhere"),
        "onefold pool check --nonsense --help",
    );
    assert!(!wrong.status.success(), "a wrong option is noticed");
}

#[test]
fn every_chapter_is_in_the_table_of_contents_and_every_link_leads_somewhere() {
    let mut listed = BTreeSet::new();
    for chapter in guide::chapters() {
        let text = guide::chapter(&chapter);
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            let file = link.split('#').next().unwrap_or_default();
            // The guide gets a copy of this one when it is made.
            let is_copied = file == "FEATURES.md";
            let folder = guide::folder();
            let folder = if is_copied { folder.join("..") } else { folder };
            assert!(
                folder.join(file).exists(),
                "{chapter}.md: there is no '{link}'"
            );
            if chapter == "SUMMARY" && !is_copied {
                listed.insert(file.trim_end_matches(".md").to_owned());
            }
        }
    }
    listed.insert("SUMMARY".to_owned());
    let chapters: BTreeSet<String> = guide::chapters().into_iter().collect();
    assert_eq!(listed, chapters, "SUMMARY.md lists each chapter");
}

#[test]
fn the_reference_has_every_command_and_every_key_of_the_program() {
    let work = work();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/guide.sh");
    let out = work.path().join("guide");
    let output = Command::new(script).arg(program()).arg(&out).output();
    let output = output.expect("the script runs");
    assert!(output.status.success(), "{}", text_of(&output));

    let read = |name: &str| std::fs::read_to_string(out.join("src").join(name)).expect("a chapter");
    let commands = read("commands.md");
    let all = self::commands(&[]);
    assert!(all.len() > 60, "{all:?}");
    for command in all {
        let heading = format!("\n## onefold {}\n", command.join(" "));
        assert!(commands.contains(&heading), "no heading '{heading}'");
    }
    // mdBook leaves out what its table of contents does not name.
    let summary = read("SUMMARY.md");
    for file in std::fs::read_dir(out.join("src")).expect("the made guide") {
        let name = file.expect("an entry").file_name();
        let link = format!("({})", name.to_str().expect("a name"));
        assert!(
            link == "(SUMMARY.md)" || summary.contains(&link),
            "SUMMARY.md has no {link}"
        );
    }
    let table = read("configuration.md");
    let example = onefold(&["config", "example"]).stdout;
    let example = String::from_utf8(example).expect("text");
    let mut section = "";
    let mut keys = 0;
    for line in example.lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            section = name;
        } else if let Some((key, _)) = line.split_once(" = ")
            && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        {
            let row = format!("| `{section}.{key}` |");
            assert!(table.contains(&row), "no row of {section}.{key}");
            keys += 1;
        }
    }
    assert!(keys > 20, "only {keys} keys were found");
}

/// Words by which commands that close, remove or delete something are called.
const CLOSING: [&str; 13] = [
    "cancel", "clear", "delete", "detach", "disallow", "import", "remove", "rename", "repair",
    "restore", "rollback", "stop", "revoke",
];

#[test]
fn the_guide_says_of_every_closing_command_what_takes_it_back() {
    let chapter = guide::chapter("commands");
    let rows: Vec<Vec<&str>> = chapter
        .lines()
        .filter(|line| line.starts_with("| `onefold "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let mut closing = BTreeSet::new();
    for command in commands(&[]) {
        let last = command.last().map(String::as_str).unwrap_or_default();
        if CLOSING.contains(&last) {
            closing.insert(command.join(" "));
        }
    }
    assert!(closing.len() >= 14, "{closing:?}");
    for command in closing {
        let begins = format!("`onefold {command}");
        let row = rows.iter().find(|row| row[0].starts_with(&begins));
        assert!(row.is_some(), "the table has no row of '{command}'");
    }
    let work = work();
    for row in rows {
        assert_eq!(row.len(), 3, "{row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        for line in row[0]
            .split('`')
            .chain(row[2].split('`'))
            .filter(|code| code.starts_with("onefold "))
        {
            let words = line.split(' ').map(|word| match word {
                "NQN" | "HOSTNQN" => "nqn.2026-11.org.example:name",
                "ADDRESS" => "tcp://192.0.2.5:4420",
                "N" | "DAYS" => "1",
                "TIME" => "1h",
                "SIZE" => "1G",
                word => word,
            });
            let line = words.collect::<Vec<_>>().join(" ");
            let output = shell(
                work.path(),
                Path::new("/nowhere"),
                &format!("{line} --help"),
            );
            assert!(output.status.success(), "{line}: {}", text_of(&output));
        }
    }
}

/// Options by which a command closes or loses something.
const CLOSING_OPTIONS: [&str; 4] = ["--off", "--overwrite", "--replace", "--shrink"];

/// Whether a line of a chapter closes, removes or deletes something.
fn closes(code: &str) -> bool {
    let Some((_, words)) = code.split_once("onefold ") else {
        return false;
    };
    let words: Vec<&str> = words.split_whitespace().collect();
    let is_name = |word: &&&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let command: Vec<&&str> = words.iter().take(3).take_while(is_name).collect();
    let closes = command.iter().any(|word| CLOSING.contains(*word))
        || words.iter().any(|word| CLOSING_OPTIONS.contains(word));
    closes && !words.contains(&"--dry-run")
}

#[test]
fn every_closing_command_in_a_chapter_has_its_undo_beside_it() {
    let mut closing = 0;
    for chapter in guide::chapters() {
        for block in guide::blocks(&chapter) {
            for (number, line) in (block.line + 1..).zip(block.text.lines()) {
                let (code, comment) = line.split_once(" #").unwrap_or((line, ""));
                if closes(code) {
                    closing += 1;
                    let place = format!("docs/src/{chapter}.md:{number}");
                    assert!(
                        comment.contains("undo"),
                        "{place}: say what undoes '{code}'"
                    );
                }
            }
        }
    }
    assert!(closing >= 25, "only {closing} closing commands were found");
}

/// The words of every command of the program below these.
fn commands(above: &[String]) -> Vec<Vec<String>> {
    let mut words: Vec<&str> = above.iter().map(String::as_str).collect();
    words.push("--help");
    let help = String::from_utf8(onefold(&words).stdout).expect("text");
    let names = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = names
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            let name = line.strip_prefix("  ")?.split(' ').next()?;
            (!name.is_empty() && name != "help").then(|| name.to_owned())
        });
    let mut all = Vec::new();
    for name in names {
        let command = [above, &[name]].concat();
        all.extend(commands(&command));
        all.push(command);
    }
    all
}
