//! A sled as a process: a machine with drives for pools of other machines.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::{in_network, program};

/// See the module. It is killed when it is dropped, and its drives stay.
#[derive(Debug)]
pub struct Sled {
    child: Option<Child>,
    namespace: Option<String>,
    arguments: Vec<String>,
    /// Its first drive, as pools name it.
    pub drive: String,
    /// The folder with the reservations of its drives.
    pub reservations: PathBuf,
    target: String,
}

impl Sled {
    /// Makes a drive of 1 GiB in that folder, which has one of that number, and serves it at that address, such as
    /// `tcp://192.0.2.7:4420`.
    ///
    /// # Panics
    /// It does not get ready.
    #[must_use]
    pub fn start_new(folder: &Path, number: u8, listen: &str, namespace: Option<&str>) -> Self {
        Self::start_with_drives(folder, number, listen, namespace, 1)
    }

    /// The same with so many drives.
    ///
    /// # Panics
    /// It does not get ready.
    #[must_use]
    pub fn start_with_drives(
        folder: &Path,
        number: u8,
        listen: &str,
        namespace: Option<&str>,
        drives: u32,
    ) -> Self {
        let text = |name: &str| {
            let path = folder.join(format!("{name}{number}"));
            path.to_str().expect("test folders are UTF-8").to_owned()
        };
        let name = format!("sleds-{}-{number}", std::process::id());
        let reservations = text("reservations");
        let target = format!("nvme+{listen}/nqn.2026-11.dev.onefold:sled:{name}");
        let arguments = [
            "sled",
            "serve",
            "--listen",
            listen,
            "--name",
            &name,
            "--reservations",
            &reservations,
        ];
        let mut arguments = arguments.map(str::to_owned).to_vec();
        for at in 1..=drives {
            let drive = format!("{}=1G", text(&format!("drive{at}-")));
            arguments.extend(["--drive".to_owned(), drive]);
        }
        let mut sled = Self {
            child: None,
            namespace: namespace.map(str::to_owned),
            arguments,
            drive: format!("{target}#1"),
            reservations: reservations.into(),
            target,
        };
        sled.start();
        sled
    }

    /// One of its drives, from 1 on, as pools name it.
    #[must_use]
    pub fn drive_at(&self, number: u32) -> String {
        format!("{}#{number}", self.target)
    }

    /// Starts it, and waits until it serves.
    ///
    /// # Panics
    /// It does not get ready.
    pub fn start(&mut self) {
        let mut command = in_network(self.namespace.as_deref(), program().as_os_str());
        let command = command
            .args(self.arguments.iter().map(OsStr::new))
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let stdout = child.stdout.take().expect("it was asked for");
        let mut lines = BufReader::new(stdout).lines();
        let ready = lines.next().expect("a line").expect("text");
        assert!(ready.starts_with("ready"), "{ready}");
        // The rest is read away, so that the sled never waits for the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        self.child = Some(child);
    }

    /// It stands still (SIGSTOP), or goes on (SIGCONT).
    ///
    /// # Panics
    /// It does not live.
    pub fn stands_still(&self, still: bool) {
        let child = self.child.as_ref().expect("it lives");
        let process = Pid::from_child(child);
        let signal = if still { Signal::STOP } else { Signal::CONT };
        kill_process(process, signal).expect("it lives");
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Sled {
    fn drop(&mut self) {
        self.kill();
    }
}
