//! The drives of a real kernel: those in use are refused, what was flushed is there wherever power is lost, a pool with
//! copies goes on whatever its drives do, and a drive that warns of its end is named before it fails.
//!
//! This test needs root, QEMU and the lab's images, as those in `guests.rs`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fabric::{Connector, TransportAddress};
use initiator::{ConnectOptions, Controller, Host};
use tests::daemon::{Daemon, onefold, text_of};
use tests::lab::{
    Guest, GuestSpec, Hardware, Network, folder as lab_folder, program_for_guests, steadily,
};
use tests::own_address;
use tests::write_log::WriteLog;

const MINUTE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// Rounds of writes. Every third one is written with FUA, the others are flushed.
const ROUNDS: usize = 9;
/// Blocks that a round writes.
const ROUND_BLOCKS: usize = 48;
const BLOCK_BYTES: usize = 4096;
/// Blocks of the volume that are looked at: all that the rounds write.
const BLOCKS: usize = 256;
/// Losses of power that are tried.
const LOSSES_MAX: usize = 24;

/// The guest's disks: the drive, its log, the file system of the pool's folder, its log, and one more.
const DISKS: [(&str, u64); 5] = [
    ("drive.disk", 80 * MIB),
    ("drive.log", 64 * MIB),
    ("folder.disk", 320 * MIB),
    ("folder.log", 1024 * MIB),
    ("busy.disk", 80 * MIB),
];

/// What a volume holds, block by block.
type Contents = Vec<Vec<u8>>;

/// The first block that a round writes: rounds write over parts of others.
fn first_block(round: usize) -> usize {
    round * 7 % 13 * 16
}

/// What a round writes. Some blocks are as they were, some are zeros, some are equal to each other.
fn content(round: usize, block: usize) -> Vec<u8> {
    let text = match block % 8 {
        3 => return vec![0; BLOCK_BYTES],
        5 => format!("block {block} as ever\n"),
        6 | 7 => format!("twice in round {round}\n"),
        _ => format!("block {block} of round {round}\n"),
    };
    text.bytes().cycle().take(BLOCK_BYTES).collect()
}

fn write_round(contents: &mut Contents, round: usize) {
    let first = first_block(round);
    let written = &mut contents[first..first + ROUND_BLOCKS];
    for (block, now) in (first..).zip(written) {
        *now = content(round, block);
    }
}

/// One moment at which power is lost: how many entries of both logs have happened.
#[derive(Clone, Copy, Debug)]
struct Loss {
    drive: usize,
    folder: usize,
    /// Rounds that were acknowledged.
    done: usize,
    /// Rounds that had begun.
    begun: usize,
}

/// All moments of a loss that the logs tell of. In a round the drive is flushed before the journal is synced: until
/// it is, the drive alone has changed, and afterwards the folder alone changes.
fn losses(drive: &WriteLog, folder: &WriteLog) -> Vec<Loss> {
    let mark = |log: &WriteLog, round: usize| log.mark(&round.to_string());
    let mut losses = Vec::new();
    for done in 0..=ROUNDS {
        let at_mark = Loss {
            drive: mark(drive, done),
            folder: mark(folder, done),
            done,
            begun: done,
        };
        losses.push(at_mark);
        if done == ROUNDS {
            break;
        }
        let begun = Loss {
            begun: done + 1,
            ..at_mark
        };
        let drive_end = mark(drive, done + 1);
        let on_drive = drive.settled(begun.drive, drive_end);
        let in_folder = folder.settled(begun.folder, mark(folder, done + 1));
        assert!(
            !on_drive.is_empty() && !in_folder.is_empty(),
            "nothing made round {} stable on both disks",
            done + 1
        );
        losses.extend(on_drive.into_iter().map(|drive| Loss { drive, ..begun }));
        losses.extend(in_folder.into_iter().map(|folder| Loss {
            drive: drive_end,
            folder,
            ..begun
        }));
    }
    losses
}

/// No more of them than are tried: those at the marks, and others at equal distances.
fn some_of(losses: Vec<Loss>) -> Vec<Loss> {
    let (marks, others): (Vec<_>, Vec<_>) =
        losses.into_iter().partition(|loss| loss.done == loss.begun);
    let room = LOSSES_MAX - marks.len();
    let step = others.len().div_ceil(room).max(1);
    let mut some = [marks, others.into_iter().step_by(step).collect()].concat();
    some.sort_by_key(|loss| (loss.drive, loss.folder));
    some
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    // e2fsck says 1 when it changed something.
    let code = output.status.code();
    assert!(
        code == Some(0) || (program == "e2fsck" && code == Some(1)),
        "{program} {arguments:?}: {}",
        text_of(&output)
    );
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("test folders are UTF-8")
}

