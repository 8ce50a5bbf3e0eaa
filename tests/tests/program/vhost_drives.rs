//! A pool whose drives are devices of vhost-user-blk servers (QEMU's storage daemon): it goes on when one of them is killed, and
//! takes it back.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::harness::{Pool, fails, json, run, wait_for};

/// Bytes of a device.
const DEVICE_BYTES: u64 = 512 << 20;

/// A storage daemon with one file.
struct Server {
    folder: tempfile::TempDir,
    process: Option<Child>,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = std::fs::File::create(folder.path().join("disk")).expect("a file");
        file.set_len(DEVICE_BYTES).expect("its size");
        let mut server = Self {
            folder,
            process: None,
        };
        server.run();
        server
    }

    fn run(&mut self) {
        let folder = self.folder.path();
        let socket = folder.join("socket");
        let _ = std::fs::remove_file(&socket);
        let node = format!(
            "driver=file,node-name=disk,filename={}/disk,cache.direct=off,discard=unmap",
            folder.display()
        );
        let export = format!(
            "type=vhost-user-blk,id=disk,node-name=disk,writable=on,num-queues=2,addr.type=unix,addr.path={}",
            socket.display()
        );
        let mut command = Command::new("qemu-storage-daemon");
        command.args(["--blockdev", &node, "--export", &export]);
        let started = command.stdin(Stdio::null()).spawn();
        self.process = Some(started.expect("qemu-storage-daemon is installed (test.sh does that)"));
        wait_for("the socket", || socket.exists());
    }

    fn kill(&mut self) {
        let mut process = self.process.take().expect("it lives");
        process.kill().expect("killed");
        process.wait().expect("ended");
    }

    fn drive(&self) -> String {
        format!("vhost-user:{}/socket", self.folder.path().display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

/// The states of the drives, in their order.
fn states(pool: &Pool) -> Vec<String> {
    let drives = json(&["drive", "list", "--pool", pool.dir(), "--json"]);
    let drives = drives.as_array().expect("a list").iter();
    let state = |drive: &serde_json::Value| drive["state"].as_str().expect("a word").to_owned();
    drives.map(state).collect()
}

fn bring_online(pool: &Pool, drive: &str) {
    wait_for("the drive to be usable", || {
        run(&["drive", "online", "--pool", pool.dir(), drive])
            .status
            .success()
    });
    wait_for("the rebuild", || states(pool) == ["online", "online"]);
}

const WRITE: [&str; 11] = [
    "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "32M", "--seed", "7", "--verify",
];

const READ: [&str; 11] = [
    "--rw", "read", "--bs", "64k", "--qd", "8", "--size", "32M", "--seed", "7", "--verify",
];

#[test]
fn a_pool_keeps_its_data_on_two_servers_and_survives_the_loss_of_either() {
    lose_either("--buffer-memory=private");
}

#[test]
fn a_pool_that_shares_its_buffers_with_two_servers_survives_the_loss_of_either() {
    lose_either("--buffer-memory=shared");
}

fn lose_either(memory: &str) {
    let mut servers = [Server::start(), Server::start()];
    let drives = [servers[0].drive(), servers[1].drive()];
    let pool = Pool::new();
    let daemon = pool.serve(&[
        "--create",
        "0",
        "--redundancy",
        "mirror=2",
        "--drive",
        &drives[0],
        "--drive",
        &drives[1],
        "--volume",
        "vol0=128M",
        memory,
    ]);
    assert_eq!(states(&pool), ["online", "online"]);
    pool.load(&WRITE);

    // A server is killed under load: hosts notice nothing.
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            pool.load(&[
                "--rw", "randrw", "--bs", "4k", "--qd", "8", "--time", "5", "--range", "64M",
                "--verify",
            ])
        });
        let written = || pool.status()["volumes"][0]["io"]["write_commands"].as_u64();
        let before = written();
        wait_for("the load", || written() > before);
        servers[0].kill();
        load.join().expect("no error at the host");
    });
    assert_eq!(states(&pool), ["offline", "online"]);
    pool.load(&WRITE);

    // It is back and gets what it missed; then the other one can go.
    servers[0].run();
    bring_online(&pool, &drives[0]);
    servers[1].kill();
    pool.load(&READ);
    pool.load(&["--rw", "write", "--bs", "4k", "--size", "1M", "--seed", "8"]);
    wait_for("the drive to go offline", || {
        states(&pool) == ["online", "offline"]
    });

    // The pool starts without the server that is away, and takes it back.
    daemon.stop(Signal::TERM);
    let daemon = pool.serve(&[memory]);
    assert_eq!(states(&pool), ["online", "offline"]);
    servers[1].run();
    bring_online(&pool, &drives[1]);
    servers[0].kill();
    pool.load(&READ[..8]);
    drop(daemon);
}

/// Huge pages that nobody has (proc_meminfo(5)).
fn free_huge_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("read");
    let mut lines = text.lines();
    let free = lines.find_map(|line| line.strip_prefix("HugePages_Free:"));
    free.map_or(0, |free| free.trim().parse().expect("a number"))
}

#[test]
fn more_buffers_on_huge_pages_than_were_set_aside_are_refused_with_the_remedy() {
    let pool = Pool::new();
    let bytes = format!("--buffers={}M", 2 * free_huge_pages() + 64);
    let huge = ["--create", "64M", "--buffer-memory=huge", &bytes];
    pool.fails_to_serve(&huge, 69, &["huge pages", "vm.nr_hugepages"]);
}

#[test]
fn a_pool_on_a_server_survives_the_end_of_both_daemons_and_is_checked_without_one() {
    let mut server = Server::start();
    let pool = Pool::new();
    let drive = server.drive();
    let create = ["--create", "0", "--drive", &drive, "--volume", "vol0=128M"];
    let daemon = pool.serve(&create);
    pool.load(&WRITE);
    daemon.kill();
    let daemon = pool.serve(&[]);
    pool.load(&READ);
    daemon.stop(Signal::TERM);
    server.kill();
    server.run();
    let checked = run(&["pool", "check", "--pool", pool.dir()]);
    assert!(checked.status.success(), "{checked:?}");
    let daemon = pool.serve(&[]);
    pool.load(&READ);
    daemon.stop(Signal::TERM);
}

#[test]
fn what_cannot_be_a_servers_drive_is_refused_with_the_reason() {
    let server = Server::start();
    let pool = Pool::new();
    let drive = server.drive();
    let twice = [
        "--create",
        "0",
        "--redundancy",
        "mirror=2",
        "--drive",
        &drive,
        "--drive",
        &drive,
    ];
    pool.fails_to_serve(&twice, 65, &["named twice"]);
    let _daemon = pool.serve(&["--create", "600M", "--volume", "vol0=400M"]);
    let add = |drive: &str, code, words: &[&str]| {
        fails(&["drive", "add", "--pool", pool.dir(), drive], code, words);
    };
    add("vhost-user:socket", 64, &["does not begin with /"]);
    let nowhere = format!("{drive}s");
    add(&nowhere, 66, &["there is no such socket"]);
    let sized = format!("{drive}=1G");
    add(&sized, 66, &["there is no such socket"]);
    let listen = format!("tcp://{}:4421", pool.ip());
    let served = ["sled", "serve", "--drive", &drive, "--listen", &listen];
    fails(&served, 65, &["a device of a vhost-user-blk server"]);
    let inspected = ["pool", "labels", &drive];
    fails(&inspected, 65, &["reads files and devices only"]);
    run(&["drive", "add", "--pool", pool.dir(), &drive]);
    assert_eq!(states(&pool), ["online", "online"]);
}
