//! The file system of the pool's folder is full: others filled it.
//!
//! It mounts a small tmpfs. Where that is not permitted it says so and passes, but not in CI.

mod support;

use std::fs;
use std::io::Write;
use std::process::Command;

use dedup::{ErrorKind, HealthState};
use support::folder::{create, open};
use support::{Pool, block_on, expect_kind, spec};

/// A small file system, unmounted at the end.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=96m", "onefold-test"])
            .arg(root.path())
            .output();
        if mount.is_ok_and(|output| output.status.success()) {
            return Some(Self(root));
        }
        assert!(std::env::var_os("CI").is_none(), "no tmpfs can be mounted");
        eprintln!("not run: mounting a tmpfs is not permitted here");
        None
    }

    fn fill(&self) {
        let mut filler = fs::File::create(self.0.path().join("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn with_a_full_file_system_only_new_data_is_refused_until_there_is_room() {
    let Some(disk) = SmallDisk::new() else {
        return;
    };
    let dir = disk.0.path().join("pool");
    fs::create_dir(&dir).unwrap();
    create(&dir);
    let buffers = Pool::new(1);
    let (pool, engine) = open(&dir);
    let volume = block_on(engine.create_volume(spec("v", 500, 4096))).unwrap();
    buffers.write(&volume, 0, &[1, 2, 3, 4]).unwrap();
    block_on(engine.checkpoint()).unwrap();
    buffers.write(&volume, 4, &[5, 6]).unwrap();
    assert!(!engine.folder_room().unwrap().is_short);
    drop((volume, engine, pool));
    disk.fill();

    let (pool, engine) = open(&dir);
    let room = engine.folder_room().unwrap();
    assert!(room.is_short && room.dir == dir, "{room:?}");
    let status = engine.status();
    assert_eq!(status.folder, Some(room));
    let verdict = engine.verdict();
    assert_eq!(verdict.state, HealthState::TakesNoWrites);
    assert!(
        verdict.reasons[0]
            .what
            .contains("is full, and writes of new data fail"),
        "{verdict:?}"
    );
    let volume = engine.volume("v").unwrap();
    assert_eq!(buffers.read(&volume, 0, 7).unwrap(), [1, 2, 3, 4, 5, 6, 0]);
    let refused = expect_kind(buffers.write(&volume, 10, &[7]), ErrorKind::NoSpace);
    assert!(
        refused.contains(dir.to_str().unwrap()) && refused.contains("free space there"),
        "{refused}"
    );
    block_on(engine.load()).unwrap();
    // What needs no new block goes on, and becomes durable.
    buffers.write(&volume, 10, &[1, 0, 2]).unwrap();
    block_on(volume.trim(0, 4096)).unwrap();
    block_on(engine.flush()).unwrap();
    block_on(engine.checkpoint()).unwrap();
    block_on(engine.maintain()).unwrap();
    assert!(engine.folder_room().unwrap().is_short);
    expect_kind(buffers.write(&volume, 20, &[7]), ErrorKind::NoSpace);
    drop((volume, engine, pool));

    let (pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    assert_eq!(buffers.read(&volume, 0, 7).unwrap(), [0, 2, 3, 4, 5, 6, 0]);
    disk.empty();
    block_on(engine.maintain()).unwrap();
    assert!(!engine.folder_room().unwrap().is_short);
    assert_ne!(engine.verdict().state, HealthState::TakesNoWrites);
    buffers.write(&volume, 20, &[7]).unwrap();
    block_on(engine.checkpoint()).unwrap();
    drop((volume, engine, pool));
    let (_pool, engine) = open(&dir);
    let volume = engine.volume("v").unwrap();
    assert_eq!(
        buffers.read(&volume, 10, 11).unwrap(),
        [1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7]
    );
}