/// The machine after a loss of power: both disks, as far as they got.
struct Machine {
    work: PathBuf,
    /// The disks as the logs left them, and how many entries they have.
    drive: (File, usize),
    folder: (File, usize),
}

impl Machine {
    fn new(work: &Path) -> Self {
        let disk = |name: &str, bytes: u64| {
            let file = File::create_new(work.join(name)).expect("a new file");
            file.set_len(bytes).expect("a sparse file");
            (file, 0)
        };
        Self {
            work: work.to_owned(),
            drive: disk("drive.lost", DISKS[0].1),
            folder: disk("folder.lost", DISKS[2].1),
        }
    }

    /// Puts the drive and the pool's folder in their places, as this loss leaves them; losses come in order. Gives
    /// the folder.
    fn after(&mut self, loss: Loss, logs: &Logs) -> PathBuf {
        logs.drive.replay(&self.drive.0, self.drive.1, loss.drive);
        logs.folder
            .replay(&self.folder.0, self.folder.1, loss.folder);
        (self.drive.1, self.folder.1) = (loss.drive, loss.folder);
        let path = |name: &str| self.work.join(name);
        let (found, image) = (path("found"), path("folder.image"));
        let _ = fs::remove_dir_all(&found);
        fs::create_dir(&found).expect("a folder");
        let copy =
            |from: &str, to: &Path| run("cp", &["--sparse=always", utf8(&path(from)), utf8(to)]);
        copy("drive.lost", &drive_path(&self.work));
        copy("folder.lost", &image);
        // As the kernel when it mounts it.
        run("e2fsck", &["-y", "-E", "journal_only", utf8(&image)]);
        run(
            "debugfs",
            &["-R", &format!("rdump /pool {}", utf8(&found)), utf8(&image)],
        );
        found.join("pool")
    }
}

/// Where the drive is, in the guest and here: the pool knows it by its path.
fn drive_path(work: &Path) -> PathBuf {
    work.join("drive")
}

/// Serves the pool and reads what hosts find.
fn served(pool: &Path) -> Contents {
    let listen = format!("tcp://{}:4420", own_address(61));
    let daemon = Daemon::start(pool, None, &["--listen", &listen, "--reactors", "1"]);
    let address: TransportAddress = listen.parse().expect("an address");
    let contents = reactor::run(reactor::Config::default(), async move {
        let connector = Connector::to_reach(&address).expect("a connector");
        let nqn = NQN.parse().expect("a name");
        let options = ConnectOptions::new(address.socket_addr(), nqn, Host::generate());
        let controller = Controller::connect(&connector, options)
            .await
            .expect("let in");
        let namespace = controller.namespace(1).await.expect("the volume");
        let mut contents = Contents::new();
        for block in 0..BLOCKS {
            let buffer = initiator::buffer(BLOCK_BYTES).await;
            let (read, buffer) = namespace.read((block * BLOCK_BYTES) as u64, buffer).await;
            read.unwrap_or_else(|error| panic!("block {block}: {error}"));
            contents.push(buffer.to_vec());
        }
        controller.disconnect().await;
        connector.shutdown().await;
        contents
    });
    assert!(daemon.stop().success(), "the daemon stops cleanly");
    contents.expect("a reactor")
}

fn shown(content: &[u8]) -> String {
    let line = content
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    match content.iter().all(|byte| *byte == 0) {
        true => "zeros".to_owned(),
        false => String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned(),
    }
}

/// What a guest kept of what reached its disks.
struct Logs {
    drive: WriteLog,
    folder: WriteLog,
}

