//! Exit codes of the program: [`CODES`].
//!
//! They follow sysexits(3), except that 1 means 'could not run' and 2 'inconsistent'.

use dedup::ErrorKind;

/// Every exit code, and what it means. Help and manual print this table.
pub const CODES: &[(u8, &str)] = &[
    (0, "done"),
    (
        EXIT_FAILED,
        "it could not do its work, or `doctor` and `config check` found something wrong",
    ),
    (
        EXIT_INCONSISTENT,
        "the pool contradicts itself (`pool check`, `pool repair`), or data are wrong (`perf`)",
    ),
    (EXIT_USAGE, "the command line cannot be understood"),
    (65, "the request is invalid"),
    (66, "what was named does not exist"),
    (69, "no daemon, no drive or no target answers now"),
    (70, "internal error: a bug"),
    (73, "the pool has no space"),
    (74, "stored data are damaged"),
    (
        EXIT_INTERRUPTED,
        "Ctrl-C ended it (`perf`, `volume import`, `volume export`, `receive`)",
    ),
];

/// Exit code of a command line that cannot be understood (EX_USAGE): clap's own 2 would read as
/// 'inconsistent' to a caller of `pool check`.
pub const EXIT_USAGE: u8 = 64;
/// Exit code of a command that could not do its work for a reason that has no kind.
pub const EXIT_FAILED: u8 = 1;
/// Exit code of `pool check` for a pool that contradicts itself, and of `perf` for wrong data.
pub const EXIT_INCONSISTENT: u8 = 2;
/// Exit code of `perf`, `volume import`, `volume export` and `receive` after Ctrl-C or SIGTERM: 128 and the number of
/// SIGINT, as shells say it.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The exit code of an engine's error.
#[must_use]
pub fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => 65,
        ErrorKind::NotFound => 66,
        ErrorKind::NoSpace => 73,
        ErrorKind::Corrupt => 74,
        ErrorKind::Unavailable | ErrorKind::WriteFault => 69,
        ErrorKind::Internal => 70,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_exits_with_a_code_of_its_own_meaning_that_is_documented() {
        let documented: Vec<u8> = CODES.iter().map(|(code, _)| *code).collect();
        assert!(documented.is_sorted_by(|a, b| a < b), "{documented:?}");
        for kind in ErrorKind::ALL {
            let code = exit_code(kind);
            assert!(documented.contains(&code), "{kind}");
            assert!(![0, EXIT_FAILED, EXIT_INCONSISTENT, EXIT_USAGE].contains(&code));
        }
    }
}
