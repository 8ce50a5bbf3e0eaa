//! Copies the engine's sources and breaks the copy: `rules/*.txt` say how, in the format of `tests/breaks/`.
//!
//! Each rule has its name behind `break:`, and what it means in the comment above; several breaks may have one name. `old:` stands
//! in exactly one place of its file, and `new:` takes that place. There `is_broken()` asks whether the rule is broken. `break: any`
//! asks whether any rule is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A text of one file that another one takes the place of.
#[derive(Default)]
struct Break {
    list: String,
    rule: String,
    /// What it means, a line each.
    says: Vec<String>,
    file: String,
    old: String,
    new: String,
}

fn main() {
    println!("cargo::rerun-if-changed=../src");
    println!("cargo::rerun-if-changed=rules");
    if let Err(wrong) = make() {
        eprintln!("{wrong}");
        std::process::exit(1);
    }
}

fn make() -> Result<(), String> {
    let out = PathBuf::from(std::env::var("OUT_DIR").map_err(|error| error.to_string())?);
    let mut sources = files_below(Path::new("../src"), "rs")?;
    let mut breaks = Vec::new();
    for (list, text) in files_below(Path::new("rules"), "txt")? {
        breaks.append(&mut parsed(&list, &text)?);
    }
    let rules = rules(&breaks)?;
    for (file, source) in &mut sources {
        let of_file = breaks.iter().filter(|it| it.file == *file);
        *source = without_tests(&broken(source, &of_file.collect::<Vec<_>>())?);
    }
    if let Some(lost) = breaks.iter().find(|it| !sources.contains_key(&it.file)) {
        return Err(wrong(
            lost,
            "there is no such file: name the one with its text",
        ));
    }
    let root = sources
        .get_mut("lib.rs")
        .ok_or("the engine has no lib.rs")?;
    *root = without_head(root);
    // Files of an earlier life.
    let copy = out.join("src");
    for old in files_below(&copy, "rs").unwrap_or_default().keys() {
        if !sources.contains_key(old) {
            fs::remove_file(copy.join(old)).map_err(|error| format!("{old}: {error}"))?;
        }
    }
    for (file, text) in &sources {
        write(&copy.join(file), text)?;
    }
    write(&out.join("broken.rs"), &rules)
}

/// The files with this ending, by their path below the folder, with their text.
fn files_below(root: &Path, ending: &str) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == ending) {
                let text = fs::read_to_string(&path);
                let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
                let name = path.strip_prefix(root).unwrap_or(&path);
                found.insert(name.to_string_lossy().into_owned(), text);
            }
        }
    }
    Ok(found)
}

fn parsed(list: &str, text: &str) -> Result<Vec<Break>, String> {
    enum Part {
        Head,
        Old,
        New,
    }
    let (mut breaks, mut part) = (Vec::new(), Part::Head);
    let mut one = Break::default();
    for line in text.lines() {
        match (&part, line) {
            (Part::Old, "new:") => part = Part::New,
            (Part::Old, _) => one.old += &format!("{line}\n"),
            (Part::New, "end") => {
                for text in [&mut one.old, &mut one.new] {
                    text.truncate(text.trim_end_matches('\n').len());
                }
                one.list = list.to_owned();
                if one.rule.is_empty() || one.file.is_empty() || one.old.is_empty() {
                    return Err(wrong(&one, "it needs `break:`, `file:` and `old:`"));
                }
                breaks.push(std::mem::take(&mut one));
                part = Part::Head;
            }
            (Part::New, _) => one.new += &format!("{line}\n"),
            (Part::Head, "old:") => part = Part::Old,
            (Part::Head, "") => one.says.clear(),
            (Part::Head, _) => match line.split_once(' ') {
                Some(("#", says)) => one.says.push(says.to_owned()),
                Some(("break:", rule)) => one.rule = rule.to_owned(),
                Some(("file:", file)) => one.file = file.to_owned(),
                _ => {
                    return Err(format!(
                        "dedup/ablations/rules/{list} has a line that says nothing: {line}"
                    ));
                }
            },
        }
    }
    match part {
        Part::Head => Ok(breaks),
        Part::Old | Part::New => Err(wrong(&one, "it has no `end`")),
    }
}

/// The source of the rules: one variant each.
fn rules(breaks: &[Break]) -> Result<String, String> {
    let (mut variants, mut names) = (String::new(), Vec::new());
    for it in breaks.iter().filter(|it| it.rule != "any") {
        match (names.contains(&it.rule.as_str()), it.says.is_empty()) {
            (false, true) => {
                return Err(wrong(it, "say in a comment above it what it breaks"));
            }
            (false, false) => names.push(&it.rule),
            (true, true) => continue,
            (true, false) => {
                return Err(wrong(
                    it,
                    "its name is taken: only the first one of several has a comment",
                ));
            }
        }
        for says in &it.says {
            variants += &format!("    /// {says}\n");
        }
        variants += &format!("    {},\n", it.rule);
    }
    let all: Vec<String> = names.iter().map(|name| format!("Self::{name}")).collect();
    Ok(format!(
        "/// A rule that is not followed.\n#[derive(Clone, Copy, Debug, PartialEq, Eq)]\npub(crate) enum Broken {{\n{variants}}}\n\n\
         impl Broken {{\n    pub(crate) const ALL: &[Self] = &[{}];\n}}\n",
        all.join(", ")
    ))
}

/// The source with its breaks.
fn broken(source: &str, breaks: &[&Break]) -> Result<String, String> {
    let mut places = Vec::new();
    for it in breaks {
        let mut found = source.match_indices(&it.old);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => places.push((at, *it)),
            (None, _) => return Err(wrong(it, "its text is not there any more: write it anew")),
            _ => {
                return Err(wrong(
                    it,
                    "its text is there more than once: add lines around it",
                ));
            }
        }
    }
    places.sort_by_key(|(at, _)| *at);
    let (mut text, mut upto) = (String::new(), 0);
    for (at, it) in places {
        if at < upto {
            return Err(wrong(it, "its text is part of another rule's"));
        }
        let new = match it.rule.as_str() {
            "any" => it
                .new
                .replace("is_broken()", "crate::ablation::is_active()"),
            rule => {
                let is = format!("crate::ablation::is(crate::ablation::Broken::{rule})");
                it.new.replace("is_broken()", &is)
            }
        };
        text += &source[upto..at];
        text += &new;
        upto = at + it.old.len();
    }
    Ok(text + &source[upto..])
}

/// The source whose tests are functions as others are.
fn without_tests(source: &str) -> String {
    let is_kept = |line: &&str| line.trim() != "#[test]";
    source.split_inclusive('\n').filter(is_kept).collect()
}

/// The root without what only the beginning of a file can have.
fn without_head(root: &str) -> String {
    let is_head = |line: &&str| line.starts_with("//!") || line.starts_with("#![");
    root.split_inclusive('\n')
        .filter(|line| !is_head(line))
        .collect()
}

fn wrong(it: &Break, what: &str) -> String {
    let (list, rule, file, old) = (&it.list, &it.rule, &it.file, &it.old);
    format!("dedup/ablations/rules/{list}: `{rule}` of dedup/src/{file}: {what}\n{old}")
}

/// Only what changed, so that nothing is compiled once more for the time of a file.
fn write(path: &Path, text: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(path);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, text));
    written.map_err(|error| format!("{}: {error}", path.display()))
}
