//! What the system's libblkid recognises, asked through its program: its formats grow with the system.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Where systems keep it. Not every service has these folders in its PATH.
const PROGRAMS: [&str; 4] = [
    "/usr/sbin/blkid",
    "/sbin/blkid",
    "/usr/bin/blkid",
    "/bin/blkid",
];
/// How long it may take. A drive that answers so slowly is looked at by our own checks all the same.
const PATIENCE_SECONDS: i64 = 30;
/// Most of its output that is looked at.
const OUTPUT_BYTES_MAX: u64 = 16 << 10;
/// Its exit status when several formats match, and it does not say which.
const AMBIVALENT: i32 = 8;

/// What the system recognises in this file or device; `None` if that is nothing, or there is no such program.
pub(super) fn recognise(file: &File) -> Option<String> {
    let program = PROGRAMS.iter().find(|path| Path::new(path).exists())?;
    let mut child = Command::new(program)
        // Look at the bytes, and not at what was found some time ago.
        .args(["-p", "-o", "export", "/dev/stdin"])
        .stdin(file.try_clone().ok()?)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env("LC_ALL", "C")
        .spawn()
        .ok()?;
    if !ended(&child) {
        tracing::warn!(
            program,
            "the program does not answer: the drive is looked at without it"
        );
        // It may have ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    let status = child.wait().ok()?;
    let mut output = String::new();
    let stdout = child.stdout.take()?;
    stdout
        .take(OUTPUT_BYTES_MAX)
        .read_to_string(&mut output)
        .ok()?;
    match status.code() {
        Some(0) => described(&output),
        Some(AMBIVALENT) => Some("several formats at once (`wipefs` lists them)".to_owned()),
        _ => None,
    }
}

fn ended(child: &Child) -> bool {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        // An old kernel: `wait` waits as long as it takes.
        return true;
    };
    let patience = Timespec {
        tv_sec: PATIENCE_SECONDS,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut polled, Some(&patience)).is_ok_and(|ready| ready > 0)
}

/// In words, what `blkid -o export` says.
fn described(output: &str) -> Option<String> {
    let value = |key: &str| {
        output.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name == key && !value.is_empty()).then(|| value.escape_default().to_string())
        })
    };
    let mut text = match (value("TYPE"), value("PTTYPE")) {
        (Some(format), _) => format!("`{format}`"),
        (None, Some(table)) => format!("a partition table `{table}`"),
        (None, None) => return None,
    };
    if let Some(label) = value("LABEL") {
        text += &format!(" with the name '{label}'");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blkid_says_is_put_into_words() {
        let btrfs = "DEVNAME=/dev/stdin\nLABEL=data\nTYPE=btrfs\nUSAGE=filesystem\n";
        assert_eq!(
            described(btrfs).as_deref(),
            Some("`btrfs` with the name 'data'")
        );
        let table = "DEVNAME=/dev/stdin\nPTUUID=1\nPTTYPE=gpt\n";
        assert_eq!(described(table).as_deref(), Some("a partition table `gpt`"));
        assert_eq!(described("DEVNAME=/dev/stdin\n"), None);
    }
}
