//! A connection: its socket, what arrives on it, and what waits to be sent.
//!
//! Guarantees:
//!
//! - A receive takes as many PDUs as are there. What a turn of the reactor has to say leaves in few sends,
//!   data straight from its buffers: when the turn ends, and before that whenever there is enough of it
//!   that the peer can begin ([`SEND_PDUS_WITH_DATA`], [`SEND_PDUS`]), so that both sides work at the same time.
//! - Memory for receiving is the reactor's, not the connection's: an idle connection has none.
//! - A violation is told to the peer in a Terminate request, once, and what it did is not executed. A peer that
//!   never spoke NVMe/TCP is hung up on.
//! - However the connection ends, it is closed soon after: the peer has a bounded time to read the
//!   last words.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nvme::tcp::{FatalError, FatalStatus, PduType, Sender, TermReq};
use reactor::net::Watch;

use super::receive::{Owner, Receiver};
use super::send::SendQueue;
use super::socket::Socket;
use crate::lifecycle::Lifecycle;
use crate::rdma::CloseReason;

/// Bytes of one receive at most, when small PDUs are expected: 62 commands with 4 KiB of data.
const RECEIVE_BYTES: usize = 256 << 10;
/// The same while large transfers are under way, whose data shall not be copied: what arrives behind a
/// transfer's data is the next header, and with it the beginning of its data.
const RECEIVE_BYTES_BETWEEN_TRANSFERS: usize = 4 << 10;
/// Slices of one send at most: 64 answers with data.
const SLICES_MAX: usize = 128;
/// So many PDUs leave at once, if they have this much data: eight answers with 4 KiB. A send costs the
/// kernel some microseconds; the peer works on these meanwhile. Answers with much data leave together,
/// too: measured, the host receives each alone in parts, at half as much processor time again.
const SEND_PDUS_WITH_DATA: usize = 8;
const SEND_BYTES: usize = 32 << 10;
/// So many PDUs leave at once, however small they are.
const SEND_PDUS: usize = 16;
/// So many small PDUs (R2Ts, responses) leave together while the peer's data is still coming in: each send
/// costs as much as receiving 128 KiB, and a peer whose data waits here has time.
const SEND_PDUS_WHILE_RECEIVING: usize = 8;
/// How long the peer may take to read the last words.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);
/// What a whole PDU counts for in [`Link::progress`], where a byte counts 1.
pub(super) const PDU_PROGRESS: u64 = 4096;

thread_local! {
    /// Where this reactor's connections receive.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What happened on connections that belong together.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) received_bytes: Cell<u64>,
    pub(super) sent_bytes: Cell<u64>,
    pub(super) receives: Cell<u64>,
    pub(super) sends: Cell<u64>,
    pub(super) violations: Cell<u64>,
    pub(super) digest_errors: Cell<u64>,
}

pub(super) fn count(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get().wrapping_add(more));
}

/// The part of a connection that its queue and its task share.
#[derive(Debug, Default)]
pub(super) struct Link {
    out: RefCell<SendQueue>,
    /// While the task runs.
    socket: RefCell<Option<Socket>>,
    /// The kernel may take something.
    writable: Cell<bool>,
    /// PDUs queued since the last send.
    queued: Cell<usize>,
    /// Answers that have left, of which the queue does not know yet.
    answered: Cell<usize>,
    task: RefCell<Option<Waker>>,
    /// The task knows that there is something to do.
    kicked: Cell<bool>,
    within_pdu: Cell<bool>,
    progress: Cell<u64>,
    pub(super) traffic: Rc<Traffic>,
}

/// A queue on a connection.
pub(super) trait Role: Owner {
    /// What this side's Terminate request is called.
    const TERMINATE: PduType;

    fn link(&self) -> &Link;

    fn life(&self) -> &Lifecycle;

    /// Large data is expected: it shall not be copied.
    fn expects_transfers(&self) -> bool;

    /// Bytes have left, and with them the answers to so many commands.
    fn sent(&self, answers: usize);

    /// What the peer speaks instead, if its first bytes show that it does not speak NVMe/TCP: it would not
    /// understand a Terminate request.
    fn foreign(&self, _first: &[u8]) -> Option<&'static str> {
        None
    }

    /// The connection ends: nothing new may be begun, and whoever waits is told.
    fn end(&self, reason: CloseReason);
}

