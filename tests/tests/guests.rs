//! Real Linux kernels attach to the daemon over soft RoCE and TCP, and what they wrote is what they read.
//!
//! These tests need root, QEMU and the lab's images; `./test.sh` prepares them and runs these tests
//! one after the other, because an emulated guest takes a whole core.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tests::{
    daemon::{Daemon, assert_consistent, onefold, onefold_in, text_of},
    guide,
    lab::{Guest, GuestSpec, Network, TARGET_V4, TARGET_V6, cache, folder as lab_folder, steadily},
    wait_for,
};

const MINUTE: Duration = Duration::from_secs(60);

fn pool() -> TempDir {
    tempfile::Builder::new()
        .prefix("onefold-guests-")
        .tempdir()
        .expect("a folder can be made")
}

fn serve(folder: &Path, network: &Network, arguments: &[&str]) -> Daemon {
    let mut all = vec!["--create", "4G", "--volume", "vol0=2G"];
    all.extend_from_slice(arguments);
    Daemon::start(&folder.join("pool"), Some(network.name()), &all)
}

/// Used bytes once they stop changing: the host has written back everything and said so, but blocks
/// that were freed are counted off a moment later.
fn settled_used_bytes(daemon: &Daemon) -> u64 {
    let mut last = daemon.used_bytes();
    let mut equal = 0;
    wait_for("used_bytes to settle", MINUTE, || {
        let now = daemon.used_bytes();
        equal = if now == last { equal + 1 } else { 0 };
        last = now;
        (equal >= 5).then_some(now)
    })
}

/// A guest visits over RDMA, and then plays the `and_then` stories that its own names.
fn short_visit(kernel: &str, mtu: u32, address: &str, and_then: &[&str]) {
    let network = Network::new(1, mtu);
    let folder = pool();
    let daemon = serve(folder.path(), &network, &[]);
    let stories = lab_folder().join("stories");
    let files: Vec<_> = and_then.iter().map(|story| stories.join(story)).collect();
    let guest = Guest::start(
        &network,
        &GuestSpec {
            name: "visitor",
            kernel,
            number: 0,
            cpus: 1,
            story: "short",
            arguments: &[address],
            limit_seconds: 480,
            files: &files,
        },
    );
    println!("{}", guest.finish(9 * MINUTE));
    assert!(daemon.stop().success(), "the daemon stops cleanly");
    assert_consistent(&folder.path().join("pool"));
}

/// The blocks of a chapter that are typed on a host, as files `guide.1.sh` and so on in `folder`.
fn blocks_to_type(chapter: &str, folder: &Path) -> Vec<PathBuf> {
    let blocks = guide::commands(chapter, guide::Place::Host);
    let files = (1..).zip(blocks).map(|(number, text)| {
        let file = folder.join(format!("guide.{number}.sh"));
        std::fs::write(&file, text).expect("written");
        file
    });
    files.collect()
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_newcomer_attaches_a_host_by_what_the_guides_first_chapter_says() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let daemon = serve(folder.path(), &network, &[]);
        let files = blocks_to_type("first-attach", folder.path());
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "newcomer",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "first_attach",
                arguments: &[TARGET_V4],
                limit_seconds: 480,
                files: &files,
            },
        );
        guest.await_signal("used", 6 * MINUTE);
        // The guide says that the second copy takes hardly any room.
        settled_used_bytes(&daemon);
        let status = daemon.status();
        let bytes = |name: &str| status["pool"][name].as_u64().expect("a number");
        let (logical, used) = (bytes("logical_bytes"), bytes("used_bytes"));
        println!("{logical} bytes were written, {used} are used");
        assert!(used * 4 < logical * 3, "both copies took room: {status:#}");
        guest.signal("seen");
        println!("{}", guest.finish(5 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&folder.path().join("pool"));
    });
}

