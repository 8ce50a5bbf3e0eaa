//! The daemon as a service: what its manager is told by sd_notify(3).

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::harness::{Daemon, Pool, onefold};

/// The manager's end of a service's socket.
struct Manager(UnixDatagram);

impl Manager {
    /// Waits for a message with this line; those before it are let pass.
    fn is_told(&self, line: &str) {
        let mut message = [0; 4096];
        loop {
            let length = self.0.recv(&mut message);
            let length = length.unwrap_or_else(|error| panic!("nobody said {line}: {error}"));
            let text = std::str::from_utf8(&message[..length]).expect("text");
            if text.lines().any(|told| told == line) {
                return;
            }
        }
    }
}

#[test]
fn the_service_manager_knows_when_the_daemon_is_ready_alive_reloading_and_stopping() {
    let pool = Pool::new();
    let path = pool.dir.with_extension("notify");
    let manager = Manager(UnixDatagram::bind(&path).expect("a socket"));
    let patience = Some(Duration::from_secs(120));
    manager.0.set_read_timeout(patience).expect("a timeout");
    // Without a terminal, as a service: SIGHUP is a reload.
    let mut command = Command::new("setsid");
    command.args([&onefold(), "serve", "--pool", pool.dir()]);
    command.args(["--create", "1G", "--listen", &pool.address]);
    command.env("NOTIFY_SOCKET", &path);
    command.env("WATCHDOG_USEC", "300000");
    let daemon = Daemon::start_as(&mut command);
    manager.is_told("READY=1");
    manager.is_told("WATCHDOG=1");
    manager.is_told("WATCHDOG=1");
    daemon.signal(Signal::HUP);
    manager.is_told("RELOADING=1");
    manager.is_told("READY=1");
    daemon.stop(Signal::TERM);
    manager.is_told("STOPPING=1");
}
