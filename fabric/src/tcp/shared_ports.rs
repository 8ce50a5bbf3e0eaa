//! Listeners that share a port, one on each reactor.
//!
//! The kernel gives a connection to any of the sockets that share a port, by a hash. Guarantees: it is served by the
//! listener whose reactor has the fewest connections of those that share the port, before a byte of it is read; a
//! listener that has closed gets none; a connection that cannot be moved is served where it came in.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use reactor::sync::queue::{Full, Receiver, Sender, channel};

use super::socket::Socket;

/// Connections that wait to be taken by the listener they were moved to; more stay where they came in.
const MOVED_MAX: usize = 1024;

/// The listeners of a process that share ports. Clones are the same list; it is locked once for each connection.
#[derive(Clone, Debug, Default)]
pub struct SharedPorts(Arc<Mutex<Vec<Member>>>);

#[derive(Debug)]
struct Member {
    thread: ThreadId,
    address: SocketAddr,
    /// Of all listeners of this thread.
    connections: Arc<AtomicUsize>,
    inbox: Sender<Placed>,
}

/// A connection, counted at the listener that shall serve it.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) socket: Socket,
    pub(super) counted: Counted,
}

/// Counts a connection of a thread until it is dropped.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn at(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(connections.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A listener's membership, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Membership {
    ports: SharedPorts,
    thread: ThreadId,
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl SharedPorts {
    fn with<R>(&self, what: impl FnOnce(&mut Vec<Member>) -> R) -> R {
        // Each change is one step: what a panicking thread left is whole.
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A listener of the current thread has bound this address. Gives what others move to it, too.
    pub(super) fn join(&self, address: SocketAddr) -> (Membership, Receiver<Placed>) {
        let thread = thread::current().id();
        let (inbox, moved) = channel(MOVED_MAX);
        let connections = self.with(|members| {
            let known = members.iter().find(|member| member.thread == thread);
            let connections = known.map_or_else(Arc::default, |known| known.connections.clone());
            members.push(Member {
                thread,
                address,
                connections: connections.clone(),
                inbox,
            });
            connections
        });
        let membership = Membership {
            ports: self.clone(),
            thread,
            address,
            connections,
        };
        (membership, moved)
    }
}

impl Membership {
    /// Finds the listener for a connection that came in here; gives it back if that is this one.
    pub(super) fn place(&self, socket: Socket) -> Option<Placed> {
        self.ports.with(|members| {
            let fellows = members
                .iter()
                .filter(|member| member.address == self.address);
            let emptiest = fellows.min_by_key(|member| {
                let connections = member.connections.load(Ordering::Relaxed);
                (connections, member.thread != self.thread)
            });
            let (socket, other) = match emptiest.filter(|member| member.thread != self.thread) {
                None => (socket, None),
                Some(other) => {
                    let counted = Counted::at(&other.connections);
                    match other.inbox.try_send(Placed { socket, counted }) {
                        Ok(()) => return None,
                        Err(Full::Full(back) | Full::Closed(back)) => {
                            (back.socket, Some(back.counted))
                        }
                    }
                }
            };
            drop(other);
            let counted = Counted::at(&self.connections);
            Some(Placed { socket, counted })
        })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.ports.with(|members| {
            members.retain(|member| (member.thread, member.address) != (self.thread, self.address));
        });
    }
}
