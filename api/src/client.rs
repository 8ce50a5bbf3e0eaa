//! The client of a daemon's API: JSON over HTTP on the pool's unix socket. The calls of each noun are beside its routes.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use meta::{PoolDir, is_remote_drive};
use nvme::Nqn;
use serde::Serialize;
use serde::de::DeserializeOwned;
use subsystem::errors::Failure;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::errors::ErrorBody;
use crate::socket::SocketPath;

/// The longest answer that is read, in bytes: status with all volumes and hosts stays far below.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// What the bodies of most requests are.
const JSON: &str = "application/json";

/// The longest line of a text that comes line by line, in bytes: an event stays far below.
const LINE_BYTES_MAX: usize = 64 << 10;

/// How the daemon of a pool is started.
fn start_of(pool: &Path) -> String {
    let name = pool.display();
    if is_remote_drive(pool) {
        return "that is a drive, and the daemon is found by the folder of its pool: name that one"
            .to_owned();
    }
    let Ok(identity) = PoolDir::read_identity(pool) else {
        // Also a standby that never had the pool has nothing in its folder.
        return format!(
            "start it with `onefold serve --pool {name}`; a standby of other nodes needs --join and the pool's drives, too"
        );
    };
    let mut drives = identity.drives.iter().filter(|drive| !drive.is_removed);
    match drives.any(|drive| is_remote_drive(&drive.path)) {
        // Without --join a node tells the others nothing, and they leave the pool to it also when it dies.
        true => format!(
            "start it as it was started before, with `onefold serve --join --pool {name}` if other nodes offer the pool"
        ),
        false => format!("start it with `onefold serve --pool {name}`"),
    }
}

/// Talks to the daemon that serves a pool.
#[derive(Debug)]
pub struct Client {
    pool: PathBuf,
}

impl Client {
    /// A client of the daemon that serves the pool in `pool`.
    #[must_use]
    pub fn new(pool: &Path) -> Self {
        Self {
            pool: pool.to_owned(),
        }
    }

    /// Asks for what is at a path.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.send(Method::GET, path, None::<&()>).await
    }

    /// Sends a request, and reads its answer.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|e| Failure::invalid(e.to_string()))?,
            None => Vec::new(),
        };
        let mut lane = self.lane().await?;
        let body = lane.ask(method, path, JSON, body.into()).await?;
        serde_json::from_slice(&body)
            .map_err(|e| lane.broken("sent an answer of another version", &e))
    }

    /// Calls `look` with the data of each server-sent event of a path, until it says that it wants no more. `what` is
    /// what they are called.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses, or it ends.
    pub(crate) async fn follow<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
        mut look: impl FnMut(T) -> bool,
    ) -> Result<(), Failure> {
        let mut lines = self.lines(path).await?;
        while let Some(line) = lines.next().await? {
            let Some(data) = line.strip_prefix("data:") else {
                continue;
            };
            let data = serde_json::from_str(data.trim_start()).map_err(|error| {
                lines.broken(&format!("sent {what} of another version"), &error)
            })?;
            if !look(data) {
                return Ok(());
            }
        }
        Err(lines.broken("ended", &format!("its {what} end with it")))
    }

    /// Asks for a text that comes line by line.
    async fn lines(&self, path: &str) -> Result<Lines, Failure> {
        let (mut sender, connection) = self.open().await?;
        let mut lines = Lines {
            pool: self.pool.clone(),
            body: None,
            text: Vec::new(),
            connection,
        };
        let request = Request::builder()
            .uri(path)
            .header("host", "onefold")
            .body(Full::new(Bytes::new()))
            .map_err(|e| Failure::invalid(format!("the request '{path}' is malformed: {e}")))?;
        let answer = sender
            .send_request(request)
            .await
            .map_err(|e| lines.broken("closed the connection before it answered", &e))?;
        let status = answer.status();
        if status == StatusCode::OK {
            lines.body = Some(answer.into_body());
            return Ok(lines);
        }
        let body = Limited::new(answer.into_body(), LINE_BYTES_MAX)
            .collect()
            .await
            .map_err(|e| lines.broken("sent an incomplete answer", &e))?;
        match serde_json::from_slice::<ErrorBody>(&body.to_bytes()) {
            Ok(error) => Err(error.into()),
            Err(_) => Err(lines.broken("refused", &status)),
        }
    }

    /// A connection, and the task that moves its bytes.
    async fn open(
        &self,
    ) -> Result<(SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>), Failure> {
        let stream = self.connect().await?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|e| broken(&self.pool, "does not speak HTTP", &e))?;
        Ok((sender, tokio::spawn(connection)))
    }

    async fn connect(&self) -> Result<UnixStream, Failure> {
        let not_served = |error: std::io::Error| {
            let pool = self.pool.display();
            let why = match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    match PoolDir::user(&self.pool) {
                        Some(pid) => format!(
                            "process {pid} has the pool '{pool}' and takes no requests: a daemon that starts, waits for the \
                             pool's drives, or ends takes none, nor does a command such as `onefold pool check`"
                        ),
                        None => format!(
                            "no daemon serves the pool '{pool}': {}",
                            start_of(&self.pool)
                        ),
                    }
                }
                std::io::ErrorKind::PermissionDenied => format!(
                    "the daemon of the pool '{pool}' belongs to another user: run the command as that user"
                ),
                _ => format!("the daemon of the pool '{pool}' cannot be reached: {error}"),
            };
            Failure::unavailable(why)
        };
        let path = SocketPath::of_pool(&self.pool).map_err(not_served)?;
        UnixStream::connect(path.as_path())
            .await
            .map_err(not_served)
    }
}

