//! One connection to a server: how it is made, how it ends, and when the server does nothing any more of what it was told.
//!
//! What proves that a server is done with a connection:
//! - *All is answered*: the used ring has an answer to each command that was given to the server.
//! - *The ring is stopped*: `GET_VRING_BASE` is answered when the server has stopped the ring, with the number of commands that
//!   it took from it. When as many have an answer, it is done with these, and it takes no others.
//! - *The process is gone*: that which listened at the socket has ended, which its descriptor (pidfd) tells, and its end of the
//!   socket is closed, so that no process that it started has it. The system has ended or finished the I/O of a process
//!   before it says that the process has ended.
//!
//! That a new connection is answered proves nothing: a server may serve several. What a server sent on over a network may
//! outlive it; such servers are to be no drives of a pool, as the guide says.
//!
//! A server that broke the rules of the rings is believed nothing: then only the end of its process counts.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use drives::ErrorKind;
use reactor::sync::Event;
use reactor::{Buffer, SharedMemory, SharedPages};
use rustix::net::{RecvFlags, recv};

use crate::address::SocketAddress;
use crate::control::{Control, reach};
use crate::facts::{CONFIG_BYTES, Facts, accepted, check_protocol};
use crate::memory::{BASE, ENTRIES, Layout, Memory, Slots};
use crate::message::{REGIONS_MAX, Region, Regions, Request, protocol};
use crate::peer::{Peer, is_hung_up};
use crate::queue::Queue;

/// Queues of one connection at most: each has memory of its own.
const QUEUES_MAX: u16 = 64;

/// How long a server may take to stop its rings.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Numbers connections.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) kind: ErrorKind,
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }
}

/// Why a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) text: String,
    /// The server broke the rules of the rings.
    pub(crate) is_lie: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) number: u64,
    pub(crate) facts: Facts,
    pub(crate) queues: Vec<Arc<Queue>>,
    /// The memory of buffers that the server has, and what it calls its first byte.
    buffers: Vec<(SharedMemory, u64)>,
    control: Control,
    peer: Peer,
    pub(crate) ended: Event,
    ending: OnceLock<Ending>,
    is_believed: AtomicBool,
    /// For each queue, how many commands the server took from it before it stopped. Empty before that is known.
    bases: Mutex<Vec<u16>>,
    next_queue: AtomicU64,
}

/// Connects, and starts as many queues as are wanted and the server has. Blocks.
///
/// # Errors
/// There is no such server, it does not answer before the deadline, or no drive can be made of its device.
pub(crate) fn establish(
    address: &SocketAddress,
    deadline: Instant,
    wanted: u16,
) -> Result<Connection, Refusal> {
    let socket = reach(address.socket(), deadline).map_err(|error| unreachable(&error))?;
    let peer = Peer::of(&socket);
    let io = |text| Refusal::new(ErrorKind::Io, text);
    let mut control = Control::new(socket);
    let features = control
        .ask(Request::GetFeatures, &[], deadline)
        .map_err(io)?;
    check_protocol(features).map_err(|text| Refusal::new(ErrorKind::Invalid, text))?;
    let offered = control.ask(Request::GetProtocolFeatures, &[], deadline);
    let used = offered.map_err(io)? & protocol::USED;
    if used & protocol::CONFIG == 0 {
        let text = "the server does not tell the device's configuration (VHOST_USER_PROTOCOL_F_CONFIG), its size among it: \
                    use another server";
        return Err(Refusal::new(ErrorKind::Invalid, text));
    }
    let ask = |control: &Control, request| control.ask(request, &[], deadline).map_err(io);
    ask(&control, Request::SetProtocolFeatures(used))?;
    control.acknowledges = used & protocol::REPLY_ACK != 0;
    ask(&control, Request::SetOwner)?;
    let mut queues = u64::from(wanted.clamp(1, QUEUES_MAX));
    if used & protocol::MQ != 0 {
        queues = queues.min(ask(&control, Request::GetQueueNum)?.max(1));
    } else {
        queues = 1;
    }
    let space = control.ask_config::<CONFIG_BYTES>(deadline).map_err(io)?;
    let facts = Facts::new(features, &space);
    let facts = facts.map_err(|text| Refusal::new(ErrorKind::Invalid, text))?;
    let queues = facts.queues.min(queues as u16);
    ask(&control, Request::SetFeatures(accepted(features)))?;
    let buffers = placed(SharedMemory::all());
    let queues = start(&control, queues, &facts, &buffers, deadline)?;
    // An answer to this says that all before it was taken, also by a server that acknowledges nothing.
    ask(&control, Request::GetFeatures)?;
    Ok(Connection {
        number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
        facts,
        queues,
        buffers,
        control,
        peer,
        ended: Event::new(),
        ending: OnceLock::new(),
        is_believed: AtomicBool::new(true),
        bases: Mutex::default(),
        next_queue: AtomicU64::new(0),
    })
}

