//! `onefold completions` and `onefold man`: what shells and `man` know of the commands, made of their definition.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use dedup::ErrorKind;
use subsystem::errors::Failure;

use super::{Outcome, line, print};
use crate::exit;

/// The section of the manual: commands of users.
const SECTION: &str = "1";

/// `onefold completions`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold completions bash > /usr/share/bash-completion/completions/onefold\n  \
                  onefold completions zsh > /usr/local/share/zsh/site-functions/_onefold\n  \
                  onefold completions fish > ~/.config/fish/completions/onefold.fish"
)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// `onefold man`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  onefold man /usr/local/share/man/man1\n\n\
                  It writes a page for each command: onefold.1, onefold-volume.1, onefold-volume-create.1 and so on.")]
pub struct ManArgs {
    /// The folder for the pages; it is made if it is missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// `onefold completions`
pub(super) fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    let mut command = line::command();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

/// `onefold man`
pub(super) fn man(args: &ManArgs) -> Outcome {
    let failed = |what: &Path, error: std::io::Error| {
        let why = format!("'{}' cannot be written: {error}", what.display());
        Failure::new(ErrorKind::Unavailable, why)
    };
    std::fs::create_dir_all(&args.dir).map_err(|error| failed(&args.dir, error))?;
    let pages = pages()?;
    for (name, page) in &pages {
        let path = args.dir.join(format!("{name}.{SECTION}"));
        std::fs::write(&path, page).map_err(|error| failed(&path, error))?;
    }
    print(&format!(
        "{} pages in {}\n",
        pages.len(),
        args.dir.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// The page of each command, by the name of the page.
fn pages() -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut root = line::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add_pages(&root, root.get_name(), &mut pages)?;
    Ok(pages)
}

fn add_pages(
    command: &Command,
    name: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), Failure> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .title(name.to_ascii_uppercase())
        .render(&mut page)
        .map_err(|error| {
            Failure::new(ErrorKind::Internal, format!("no page of {name}: {error}"))
        })?;
    page.extend_from_slice(exit_status().as_bytes());
    pages.push((name.to_owned(), page));
    for below in command
        .get_subcommands()
        .filter(|it| it.get_name() != "help")
    {
        add_pages(below, &format!("{name}-{}", below.get_name()), pages)?;
    }
    Ok(())
}

/// The exit codes as roff.
fn exit_status() -> String {
    let code = |(code, meaning): &(u8, &str)| format!(".TP\n{code}\n{meaning}\n");
    let codes: String = exit::CODES.iter().map(code).collect();
    format!(".SH \"EXIT STATUS\"\n{codes}")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_exit_codes() {
        let pages = pages().expect("pages");
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in [
            "onefold",
            "onefold-serve",
            "onefold-volume-create",
            "onefold-host-tls-key-add",
        ] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        for (name, page) in &pages {
            let text = String::from_utf8_lossy(page);
            assert!(text.contains("EXIT STATUS"), "{name}");
            assert!(text.contains(".TP\n65\n"), "{name}");
        }
    }

    #[test]
    fn every_shell_gets_the_commands() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut line::command(), "onefold", &mut script);
            let script = String::from_utf8(script).expect("text");
            assert!(
                script.contains("volume") && script.contains("tls-key"),
                "{shell}"
            );
        }
    }
}
