//! A pool whose drives are namespaces of other daemons: it goes on when one of them is killed, and takes it back.

use rustix::process::Signal;

use crate::harness::{Daemon, NQN, Pool, fails, json, run, wait_for};

/// A daemon whose volume is a drive of another one.
struct Sled {
    pool: Pool,
    daemon: Option<Daemon>,
}

impl Sled {
    fn start() -> Self {
        let mut sled = Self {
            pool: Pool::new(),
            daemon: None,
        };
        sled.serve(&["--create", "600M", "--volume", "vol0=400M"]);
        sled
    }

    fn serve(&mut self, more: &[&str]) {
        let tcp = format!("tcp://{}:4420", self.pool.ip());
        let arguments = [&["--listen", &tcp], more].concat();
        self.daemon = Some(self.pool.serve(&arguments));
    }

    fn kill(&mut self) {
        self.daemon.take().expect("it lives").kill();
    }

    /// Its volume as a drive, over TCP.
    fn drive(&self) -> String {
        format!("nvme+tcp://{}:4420/{NQN}#1", self.pool.ip())
    }
}

/// The states of the drives, in their order.
fn states(pool: &Pool) -> Vec<String> {
    let drives = json(&["drive", "list", "--pool", pool.dir(), "--json"]);
    let drives = drives.as_array().expect("a list").iter();
    let state = |drive: &serde_json::Value| drive["state"].as_str().expect("a word").to_owned();
    drives.map(state).collect()
}

/// Uses a drive again, as soon as all that it was told before has ended.
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
fn a_node_without_drives_keeps_its_data_on_two_others_and_survives_the_loss_of_either() {
    let mut sleds = [Sled::start(), Sled::start()];
    let drives = [sleds[0].drive(), sleds[1].drive()];
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
    ]);
    assert_eq!(states(&pool), ["online", "online"]);
    pool.load(&WRITE);

    // A sled is killed under load: hosts notice nothing.
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            pool.load(&[
                "--rw", "randrw", "--bs", "4k", "--qd", "8", "--time", "6", "--range", "64M",
                "--verify",
            ])
        });
        let written = || pool.status()["volumes"][0]["io"]["write_commands"].as_u64();
        let before = written();
        wait_for("the load", || written() > before);
        sleds[0].kill();
        load.join().expect("no error at the host");
    });
    assert_eq!(states(&pool), ["offline", "online"]);
    pool.load(&WRITE);

    // It is back and gets what it missed; then the other one can go.
    sleds[0].serve(&[]);
    bring_online(&pool, &drives[0]);
    sleds[1].kill();
    pool.load(&READ);
    pool.load(&["--rw", "write", "--bs", "4k", "--size", "1M", "--seed", "8"]);
    wait_for("the drive to go offline", || {
        states(&pool) == ["online", "offline"]
    });

    // The pool starts without the sled that is away, and takes it back.
    daemon.stop(Signal::TERM);
    let daemon = pool.serve(&[]);
    assert_eq!(states(&pool), ["online", "offline"]);
    sleds[1].serve(&[]);
    bring_online(&pool, &drives[1]);
    sleds[0].kill();
    pool.load(&READ[..8]);
    drop(daemon);
}

#[test]
fn a_pool_that_was_killed_opens_again_and_fences_its_drives_at_once() {
    let sled = Sled::start();
    let pool = Pool::new();
    let drive = sled.drive();
    let create = ["--create", "0", "--drive", &drive, "--volume", "vol0=128M"];
    let daemon = pool.serve(&create);
    pool.load(&WRITE);
    let reservation = || {
        let arguments = [
            "reservation",
            "show",
            "vol0",
            "--pool",
            sled.pool.dir(),
            "--json",
        ];
        json(&arguments)
    };
    let before = reservation();
    daemon.kill();
    let daemon = pool.serve(&[]);
    pool.load(&READ);
    assert_ne!(
        before,
        reservation(),
        "by a key that no earlier opening had"
    );
    daemon.stop(Signal::TERM);
}

#[test]
fn what_cannot_be_a_drive_is_refused_with_the_reason() {
    let sled = Sled::start();
    let pool = Pool::new();
    let tcp = format!("tcp://{}:4420", pool.ip());
    let mirror = ["--create", "0", "--redundancy", "mirror=2"];
    let drive = sled.drive();
    let twice = [&mirror[..], &["--drive", &drive, "--drive", &drive]].concat();
    pool.fails_to_serve(&twice, 65, &["named twice"]);

    let created = [
        "--create",
        "600M",
        "--volume",
        "vol0=400M",
        "--listen",
        &tcp,
    ];
    let _daemon = pool.serve(&created);
    let add = |drive: &str, code, words: &[&str]| {
        fails(&["drive", "add", "--pool", pool.dir(), drive], code, words);
    };
    let ip = sled.pool.ip();
    add(
        &format!("nvme+tcp://no-such-host.invalid/{NQN}#1"),
        66,
        &["no-such-host.invalid", "looked up"],
    );
    add(
        &format!("nvme+tcp://{ip}/nqn.2026-11.dev.onefold:nobody#1"),
        66,
        &["check the subsystem's NQN"],
    );
    add(&format!("nvme+tcp://{ip}/{NQN}#9"), 66, &["no namespace 9"]);
    add(
        &format!("nvme+tcp://{ip}:1/{NQN}#1"),
        69,
        &["cannot connect"],
    );
    add(&format!("nvme+tcp://{ip}/{NQN}"), 64, &["#NSID"]);
    let own = format!("nvme+tcp://{}/{NQN}#1", pool.ip());
    add(&own, 65, &["vol0", "cannot lie in itself"]);
    add(&drive, 0, &[]);
}