impl Link {
    pub(super) fn new(traffic: Rc<Traffic>) -> Self {
        Self {
            traffic,
            ..Self::default()
        }
    }

    /// Queues what `write` appends; it leaves when there is enough, or when the tasks of this turn have
    /// run.
    pub(super) fn send(&self, write: impl FnOnce(&mut SendQueue)) {
        let bytes = {
            let mut out = self.out.borrow_mut();
            write(&mut out);
            out.bytes()
        };
        self.queued.set(self.queued.get() + 1);
        let queued = self.queued.get();
        if queued >= SEND_PDUS || (queued >= SEND_PDUS_WITH_DATA && bytes >= SEND_BYTES) {
            self.send_at_once();
        }
        self.kick();
    }

    /// What is queued leaves now: the peer waits for it.
    pub(super) fn send_at_once(&self) {
        // The task meets the same error, and ends the connection.
        let _ = self.send_queued();
    }

    /// Bytes that wait to be sent.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.out.borrow().bytes()
    }

    /// Sends what waits, as far as the kernel takes it.
    fn send_queued(&self) -> io::Result<()> {
        let socket = self.socket.borrow();
        let Some(socket) = &*socket else {
            return Ok(());
        };
        self.queued.set(0);
        while self.writable.get() && !self.out.borrow().is_empty() {
            let out = self.out.borrow();
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let (slices_count, bytes) = out.slices(&mut slices);
            let sent = match socket.send(&slices[..slices_count]) {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable.set(false);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            drop(out);
            self.writable.set(sent == bytes);
            count(&self.traffic.sends, 1);
            count(&self.traffic.sent_bytes, sent as u64);
            count(&self.progress, sent as u64);
            let answers = self.out.borrow_mut().advance(sent);
            self.answered.set(self.answered.get() + answers);
        }
        Ok(())
    }

    /// Whether what is queued may wait for more to go with it, if there is more to receive now.
    fn may_wait(&self) -> bool {
        self.queued.get() < SEND_PDUS_WHILE_RECEIVING && self.unsent_bytes() < SEND_BYTES
    }

    /// Makes the connection's task look.
    pub(super) fn kick(&self) {
        if !self.kicked.replace(true)
            && let Some(task) = &*self.task.borrow()
        {
            task.wake_by_ref();
        }
    }

    /// Whether the peer owes something: the rest of a PDU, or reading what is sent.
    pub(super) fn is_waiting(&self) -> bool {
        self.within_pdu.get() || !self.out.borrow().is_empty()
    }

    /// Grows with what moves on the connection.
    pub(super) fn progress(&self) -> u64 {
        self.progress.get()
    }
}

/// The task of a connection.
struct Driver<R: Role> {
    role: Rc<R>,
    socket: Socket,
    watch: Watch,
    receiver: Receiver<R::Tag>,
    readable: bool,
    /// The end of the stream was announced: read until it comes.
    ended: bool,
}

/// Runs a connection until it is over. Owns the socket: with this it is closed.
pub(super) async fn drive<R: Role>(role: Rc<R>, socket: Socket, watch: Watch, from: Sender) {
    let mut driver = Driver {
        role: role.clone(),
        socket,
        watch,
        receiver: Receiver::new(from),
        readable: true,
        ended: false,
    };
    role.link().writable.set(true);
    *role.link().socket.borrow_mut() = Some(driver.socket.clone());
    let reason = poll_fn(|cx| driver.turn(cx)).await;
    role.end(reason.clone());
    driver.receiver = Receiver::new(from);
    let link = role.link();
    link.within_pdu.set(false);
    if matches!(
        reason,
        CloseReason::Local | CloseReason::Violation(_) | CloseReason::Terminated(_)
    ) {
        let _ = reactor::timeout(LAST_WORDS_TIMEOUT, driver.last_words()).await;
    }
    let (unsent, socket) = (link.out.take(), link.socket.take());
    drop((unsent, socket));
    drop(driver);
    role.life().over(reason);
}

