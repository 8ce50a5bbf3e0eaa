//! The Debian package on a clean machine with systemd, used as the guide tells.
//!
//! systemd-nspawn boots a copy of the Debian that `tests/lab/debian.sh` makes, on this machine's own kernel and without a
//! network. This test needs root.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tests::daemon::{program, text_of};
use tests::guide;
use tests::lab::{cache, folder};

/// A quiet machine takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(300);

/// The size of each drive that the guide's reader gives to a pool.
const DRIVE_BYTES: u64 = 8 << 30;

fn run(program: impl AsRef<OsStr>, arguments: &[&OsStr], environment: &[(&str, &OsStr)]) {
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied());
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{command:?}: {}", text_of(&output));
}

/// The package of the program under test, and the same as a later version.
fn packages(work: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/deb.sh");
    let program = program();
    let words = ["--program".as_ref(), program.as_os_str()];
    run(&script, &words, &[("CARGO_TARGET_DIR", work.as_os_str())]);
    let made = fs::read_dir(work).expect("a folder").flatten();
    let package = made
        .map(|entry| entry.path())
        .find(|path| path.extension() == Some(OsStr::new("deb")))
        .expect("a package was made");

    let unpacked = work.join("unpacked");
    let words = ["-R".as_ref(), package.as_os_str(), unpacked.as_os_str()];
    run("dpkg-deb", &words, &[]);
    let control = unpacked.join("DEBIAN/control");
    let text = fs::read_to_string(&control).expect("a control file");
    let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
    let version = version.expect("it has a version").to_owned();
    let newer = format!("{version}+next");
    let text = text.replace(
        &format!("Version: {version}\n"),
        &format!("Version: {newer}\n"),
    );
    fs::write(&control, text).expect("written");
    let name = package.file_name().expect("a name").to_string_lossy();
    let next = work.join(name.replacen(&version, &newer, 1));
    let words = ["--root-owner-group", "-Zgzip", "-z1", "--build"].map(OsStr::new);
    let files = [unpacked.as_os_str(), next.as_os_str()];
    run("dpkg-deb", &[&words[..], &files].concat(), &[]);
}

/// A drive for the system. Dropping it takes it away.
struct Drive(String);

impl Drive {
    fn new(file: &Path) -> Self {
        let made = File::create(file).and_then(|file| file.set_len(DRIVE_BYTES));
        made.expect("a file");
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]).arg(file);
        let output = command.output().expect("losetup runs");
        assert!(output.status.success(), "{}", text_of(&output));
        let name = String::from_utf8(output.stdout).expect("a path");
        Self(name.trim().to_owned())
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Writes each block of the guide that is typed on a node, or on a machine that reaches it by ssh, into a file of its own:
/// `guide.CHAPTER.NUMBER.sh` and `guide.CHAPTER.remote.NUMBER.sh`.
fn blocks_to_type(lab: &Path) {
    for chapter in guide::chapters() {
        for (place, word) in [(guide::Place::Node, ""), (guide::Place::Remote, "remote.")] {
            for (number, text) in (1..).zip(guide::commands(&chapter, place)) {
                let file = lab.join(format!("guide.{chapter}.{word}{number}.sh"));
                fs::write(&file, text).expect("written");
            }
        }
    }
}

/// A booted system. Dropping it kills it, with all that runs in it.
struct System(Child);

impl System {
    /// Boots `root`, which sees the folder `lab` as `/lab`, and may use `drives`.
    fn boot(root: &Path, lab: &Path, drives: &[Drive]) -> Self {
        let console = File::create(lab.join("console.log")).expect("a file");
        // It is killed with this test, whatever ends the test. A killed systemd-nspawn alone leaves its system running:
        // only the end of a process namespace around both ends both.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--pid", "--fork"]);
        command.args(["--kill-child", "--mount-proc", "systemd-nspawn"]);
        command.args(["--quiet", "--boot", "--private-network", "--register=no"]);
        command.args(["--resolv-conf=off", "--timezone=off", "--link-journal=no"]);
        command.arg(format!("--machine=onefold-{}", std::process::id()));
        // Without systemd here nobody makes a scope for it.
        if Path::new("/run/systemd/system").exists() {
            for Drive(path) in drives {
                command.arg(format!("--property=DeviceAllow={path} rw"));
            }
        } else {
            command.arg("--keep-unit");
        }
        // It makes the drives' nodes in its own /dev.
        command.arg("--capability=CAP_MKNOD");
        command.arg(format!("--directory={}", root.display()));
        command.arg(format!("--bind={}:/lab", lab.display()));
        command.stdin(Stdio::null());
        command.stdout(console.try_clone().expect("a descriptor"));
        command.stderr(console);
        Self(command.spawn().expect("setpriv runs"))
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "boots a system: ./test.sh prepares the lab and runs it"]
fn the_package_serves_at_once_keeps_its_data_over_an_upgrade_and_goes_as_its_owner_says() {
    let clean = cache().join("debian.root");
    assert!(
        clean.join("lab").exists(),
        "{} is missing: run tests/lab/setup.sh",
        clean.display()
    );
    // One after the other on a machine: without systemd here, two systems would share a control group.
    let turn = File::open(clean.join("lab")).expect("a folder");
    turn.lock().expect("a lock");
    let work = tempfile::Builder::new()
        .prefix("onefold-package-")
        .tempdir()
        .expect("a folder");
    let (root, lab) = (work.path().join("root"), work.path().join("lab"));
    fs::create_dir(&lab).expect("a folder");
    packages(&lab);
    blocks_to_type(&lab);
    let drives =
        ["first", "second", "third", "fourth"].map(|name| Drive::new(&work.path().join(name)));
    let paths = drives.iter().map(|drive| format!("{}\n", drive.0));
    fs::write(lab.join("drives"), paths.collect::<String>()).expect("written");
    let host = env!("CARGO_BIN_EXE_attached-host");
    fs::copy(host, lab.join("attached-host")).expect("the host was built");
    let container = folder().join("../../packaging/Containerfile");
    fs::copy(container, lab.join("Containerfile")).expect("it is there");
    let story = folder().join("stories/package.sh");
    fs::copy(story, lab.join("package.sh")).expect("the story exists");
    let words = ["-a", "--reflink=auto"].map(OsStr::new);
    let folders = [clean.as_os_str(), root.as_os_str()];
    run("cp", &[&words[..], &folders].concat(), &[]);

    let log = |name: &str| fs::read_to_string(lab.join(name)).unwrap_or_default();
    let mut system = System::boot(&root, &lab, &drives);
    let start = Instant::now();
    let ended = loop {
        let status = system.0.try_wait().expect("a child can be waited for");
        if status.is_some() || start.elapsed() > LIMIT {
            break status;
        }
        // A poll interval between looks at another system.
        std::thread::sleep(Duration::from_millis(50));
    };
    let story = log("story.log");
    println!("{story}");
    let end = "the package came, served and went\n";
    assert!(
        ended.is_some_and(|status| status.success()) && story.ends_with(end),
        "the story ended with {ended:?} after {:?}:\n{story}\n{}",
        start.elapsed(),
        log("console.log")
    );
}
