//! The program's log: on standard error, as much as `ONEFOLD_LOG` asks for.

use std::env::VarError;
use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::args::Command;
use crate::errors::Failure;

/// The variable that sets what is logged, in the syntax of tracing's `EnvFilter`.
const LOG_VARIABLE: &str = "ONEFOLD_LOG";

/// Parts of the program, which a filter may name.
const PARTS: [&str; 10] = [
    "onefold",
    "dedup",
    "fabric",
    "meta",
    "drives",
    "reactor",
    "roce",
    "nvme",
    "initiator",
    "bench",
];

/// The daemon logs what happens, the other commands only what goes wrong.
///
/// # Errors
/// The variable holds something that is no filter.
pub(super) fn start(command: &Command) -> Result<(), Failure> {
    let default = match command {
        Command::Serve(_) => "info",
        _ => "warn",
    };
    let filter = match std::env::var(LOG_VARIABLE) {
        Ok(text) if !text.trim().is_empty() => filter(&text)?,
        Ok(_) | Err(VarError::NotPresent) => EnvFilter::new(default),
        Err(VarError::NotUnicode(text)) => {
            return Err(no_filter(&text.to_string_lossy(), "it is not UTF-8"));
        }
    };
    // Fails only when a logger is set already: then that one is used.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A log that cannot be written (a closed terminal, a pipe without a reader) is lost. The default complains
        // on standard error, which panics then.
        .log_internal_errors(false)
        .try_init();
    Ok(())
}

/// A filter of the log. `EnvFilter` takes a mistyped level for the name of a part and logs nothing, so words
/// that stand where a level or a part stands have to be one.
fn filter(text: &str) -> Result<EnvFilter, Failure> {
    // EnvFilter takes no spaces around commas; people write them.
    let directives: Vec<&str> = text.split(',').map(str::trim).collect();
    for &directive in &directives {
        // With brackets it is about spans, which EnvFilter checks.
        if directive.contains(['[', ']']) {
            continue;
        }
        let (part, level) = match directive.split_once('=') {
            Some((part, level)) => (part.trim(), Some(level.trim())),
            None => (directive, None),
        };
        let root = part.split("::").next().unwrap_or_default();
        // LevelFilter takes nothing at all for a level, too.
        let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
        if level.is_none() && is_level(part) {
            continue;
        }
        if !PARTS.contains(&root) {
            return Err(no_filter(
                text,
                &format!("'{part}' is no level and no part of the program"),
            ));
        }
        if let Some(level) = level.filter(|level| !is_level(level)) {
            return Err(no_filter(text, &format!("'{level}' is no level")));
        }
    }
    let parsed = EnvFilter::builder().parse(directives.join(","));
    parsed.map_err(|error| no_filter(text, &error.to_string()))
}

fn no_filter(text: &str, why: &str) -> Failure {
    Failure::invalid(format!(
        "{LOG_VARIABLE}='{text}' is no filter of the log: {why}; write off, error, warn, info, debug or trace, and \
         behind a comma the level of a part, as in 'info,dedup=debug' (parts: {})",
        PARTS.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_filter_is_an_error_that_says_what_would_be_right() {
        for right in [
            "info",
            "WARN",
            "off",
            "info,dedup=debug",
            "onefold::serve=trace",
            "dedup",
            "warn, fabric=info",
        ] {
            assert!(filter(right).is_ok(), "{right}");
        }
        for wrong in [
            "inof",
            "info,dedupe=debug",
            "dedup=loud",
            "info=debug",
            "info;",
            "a b",
            "info,,",
        ] {
            let refused = filter(wrong).expect_err(wrong).to_string();
            assert!(
                refused.contains("ONEFOLD_LOG") && refused.contains("info,dedup=debug"),
                "{refused}"
            );
        }
    }
}