impl<R: Role> Driver<R> {
    /// Receives once, sends what waits, and looks whether the queue ends.
    fn turn(&mut self, cx: &Context<'_>) -> Poll<CloseReason> {
        self.listen_to(cx);
        if let Some(reason) = self.role.life().reason() {
            return Poll::Ready(reason);
        }
        if let Err(error) = self.look(cx) {
            return Poll::Ready(CloseReason::Network(error.kind()));
        }
        // Whoever has these answers may send as many commands, which are about to be received.
        self.role.sent(self.role.link().answered.take());
        if self.readable
            && let Err(reason) = self.receive()
        {
            return Poll::Ready(reason);
        }
        if !(self.readable && self.role.link().may_wait())
            && let Err(error) = self.send()
        {
            return Poll::Ready(CloseReason::Network(error.kind()));
        }
        if let Some(reason) = self.role.life().reason() {
            return Poll::Ready(reason);
        }
        if self.readable {
            // There is more; but the others first.
            self.role.link().kick();
        }
        Poll::Pending
    }

    fn listen_to(&self, cx: &Context<'_>) {
        let link = self.role.link();
        link.kicked.set(false);
        let mut task = link.task.borrow_mut();
        match &mut *task {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *task = Some(cx.waker().clone()),
        }
    }

    /// Takes in what happened to the socket.
    fn look(&mut self, cx: &Context<'_>) -> io::Result<()> {
        while let Poll::Ready(ready) = self.watch.poll_ready(cx) {
            let ready = ready?;
            self.readable |= ready.readable;
            if ready.writable {
                self.role.link().writable.set(true);
            }
            self.ended |= ready.ended;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), CloseReason> {
        let wanted = match self.role.expects_transfers() {
            true => RECEIVE_BYTES_BETWEEN_TRANSFERS,
            false => RECEIVE_BYTES,
        };
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(RECEIVE_BYTES, 0);
            self.receive_into(&mut scratch[..wanted])
        })
    }

    fn receive_into(&mut self, scratch: &mut [u8]) -> Result<(), CloseReason> {
        let role = &*self.role;
        let link = role.link();
        let direct = self.receiver.direct();
        let (direct_bytes, room) = (direct.len(), direct.len() + scratch.len());
        let received = match self.socket.receive(direct, scratch) {
            Ok(0) => return Err(CloseReason::Peer),
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(());
            }
            Err(error) => return Err(CloseReason::Network(error.kind())),
        };
        // Fewer bytes than there was room for means that no more were there.
        self.readable = self.ended || received == room;
        count(&link.traffic.receives, 1);
        count(&link.traffic.received_bytes, received as u64);
        count(&link.progress, received as u64);
        let filled = received.min(direct_bytes);
        let taken = match filled {
            0 => Ok(()),
            _ => self.receiver.filled(filled, role),
        }
        .and_then(|()| self.receiver.feed(&scratch[..received - filled], role));
        link.within_pdu.set(self.receiver.is_within_pdu());
        taken.map_err(|error| self.violated(&error))
    }

    /// Tells the peer what it did.
    fn violated(&self, error: &FatalError) -> CloseReason {
        let traffic = &self.role.link().traffic;
        count(&traffic.violations, 1);
        if error.status == FatalStatus::HeaderDigest {
            count(&traffic.digest_errors, 1);
        }
        let offender = self.receiver.offender();
        if let Some(foreign) = self.role.foreign(offender) {
            return CloseReason::Violation(foreign);
        }
        self.role.link().out.borrow_mut().push_small(0, |out| {
            TermReq::from(*error).emit(R::TERMINATE, offender, out);
        });
        CloseReason::Violation(error.what)
    }

    /// Sends what waits, as far as the kernel takes it, and tells the queue what has left.
    fn send(&mut self) -> io::Result<()> {
        let link = self.role.link();
        let sent = link.send_queued();
        self.role.sent(link.answered.take());
        sent
    }

    /// Sends what waits, then waits until the peer has closed too: a socket that is closed while data
    /// of the peer is unread would take the last words back.
    async fn last_words(&mut self) {
        poll_fn(|cx| {
            self.listen_to(cx);
            if self.look(cx).is_err() || self.send().is_err() {
                return Poll::Ready(());
            }
            if self.role.link().out.borrow().is_empty() {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
        self.socket.end_sending();
        poll_fn(|cx| {
            if self.look(cx).is_err() {
                return Poll::Ready(());
            }
            while self.readable {
                let mut unread = [0; 4096];
                match self.socket.receive(&mut [], &mut unread) {
                    Ok(1..) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.readable = false;
                    }
                    Ok(0) | Err(_) => return Poll::Ready(()),
                }
            }
            Poll::Pending
        })
        .await;
    }
}

/// A PDU is whole.
pub(super) fn pdu_arrived(link: &Link) {
    count(&link.progress, PDU_PROGRESS);
}
