//! Volumes and snapshots as network block devices, with the tools of others: libnbd's, QEMU's and fio.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Daemon, Pool, fails, json, succeeds, wait_for};

const MIB: u64 = 1 << 20;

/// A pool with a volume `db` of 64 MiB, and a folder for sockets and images.
struct Story {
    pool: Pool,
    folder: tempfile::TempDir,
}

impl Story {
    fn new() -> (Self, Daemon) {
        let story = Self {
            pool: Pool::new(),
            folder: tempfile::tempdir().expect("a folder"),
        };
        let daemon = story.pool.create();
        story.run(&["volume", "create", "db", "--size", "64M"]);
        (story, daemon)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn on<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--pool", self.pool.dir()]].concat()
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        succeeds(&self.on(words))
    }

    #[track_caller]
    fn refused(&self, words: &[&str], code: i32, says: &[&str]) {
        fails(&self.on(words), code, says);
    }

    fn listed(&self) -> Value {
        json(&self.on(&["export", "list", "--json"]))
    }

    /// Exports a volume at a socket of that name; how clients call it.
    fn export(&self, volume: &str, name: &str) -> String {
        let path = self.file(name);
        self.run(&["export", "create", volume, "--nbd", &format!("unix:{path}")]);
        uri(&path)
    }

    /// An image of the volume's size with data in the middle of holes.
    fn image(&self) -> String {
        let path = self.file("disk.raw");
        let image = fs::File::create(&path).expect("a file");
        image.set_len(64 * MIB).expect("a size");
        for (at, len) in [
            (0, 5 << 20),
            (30 * MIB + 4096, 100_000),
            (64 * MIB - 4096, 4096),
        ] {
            image.write_all_at(&noise(len, at), at).expect("data");
        }
        path
    }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn uri(path: &str) -> String {
    format!("nbd+unix:///?socket={path}")
}

/// Runs a tool of others.
fn try_tool(words: &[&str]) -> Output {
    let output = Command::new(words[0]).args(&words[1..]).output();
    output.unwrap_or_else(|error| panic!("{} (test.sh installs it): {error}", words[0]))
}

#[track_caller]
fn tool(words: &[&str]) -> String {
    let output = try_tool(words);
    let (told, errors) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8_lossy(told).into_owned();
    assert!(output.status.success(), "{words:?}: {told} {errors}");
    told
}

#[track_caller]
fn tool_json(words: &[&str]) -> Value {
    serde_json::from_str(&tool(words)).expect("JSON")
}

/// Does a command of `qemu-io` on an export; whether it went well.
fn qemu_io(uri: &str, command: &str) -> bool {
    let output = try_tool(&["qemu-io", "-f", "raw", "-c", command, uri]);
    let told = String::from_utf8_lossy(&output.stdout);
    output.status.success() && !told.contains("failed") && !told.contains("error")
}

/// Ranges of a context with a type.
fn ranges(uri: &str, context: &str, kind: u64) -> Vec<(u64, u64)> {
    let map = format!("--map={context}");
    let told = tool_json(&["nbdinfo", "--json", &map, uri]);
    let extents = told.as_array().expect("a list").iter();
    let of_kind = extents.filter(|it| it["type"] == kind);
    let number = |value: &Value| value.as_u64().expect("a number");
    of_kind
        .map(|it| (number(&it["offset"]), number(&it["length"])))
        .collect()
}

#[test]
fn tools_of_others_copy_images_in_and_out_of_an_export() {
    let (story, daemon) = Story::new();
    let uri = story.export("db", "db.nbd");
    let told = tool_json(&["nbdinfo", "--json", &uri]);
    let export = &told["exports"][0];
    assert_eq!(told["structured"], true);
    assert_eq!(export["export-size"], 64 * MIB);
    assert_eq!(export["is_read_only"], false);
    for can in [
        "multi_conn",
        "flush",
        "fua",
        "trim",
        "zero",
        "fast_zero",
        "df",
    ] {
        assert_eq!(export[format!("can_{can}")], true, "{can} of {told:#}");
    }
    assert_eq!(export["block_size_minimum"], 512);
    assert_eq!(export["contexts"][0], "base:allocation");
    let listed = tool_json(&["nbdinfo", "--list", "--json", &uri]);
    assert_eq!(listed["exports"][0]["export-name"], "db");

    let (image, back) = (story.image(), story.file("back.raw"));
    tool(&["nbdcopy", &image, &uri]);
    assert_eq!(
        ranges(&uri, "base:allocation", 0),
        [
            (0, 5 << 20),
            (30 * MIB + 4096, 102_400),
            (64 * MIB - 4096, 4096)
        ]
    );
    tool(&["nbdcopy", &uri, &back]);
    tool(&["cmp", &image, &back]);
    tool(&[
        "qemu-img", "compare", "-f", "raw", "-F", "raw", &image, &uri,
    ]);
    let map = tool_json(&["qemu-img", "map", "-f", "raw", "--output=json", &uri]);
    assert_eq!(map[0]["data"], true);
    assert_eq!(
        (&map[1]["zero"], &map[1]["start"]),
        (&true.into(), &(5 * MIB).into())
    );
    // The same through a format, with more requests at a time.
    let qcow2 = story.file("disk.qcow2");
    tool(&[
        "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-m", "16", "-W", &uri, &qcow2,
    ]);
    tool(&["qemu-img", "compare", &qcow2, &uri]);
    story.run(&["volume", "create", "copy", "--size", "64M"]);
    let copy = story.export("copy", "copy.nbd");
    tool(&["qemu-img", "convert", "-n", "-O", "raw", &qcow2, &copy]);
    tool(&["nbdcopy", "--connections=4", "--requests=32", &copy, &back]);
    tool(&["cmp", &image, &back]);
    // Both are the same blocks.
    let status = story.pool.status();
    let unique = status["pool"]["unique_blocks"].as_u64();
    assert!(unique < Some(1400), "{:#}", status["pool"]);
    daemon.stop(Signal::TERM);
    story.pool.is_consistent();
}

#[test]
fn every_kind_of_write_survives_a_kill_and_exports_come_back() {
    let (story, daemon) = Story::new();
    let uri = story.export("db", "db.nbd");
    for command in [
        "write -P 17 0 1M",
        "write -f -P 18 1M 64k",
        "aio_write -P 19 2M 256k",
        "write -P 20 512 512",
        "write -z 8192 8192",
        "write -z -u 65536 65536",
        "discard 512k 64k",
        "writev -P 21 3M 4k 8k 512",
        "flush",
    ] {
        assert!(qemu_io(&uri, command), "{command}");
    }
    let story_holds = || {
        for command in [
            "read -P 17 0 512",
            "read -P 20 512 512",
            "read -P 0 8192 8192",
            "read -P 17 16384 4096",
            "read -P 0 65536 65536",
            "read -P 0 512k 64k",
            "read -P 17 576k 448k",
            "read -P 18 1M 64k",
            "read -P 19 2M 256k",
            "read -P 21 3M 12800",
        ] {
            assert!(qemu_io(&uri, command), "{command}");
        }
    };
    story_holds();
    assert!(
        !qemu_io(&uri, "read -P 18 0 512"),
        "a wrong pattern is seen"
    );
    daemon.kill();
    let daemon = story.pool.serve(&[]);
    assert_eq!(story.listed()[0]["served"], true);
    story_holds();
    let verify = [
        "fio",
        "--name=nbd",
        "--ioengine=nbd",
        "--rw=randrw",
        "--bsrange=4k-256k",
        "--blockalign=4k",
        "--size=48m",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_state_save=0",
    ];
    let uri = format!("--uri={uri}");
    let report = tool(&[&verify[..], &[&uri]].concat());
    assert!(report.contains("err= 0"), "{report}");
    daemon.stop(Signal::TERM);
    story.pool.is_consistent();
}

#[test]
fn what_changed_since_a_snapshot_is_a_dirty_bitmap() {
    let (story, daemon) = Story::new();
    let uri = story.export("db", "db.nbd");
    tool(&["nbdcopy", &story.image(), &uri]);
    story.run(&["snapshot", "create", "db@monday"]);
    assert!(qemu_io(&uri, "write -P 9 1M 64k"));
    assert!(qemu_io(&uri, "discard 2M 64k"));
    story.run(&["snapshot", "create", "db@tuesday"]);
    assert!(qemu_io(&uri, "write -P 10 40M 4k"));
    let dirty = |uri: &str, since: &str| ranges(uri, &format!("qemu:dirty-bitmap:{since}"), 1);
    let monday = vec![(MIB, 65536), (2 * MIB, 65536)];
    assert_eq!(dirty(&uri, "tuesday"), [(40 * MIB, 4096)]);
    assert_eq!(
        dirty(&uri, "monday"),
        [&monday[..], &[(40 * MIB, 4096)]].concat()
    );
    let path = story.file("db.nbd");
    let options = format!(
        "driver=nbd,server.type=unix,server.path={path},x-dirty-bitmap=qemu:dirty-bitmap:monday"
    );
    // QEMU tells what is dirty as holes.
    let map = tool_json(&["qemu-img", "map", "--output=json", "--image-opts", &options]);
    let extents = map.as_array().expect("a list").iter();
    let holes: Vec<_> = extents.filter(|it| it["data"] == false).collect();
    assert_eq!(holes.len(), 3, "{map:#}");
    assert_eq!(
        (&holes[0]["start"], &holes[0]["length"]),
        (&MIB.into(), &65536.into())
    );

    // A snapshot does not change meanwhile, and knows the others of its volume.
    let of_tuesday = story.export("db@tuesday", "tuesday.nbd");
    assert_eq!(dirty(&of_tuesday, "monday"), monday);
    assert!(!qemu_io(&of_tuesday, "write 0 4k"));
    let told = tool_json(&["nbdinfo", "--json", &of_tuesday]);
    assert_eq!(told["exports"][0]["is_read_only"], true);
    let contexts = told["exports"][0]["contexts"].as_array().expect("a list");
    assert!(
        contexts.contains(&"qemu:dirty-bitmap:monday".into()),
        "{told:#}"
    );
    assert!(
        !contexts.contains(&"qemu:dirty-bitmap:tuesday".into()),
        "{told:#}"
    );
    // A copy of what is dirty makes monday's image that of tuesday.
    let (old, new) = (story.file("monday.raw"), story.file("tuesday.raw"));
    story.run(&["volume", "export", "db@monday", &old]);
    story.run(&["volume", "export", "db@tuesday", &new]);
    let (image, source) = (
        fs::OpenOptions::new().write(true).open(&old),
        fs::File::open(&new),
    );
    let (image, source) = (image.expect("the image"), source.expect("the image"));
    for (at, len) in dirty(&of_tuesday, "monday") {
        let mut data = vec![0; len as usize];
        source.read_exact_at(&mut data, at).expect("data");
        image.write_all_at(&data, at).expect("data");
    }
    tool(&["cmp", &old, &new]);
    daemon.stop(Signal::TERM);
}

/// Says hello, and chooses the export: a client that then does nothing.
fn idle_client(path: &str) -> UnixStream {
    let mut client = UnixStream::connect(path).expect("it listens");
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting).expect("a greeting");
    let go = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
    client.write_all(go).expect("it is taken");
    let mut told = [0; 20 + 12 + 20];
    client.read_exact(&mut told).expect("the export");
    client
}

