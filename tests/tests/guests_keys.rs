//! Keys between nodes, with a real kernel at one end: a Linux host proves itself to a sled, and a pool to the kernel's target.
//!
//! This test needs root, QEMU and the lab's images, as those in `guests.rs`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tests::daemon::program;
use tests::lab::{Guest, GuestSpec, Network, TARGET_V4, steadily};

const MINUTE: Duration = Duration::from_secs(60);

fn folder() -> TempDir {
    let mut folder = tempfile::Builder::new();
    let folder = folder.prefix("onefold-guests-keys-").tempdir();
    folder.expect("a folder can be made")
}

/// A process that is killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program in a network.
fn program_in(network: &Network) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", network.name()]);
    command.arg(program());
    command
}

/// Starts what serves, and waits until hosts can connect.
fn serve(command: &mut Command) -> Process {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let ready = lines.next().and_then(Result::ok).unwrap_or_default();
    let serving = Process(child);
    assert!(ready.starts_with("ready "), "'{ready}'");
    // The rest is read away, so that it never waits for the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    serving
}

/// A file that a guest wrote, where nobody else can read it.
fn take(guest: &Guest, from: &str, to: &Path) {
    let key = fs::read(guest.share().join(from)).expect("the guest wrote it");
    fs::write(to, key).expect("a file");
    fs::set_permissions(to, fs::Permissions::from_mode(0o600)).expect("its mode");
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_uses_a_drive_of_a_sled_that_asks_for_secrets_both_ways_and_for_tls() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = folder();
        let name = format!("keys-{}", std::process::id());
        let nqn = format!("nqn.2026-11.dev.onefold:sled:{name}");
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "sled-keys",
                kernel: "7",
                number: 0,
                cpus: 2,
                story: "sled_keys",
                arguments: &[TARGET_V4, &nqn],
                limit_seconds: 600,
                files: &[],
            },
        );
        guest.await_signal("keys", 5 * MINUTE);
        let mut host = fs::read_to_string(guest.share().join("hostnqn")).expect("it was written");
        host.truncate(host.trim_end().len());
        for (option, file) in [
            ("dhchap-secret-file", "host.key"),
            ("dhchap-ctrl-secret-file", "sled.key"),
            ("tls-key-file", "host.tls"),
        ] {
            let path = folder.path().join(file);
            take(&guest, file, &path);
            host += &format!(",{option}={}", path.display());
        }
        let drive = folder.path().join("drive");
        let file = File::create(&drive).expect("a file can be made");
        file.set_len(512 << 20).expect("it has a size");
        let _sled = serve(
            program_in(&network)
                .args(["sled", "serve", "--name", &name, "--host", &host])
                .arg("--reservations")
                .arg(folder.path().join("reservations"))
                .args(["--listen", &format!("tcp://{TARGET_V4}:4420")])
                .arg("--drive")
                .arg(&drive),
        );
        guest.signal("served");
        println!("{}", guest.finish(10 * MINUTE));
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_pool_uses_the_drive_of_a_kernel_that_asks_for_tls_or_for_secrets_both_ways() {
    const ADDRESS: &str = "10.77.0.2";
    const NQN: &str = "nqn.2026-11.dev.onefold:kernel";
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = folder();
        let keys = folder.path().join("keys");
        fs::create_dir(&keys).expect("a folder");
        let listen = format!("tcp://{TARGET_V4}:4420");
        let with_keys = |arguments: &[&str]| {
            let mut command = program_in(&network);
            command.env("ONEFOLD_DRIVE_KEYS", &keys).args(arguments);
            command
        };
        // A pool of its own for each port. Both are on the same namespace, so the second one overwrites the first.
        let pool_on = |port: u16| {
            let pool = folder.path().join(port.to_string());
            let dir = pool.to_str().expect("test folders are UTF-8").to_owned();
            (dir, format!("nvme+tcp://{ADDRESS}:{port}/{NQN}#1"))
        };
        let create = |(dir, drive): &(String, String)| {
            let pool = ["serve", "--pool", dir, "--listen", &listen];
            let new = ["--create", "0", "--drive", drive, "--force", drive];
            with_keys(&[&pool[..], &new, &["--volume", "vol0=64M"]].concat())
        };
        let refused = |pool: &(String, String)| {
            let output = create(pool).output().expect("the program starts");
            assert!(!output.status.success(), "it got in");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let load = |way: &str| {
            let subsystem = format!("{listen}/nqn.2026-11.dev.onefold:default");
            let output = program_in(&network)
                .args(["perf", &subsystem, "--rw", way, "--bs", "64k"])
                .args(["--size", "16M", "--seed", "7", "--verify"])
                .output()
                .expect("the program starts");
            assert!(output.status.success(), "{output:?}");
        };
        let use_it = |pool: &(String, String)| {
            let daemon = serve(&mut create(pool));
            load("write");
            drop(daemon);
            // After a kill it proves itself again.
            let daemon = serve(&mut with_keys(&[
                "serve", "--pool", &pool.0, "--listen", &listen,
            ]));
            load("read");
            drop(daemon);
        };
        let (by_tls, by_secrets) = (pool_on(4420), pool_on(4421));
        // The log tells the name that the target has to know.
        let told = refused(&by_tls);
        let (_, host) = told.split_once("host=").expect("the log names it");
        let host = host.split_whitespace().next().expect("a name").to_owned();
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "kernel-keys",
                kernel: "7",
                number: 0,
                cpus: 1,
                story: "kernel_target",
                arguments: &[ADDRESS, NQN, "tcp", &host, "secrets"],
                limit_seconds: 900,
                files: &[],
            },
        );
        guest.await_signal("up", 5 * MINUTE);
        let key = |kind: &str| keys.join(format!("{NQN}.{kind}"));
        refused(&by_tls);
        take(&guest, "small.tls", &key("tls-key"));
        use_it(&by_tls);

        fs::remove_file(key("tls-key")).expect("it was there");
        let told = refused(&by_secrets);
        assert!(told.contains("for a secret, and there is none"), "{told}");
        take(&guest, "target.key", &key("dhchap-secret"));
        let told = refused(&by_secrets);
        assert!(told.contains("do not authenticate"), "{told}");
        take(&guest, "host.key", &key("dhchap-secret"));
        take(&guest, "target.key", &key("dhchap-ctrl-secret"));
        use_it(&by_secrets);
        guest.signal("done");
        println!("{}", guest.finish(3 * MINUTE));
    });
}