/// A connection that asks for one thing after the other.
#[derive(Debug)]
pub struct Lane {
    pool: PathBuf,
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Client {
    /// Opens a connection that stays.
    ///
    /// # Errors
    /// No daemon serves the pool.
    pub async fn lane(&self) -> Result<Lane, Failure> {
        let (sender, connection) = self.open().await?;
        Ok(Lane {
            pool: self.pool.clone(),
            sender,
            connection,
        })
    }
}

impl Lane {
    /// Sends a request, and reads its answer.
    pub(crate) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Bytes, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "onefold")
            .header("content-type", content_type)
            .body(Full::new(body))
            .map_err(|e| Failure::invalid(format!("the request '{path}' is malformed: {e}")))?;
        let sent = match self.sender.ready().await {
            Ok(()) => self.sender.send_request(request).await,
            Err(error) => Err(error),
        };
        let answer =
            sent.map_err(|e| self.broken("closed the connection before it answered", &e))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|e| self.broken("sent an incomplete answer", &e))?
            .to_bytes();
        if status == StatusCode::OK {
            return Ok(body);
        }
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(error) => Err(error.into()),
            Err(_) => Err(self.broken("refused", &status)),
        }
    }

    /// What went wrong, with the daemon's name.
    pub(crate) fn broken(&self, what: &str, error: &dyn Display) -> Failure {
        broken(&self.pool, what, error)
    }
}

/// The conversation with a daemon broke.
fn broken(pool: &Path, what: &str, error: &dyn Display) -> Failure {
    Failure::unavailable(format!(
        "the daemon of the pool '{}' {what}: {error}",
        pool.display()
    ))
}

/// A text that comes line by line.
#[derive(Debug)]
struct Lines {
    pool: PathBuf,
    body: Option<Incoming>,
    /// What has come of the next lines.
    text: Vec<u8>,
    connection: JoinHandle<hyper::Result<()>>,
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Lines {
    /// The next line, without its end; `None` when the text is over.
    ///
    /// # Errors
    /// The connection broke, or a line is too long.
    async fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                return Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()));
            }
            if self.text.len() > LINE_BYTES_MAX {
                return Err(self.broken("sent a line without an end", &"it is too long"));
            }
            let Some(body) = self.body.as_mut() else {
                return Ok(None);
            };
            match body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.broken("sent an incomplete answer", &error)),
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.text.extend_from_slice(bytes);
                    }
                }
            }
        }
    }

    /// What went wrong, with the daemon's name.
    fn broken(&self, what: &str, error: &dyn Display) -> Failure {
        broken(&self.pool, what, error)
    }
}

/// A text as one segment of a path: what could mean something else there is written as %XX (RFC 3986).
pub(crate) fn segment(text: &str) -> String {
    let mut segment = String::new();
    for byte in text.bytes() {
        match byte {
            b'.' | b'_' | b'-' | b':' | b'~' => segment.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => segment.push(char::from(byte)),
            _ => segment += &format!("%{byte:02X}"),
        }
    }
    segment
}

/// The path of a subsystem.
pub(crate) fn subsystem_path(nqn: &Nqn) -> String {
    format!("/v1/subsystems/{}", segment(nqn.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    use meta::PoolPaths;

    #[test]
    fn a_drive_that_is_named_as_a_pool_is_told_so() {
        let told = start_of(Path::new("rados:onefold"));
        assert!(told.contains("folder") && !told.contains("serve"), "{told}");
        let told = start_of(Path::new("/nowhere"));
        assert!(told.contains("onefold serve --pool /nowhere"), "{told}");
    }

    #[tokio::test]
    async fn who_asks_a_daemon_that_starts_is_not_told_to_start_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let client = Client::new(folder.path());
        let told = async || client.connect().await.expect_err("nobody listens").message;
        assert!(told().await.contains("onefold serve --pool"));
        let pid = std::process::id();
        let lock = PoolPaths::new(folder.path()).lock;
        std::fs::write(&lock, pid.to_string()).expect("a lock file");
        let held = std::fs::File::open(&lock).expect("it is there");
        let told = told().await;
        assert!(
            told.contains(&format!("process {pid} has the pool")),
            "{told}"
        );
        drop(held);
    }
}