#[test]
fn places_that_are_taken_or_none_are_refused_and_an_export_in_use_ends_when_it_is_deleted() {
    let (story, daemon) = Story::new();
    let place = |name: &str| format!("unix:{}", story.file(name));
    let create = |place: &str, code, says: &[&str]| {
        story.refused(&["export", "create", "db", "--nbd", place], code, says);
    };
    fs::write(story.file("file"), "kept").expect("a file");
    create(&place("file"), 65, &["no socket"]);
    assert_eq!(fs::read(story.file("file")).expect("it"), b"kept");
    create(&place("no/socket"), 65, &["No such file"]);
    for none in [
        "db.nbd",
        "unix:db.nbd",
        "tcp://localhost:10809",
        "tcp://127.0.0.1",
    ] {
        create(none, 65, &["name one such as"]);
    }
    let ip = story.pool.ip();
    let other = TcpListener::bind((ip, 0)).expect("a port");
    let taken = format!("tcp://{}", other.local_addr().expect("it has one"));
    create(&taken, 65, &[&taken, "another program listens there"]);
    drop(other);
    story.run(&["export", "create", "db", "--nbd", &taken, "--read-only"]);
    let uri = taken.replace("tcp://", "nbd://");
    assert_eq!(
        tool(&["nbdinfo", "--size", &uri]).trim(),
        (64 * MIB).to_string()
    );
    assert!(!qemu_io(&uri, "write 0 4k"), "it is read-only");
    create(&taken, 65, &[&taken, "export list"]);

    // A command without a place names both kinds.
    story.refused(&["export", "create", "db"], 64, &["--vhost", "--nbd"]);
    story.export("db", "db.nbd");
    create(&place("db.nbd"), 65, &["export list"]);
    let in_use = [
        idle_client(&story.file("db.nbd")),
        idle_client(&story.file("db.nbd")),
    ];
    let shown = |address: &str, what: &str| {
        let all = story.listed();
        let mut all = all.as_array().expect("a list").iter();
        all.find(|it| it["address"] == address).expect("it")[what].clone()
    };
    wait_for("two clients", || {
        shown(&place("db.nbd"), "connections") == 2
    });
    assert!(story.run(&["export", "list"]).contains("in use"));
    story.refused(&["volume", "delete", "db", "--yes"], 65, &["export delete"]);
    story.refused(&["export", "delete", &place("db.nbd")], 65, &["--yes"]);
    story.run(&["export", "delete", &place("db.nbd"), "--yes"]);
    for mut client in in_use {
        assert_eq!(client.read(&mut [0; 1]).expect("the end"), 0);
    }
    assert!(!Path::new(&story.file("db.nbd")).exists());

    // What was configured comes back from a file.
    let exported = story.file("exported.toml");
    story.run(&["config", "export", &exported]);
    let text = fs::read_to_string(&exported).expect("the file");
    assert!(text.contains(&taken) && text.contains("nbd"), "{text}");
    story.run(&["export", "delete", &taken]);
    assert_eq!(story.listed().as_array().map(Vec::len), Some(0));
    story.run(&["config", "import", &exported]);
    assert_eq!(
        tool(&["nbdinfo", "--size", &uri]).trim(),
        (64 * MIB).to_string()
    );
    assert!(!qemu_io(&uri, "write 0 4k"), "it is read-only again");
    daemon.stop(Signal::TERM);
}

#[test]
fn a_new_size_is_seen_by_the_next_client() {
    let (story, daemon) = Story::new();
    let uri = story.export("db", "db.nbd");
    story.run(&["volume", "resize", "db", "--size", "128M"]);
    assert_eq!(
        tool(&["nbdinfo", "--size", &uri]).trim(),
        (128 * MIB).to_string()
    );
    assert!(qemu_io(&uri, "write -P 5 100M 1M"));
    daemon.stop(Signal::TERM);
}
