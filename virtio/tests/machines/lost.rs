//! Memory that goes away while the device uses it.
//!
//! Each story runs in a process of its own: what it is about ends the whole program where it is not caught.

use std::os::fd::AsFd;
use std::process::Command;

use rustix::fs::ftruncate;

use crate::front_end::{BASE, DATA, FrontEnd, IN, Memory, OUT, SIZE, receive, used_of};
use crate::harness::{Lab, wait_for};

/// Says to a process that it is the one of its own.
const ALONE: &str = "ONEFOLD_STORY_ALONE";

/// The sector that stories write, and what it holds before.
const SECTOR: u64 = 800;
const OTHER: u16 = 8;

fn old() -> Vec<u8> {
    vec![0x5a; 4096]
}

/// Runs a story as a process of its own, which must end well.
fn alone(name: &str, story: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return story();
    }
    let own = std::env::current_exe().expect("this program");
    let ran = Command::new(own)
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}\n{said}\n{errors}", ran.status);
    assert!(said.contains("1 passed"), "the story ran: {said}");
}

/// A story of a front-end whose memory goes away; all others go on, and it can come again.
fn goes_away(lose: impl Fn(&Lab, &mut FrontEnd)) {
    let lab = Lab::new(4096);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.sock").display().to_string();
    let server = lab.serve_beside(OTHER, &path);
    let mut other = FrontEnd::start(&path, Memory::new(), 1);
    for _ in 0..2 {
        let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 2);
        assert_eq!(guest.writes(SECTOR, &old()), 0);
        lose(&lab, &mut guest);
        assert!(guest.is_sent_away());
        wait_for("the end of the guest", || !lab.is_connected());
        assert!(other.reads(SECTOR, 4096) == old(), "what was stored");
        assert_eq!(other.writes(0, &[7; 4096]), 0);
    }
    let mut again = FrontEnd::start(&lab.path(), Memory::new(), 1);
    assert!(again.reads(SECTOR, 4096) == old());
    drop((again, other));
    server.stop();
}

#[test]
fn a_guest_whose_memory_is_cut_off_under_its_requests_harms_nobody_else() {
    alone(
        "lost::a_guest_whose_memory_is_cut_off_under_its_requests_harms_nobody_else",
        || {
            goes_away(|_, guest| {
                for head in [0, 3, 6, 9, 12] {
                    let at = DATA + u64::from(head) * (64 << 10);
                    guest.put_request(1, head, (IN, SECTOR), &[(at, 64 << 10)]);
                    guest.offer(1, head);
                }
                guest.kick(1);
                guest.memory.cut_off(0);
                guest.kick(0);
                guest.kick(1);
            });
        },
    );
}

#[test]
fn data_that_are_cut_off_before_a_write_takes_them_are_not_stored_as_zeros() {
    alone(
        "lost::data_that_are_cut_off_before_a_write_takes_them_are_not_stored_as_zeros",
        || {
            goes_away(|_, guest| {
                // The rings stay, and so does the request.
                let status = guest.put_request(0, 0, (OUT, SECTOR), &[(DATA, 4096)]);
                guest.memory.cut_off(DATA - BASE);
                guest.offer(0, 0);
                guest.kick(0);
                assert!(guest.is_sent_away());
                assert_ne!(guest.memory.get(status, 1), [0], "it did not succeed");
                assert!(guest.load(used_of(0) + 2) <= 2);
            });
        },
    );
}

#[test]
fn notes_of_requests_that_are_cut_off_end_their_connection_alone() {
    alone(
        "lost::notes_of_requests_that_are_cut_off_end_their_connection_alone",
        || {
            goes_away(|_, guest| {
                let ask = [
                    [1, 0].map(u64::to_le_bytes).concat(),
                    vec![2, 0, SIZE as u8, 0],
                ]
                .concat();
                guest.tell(31, &ask);
                let (_, answer, file) = receive(&guest.stream).expect("an answer");
                let file = file.expect("memory");
                guest.send(32, &answer, &[file.as_fd()]);
                // An answer says that the notes are in use.
                guest.config();
                ftruncate(&file, 0).expect("a shorter file");
                guest.put_request(0, 0, (IN, SECTOR), &[(DATA, 4096)]);
                guest.offer(0, 0);
                guest.kick(0);
            });
        },
    );
}

#[test]
fn a_bus_error_elsewhere_still_ends_the_program() {
    if std::env::var_os(ALONE).is_some() {
        // The signal is caught from here on.
        let lab = Lab::new(4096);
        let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
        assert_eq!(guest.writes(SECTOR, &old()), 0);
        guest.memory.cut_off(0);
        // This side's own mapping is not one of the device's.
        guest.memory.put(DATA, &[1]);
        return;
    }
    let own = std::env::current_exe().expect("this program");
    let name = "lost::a_bus_error_elsewhere_still_ends_the_program";
    let ran = Command::new(own)
        .args(["--exact", name])
        .env(ALONE, "1")
        .output()
        .expect("a process");
    let signal = std::os::unix::process::ExitStatusExt::signal(&ran.status);
    assert_eq!(signal, Some(rustix::process::Signal::BUS.as_raw()));
}
