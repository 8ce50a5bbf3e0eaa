//! Parses the command line, and suggests commands for unknown words.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use super::args::{Cli, Command};
use crate::config;
use crate::exit;
use crate::logging::LOG_VARIABLE;
use crate::options::ServeArgs;

/// The command that reads a configuration file.
const SERVE: &str = "serve";

/// The noun that has a command of that name, too, which reads no file.
const SLED: &str = "sled";

/// Synonyms that people try.
const SYNONYMS: [&[&str]; 7] = [
    &["create", "add", "new", "make"],
    &["delete", "remove", "rm", "del", "destroy"],
    &["list", "ls"],
    &["show", "get", "info", "describe"],
    &["set", "change", "modify", "edit", "update"],
    &["serve", "start", "run", "daemon", "up"],
    &["check", "verify", "fsck"],
];

/// Commands that a suggestion names at most.
const SUGGESTIONS_MAX: usize = 6;

/// The command line as clap knows it.
pub(super) fn command() -> clap::Command {
    let command = Cli::command();
    let examples = command.get_after_help().cloned().unwrap_or_default();
    let codes = exit::CODES.iter();
    let codes = codes.map(|(code, meaning)| format!("  {code:>3}  {meaning}\n"));
    let codes: String = codes.collect();
    let more = format!(
        "{examples}\n\nExit codes:\n{codes}\nUnder --json a failure is one line of JSON on standard error: kind, \
         message, exit_code."
    );
    with_signs(command.after_long_help(more))
}

/// Whether a command line asks for JSON, even one that cannot be understood.
pub(super) fn asks_for_json(words: &[OsString]) -> bool {
    let mut options = words.iter().take_while(|word| *word != "--");
    options.any(|word| word == "--json")
}

/// Parses a command line.
///
/// # Errors
/// What is wrong with it, with what may have been meant; or the help that was asked for.
pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let mut command = command();
    if is_blank(std::env::var_os(LOG_VARIABLE)) {
        let unset = |arg: clap::Arg| arg.env(Resettable::Reset);
        let unset_log = |serve: clap::Command| serve.mut_arg("log", unset);
        command = command
            .mut_subcommand(SERVE, unset_log)
            .mut_subcommand(SLED, |sled| sled.mut_subcommand(SERVE, unset_log));
    }
    let cli = understand(&mut command, &mut words);
    cli.map_err(|error| with_suggestions(error, &command, &words))
}

/// Understands the line of this process again, with the file as it is now.
///
/// # Errors
/// All mistakes of the file.
pub(super) fn serve_again() -> Result<ServeArgs, String> {
    let told = |error: clap::Error| {
        let text = error.to_string();
        text.trim_start_matches("error: ").trim().to_owned()
    };
    match parse(std::env::args_os()).map_err(told)?.command {
        Command::Serve(args) => Ok(*args),
        _ => Err("this process does not serve".to_owned()),
    }
}

/// Understands a command line, and the configuration file that it names.
fn understand(command: &mut clap::Command, words: &mut Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut matches = command.try_get_matches_from_mut(&*words)?;
    if let Some((SERVE, serve)) = matches.subcommand()
        && let Some(file) = serve.get_one::<PathBuf>("config")
    {
        let added = config::words_of(file, serve)?;
        // Behind `onefold serve`: what was given is no option behind a `--`.
        words.splice(2..2, added.into_iter().map(OsString::from));
        matches = command.try_get_matches_from_mut(&*words)?;
    }
    Cli::from_arg_matches(&matches).map_err(|error| error.format(command))
}

/// A variable that is set to nothing says nothing.
fn is_blank(value: Option<OsString>) -> bool {
    value.is_some_and(|value| value.to_str().is_some_and(|text| text.trim().is_empty()))
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
