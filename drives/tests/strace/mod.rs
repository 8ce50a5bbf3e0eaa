//! Tests at the level of system calls: a test runs itself again under strace, which counts calls on files
//! and lets some of them fail.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Says to a test that it runs under strace, and in which folder.
const FOLDER: &str = "ONEFOLD_TRACED_FOLDER";

/// The folder of a test that runs under strace.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Runs the test `name` of this program again under strace, in `folder`, and returns what it called on
/// `file` of these `calls` (`"fsync,fdatasync"`), a line each. `faults` are strace's words for calls that fail
/// (`"fdatasync:error=EIO:when=1"`: the first one of each thread).
///
/// # Panics
/// If the test fails under strace, or strace cannot run.
pub(crate) fn run(
    name: &str,
    folder: &Path,
    file: &Path,
    calls: &str,
    faults: &[&str],
) -> Vec<String> {
    let log = folder.join("calls");
    let mut strace = Command::new("strace");
    strace.args(["--follow-forks", "--decode-fds=path", "--quiet=all"]);
    strace.args(["-e", &format!("trace={calls}")]);
    for fault in faults {
        strace.args(["-e", &format!("inject={fault}")]);
    }
    strace.arg("--trace-path").arg(file);
    strace.arg("--output").arg(&log);
    strace.arg(std::env::current_exe().expect("a path"));
    strace.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    let ran = strace.env(FOLDER, folder).output();
    let ran = ran.expect("strace: install it (./test.sh does)");
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(ran.status.success(), "{name} under strace: {said}");
    assert!(
        said.contains("1 passed"),
        "no test is called {name}: {said}"
    );
    let log = std::fs::read_to_string(&log).expect("strace writes its log");
    log.lines().map(str::to_owned).collect()
}