/// Unused addresses between regions, so that none is taken for the rest of another one.
const GAP: u64 = 1 << 30;

/// Gives each memory an address behind the queues', as far as a table has room for it: buffers in another one are copied.
fn placed(buffers: Vec<SharedMemory>) -> Vec<(SharedMemory, u64)> {
    let mut next = 2 * BASE;
    let places = buffers.into_iter().take(REGIONS_MAX - 1).map(|memory| {
        let base = next;
        next = (base + memory.bytes() as u64).next_multiple_of(GAP) + GAP;
        (memory, base)
    });
    places.collect()
}

/// Shares the memory, and tells the server of the queues in it.
fn start(
    control: &Control,
    queues: u16,
    facts: &Facts,
    buffers: &[(SharedMemory, u64)],
    deadline: Instant,
) -> Result<Vec<Arc<Queue>>, Refusal> {
    let io = |text| Refusal::new(ErrorKind::Io, text);
    let no_memory = |error: io::Error| io(format!("no memory for its queues: {error}"));
    let slots = Slots::new(facts.has_indirect);
    // Who needs huge pages for buffers needs them for what is copied too.
    let is_huge = |(memory, _): &(SharedMemory, u64)| memory.pages() == SharedPages::Huge;
    let pages = match buffers.iter().any(is_huge) {
        true => SharedPages::Huge,
        false => SharedPages::Usual,
    };
    let memory = Arc::new(Memory::new(queues, slots, pages).map_err(no_memory)?);
    let own = Region {
        base: BASE,
        len: memory.len(),
    };
    let lent = buffers.iter().map(|(memory, base)| Region {
        base: *base,
        len: memory.bytes() as u64,
    });
    let table = Request::SetMemTable(Regions::new(std::iter::once(own).chain(lent)));
    let mut files = vec![memory.file()];
    files.extend(buffers.iter().map(|(memory, _)| memory.file()));
    control.ask(table, &files, deadline).map_err(io)?;
    let mut started = Vec::with_capacity(usize::from(queues));
    for number in 0..queues {
        let layout = Layout::new(number, slots);
        let queue = Queue::new(memory.clone(), layout, facts.has_event_index);
        let queue = queue.map_err(no_memory)?;
        let at = queue.layout().addresses();
        let number = u32::from(number);
        let steps: [(Request, &[BorrowedFd<'_>]); 6] = [
            (
                Request::SetVringNum {
                    queue: number,
                    entries: u32::from(ENTRIES),
                },
                &[],
            ),
            (
                Request::SetVringBase {
                    queue: number,
                    base: 0,
                },
                &[],
            ),
            (Request::SetVringAddr { queue: number, at }, &[]),
            (Request::SetVringCall { queue: number }, &[queue.call()]),
            (Request::SetVringKick { queue: number }, &[queue.kick()]),
            (Request::SetVringEnable { queue: number }, &[]),
        ];
        for (request, fds) in steps {
            control.ask(request, fds, deadline).map_err(io)?;
        }
        started.push(Arc::new(queue));
    }
    Ok(started)
}

fn unreachable(error: &io::Error) -> Refusal {
    let (kind, why) = match error.kind() {
        io::ErrorKind::NotFound => (
            ErrorKind::NotFound,
            "there is no such socket: start the server, or name the right one",
        ),
        io::ErrorKind::ConnectionRefused => {
            (ErrorKind::Io, "no server listens at the socket: start it")
        }
        io::ErrorKind::PermissionDenied => (
            ErrorKind::Io,
            "this user may not connect to the socket: change its mode or owner",
        ),
        io::ErrorKind::TimedOut => (
            ErrorKind::Io,
            "the server accepts no connection: check that it runs, and that no other client uses it",
        ),
        _ => {
            let text = format!("the socket cannot be connected to: {error}");
            return Refusal::new(ErrorKind::Io, text);
        }
    };
    Refusal::new(kind, why)
}

impl Connection {
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.is_set()
    }

    /// Why it ended.
    pub(crate) fn why(&self) -> &str {
        self.ending.get().map_or("it ended", |ending| &ending.text)
    }

    /// The socket, which is readable when the server has closed it or says what it was not asked for.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.control.socket().as_fd()
    }

    /// What the server calls the first byte of a buffer, if it has the memory.
    #[inline]
    pub(crate) fn address_of(&self, buffer: &Buffer) -> Option<u64> {
        let (memory, at) = buffer.shared_place()?;
        let mut all = self.buffers.iter();
        let (_, base) = all.find(|(shared, _)| shared.is(memory))?;
        Some(base + at)
    }

    /// The queue for the next reactor.
    pub(crate) fn deal_queue(&self) -> usize {
        let dealt = self.next_queue.fetch_add(1, Ordering::Relaxed);
        (dealt % self.queues.len() as u64) as usize
    }

    /// What the socket has to report, if it ends the connection.
    pub(crate) fn look_at_socket(&self) -> Option<Ending> {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let text = match recv(self.control.socket(), &mut byte[..], flags) {
            Ok((0, _)) => "the server closed the connection".to_owned(),
            Ok(_) => "the server sends messages that it was not asked for".to_owned(),
            Err(errno) if errno == rustix::io::Errno::AGAIN || errno == rustix::io::Errno::INTR => {
                return None;
            }
            Err(errno) => format!("the connection is broken: {}", io::Error::from(errno)),
        };
        Some(Ending {
            text,
            is_lie: false,
        })
    }

    /// Nothing more is sent by it; who waits for an answer goes on. Only the first call counts: whether this is it.
    pub(crate) fn end(&self, ending: Ending) -> bool {
        if ending.is_lie {
            self.is_believed.store(false, Ordering::Release);
        }
        let is_first = self.ending.set(ending).is_ok();
        self.ended.set();
        for queue in &self.queues {
            queue.end();
        }
        is_first
    }

    /// Stops the rings of a connection that has ended, as far as the server still answers, and says goodbye. Blocks.
    pub(crate) fn stop(&self) {
        let deadline = Instant::now() + STOP_MAX;
        let mut bases = Vec::with_capacity(self.queues.len());
        for queue in 0..self.queues.len() as u32 {
            let asked = self
                .control
                .ask(Request::GetVringBase { queue }, &[], deadline);
            match asked.map(u16::try_from) {
                Ok(Ok(base)) => bases.push(base),
                _ => break,
            }
        }
        if bases.len() == self.queues.len() {
            *self.bases.lock().unwrap_or_else(PoisonError::into_inner) = bases;
        }
        // Only this direction: the other one tells when the server has closed its end. Some serve nobody else before.
        let _ = self.control.socket().shutdown(Shutdown::Write);
    }

    /// Whether the server is known to do nothing any more of what it was told by it; see the module.
    pub(crate) fn is_settled(&self) -> bool {
        if self.peer.is_gone() && is_hung_up(self.control.socket()) {
            return true;
        }
        if !self.is_believed.load(Ordering::Acquire) {
            return false;
        }
        let bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let base_of = |at: usize| bases.get(at).copied();
        let mut queues = self.queues.iter().enumerate();
        queues.all(|(at, queue)| queue.is_answered(base_of(at)))
    }

    /// What ends what cannot be settled.
    pub(crate) fn remedy(&self) -> String {
        self.peer.remedy()
    }
}