/// Plays the story in a guest on new disks in the folder `work`.
fn record(work: &Path) -> Logs {
    let disks = DISKS.map(|(name, bytes)| {
        let path = work.join(name);
        let file = File::create_new(&path).expect("a new file");
        file.set_len(bytes).expect("a sparse file");
        path
    });
    let mut files = program_for_guests(work);
    files.push(lab_folder().join("stories/busy_drives.sh"));
    for round in 1..=ROUNDS {
        let first = first_block(round);
        let data = (first..first + ROUND_BLOCKS).flat_map(|block| content(round, block));
        let of_round = |name: String, bytes: Vec<u8>| {
            let path = work.join(name);
            fs::write(&path, bytes).expect("written");
            path
        };
        files.push(of_round(format!("round.{round}"), data.collect()));
        files.push(of_round(
            format!("round.{round}.first"),
            first.to_string().into_bytes(),
        ));
    }
    let network = Network::new(1, 1500);
    let (drive, rounds) = (drive_path(work), ROUNDS.to_string());
    let spec = GuestSpec {
        name: "powerless",
        kernel: "6.12",
        number: 0,
        cpus: 1,
        story: "power_loss",
        arguments: &[utf8(&drive), &rounds],
        limit_seconds: 480,
        files: &files,
    };
    let guest = Guest::start_with_disks(&network, &spec, &disks);
    println!("{}", guest.finish(9 * MINUTE));
    Logs {
        drive: WriteLog::open(&disks[1]),
        folder: WriteLog::open(&disks[3]),
    }
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn drives_in_use_are_refused_and_what_was_flushed_is_there_wherever_power_is_lost() {
    steadily(|| {
        let work = tempfile::Builder::new()
            .prefix("onefold-power-")
            .tempdir()
            .expect("a folder");
        let logs = record(work.path());
        let mut after: Vec<Contents> = vec![vec![vec![0; BLOCK_BYTES]; BLOCKS]];
        for round in 1..=ROUNDS {
            let mut contents = after[round - 1].clone();
            write_round(&mut contents, round);
            after.push(contents);
        }
        let losses = some_of(losses(&logs.drive, &logs.folder));
        let mut machine = Machine::new(work.path());
        for loss in &losses {
            let pool = machine.after(*loss, &logs);
            let found = served(&pool);
            for (block, found) in found.iter().enumerate() {
                let right = (loss.done..=loss.begun).any(|round| *found == after[round][block]);
                assert!(
                    right,
                    "{loss:?}: block {block} is '{}' instead of '{}'",
                    shown(found),
                    shown(&after[loss.done][block])
                );
            }
            let checked = onefold(&["pool", "check", utf8(&pool), "--data"]);
            assert!(checked.status.success(), "{loss:?}: {}", text_of(&checked));
        }
        println!("power was lost at {} moments", losses.len());
    });
}

/// How often a drive fails, one hangs, one lies and one forgets; `ONEFOLD_DYING_ROUNDS` says another number.
const DYING_ROUNDS: u32 = 1;

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_pool_with_copies_goes_on_while_drives_fail_hang_lie_and_forget() {
    steadily(|| {
        let work = tempfile::Builder::new()
            .prefix("onefold-dying-")
            .tempdir()
            .expect("a folder");
        // So large that they hold the metadata; the last one is a spare.
        let disks = ["a", "b", "c", "d"].map(|name| {
            let path = work.path().join(name);
            let file = File::create_new(&path).expect("a new file");
            file.set_len(1100 * MIB).expect("a sparse file");
            path
        });
        let files = program_for_guests(work.path());
        let rounds = std::env::var("ONEFOLD_DYING_ROUNDS");
        let rounds = rounds.map_or(DYING_ROUNDS, |rounds| rounds.parse().expect("a number"));
        let network = Network::new(1, 1500);
        let spec = GuestSpec {
            name: "dying",
            kernel: "6.12",
            number: 0,
            cpus: 2,
            story: "dying_drives",
            arguments: &[&rounds.to_string()],
            // With one round it takes 7 minutes alone on two cores, and 9 beside another guest.
            limit_seconds: 360 + 360 * rounds,
            files: &files,
        };
        let guest = Guest::start_with_disks(&network, &spec, &disks);
        println!("{}", guest.finish((7 + 6 * rounds) * MINUTE));
    });
}

/// QEMU's monitor.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the monitor's socket");
        stream
            .set_read_timeout(Some(MINUTE))
            .expect("a limit of its answers");
        let mut monitor = Self(BufReader::new(stream));
        monitor.line();
        monitor.ask("qmp_capabilities", serde_json::json!({}));
        monitor
    }

    fn line(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line of the monitor");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    fn ask(&mut self, command: &str, arguments: serde_json::Value) {
        let request = serde_json::json!({ "execute": command, "arguments": arguments });
        writeln!(self.0.get_mut(), "{request}").expect("the monitor takes it");
        loop {
            let answer = self.line();
            if answer.get("return").is_some() {
                return;
            }
            assert!(answer.get("event").is_some(), "{command}: {answer}");
        }
    }

    /// The critical warning of a drive's SMART log is this from now on.
    fn warn(&mut self, drive: &str, bits: u8) {
        let arguments = serde_json::json!({
            "path": format!("/machine/peripheral/{drive}"),
            "property": "smart_critical_warning",
            "value": bits,
        });
        self.ask("qom-set", arguments);
    }
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_drive_that_warns_of_its_end_is_named_with_the_remedy_while_it_works() {
    steadily(|| {
        let work = tempfile::Builder::new()
            .prefix("onefold-health-")
            .tempdir()
            .expect("a folder");
        let socket = work.path().join("monitor");
        let mut qemu = vec![
            "-qmp".to_owned(),
            format!("unix:{},server=on,wait=off", utf8(&socket)),
        ];
        for name in ["one", "two"] {
            let image = work.path().join(name);
            let file = File::create_new(&image).expect("a new file");
            file.set_len(160 * MIB).expect("a sparse file");
            let drive = format!("if=none,id={name}-image,file={},format=raw", utf8(&image));
            let device = format!("nvme,id={name},drive={name}-image,serial=onefold-{name}");
            qemu.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
        }
        let hardware = Hardware {
            qemu: &qemu,
            ..Hardware::default()
        };
        let files = program_for_guests(work.path());
        let network = Network::new(1, 1500);
        let spec = GuestSpec {
            name: "worn",
            kernel: "6.12",
            number: 0,
            cpus: 2,
            story: "drive_health",
            arguments: &[],
            limit_seconds: 900,
            files: &files,
        };
        let mut guest = Guest::start_with(&network, &spec, &hardware);
        guest.await_signal("well", 8 * MINUTE);
        let mut monitor = Monitor::connect(&socket);
        const UNRELIABLE: u8 = 1 << 2;
        monitor.warn("one", UNRELIABLE);
        guest.signal("warn");
        guest.await_signal("warned", 4 * MINUTE);
        monitor.warn("one", 0);
        guest.signal("better");
        println!("{}", guest.finish(5 * MINUTE));
    });
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn a_namespace_by_its_generic_device_is_a_drive_like_any_other_and_nobody_else_has_it() {
    steadily(|| {
        let work = tempfile::Builder::new()
            .prefix("onefold-generic-")
            .tempdir()
            .expect("a folder");
        // MDTS of 2^2 pages: 16 KiB a command. The last one has 8 bytes of metadata with each block.
        let kinds = [
            ("mdts=2", "logical_block_size=512,physical_block_size=512"),
            ("mdts=7", "logical_block_size=4096,physical_block_size=4096"),
            (
                "mdts=7",
                "logical_block_size=512,physical_block_size=512,ms=8",
            ),
        ];
        let mut qemu = Vec::new();
        for (number, (controller, namespace)) in kinds.iter().enumerate() {
            let image = work.path().join(format!("image{number}"));
            let file = File::create_new(&image).expect("a new file");
            file.set_len(160 * MIB).expect("a sparse file");
            let image = utf8(&image);
            qemu.extend([
                "-drive".to_owned(),
                format!("if=none,id=image{number},file={image},format=raw"),
                "-device".to_owned(),
                format!("nvme,id=nvme{number},serial=onefold-{number},{controller}"),
                "-device".to_owned(),
                format!("nvme-ns,drive=image{number},bus=nvme{number},{namespace}"),
            ]);
        }
        let hardware = Hardware {
            qemu: &qemu,
            ..Hardware::default()
        };
        let mut files = program_for_guests(work.path());
        files.push(PathBuf::from(env!("CARGO_BIN_EXE_conforms")));
        let network = Network::new(1, 1500);
        let spec = GuestSpec {
            name: "generic",
            kernel: "6.12",
            number: 0,
            cpus: 2,
            story: "passthrough",
            arguments: &[],
            limit_seconds: 900,
            files: &files,
        };
        let guest = Guest::start_with(&network, &spec, &hardware);
        println!("{}", guest.finish(16 * MINUTE));
    });
}
