//! Listeners that share a port, one on each reactor.
//!
//! The kernel gives a connection to any of the sockets that share a port, by a hash. Guarantees: it is served by the
//! listener whose reactor has the fewest connections of those that share the port, before a byte of it is read; a
//! listener that has closed gets none, and those on their way to it go to another; a connection that cannot be moved is
//! served where it came in.

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

    /// Moves a connection on that was on its way to a listener which has closed. It ends if no other has the port.
    pub(super) fn move_on(&self, address: SocketAddr, socket: Socket) {
        self.with(|members| {
            let listeners = members.iter().filter(|member| member.address == address);
            let emptiest =
                listeners.min_by_key(|member| member.connections.load(Ordering::Relaxed));
            if let Some(member) = emptiest {
                let counted = Counted::at(&member.connections);
                // One whose inbox is full has no time for it.
                let _ = member.inbox.try_send(Placed { socket, counted });
            }
        });
    }
}

impl Membership {
    /// Finds the listener for a connection that came in here; gives it back if that is this one.
    pub(super) fn place(&self, socket: Socket) -> Option<Placed> {
        self.ports.with(|members| {
            let listening = members
                .iter()
                .filter(|member| member.address == self.address);
            let emptiest = listening.min_by_key(|member| {
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

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_connection_on_its_way_to_a_listener_that_closes_goes_to_another() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listening = Socket::listen(any, 8, false, false).expect("a free port");
        let address = listening.local().expect("it has one");
        let hosts: Vec<_> = (0..2)
            .map(|_| TcpStream::connect(address).expect("it listens"))
            .collect();
        let mut connections = Vec::new();
        while connections.len() < hosts.len() {
            connections.extend(listening.accept());
        }
        let ports = SharedPorts::default();
        let (here, mut moved_here) = ports.join(address);
        let elsewhere = ports.clone();
        let other = thread::spawn(move || elsewhere.join(address));
        let (other, mut moved_there) = other.join().expect("it joins");

        let served = here.place(connections.remove(0)).expect("the first stays");
        assert!(
            here.place(connections.remove(0)).is_none(),
            "the second goes to the other"
        );
        drop(other);
        let late = moved_there
            .recv()
            .now_or_never()
            .flatten()
            .expect("it was on its way");
        ports.move_on(address, late.socket);
        let back = moved_here
            .recv()
            .now_or_never()
            .flatten()
            .expect("it goes to who is left");
        assert_eq!(back.socket.peer().ok(), hosts[1].local_addr().ok());
        drop((served, here));
        ports.move_on(address, back.socket);
        assert!(
            moved_here.recv().now_or_never().flatten().is_none(),
            "nobody is left"
        );
    }
}
