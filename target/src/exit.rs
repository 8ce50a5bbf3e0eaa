//! Exit codes of the program.
//!
//! | kind of the failure | exit code |
//! |---|---|
//! | invalid | 65 |
//! | not found | 66 |
//! | no space | 73 |
//! | corrupt | 74 |
//! | write fault, unavailable | 69 |
//! | internal | 70 |
//!
//! They follow sysexits(3), except that 1 means 'could not run' and 2 'inconsistent'.

use dedup::ErrorKind;

/// Exit code of a command line that cannot be understood (EX_USAGE): clap's own 2 would read as
/// 'inconsistent' to a caller of `pool check`.
pub const EXIT_USAGE: u8 = 64;
/// Exit code of a command that could not do its work for a reason that has no kind.
pub const EXIT_FAILED: u8 = 1;
/// Exit code of `pool check` for a pool that contradicts itself, and of `perf` for wrong data.
pub const EXIT_INCONSISTENT: u8 = 2;
/// Exit code of `perf` after Ctrl-C or SIGTERM: 128 and the number of SIGINT, as shells say it.
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

    const KINDS: [ErrorKind; 7] = [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::NoSpace,
        ErrorKind::Corrupt,
        ErrorKind::WriteFault,
        ErrorKind::Unavailable,
        ErrorKind::Internal,
    ];

    #[test]
    fn no_kind_exits_with_a_code_that_means_something_else() {
        for kind in KINDS {
            assert!(![0, EXIT_FAILED, EXIT_INCONSISTENT, EXIT_USAGE].contains(&exit_code(kind)));
        }
    }
}
