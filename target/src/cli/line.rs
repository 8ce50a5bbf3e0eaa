//! From words to a command; and what to say of words that are none.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use super::args::Cli;

/// Words that people use for the same.
const SYNONYMS: [&[&str]; 7] = [
    &["create", "add", "new", "make"],
    &["delete", "remove", "rm", "del", "destroy"],
    &["list", "ls"],
    &["show", "get", "info", "describe"],
    &["set", "change", "modify", "edit", "update"],
    &["serve", "start", "run", "daemon", "up"],
    &["check", "verify", "fsck"],
];

/// Places that a suggestion names.
const SUGGESTIONS_MAX: usize = 6;

/// The command line as it is understood.
pub(super) fn command() -> clap::Command {
    with_signs(Cli::command())
}

/// Understands a command line.
///
/// # Errors
/// What is wrong with it, with what may have been meant; or the help that was asked for.
pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    let mut command = command();
    let matches = command.try_get_matches_from_mut(&words);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    cli.map_err(|error| {
        let error = error.format(&mut command);
        with_suggestions(error, &command, &words)
    })
}

/// Lets a size begin with a minus sign: whoever writes one is told that sizes are not negative, and not that there is
/// no option of that name.
fn with_signs(command: clap::Command) -> clap::Command {
    let signed = |arg: clap::Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        let is_size = names.iter().any(|name| *name == "SIZE" || *name == "BYTES");
        match is_size {
            true => arg.allow_hyphen_values(true),
            false => arg,
        }
    };
    command.mut_args(signed).mut_subcommands(with_signs)
}

/// Adds to 'unrecognized subcommand' what may have been meant.
fn with_suggestions(
    mut error: clap::Error,
    root: &clap::Command,
    words: &[OsString],
) -> clap::Error {
    let unknown = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(unknown))) => unknown.clone(),
        _ => return error,
    };
    let mut here = root;
    for word in words.iter().skip(1) {
        match here.find_subcommand(word) {
            Some(below) => here = below,
            None => break,
        }
    }
    let mut meant = suggestions(root, here, &unknown);
    // Words that look alike are clap's own suggestion.
    if let Some(ContextValue::Strings(alike)) = error.get(ContextKind::SuggestedSubcommand) {
        meant.extend(
            alike
                .iter()
                .filter(|word| !meant.contains(word))
                .cloned()
                .collect::<Vec<_>>(),
        );
    }
    if !meant.is_empty() {
        meant.truncate(SUGGESTIONS_MAX);
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(meant),
        );
    }
    error
}

/// Commands of that name or of one that means the same: here, or else in the groups, such as `volume list` for `list`.
fn suggestions(root: &clap::Command, here: &clap::Command, unknown: &str) -> Vec<String> {
    let same = SYNONYMS.iter().find(|words| words.contains(&unknown));
    let mut names = vec![unknown];
    names.extend(same.into_iter().flat_map(|words| words.iter().copied()));
    let within = |group: &clap::Command| {
        let commands = group.get_subcommands().map(clap::Command::get_name);
        let found = commands.filter(|name| names.contains(name));
        found.map(str::to_owned).collect::<Vec<_>>()
    };
    let siblings = within(here);
    if !siblings.is_empty() {
        return siblings;
    }
    let groups = root.get_subcommands();
    let in_group = |group: &clap::Command| {
        let found = within(group).into_iter();
        let full = found.map(|name| format!("{} {name}", group.get_name()));
        full.collect::<Vec<_>>()
    };
    groups.flat_map(in_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words = line.split(' ').map(OsString::from);
        parse(words).expect_err(line).to_string()
    }

    #[test]
    fn an_unknown_word_is_answered_with_the_command_that_was_meant() {
        for (line, meant) in [
            ("onefold list", "'volume list'"),
            ("onefold create", "'volume create'"),
            ("onefold attach", "'namespace attach'"),
            ("onefold start", "'serve'"),
            ("onefold fsck", "'pool check'"),
            ("onefold volume rm a", "'delete'"),
            ("onefold volume ls", "'list'"),
            ("onefold volume attach a", "'namespace attach'"),
            ("onefold listener delete x", "'remove'"),
            ("onefold host allow x", "'subsystem allow'"),
            ("onefold volum list", "'volume'"),
        ] {
            let text = said(line);
            assert!(
                text.contains("tip:") && text.contains(meant),
                "{line}: {text}"
            );
        }
        let list = said("onefold list");
        let first = list
            .lines()
            .find(|line| line.contains("tip:"))
            .expect("a tip");
        assert!(
            first.contains("exist: 'volume list'"),
            "the first one: {first}"
        );
        assert!(!said("onefold nonsense").contains("tip:"));
    }

    #[test]
    fn a_negative_size_is_called_one() {
        for line in [
            "onefold volume create a --size -5G",
            "onefold volume create a --size=-5G",
            "onefold volume resize a --size -1",
            "onefold serve --create -1G",
            "onefold serve --buffers -1G",
            "onefold serve --volume a=-1G",
            "onefold perf tcp://127.0.0.1:4420/nqn.2026-11.x:y --rw read --size -4k",
        ] {
            let text = said(line);
            assert!(text.contains("negative size"), "{line}: {text}");
        }
    }
}
