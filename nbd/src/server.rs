//! Where an export's clients come in.
//!
//! Guarantees: connections have a bound, for each export and for all together; each one is served by the reactor that has
//! the fewest of its export; one that ends badly ends alone; when a server has ended, no request is under way, and its
//! place is free.

use std::future::poll_fn;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use reactor::RemoteJoin;
use reactor::net::Watch;
use reactor::sync::{Permit, Semaphore};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use subsystem::catalog::NbdAddress;
use subsystem::export::bind_socket;
use subsystem::target::Target;
use tokio::sync::watch;

use crate::session;
use crate::socket::set_up_tcp;

/// Connections of all exports together.
const CONNECTIONS_MAX: usize = 1024;
/// How long to wait when the system has no descriptor or memory for another connection.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections to one export.
    pub connections_max: usize,
    /// Requests of one connection that are under way, or whose answers are not sent.
    pub requests_max: usize,
    /// Data of one connection that are being read or written, or wait to be sent.
    pub bytes_max: usize,
    /// How long a client may take to choose an export.
    pub handshake_time: Duration,
    /// How long a client may take for its last replies when the export ends.
    pub patience: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections_max: 32,
            requests_max: 128,
            bytes_max: 4 << 20,
            handshake_time: Duration::from_secs(10),
            patience: Duration::from_secs(3),
        }
    }
}

/// What a server is made of.
pub struct Parts {
    /// What is served.
    pub target: Arc<Target>,
    /// Which of its exports.
    pub export: u16,
    /// Where.
    pub address: NbdAddress,
    /// Who serves connections: each stays with one of them. There is at least one.
    pub reactors: Vec<reactor::Handle>,
    /// What connections may take.
    pub bounds: Bounds,
}

/// The server of an export. Dropping it ends it, as [`stop`](Self::stop) does.
pub struct Server {
    state: Arc<State>,
    accepting: Option<RemoteJoin<()>>,
    address: NbdAddress,
}

struct State {
    stop: watch::Sender<bool>,
    /// Connections that are not over; an accepted one has a place.
    places: Semaphore,
    /// Those of them that have the export.
    clients: AtomicUsize,
    /// Those that ended badly, or found no place.
    bad: AtomicU64,
    name: Arc<str>,
}

impl State {
    /// Tells of a connection that ended badly; not of each one of many.
    fn tell(&self, error: &io::Error) {
        let bad = self.bad.fetch_add(1, Ordering::Relaxed) + 1;
        if bad.is_power_of_two() {
            tracing::warn!(export = &*self.name, bad, %error, "a client's connection was ended");
        }
    }
}

/// Counts a client that has the export.
struct Client(Arc<State>);

impl Client {
    fn new(state: &Arc<State>) -> Self {
        if state.clients.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::info!(export = &*state.name, "a client connected");
        }
        Self(state.clone())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.0.clients.fetch_sub(1, Ordering::Relaxed) == 1 {
            tracing::info!(export = &*self.0.name, "the last client disconnected");
        }
    }
}

/// A place among all connections of the process.
struct Place {
    _permit: Permit,
    on: Arc<AtomicUsize>,
}

