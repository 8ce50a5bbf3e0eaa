//! The program's log: on standard error, as much as `ONEFOLD_LOG` asks for; `onefold serve` has an option for it too.

use std::env::VarError;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use subsystem::errors::Failure;
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

use crate::recorder::EventLayer;

/// The variable that sets what is logged, in the syntax of tracing's `EnvFilter`.
pub(crate) const LOG_VARIABLE: &str = "ONEFOLD_LOG";

/// Parts of the program, which a filter may name.
const PARTS: [&str; 13] = [
    "onefold",
    "subsystem",
    "sled",
    "api",
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

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Sets another filter.
type Set = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// How another filter is set, once there is a log.
static SET: OnceLock<Set> = OnceLock::new();

/// The daemon logs by the filter of its options, the other commands only what goes wrong, or what the variable says.
///
/// # Errors
/// The variable holds something that is no filter.
pub(crate) fn start(of_daemon: Option<(&str, LogFormat)>) -> Result<(), Failure> {
    let filter = match of_daemon {
        Some((text, _)) => filter(text).map_err(Failure::invalid)?,
        None => of_variable()?,
    };
    let (filter, handle) = reload::Layer::new(filter);
    let log = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A log that cannot be written (a closed terminal, a pipe without a reader) is lost. The default complains
        // on standard error, which panics then.
        .log_internal_errors(false);
    let log = match of_daemon {
        Some((_, LogFormat::Json)) => log.json().flatten_event(true).boxed(),
        Some((_, LogFormat::Text)) | None => log.boxed(),
    };
    let log = log.with_filter(filter);
    let events = of_daemon.map(|_| {
        let takes = FilterFn::new(|metadata| EventLayer::takes(metadata, &PARTS));
        // Coarser than this none is: a level that nobody wants costs a look at a number.
        EventLayer.with_filter(takes.with_max_level_hint(LevelFilter::INFO))
    });
    let subscriber = tracing_subscriber::registry().with(log).with(events);
    // Fails only when a logger is set already: then that one is used.
    if subscriber.try_init().is_ok() {
        let set = move |filter| handle.reload(filter).map_err(|error| error.to_string());
        let _ = SET.set(Box::new(set));
    }
    Ok(())
}

/// Logs by another filter from now on.
///
/// # Errors
/// The text is not a filter.
pub(crate) fn set(text: &str) -> Result<(), String> {
    let filter = filter(text)?;
    SET.get().map_or(Ok(()), |set| set(filter))
}

/// What the variable says; without it only what goes wrong.
fn of_variable() -> Result<EnvFilter, Failure> {
    let wrong = |why| Failure::invalid(format!("{LOG_VARIABLE}: {why}"));
    match std::env::var(LOG_VARIABLE) {
        Ok(text) if !text.trim().is_empty() => filter(&text).map_err(wrong),
        Ok(_) | Err(VarError::NotPresent) => Ok(EnvFilter::new("warn")),
        Err(VarError::NotUnicode(text)) => {
            Err(wrong(no_filter(&text.to_string_lossy(), "it is not UTF-8")))
        }
    }
}

/// A text that is a filter of the log.
///
/// # Errors
/// The text is not a filter.
pub(crate) fn parse_filter(text: &str) -> Result<String, String> {
    filter(text).map(|_| text.to_owned())
}

/// A filter of the log. `EnvFilter` takes a mistyped level for the name of a part and logs nothing, so words
/// that stand where a level or a part stands have to be one.
fn filter(text: &str) -> Result<EnvFilter, String> {
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

fn no_filter(text: &str, why: &str) -> String {
    format!(
        "'{text}' is no filter of the log: {why}; write off, error, warn, info, debug or trace, and \
         behind a comma the level of a part, as in 'info,dedup=debug' (parts: {})",
        PARTS.join(", ")
    )
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
            let refused = filter(wrong).expect_err(wrong);
            assert!(
                refused.contains(wrong) && refused.contains("info,dedup=debug"),
                "{refused}"
            );
        }
    }
}
