//! The daemon's signals.
//!
//! | signal | what it means |
//! |---|---|
//! | SIGINT, SIGTERM | stop cleanly |
//! | SIGHUP to a daemon that was started on a terminal | the terminal was closed: stop cleanly |
//! | SIGHUP to a daemon without one, such as a service | reload: the configuration file, and kept listeners |
//! | SIGHUP to a daemon that was started with SIGHUP ignored (`nohup`) | nothing |

use std::fs::{self, File};
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What the daemon is told to do, and by which signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Stop(&'static str),
    Reload,
}

/// The signals that the daemon waits for.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// None where the daemon was started with SIGHUP ignored: it has to stay so.
    hangup: Option<Signal>,
    on_hangup: Told,
}

impl Signals {
    /// Catches these signals: they no longer end the process by themselves.
    ///
    /// # Errors
    /// The system refuses to have them caught.
    pub(crate) fn new() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = match ignores_hangup(&status) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        // A process without a controlling terminal cannot open this.
        let on_terminal = File::open("/dev/tty").is_ok();
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
            on_hangup: match on_terminal {
                true => Told::Stop("SIGHUP, the terminal was closed"),
                false => Told::Reload,
            },
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Told {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Told::Stop("SIGINT"),
            _ = self.terminate.recv() => Told::Stop("SIGTERM"),
            _ = hangup => self.on_hangup,
        }
    }

    /// Waits for a signal to stop, while the daemon starts and cannot reload yet.
    pub(crate) async fn stop(&mut self) -> &'static str {
        loop {
            match self.next().await {
                Told::Stop(by) => return by,
                Told::Reload => tracing::info!("SIGHUP: still starting, nothing to reload"),
            }
        }
    }

    /// Waits for a second signal to stop, which ends the wait for hosts. SIGHUP does not count: a session that ends sends
    /// several.
    pub(crate) async fn insists(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Whether SIGHUP is ignored, by `/proc/self/status`: the lowest bit of a mask in hexadecimal digits (proc(5)).
fn ignores_hangup(status: &str) -> bool {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_is_known_by_its_bit() {
        for (status, ignored) in [
            (
                "SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n",
                false,
            ),
            (
                "SigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n",
                true,
            ),
            ("SigIgn:\tnonsense\n", false),
            ("", false),
        ] {
            assert_eq!(ignores_hangup(status), ignored, "{status}");
        }
    }
}
