//! Starting, stopping and reaching reactors.

use std::fmt;
use std::future::{Future, pending};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use crate::executor::{self, Core, Entered};
use crate::join::{RemoteJoin, spawn_for_remote};
use crate::ring::Ring;
use crate::shared::Shared;
use crate::sync::oneshot;
use crate::{BufferPool, PoolConfig, SharedMemory};

/// How a reactor is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Entries of the submission queue, rounded up to a power of two. More operations than this can
    /// be in flight; they are only handed to the kernel in portions of this size.
    pub ring_entries: u32,
    /// How long an idle reactor polls before it sleeps in the ring, at most; zero = it sleeps at once.
    /// Polling saves a wake-up of some microseconds, and costs a core; where it has not paid lately,
    /// the reactor polls only now and then.
    pub spin: Duration,
    /// The size of the reactor's own buffer pool. Registered with the ring, all of it is taken from
    /// the system at the start.
    pub buffer_pool: PoolConfig,
    /// The shared memory of which the pool takes a part; otherwise its memory is this process's own.
    pub shared_memory: Option<SharedMemory>,
    /// A pool to use instead of an own one, so that several reactors share it.
    pub shared_buffers: Option<BufferPool>,
    /// The name of the thread, in messages and in the system's task lists (15 bytes there).
    pub name: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ring_entries: 256,
            spin: Duration::from_micros(100),
            buffer_pool: PoolConfig::default(),
            shared_memory: None,
            shared_buffers: None,
            name: "reactor".to_owned(),
        }
    }
}

/// Starts a reactor on a thread of its own.
///
/// # Errors
/// If the kernel gives no io_uring, memory or thread; the message names the remedy.
pub fn start(config: Config) -> io::Result<ReactorThread> {
    let (report, started) = sync_channel(1);
    let name = config.name.clone();
    let thread = thread::Builder::new().name(name.clone()).spawn(move || {
        let entered = match enter(config) {
            Ok((entered, handle)) => {
                let _ = report.send(Ok(handle));
                entered
            }
            Err(error) => {
                let _ = report.send(Err(error));
                return;
            }
        };
        if let Err(error) = entered.run(pending::<()>()) {
            tracing::error!(reactor = name, %error, "the reactor's ring failed; its tasks are dropped");
        }
    })?;
    let handle = started.recv().unwrap_or_else(|_| {
        Err(io::Error::other(
            "the reactor's thread ended before it began",
        ))
    })?;
    Ok(ReactorThread {
        handle,
        thread: Some(thread),
    })
}

/// Runs a reactor on this thread until `future` is done; then all other tasks are dropped.
///
/// # Errors
/// As [`start`], and if this thread is a reactor's already.
pub fn run<F: Future>(config: Config, future: F) -> io::Result<F::Output> {
    let (entered, _) = enter(config)?;
    let output = entered.run(future)?;
    output.ok_or_else(|| io::Error::other("the reactor was stopped before its future was done"))
}

fn enter(config: Config) -> io::Result<(Entered, Handle)> {
    if executor::current().is_some() {
        return Err(io::Error::other(
            "this thread runs a reactor already; spawn a task on it",
        ));
    }
    let buffers = match config.shared_buffers {
        Some(pool) => pool,
        None => match &config.shared_memory {
            Some(memory) => BufferPool::in_shared(config.buffer_pool.bytes, memory)?,
            None => BufferPool::new(config.buffer_pool.bytes)?,
        },
    };
    let shared = Arc::new(Shared::new(config.name, buffers)?);
    let ring = Ring::new(config.ring_entries, &shared)?;
    let handle = Handle(shared.clone());
    Ok((Core::enter(shared, ring, config.spin), handle))
}

/// A reactor on a thread of its own. Dropping it stops the reactor, as
/// [`stop_and_join`](Self::stop_and_join) does.
#[derive(Debug)]
pub struct ReactorThread {
    handle: Handle,
    thread: Option<thread::JoinHandle<()>>,
}

impl ReactorThread {
    /// The way into the reactor for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Drops all tasks, waits until the kernel is done with their buffers, and ends the thread.
    pub fn stop_and_join(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.handle.0.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                reactor = self.handle.name(),
                "the reactor's thread panicked"
            );
        }
    }
}

impl Drop for ReactorThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The way into a reactor from any thread. Clones lead to the same reactor.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// Calls `make` on the reactor, and runs the future it returns as a task there. If the reactor
    /// has stopped, both are dropped, and the result is [`JoinError::Stopped`](crate::JoinError).
    pub fn spawn<F, Fut>(&self, make: F) -> RemoteJoin<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        let (result, receiver) = oneshot::channel();
        self.0.send(Box::new(move || {
            if let Some(core) = executor::current() {
                // Inside the task, so that a panic in `make` is the task's.
                spawn_for_remote(&core, async move { make().await }, result);
            }
        }));
        RemoteJoin(receiver)
    }

    /// The reactor's buffer pool.
    pub fn buffers(&self) -> &BufferPool {
        &self.0.buffers
    }

    /// The reactor's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.0.name).finish()
    }
}

/// The way into this thread's reactor; `None` outside a reactor.
pub fn current() -> Option<Handle> {
    executor::current().map(|core| Handle(core.shared.clone()))
}
