//! The socket of an export, and the thread that talks with its front-end.
//!
//! Guarantees: one front-end at a time, others are sent away; a front-end that goes, or says what cannot be, ends its own
//! session alone, and can come again; a socket of another program is left as it is.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use subsystem::export::bind_socket;
use subsystem::target::Target;
use tokio::sync::watch;

use crate::connection::receive;
use crate::queue::wake;
use crate::session::Session;

/// How long a front-end may take for the rest of a message, or to read an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of the thread's stack: it parses small messages.
const STACK_BYTES: usize = 256 << 10;

/// What a server is made of.
pub struct Parts {
    /// What is served.
    pub target: Arc<Target>,
    /// Which of its exports.
    pub export: u16,
    /// The path of the socket.
    pub path: String,
    /// Who serves queues: a queue stays with one of them.
    pub reactors: Vec<reactor::Handle>,
}

/// The server of an export. Dropping it ends it, as [`stop`](Self::stop) does.
pub struct Server {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    /// Wakes the thread.
    wake: OwnedFd,
    stop: watch::Sender<bool>,
    is_connected: AtomicBool,
}

impl State {
    fn wake(&self) {
        wake(&self.wake);
    }

    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }
}

impl Server {
    /// Listens at the socket, and serves whoever comes.
    ///
    /// # Errors
    /// The socket is taken, or cannot be made there.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let listener = bind_socket(&parts.path)?;
        listener.set_nonblocking(true)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Arc::new(State {
            wake,
            stop: watch::Sender::new(false),
            is_connected: AtomicBool::new(false),
        });
        if let Some(reactor) = parts.reactors.first() {
            let (changes, stop) = (parts.target.changes(), state.stop.subscribe());
            let waking = state.clone();
            drop(reactor.spawn(move || tell_of_changes(waking, changes, stop)));
        }
        let serving = state.clone();
        let thread = thread::Builder::new()
            .name("onefold-vhost".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                serve(&parts, &listener, &serving);
                // Whoever took the path meanwhile has it.
                let _ = std::fs::remove_file(&parts.path);
            })?;
        Ok(Self {
            state,
            thread: Some(thread),
        })
    }

    /// Whether a front-end is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state.is_connected.load(Ordering::Relaxed)
    }

    /// Ends the session, and waits for its requests. The socket is gone then.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.state.stop.send_replace(true);
        self.state.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of an export panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Wakes the thread whenever something changed.
async fn tell_of_changes(
    state: Arc<State>,
    mut changes: watch::Receiver<u64>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let changed = std::pin::pin!(changes.changed());
        let stopped = std::pin::pin!(stop.wait_for(|stop| *stop));
        match futures_util::future::select(changed, stopped).await {
            futures_util::future::Either::Left((Ok(()), _)) => state.wake(),
            _ => return,
        }
    }
}

/// Waits until one of these can be read.
fn wait(descriptors: &mut [PollFd<'_>]) -> io::Result<()> {
    loop {
        match poll(descriptors, None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn serve(parts: &Parts, listener: &UnixListener, state: &State) {
    while !state.is_stopping() {
        let mut looked = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(&state.wake, PollFlags::IN),
        ];
        if let Err(error) = wait(&mut looked) {
            tracing::error!(export = parts.path, %error, "an export is served no more");
            return;
        }
        be_woken(state);
        let Ok((stream, _)) = listener.accept() else {
            continue;
        };
        tracing::info!(export = parts.path, "a virtual machine connected");
        state.is_connected.store(true, Ordering::Relaxed);
        let outcome = converse(parts, listener, &stream, state);
        state.is_connected.store(false, Ordering::Relaxed);
        match outcome {
            Ok(()) => tracing::info!(export = parts.path, "a virtual machine disconnected"),
            Err(error) => {
                tracing::warn!(export = parts.path, %error, "a virtual machine's connection was ended");
            }
        }
    }
}

fn be_woken(state: &State) {
    let _ = rustix::io::read(&state.wake, &mut [0; 8]);
}

/// Serves a front-end until it goes, or is sent away.
fn converse(
    parts: &Parts,
    listener: &UnixListener,
    stream: &UnixStream,
    state: &State,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut session = Session::new(parts, &state.wake);
    while !state.is_stopping() {
        let mut looked = [
            PollFd::new(stream, PollFlags::IN),
            PollFd::new(&state.wake, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        wait(&mut looked)?;
        let is_ready = |at: usize| !looked[at].revents().is_empty();
        if is_ready(1) {
            be_woken(state);
            session.look_at_memory()?;
            session.look_at_shape();
        }
        if is_ready(2) && listener.accept().is_ok() {
            tracing::warn!(
                export = parts.path,
                "a second virtual machine was sent away: one uses the disk already"
            );
        }
        if is_ready(0) {
            match receive(stream)? {
                Some(received) => session.take(stream, received)?,
                None => return Ok(()),
            }
        }
    }
    Ok(())
}
