//! The same with QEMU's storage daemon as the server: what others understand by the protocol, and a process that ends.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use drives::{Drive, ErrorKind};
use futures_util::FutureExt;
use futures_util::future::join_all;
use reactor::Config;
use vhost_drives::{Claim, OpenOptions, VhostDrive};

use crate::server::options;
use crate::story::{extent, filled, read, story, wait_for, write};

/// Blocks of the device.
const BLOCKS: u64 = 16 << 10;

/// A storage daemon with one file.
pub(crate) struct Qemu {
    folder: tempfile::TempDir,
    process: Option<Child>,
}

impl Qemu {
    /// A daemon that is starting; nothing, where it is not installed.
    pub(crate) fn start() -> Option<Self> {
        let mut qemu = Self {
            folder: tempfile::tempdir().expect("a folder"),
            process: None,
        };
        let file = std::fs::File::create(qemu.path("disk")).expect("a file");
        file.set_len(BLOCKS * 4096).expect("its size");
        match qemu.run() {
            Ok(()) => Some(qemu),
            Err(error) => {
                let must_run = std::env::var("CI").is_ok_and(|ci| ci == "true");
                assert!(
                    !must_run,
                    "qemu-storage-daemon: {error}; test.sh installs it"
                );
                eprintln!("skipped: qemu-storage-daemon does not run here ({error})");
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn run(&mut self) -> io::Result<()> {
        let (disk, socket) = (self.path("disk"), self.path("socket"));
        let _ = std::fs::remove_file(&socket);
        let node = format!(
            "driver=file,node-name=disk,filename={},cache.direct=off,discard=unmap",
            disk.display()
        );
        let export = format!(
            "type=vhost-user-blk,id=disk,node-name=disk,writable=on,num-queues=2,addr.type=unix,addr.path={}",
            socket.display()
        );
        let mut command = Command::new("qemu-storage-daemon");
        command.args(["--blockdev", &node, "--export", &export]);
        self.process = Some(command.stdin(Stdio::null()).spawn()?);
        Ok(())
    }

    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("it lives");
        process.kill().expect("killed");
        process.wait().expect("ended");
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let process = self.process.as_ref().expect("it lives");
        let id = rustix::process::Pid::from_child(process);
        rustix::process::kill_process(id, signal).expect("it lives");
    }

    pub(crate) async fn open(&self, options: OpenOptions) -> VhostDrive {
        let socket = self.path("socket");
        wait_for("the server", || is_listening(&socket)).await;
        let address = format!("vhost-user:{}", socket.display());
        let opened = VhostDrive::open(address.parse().expect("an address"), options).await;
        opened.expect("it opens")
    }
}

/// Whether a server listens at a socket. It binds it a moment before, and clients are refused until then.
fn is_listening(socket: &Path) -> bool {
    // `__SO_ACCEPTCON` of include/uapi/linux/net.h, in the fourth column of proc_pid_net(5).
    const LISTENS: &str = "00010000";
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_it = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        words.nth(3) == Some(LISTENS) && words.next_back().map(Path::new) == Some(socket)
    };
    sockets.lines().any(is_it)
}

impl Drop for Qemu {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

#[test]
fn reactors_read_what_others_wrote_and_it_is_in_the_file() {
    let Some(qemu) = Qemu::start() else { return };
    story(async || {
        let drive = Arc::new(qemu.open(options()).await);
        assert_eq!(drive.blocks(), BLOCKS);
        let threads: Vec<_> = (0..3)
            .map(|_| reactor::start(Config::default()).expect("a reactor"))
            .collect();
        let ended = threads.iter().zip(0..).map(|(thread, at)| {
            let drive = drive.clone();
            thread.handle().spawn(move || async move {
                let writes = (0..200).map(|block| write(&*drive, at * 200 + block, block as u8));
                join_all(writes)
                    .await
                    .into_iter()
                    .collect::<Result<Vec<()>, _>>()?;
                drive.flush().await
            })
        });
        for ended in join_all(ended).await {
            ended.expect("no panic").expect("written");
        }
        let (result, _) = drive.write(filled(300, 7), &[extent(1000, 0, 300)]).await;
        result.expect("written");
        let (result, buffer) = drive.read(filled(300, 0), &[extent(1100, 0, 300)]).await;
        result.expect("read");
        assert!(buffer[..200 * 4096].iter().all(|byte| *byte == 7));
        assert!(buffer[200 * 4096..].iter().all(|byte| *byte == 0));
        drive.discard(1000, 300).await.expect("discarded");
        drive.flush().await.expect("flushed");
        let disk = std::fs::read(qemu.path("disk")).expect("the file");
        for block in 0..600 {
            assert_eq!(disk[block * 4096 + 5], (block % 200) as u8);
        }
        assert_eq!(read(&*drive, 1000).await.expect("read"), 0);
    });
}

#[test]
fn a_server_whose_process_has_ended_is_fenced_at_once_and_used_again_when_it_is_back() {
    let Some(mut qemu) = Qemu::start() else {
        return;
    };
    story(async || {
        let drive = qemu.open(options()).await;
        write(&drive, 5, 1).await.expect("written");
        drive.flush().await.expect("flushed");
        // It takes nothing any more, and answers nothing.
        qemu.signal(rustix::process::Signal::STOP);
        let mut held = Box::pin(write(&drive, 5, 2));
        assert!(held.as_mut().now_or_never().is_none());
        qemu.kill();
        let error = held.await.expect_err("the server is gone");
        assert!(error.is_in_doubt(), "{error}");
        drive.fence().await.expect("its process has ended");
        let error = drive.flush().await.expect_err("the socket is closed");
        assert_eq!(error.kind(), ErrorKind::Io);
        qemu.run().expect("started");
        let socket = qemu.path("socket");
        wait_for("the server", || is_listening(&socket)).await;
        assert_eq!(read(&drive, 5).await.expect("it is back"), 1);
        write(&drive, 5, 3).await.expect("it is back");
        drive
            .claim(Claim::Again)
            .await
            .expect("nothing is in doubt");
    });
}

#[test]
fn a_server_that_hangs_is_left_and_settled_by_itself_when_it_goes_on() {
    let Some(qemu) = Qemu::start() else { return };
    story(async || {
        let drive = qemu.open(options()).await;
        write(&drive, 5, 1).await.expect("written");
        drive.flush().await.expect("flushed");
        qemu.signal(rustix::process::Signal::STOP);
        let error = write(&drive, 5, 2).await.expect_err("no answer");
        assert!(error.is_in_doubt(), "{error}");
        let error = drive.fence().await.expect_err("it may still do it");
        assert!(
            error.to_string().contains("end the server (process"),
            "{error}"
        );
        qemu.signal(rustix::process::Signal::CONT);
        drive
            .fence()
            .await
            .expect("its queue is stopped, and what it took is answered");
        let found = read(&drive, 5).await.expect("by a new connection");
        assert!([1, 2].contains(&found));
    });
}
