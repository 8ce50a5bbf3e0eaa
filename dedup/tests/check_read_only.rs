//! The offline check of a pool on a file system that takes no writes. It is alone in its process: a child that
//! mounts holds the locks of all pools that other tests have open, until it is another program.

mod support;

use std::process::Command;

use dedup::{CheckOptions, check_pool};
use support::folder::filled;

#[test]
fn a_pool_on_a_file_system_that_takes_no_writes_can_be_checked() {
    let (_keep, dir) = filled();
    let root = tempfile::tempdir().unwrap();
    let mount = |args: &[&str]| {
        let mut command = Command::new("mount");
        let command = command.args(args).arg(root.path());
        command.output().is_ok_and(|output| output.status.success())
    };
    if !mount(&["--bind", dir.to_str().unwrap()]) {
        assert!(std::env::var_os("CI").is_none(), "nothing can be mounted");
        eprintln!("not run: mounting is not permitted here");
        return;
    }
    let is_read_only = mount(&["-o", "remount,bind,ro"]);
    let written = std::fs::write(root.path().join("new"), "");
    let report = check_pool(
        root.path(),
        CheckOptions {
            data: true,
            ..CheckOptions::default()
        },
    );
    let _ = Command::new("umount").arg(root.path()).output();
    assert!(is_read_only && written.is_err());
    let report = report.unwrap();
    assert!(report.consistent, "{report:?}");
    assert_eq!(report.data_blocks_checked, 5);
}