/// Types a block that begins with QEMU, and asks it for its drives.
fn drives_of_qemu(folder: &Path, block: &str) -> String {
    let script = format!(
        "qemu-system-x86_64() {{ printf 'info block\\nquit\\n' | \
         command qemu-system-x86_64 -nodefaults -display none -monitor stdio \"$@\"; }}\n{block}"
    );
    let mut command = Command::new("bash");
    command.args(["-e", "-o", "pipefail", "-c", &script]);
    let output = command.current_dir(folder).output().expect("bash runs");
    assert!(output.status.success(), "{}", text_of(&output));
    text_of(&output)
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn qemu_and_linux_use_an_export_by_nbd_as_the_guide_says() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let daemon = serve(folder.path(), &network, &[]);
        let pool = folder.path().join("pool");
        let pool = pool.to_str().expect("a folder's name");
        let tell = |words: &[&str]| {
            let output = onefold(&[words, &["--pool", pool]].concat());
            assert!(output.status.success(), "{words:?}: {}", text_of(&output));
        };
        tell(&["volume", "create", "db", "--size", "1G"]);
        let socket = format!("unix:{}", folder.path().join("db.nbd").display());
        tell(&["export", "create", "db", "--nbd", &socket]);
        let address = format!("tcp://{TARGET_V4}:10809");
        tell(&["export", "create", "db", "--nbd", &address]);

        let files = blocks_to_type("nbd", folder.path());
        let (qemu, linux) = files.split_first().expect("the chapter has blocks");
        let block = std::fs::read_to_string(qemu).expect("a block");
        let drives = drives_of_qemu(folder.path(), &block);
        assert!(drives.contains("nbd+unix://"), "{drives}");

        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "client",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "nbd",
                arguments: &[TARGET_V4],
                limit_seconds: 480,
                files: linux,
            },
        );
        guest.await_signal("written", 6 * MINUTE);
        settled_used_bytes(&daemon);
        let status = daemon.status();
        let used = status["pool"]["used_bytes"].as_u64().expect("a number");
        assert!(used > 8 << 20, "what Linux wrote is not there: {status:#}");
        println!("{}", guest.finish(5 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&folder.path().join("pool"));
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_source_tree_copied_twice_is_stored_once() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let daemon = serve(folder.path(), &network, &[]);
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "copier",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "copy_tree",
                arguments: &[TARGET_V4],
                limit_seconds: 900,
                files: &[cache().join("tree.tar"), cache().join("tree.sum")],
            },
        );
        guest.await_signal("made", 3 * MINUTE);
        let empty = settled_used_bytes(&daemon);
        guest.signal("go-first");
        guest.await_signal("first", 6 * MINUTE);
        let one = settled_used_bytes(&daemon);
        guest.signal("go-second");
        guest.await_signal("second", 6 * MINUTE);
        let two = settled_used_bytes(&daemon);
        let (first, second) = (one - empty, two.saturating_sub(one));
        println!("used: empty {empty}, first copy +{first}, second copy +{second} bytes");
        println!("{:#}", daemon.status());
        assert!(
            first > 90 << 20,
            "the first copy stores the tree: {first} bytes"
        );
        assert!(
            second * 100 < first * 8,
            "the second copy adds {second} bytes, more than 8 % of the first's {first}"
        );
        guest.await_signal("trimmed", 6 * MINUTE);
        let trimmed = settled_used_bytes(&daemon);
        println!("used after fstrim: {trimmed}");
        assert!(
            trimmed < empty + first / 2,
            "fstrim gives space back: {trimmed} bytes still used"
        );
        let path = folder.path().join("pool");
        let path = path.to_str().expect("test folders are UTF-8");
        let resized = onefold(&["volume", "resize", "vol0", "--size", "3G", "--pool", path]);
        assert!(resized.status.success(), "{}", text_of(&resized));
        guest.signal("grown");
        println!("{}", guest.finish(5 * MINUTE));
        wait_for("the host to be gone from status", MINUTE, || {
            daemon.status()["hosts"]
                .as_array()
                .is_some_and(Vec::is_empty)
                .then_some(())
        });
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&folder.path().join("pool"));
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_6_12_attaches_over_jumbo_frames() {
    steadily(|| {
        short_visit("6.12", 9000, TARGET_V4, &[]);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_6_12_attaches_over_ipv6() {
    steadily(|| {
        short_visit("6.12", 1500, TARGET_V6, &[]);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_6_1_attaches_by_rdma_and_by_tcp() {
    steadily(|| {
        short_visit("6.1", 1500, TARGET_V4, &["tcp.sh"]);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_7_attaches_by_rdma_and_by_tcp() {
    steadily(|| {
        short_visit("7", 1500, TARGET_V4, &["tcp.sh"]);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn linux_6_12_attaches_by_tcp_and_comes_back_to_a_target_that_was_killed() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let path = folder.path().join("pool");
        let daemon = serve(folder.path(), &network, &["--reactors", "2"]);
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "tcp-visitor",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "tcp",
                arguments: &[TARGET_V4, "1"],
                limit_seconds: 600,
                files: &[],
            },
        );
        guest.await_signal("load-1", 8 * MINUTE);
        let hosts = daemon.status()["hosts"].clone();
        assert_eq!(hosts[0]["transport"], "tcp", "{hosts:#}");
        daemon.kill_hard();
        assert_consistent(&path);
        let daemon = Daemon::start(&path, Some(network.name()), &["--reactors", "2"]);
        guest.await_signal("verified-1", 5 * MINUTE);
        guest.signal("next-1");
        println!("{}", guest.finish(5 * MINUTE));
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&path);
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn our_host_works_with_the_kernels_own_tcp_target() {
    steadily(|| {
        const NQN: &str = "nqn.2026-11.dev.onefold:kernel";
        let network = Network::new(1, 1500);
        let address = "10.77.0.2";
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "kernel-target",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "kernel_target",
                arguments: &[address, NQN, "tcp"],
                limit_seconds: 300,
                files: &[],
            },
        );
        guest.await_signal("up", 3 * MINUTE);
        let url = format!("tcp://{address}:4420");
        let offers = onefold_in(Some(network.name()), &["discover", &url]);
        assert!(text_of(&offers).contains(NQN), "{}", text_of(&offers));
        let subsystem = format!("{url}/{NQN}");
        let load = [
            "perf", &subsystem, "--rw", "randrw", "--bs", "16k", "--qd", "8", "--size", "8M",
            "--range", "16M", "--verify",
        ];
        for digests in [&[][..], &["--header-digest", "--data-digest"]] {
            let output = onefold_in(Some(network.name()), &[&load[..], digests].concat());
            println!("{}", text_of(&output));
            assert!(output.status.success(), "{}", text_of(&output));
        }
        guest.signal("done");
        println!("{}", guest.finish(2 * MINUTE));
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn our_host_comes_by_tls_to_the_kernels_own_tcp_target() {
    steadily(|| {
        const NQN: &str = "nqn.2026-11.dev.onefold:kernel";
        const HOST: &str = "nqn.2026-11.org.example:host";
        let network = Network::new(1, 1500);
        let address = "10.77.0.2";
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "kernel-target",
                kernel: "7",
                number: 0,
                cpus: 1,
                story: "kernel_target",
                arguments: &[address, NQN, "tcp", HOST],
                limit_seconds: 300,
                files: &[],
            },
        );
        guest.await_signal("up", 3 * MINUTE);
        let subsystem = format!("tcp://{address}:4420/{NQN}");
        let load = [
            "perf",
            &subsystem,
            "--rw",
            "randrw",
            "--bs",
            "16k",
            "--qd",
            "8",
            "--size",
            "8M",
            "--range",
            "16M",
            "--verify",
            "--hostnqn",
            HOST,
        ];
        let clear = onefold_in(Some(network.name()), &load);
        assert!(!clear.status.success(), "the target requires TLS");
        // TLS_AES_128_GCM_SHA256, and TLS_AES_256_GCM_SHA384.
        for name in ["small.tls", "large.tls"] {
            let key = guest.share().join(name);
            let key = key.to_str().expect("test folders are UTF-8");
            for digests in [&[][..], &["--header-digest", "--data-digest"]] {
                let all = [&load[..], &["--tls-key-file", key], digests].concat();
                let output = onefold_in(Some(network.name()), &all);
                println!("{}", text_of(&output));
                assert!(output.status.success(), "{name}: {}", text_of(&output));
            }
        }
        guest.signal("done");
        println!("{}", guest.finish(2 * MINUTE));
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_target_killed_three_times_under_load_loses_nothing() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let path = folder.path().join("pool");
        let mut daemon = Some(serve(folder.path(), &network, &[]));
        let mut guest = Guest::start(
            &network,
            &GuestSpec {
                name: "faithful",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "reconnect",
                arguments: &[TARGET_V4, "3"],
                limit_seconds: 900,
                files: &[],
            },
        );
        for round in 1..=3 {
            guest.await_signal(&format!("load-{round}"), 3 * MINUTE);
            let running = daemon.take().expect("it was started");
            running.kill_hard();
            assert_consistent(&path);
            // The outage is part of the story: a host that finds nobody for four seconds.
            std::thread::sleep(Duration::from_secs(4));
            daemon = Some(Daemon::start(&path, Some(network.name()), &[]));
            guest.await_signal(&format!("verified-{round}"), 5 * MINUTE);
            guest.signal(&format!("next-{round}"));
        }
        println!("{}", guest.finish(5 * MINUTE));
        assert!(
            daemon.expect("it was restarted").stop().success(),
            "the daemon stops cleanly"
        );
        assert_consistent(&path);
    });
}

#[test]
#[ignore = "boots two guests: ./test.sh prepares the lab and runs it"]
fn a_host_that_dies_harms_no_other() {
    steadily(|| {
        let network = Network::new(2, 1500);
        let folder = pool();
        let daemon = serve(folder.path(), &network, &["--volume", "vol1=1G"]);
        let spec = |name, number, arguments| GuestSpec {
            name,
            kernel: "6.12",
            number,
            cpus: 1,
            story: "neighbour",
            arguments,
            limit_seconds: 600,
            files: &[],
        };
        let mut victim = Guest::start(&network, &spec("victim", 0, &[TARGET_V4, "1", "victim"]));
        let mut survivor = Guest::start(
            &network,
            &spec("survivor", 1, &[TARGET_V4, "2", "survivor"]),
        );
        victim.await_signal("victim-running", 4 * MINUTE);
        survivor.signal("victim-running");
        survivor.await_signal("survivor-running", 4 * MINUTE);
        assert_eq!(
            daemon.status()["hosts"].as_array().map(Vec::len),
            Some(2),
            "two hosts attached"
        );
        victim.kill();
        survivor.signal("victim-gone");
        println!("{}", survivor.finish(5 * MINUTE));
        wait_for("the dead host to be dropped", MINUTE, || {
            daemon.status()["hosts"]
                .as_array()
                .is_some_and(Vec::is_empty)
                .then_some(())
        });
        assert!(daemon.stop().success(), "the daemon stops cleanly");
        assert_consistent(&folder.path().join("pool"));
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn tshark_understands_every_packet_of_a_session() {
    steadily(|| {
        let network = Network::new(1, 1500);
        let folder = pool();
        let daemon = serve(folder.path(), &network, &[]);
        let capture = folder.path().join("session.pcap");
        let mut recorder = Command::new("ip")
            .args([
                "netns",
                "exec",
                network.name(),
                "tcpdump",
                "-U",
                "-i",
                "br0",
                "-s",
                "0",
                "-w",
            ])
            .arg(&capture)
            .args(["udp", "port", "4791"])
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("tcpdump runs");
        wait_for("tcpdump to listen", MINUTE, || {
            capture.exists().then_some(())
        });
        let guest = Guest::start(
            &network,
            &GuestSpec {
                name: "recorded",
                kernel: "6.12",
                number: 0,
                cpus: 1,
                story: "session",
                arguments: &[TARGET_V4],
                limit_seconds: 240,
                files: &[],
            },
        );
        println!("{}", guest.finish(5 * MINUTE));
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(recorder.id().cast_signed())
                .expect("a child has a number"),
            rustix::process::Signal::INT,
        )
        .expect("tcpdump still runs");
        recorder.wait().expect("a child can be waited for");
        let packets = |filter: &str| -> Vec<String> {
            let output = Command::new("tshark")
                .args(["-r"])
                .arg(&capture)
                .args(["-Y", filter, "-T", "fields"])
                .args(
                    [
                        "frame.number",
                        "frame.time_relative",
                        "ip.src",
                        "_ws.col.Info",
                    ]
                    .map(|field| format!("-e{field}")),
                )
                .output()
                .expect("tshark runs");
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            let text = String::from_utf8_lossy(&output.stdout);
            text.lines().map(str::to_owned).collect()
        };
        let count = |filter: &str| packets(filter).len();
        let ours = format!("infiniband && ip.src == {TARGET_V4}");
        println!(
            "packets: {} of ours, {} in all",
            count(&ours),
            count("infiniband")
        );
        assert!(count(&ours) > 50, "the session is in the capture");
        assert!(
            count("nvme-rdma") > 20,
            "tshark recognises the NVMe capsules"
        );
        // Parts of an RDMA WRITE after the first have no header but the BTH: what tshark 4.0 calls malformed
        // in them is NVMe data of which it expects all in each packet. It says so of the Linux target's
        // answers too (the log page of command effects in the captures of `roce/tests`).
        let malformed = packets("_ws.malformed && !(infiniband.bth.opcode in {7, 8})");
        assert!(
            malformed.is_empty(),
            "malformed packets:\n{}",
            malformed.join("\n")
        );
        assert!(daemon.stop().success(), "the daemon stops cleanly");
    });
}
