//! The `onefold` program.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    onefold::cli::main()
}
