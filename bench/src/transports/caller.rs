//! An administrator's script that calls the API again and again, while a host's reads are measured.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One call in so long: 10,000 in a minute.
const INTERVAL: Duration = Duration::from_millis(6);
/// What it asks for: all that `onefold status` shows, which is the longest answer.
const REQUEST: &[u8] = b"GET /v1/status HTTP/1.1\r\nhost: onefold\r\nconnection: close\r\n\r\n";
/// How an answer begins that is one.
const OK: &[u8] = b"HTTP/1.1 200 ";
/// How long to wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A script on a thread of its own, which begins on the cores of the thread that starts it.
pub(super) struct Caller {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<f64, String>>,
}

impl Caller {
    /// Lets it call the API at this socket until [`Caller::end`].
    pub(super) fn start(socket: &Path) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (end, socket) = (ends.clone(), socket.to_owned());
        let thread = std::thread::spawn(move || call(&socket, &end));
        Self { ends, thread }
    }

    /// Ends it; how many calls were answered in a minute.
    pub(super) fn end(self) -> Result<f64, String> {
        self.ends.store(true, Ordering::Release);
        let called = self.thread.join();
        called.map_err(|_| "the script that calls the API has died".to_owned())?
    }
}

fn call(socket: &Path, end: &AtomicBool) -> Result<f64, String> {
    let begun = Instant::now();
    let mut calls = 0_u32;
    while !end.load(Ordering::Acquire) {
        let answered = ask(socket).map_err(|e| format!("{}: {e}", socket.display()))?;
        if !answered.starts_with(OK) {
            let line = answered.split(|byte| *byte == b'\r').next();
            let line = String::from_utf8_lossy(line.unwrap_or_default());
            return Err(format!("the API answered '{line}'"));
        }
        calls += 1;
        // A call that is late is followed at once, so that the rate holds.
        let next = begun + INTERVAL * calls;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(f64::from(calls) / begun.elapsed().as_secs_f64() * 60.0)
}

fn ask(socket: &Path) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(REQUEST)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}
