//! Drives that hold something: refused by name, and taken only if their path is typed once more.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::harness::{Pool, fails, json, succeeds};

const BYTES: u64 = 256 << 20;

/// A file beside the pool with these bytes at this place, and what is in it up to there.
fn image(pool: &Pool, name: &str, at: u64, bytes: &[u8]) -> PathBuf {
    let path = pool.dir.parent().expect("a folder").join(name);
    let file = File::create(&path).expect("made");
    file.set_len(BYTES).expect("its size");
    file.write_all_at(bytes, at).expect("written");
    path
}

/// The first MiB, where a label would be, and these bytes.
fn head_and(path: &Path, at: u64, len: usize) -> (Vec<u8>, Vec<u8>) {
    let file = File::open(path).expect("it is there");
    let (mut head, mut rest) = (vec![0; 1 << 20], vec![0; len]);
    file.read_exact_at(&mut head, 0).expect("read");
    file.read_exact_at(&mut rest, at).expect("read");
    (head, rest)
}

/// Where formats keep what they are known by, beyond what a label overwrites; and what is known by nobody.
const IN_USE: [(&str, u64, &[u8], &str); 6] = [
    ("btrfs", 65_600, b"_BHRfS_M", "btrfs file system"),
    (
        "zfs",
        131_072,
        &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0],
        "ZFS pool",
    ),
    (
        "md",
        BYTES - 65_536,
        &[0xfc, 0x4e, 0x2b, 0xa9],
        "software RAID",
    ),
    ("gpt", BYTES - 512, b"EFI PART", "GPT"),
    ("luks", 16_384, b"SKUL\xba\xbe", "LUKS2"),
    (
        "data",
        100 << 20,
        b"someone's only copy",
        "not known (at byte 104857600)",
    ),
];

#[test]
fn a_drive_in_use_is_refused_by_name_and_nothing_is_written_to_any_drive() {
    for (name, at, bytes, called) in IN_USE {
        let pool = Pool::new();
        let path = image(&pool, name, at, bytes);
        let before = head_and(&path, at, bytes.len());
        let shown = path.display().to_string();
        let blank = pool.dir.parent().expect("a folder").join("blank");
        let first = blank.display().to_string();
        File::create(&blank)
            .and_then(|file| file.set_len(BYTES))
            .expect("made");
        // The one before it in line is good, and stays as it is, too.
        let arguments = ["--create", "0", "--drive", &first, "--drive", &shown];
        let words = [
            shown.as_str(),
            called,
            "nothing was written",
            "wipefs",
            "--force",
        ];
        pool.fails_to_serve(&arguments, 65, &words);
        assert_eq!(head_and(&path, at, bytes.len()), before, "{name}");
        let (head, _) = head_and(&blank, 0, 0);
        assert!(
            head.iter().all(|byte| *byte == 0),
            "{name}: the first drive was labelled"
        );
        // Nor is anything left that would have been made for the pool.
        assert!(!pool.dir.exists(), "{name}: the pool's folder is left");
        let made = pool.dir.with_file_name("made");
        let first = format!("{}=256M", made.display());
        let arguments = ["--create", "0", "--drive", &first, "--drive", &shown];
        pool.fails_to_serve(&arguments, 65, &words);
        assert!(!made.exists(), "{name}: the first drive's file is left");
    }
}

#[test]
fn a_drive_in_use_is_taken_when_its_own_path_is_forced_and_is_recognised_as_nothing_else() {
    for (name, at, bytes, _) in IN_USE {
        let pool = Pool::new();
        let path = image(&pool, name, at, bytes);
        let shown = path.display().to_string();
        let base = ["--create", "0", "--drive", &shown, "--force"];
        let other = [&base[..], &["/dev/null"]].concat();
        pool.fails_to_serve(&other, 65, &["/dev/null", "--force"]);
        let forced = [&base[..], &[&shown]].concat();
        pool.serve(&forced).stop(Signal::TERM);
        pool.is_consistent();
        if name != "data" {
            let (head, rest) = head_and(&path, at, bytes.len());
            assert!(head.starts_with(b"ONEFOLD\n"));
            assert!(rest.iter().all(|byte| *byte == 0), "{name} is still there");
        }
        // Once it is the pool's, --force says nothing any more.
        pool.serve(&forced).stop(Signal::TERM);
    }
}

#[test]
fn a_drive_in_use_is_not_added_to_a_pool_unless_its_path_is_typed_twice() {
    let pool = Pool::new();
    let daemon = pool.create();
    let (_, at, bytes, called) = IN_USE[0];
    let path = image(&pool, "added", at, bytes);
    let before = head_and(&path, at, bytes.len());
    let shown = path.display().to_string();
    let add = ["drive", "add", &shown, "--pool", pool.dir()];
    fails(
        &add,
        65,
        &[&shown, called, "nothing was written", "--force"],
    );
    fails(
        &[&add[..], &["--force", "/dev/null"]].concat(),
        65,
        &["/dev/null"],
    );
    assert_eq!(head_and(&path, at, bytes.len()), before);

    // A copy of one of the pool's own drives is no blank drive either.
    let copy = path.with_file_name("copy");
    let label = head_and(&pool.dir.join("drive0"), 0, 0).0;
    image(&pool, "copy", 0, &label);
    let copied = copy.display().to_string();
    fails(
        &["drive", "add", &copied, "--pool", pool.dir()],
        65,
        &["a drive of this Onefold pool", "nothing was written"],
    );
    assert_eq!(head_and(&copy, 0, 0).0, label);

    succeeds(&[&add[..], &["--force", &shown]].concat());
    let drives = json(&["drive", "list", "--pool", pool.dir(), "--json"]);
    assert_eq!(drives.as_array().map(Vec::len), Some(2), "{drives}");
    daemon.stop(Signal::TERM);
    pool.is_consistent();
    fs::remove_file(copy).expect("removed");
}

#[test]
fn a_drive_is_measured_without_a_pool_and_what_holds_something_is_not_overwritten() {
    let pool = Pool::new();
    let folder = pool.dir.parent().expect("a folder").to_owned();
    let drive = folder.join("drive").display().to_string();
    let daemon = pool.serve(&["--create", "0", "--drive", &format!("{drive}=320M")]);
    daemon.stop(Signal::TERM);
    let measure = |path: &str, more: &[&str]| {
        let measured = ["bench", "drive", path, "--runs", "1", "--seconds", "1"];
        let report = json(&[&measured[..], &["--json"], more].concat());
        let rows = report["rows"].as_array().expect("rows").clone();
        for row in &rows {
            assert!(row["commands_per_second"].as_f64() > Some(0.0), "{row}");
        }
        rows.len()
    };
    // Reads harm nobody.
    assert_eq!(measure(&drive, &[]), 3);
    let before = head_and(Path::new(&drive), 0, BYTES as usize);
    let refused = ["bench", "drive", &drive, "--overwrite"];
    fails(&refused, 65, &[&drive, "a drive of the Onefold pool"]);
    assert!(before == head_and(Path::new(&drive), 0, BYTES as usize));
    pool.serve(&[]).stop(Signal::TERM);

    let blank = folder.join("blank");
    File::create(&blank)
        .and_then(|file| file.set_len(BYTES))
        .expect("made");
    assert_eq!(measure(&blank.display().to_string(), &["--overwrite"]), 6);
    let small = folder.join("small");
    File::create(&small)
        .and_then(|file| file.set_len(BYTES - 4096))
        .expect("made");
    let small = small.display().to_string();
    fails(&["bench", "drive", &small], 65, &[&small, "256 MiB"]);
}