impl Place {
    fn new(state: &State, on: &Arc<AtomicUsize>) -> Option<Self> {
        let permit = state.places.try_acquire(1)?;
        if CONNECTIONS.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        on.fetch_add(1, Ordering::Relaxed);
        Some(Self {
            _permit: permit,
            on: on.clone(),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
        self.on.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    /// Listens, and serves whoever comes.
    ///
    /// # Errors
    /// The place is taken, or nobody can listen there.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let listener = listen(&parts.address)?;
        let first = parts.reactors.first().cloned();
        let first = first.ok_or_else(|| io::Error::other("nobody serves connections"))?;
        let state = Arc::new(State {
            stop: watch::Sender::new(false),
            places: Semaphore::new(parts.bounds.connections_max),
            clients: AtomicUsize::new(0),
            bad: AtomicU64::new(0),
            name: parts.address.to_string().into(),
        });
        let address = parts.address.clone();
        let serving = state.clone();
        let accepting = first.spawn(move || accept_all(parts, listener, serving));
        Ok(Self {
            state,
            accepting: Some(accepting),
            address,
        })
    }

    /// Connections that use the export now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.clients.load(Ordering::Relaxed)
    }

    /// Ends all connections after their requests under way. The place is free then. It waits for that: call it on no
    /// reactor.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.state.stop.send_replace(true);
        let Some(accepting) = self.accepting.take() else {
            return;
        };
        if let Err(error) = accepting.wait() {
            tracing::warn!(export = &*self.state.name, %error, "the server of an export ended early");
        }
        if let NbdAddress::Unix(path) = &self.address {
            // Whoever took the path meanwhile has it.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A socket that listens.
fn listen(address: &NbdAddress) -> io::Result<OwnedFd> {
    match address {
        NbdAddress::Unix(path) => {
            let listener = bind_socket(path)?;
            listener.set_nonblocking(true)?;
            Ok(listener.into())
        }
        NbdAddress::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener.into())
        }
    }
}

/// Takes connections until the server ends, and waits for their ends.
async fn accept_all(parts: Parts, listener: OwnedFd, state: Arc<State>) {
    let listener = Arc::new(listener);
    {
        let accepting = pin!(accept(&parts, &listener, &state));
        let mut stop = state.stop.subscribe();
        let stopped = pin!(stop.wait_for(|stop| *stop));
        if let Either::Right((error, _)) = select(stopped, accepting).await {
            tracing::error!(export = &*state.name, %error, "an export takes no more connections");
        }
    }
    // Also while the ring still has the descriptor.
    let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
    drop(listener);
    drop(state.places.acquire(parts.bounds.connections_max).await);
}

/// Takes connections; gives why it cannot.
async fn accept(parts: &Parts, listener: &Arc<OwnedFd>, state: &Arc<State>) -> io::Error {
    let watch = match Watch::new(listener) {
        Ok(watch) => watch,
        Err(error) => return error,
    };
    let reactors: Vec<_> = parts
        .reactors
        .iter()
        .map(|it| (it, Arc::default()))
        .collect();
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match accept_with(&**listener, flags) {
            Ok(fd) => {
                let fewest = reactors
                    .iter()
                    .min_by_key(|(_, on): &&(_, Arc<AtomicUsize>)| on.load(Ordering::Relaxed));
                if let Some((reactor, on)) = fewest {
                    admit(parts, state, reactor, on, fd);
                }
                // A flood of connections does not keep others waiting.
                reactor::yield_now().await;
            }
            Err(Errno::AGAIN) => {
                if let Err(error) = poll_fn(|cx| watch.poll_ready(cx)).await {
                    return error;
                }
            }
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                tracing::warn!(export = &*state.name, %error, "a client has to wait; raise the limit (ulimit -n)");
                reactor::sleep(SHORTAGE_PAUSE).await;
            }
            Err(error @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK)) => return error.into(),
            // The connection failed before it was taken (accept(2) lists such errors).
            Err(error) => {
                tracing::debug!(export = &*state.name, %error, "a connection failed early")
            }
        }
    }
}

/// Serves a connection, if there is a place for it.
fn admit(
    parts: &Parts,
    state: &Arc<State>,
    reactor: &reactor::Handle,
    on: &Arc<AtomicUsize>,
    fd: OwnedFd,
) {
    let Some(place) = Place::new(state, on) else {
        state.tell(&io::Error::other("there are too many: it was sent away"));
        return;
    };
    if let NbdAddress::Tcp(_) = parts.address
        && let Err(error) = set_up_tcp(&fd)
    {
        tracing::debug!(export = &*state.name, %error, "a client went at once");
        return;
    }
    let serving = session::Parts {
        target: parts.target.clone(),
        export: parts.export,
        bounds: parts.bounds,
        stop: state.stop.subscribe(),
    };
    let state = state.clone();
    drop(reactor.spawn(move || async move {
        let mut client = None;
        let ready = || client = Some(Client::new(&state));
        match session::serve(fd, serving, ready).await {
            Ok(end) => tracing::debug!(export = &*state.name, ?end, "a connection ended"),
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                    tracing::debug!(export = &*state.name, %error, "a client went without a word");
                }
                _ => state.tell(&error),
            },
        }
        drop(client);
        drop(place);
    }));
}
