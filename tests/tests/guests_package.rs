//! The Debian package on a clean machine with systemd, used as the guide tells.
//!
//! This test needs root, QEMU and the lab's images, as those in `guests.rs`.

#![allow(clippy::print_stdout, reason = "the figures of a story are its result")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tests::daemon::{program, text_of};
use tests::guide;
use tests::lab::{Guest, GuestSpec, Network, steadily};

const MINUTE: Duration = Duration::from_secs(60);

/// The chapters whose commands the story runs, in its order.
const CHAPTERS: [&str; 4] = ["install", "first-attach", "upgrade", "remove"];

fn run(program: impl AsRef<OsStr>, arguments: &[&OsStr], environment: &[(&str, &OsStr)]) {
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied());
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{command:?}: {}", text_of(&output));
}

/// The package of the program under test, and the same as a later version.
fn packages(work: &Path) -> [PathBuf; 2] {
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
    [package, next]
}

#[test]
#[ignore = "boots a guest: ./test.sh prepares the lab and runs it"]
fn the_package_serves_at_once_is_upgraded_under_a_host_that_writes_and_goes_as_its_owner_says() {
    let work = tempfile::Builder::new()
        .prefix("onefold-package-")
        .tempdir()
        .expect("a folder");
    let mut files = packages(work.path()).to_vec();
    for chapter in CHAPTERS {
        let commands = guide::commands(chapter, guide::Place::Node);
        assert!(!commands.is_empty(), "{chapter}.md has no commands");
        let file = work.path().join(format!("guide.{chapter}.sh"));
        fs::write(&file, commands.join("\n")).expect("written");
        files.push(file);
    }
    steadily(|| {
        let network = Network::new(1, 1500);
        let spec = GuestSpec {
            name: "package",
            kernel: "6.12",
            number: 0,
            cpus: 1,
            story: "package",
            arguments: &[],
            limit_seconds: 420,
            files: &files,
        };
        let guest = Guest::start_debian(&network, &spec);
        println!("{}", guest.finish(8 * MINUTE));
    });
}
