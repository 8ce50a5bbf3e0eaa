//! A connection: its socket, what arrives on it, and what waits to be sent.
//!
//! Guarantees:
//!
//! - A receive takes as many PDUs as are there. What a turn of the reactor has to say leaves in few sends,
//!   data straight from its buffers: when the turn ends, and before that whenever there is enough of it
//!   that the peer can begin ([`SEND_PDUS_WITH_DATA`], [`SEND_PDUS`]), so that both sides work at the same time.
//! - Memory for receiving is the reactor's, not the connection's: an idle connection has none.
//! - With TLS, nothing leaves or is taken in but through its records; what is sealed and has not left is bounded.
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
use super::tls::TlsSession;
use super::tls::session::{Opened, RECORD_BYTES, Session};
use crate::error::{CloseReason, TlsFailure};
use crate::queue::Lifecycle;

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
/// How often a connection lets other tasks come first, whose answers may leave with those that wait: the writes
/// of a batch, and the workers that take the next commands.
const YIELDS_MAX: u32 = 8;
/// Sealed bytes of one receive at most. They are copied record by record, and shall be in the cache then.
const SEALED_RECEIVE_BYTES: usize = 64 << 10;
/// Bytes that are sealed before the kernel has taken those before: a connection holds no more of them, and the
/// answer to a Terminate request or an alert.
const SEAL_BYTES: usize = 128 << 10;
/// How long the peer may take to read the last words.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);
/// What a whole PDU counts for in [`Link::progress`], where a byte counts 1.
pub(super) const PDU_PROGRESS: u64 = 4096;

thread_local! {
    /// Where this reactor's connections receive.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Where those with TLS receive records.
    static SEALED_IN: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Where they put the records that leave at once.
    static SEALED_OUT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Where they put together what goes into one record.
    static RECORD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How a connection begins.
pub(super) enum Opening {
    /// In clear.
    Clear,
    /// As the peer's first byte says.
    Either,
    /// With TLS.
    Tls(Box<Session>),
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
    /// The same, of a connection with TLS. Not borrowed while PDUs are taken in.
    tls: RefCell<Option<Box<Session>>>,
    /// Sealed bytes that wait for the kernel.
    sealed_bytes: Cell<usize>,
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

    /// The peer's first byte: whether it shall speak TLS. Asked of those that began with [`Opening::Either`].
    fn begins(&self, _first: u8) -> Result<Option<Box<Session>>, TlsFailure> {
        Ok(None)
    }

    /// The TLS handshake is done.
    fn secured(&self, _proven: TlsSession) {}

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
        self.out.borrow().bytes() + self.sealed_bytes.get()
    }

    /// Sends what waits, as far as the kernel takes it.
    fn send_queued(&self) -> io::Result<()> {
        let socket = self.socket.borrow();
        let Some(socket) = &*socket else {
            return Ok(());
        };
        self.queued.set(0);
        if let Some(tls) = &mut *self.tls.borrow_mut() {
            return self.send_sealed(socket, tls);
        }
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

    /// The same through TLS: bytes that are sealed have left as far as their owners go.
    fn send_sealed(&self, socket: &Socket, tls: &mut Session) -> io::Result<()> {
        if let Some(memory) = tls.output_memory() {
            *memory = SEALED_OUT.take();
        }
        let mut sent = Ok(());
        while self.writable.get() {
            if tls.output().is_empty() {
                self.seal(tls);
            }
            let bytes = tls.output().len();
            if bytes == 0 {
                break;
            }
            match socket.send(&[IoSlice::new(tls.output())]) {
                Ok(now) => {
                    self.writable.set(now == bytes);
                    tls.sent(now);
                    count(&self.traffic.sends, 1);
                    count(&self.traffic.sent_bytes, now as u64);
                    count(&self.progress, now as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable.set(false);
                }
                Err(error) => {
                    sent = Err(error);
                    break;
                }
            }
        }
        self.sealed_bytes.set(tls.output().len());
        if let Some(memory) = tls.output_memory() {
            SEALED_OUT.set(std::mem::take(memory));
        }
        sent
    }

    /// Seals what waits, up to the bound: long data from where it lies, the rest as full records.
    fn seal(&self, tls: &mut Session) {
        let mut out = self.out.borrow_mut();
        while !out.is_empty() && tls.output().len() < SEAL_BYTES {
            let room = SEAL_BYTES - tls.output().len();
            let whole_records = out.front().len().min(room) / RECORD_BYTES * RECORD_BYTES;
            let sealed = match whole_records {
                0 => RECORD.with_borrow_mut(|record| {
                    record.resize(RECORD_BYTES, 0);
                    let bytes = out.copy_to(record);
                    tls.seal(&record[..bytes])
                }),
                bytes => tls.seal(&out.front()[..bytes]),
            };
            // Before the handshake is done nothing is sealed. A session that failed says so to who receives.
            let Ok(bytes @ 1..) = sealed else { return };
            let answers = out.advance(bytes);
            self.answered.set(self.answered.get() + answers);
        }
    }

    /// Whether what is queued may wait for more to go with it, if there is more to receive now, or others have
    /// something to say.
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
        self.within_pdu.get() || self.unsent_bytes() > 0
    }

    fn with_tls<R>(&self, what: impl FnOnce(&mut Session) -> R) -> Option<R> {
        self.tls.borrow_mut().as_deref_mut().map(what)
    }

    /// Drops what cannot be sealed any more, or not yet.
    fn drop_unsealable(&self) {
        if self.with_tls(|tls| tls.is_open()) == Some(false) {
            drop(self.out.take());
        }
    }

    /// Tells the peer through TLS that nothing more comes. False if there is nothing to tell.
    fn say_end(&self) -> bool {
        self.with_tls(Session::say_end).unwrap_or(false)
    }

    /// Whether a TLS handshake is under way.
    pub(super) fn is_handshaking(&self) -> bool {
        let tls = self.tls.borrow();
        tls.as_ref().is_some_and(|tls| tls.is_handshaking())
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
    /// What arrives are records of TLS.
    sealed: bool,
    /// The first byte will say whether they are.
    undecided: bool,
    readable: bool,
    /// The end of the stream was announced: read until it comes.
    ended: bool,
    /// How often others came first since the last send.
    yields: u32,
}

/// Runs a connection until it is over. Owns the socket: with this it is closed.
pub(super) async fn drive<R: Role>(
    role: Rc<R>,
    socket: Socket,
    watch: Watch,
    from: Sender,
    opening: Opening,
) {
    let mut driver = Driver {
        role: role.clone(),
        socket,
        watch,
        receiver: Receiver::new(from),
        sealed: matches!(opening, Opening::Tls(_)),
        undecided: matches!(opening, Opening::Either),
        readable: true,
        ended: false,
        yields: 0,
    };
    role.link().writable.set(true);
    *role.link().socket.borrow_mut() = Some(driver.socket.clone());
    if let Opening::Tls(tls) = opening {
        driver.begin_tls(tls);
    }
    let reason = poll_fn(|cx| driver.turn(cx)).await;
    role.end(reason.clone());
    driver.receiver = Receiver::new(from);
    let link = role.link();
    link.within_pdu.set(false);
    if matches!(
        reason,
        CloseReason::Local
            | CloseReason::Violation(_)
            | CloseReason::Terminated(_)
            | CloseReason::Tls(_)
    ) {
        let _ = reactor::timeout(LAST_WORDS_TIMEOUT, driver.last_words()).await;
    }
    let (unsent, socket, tls) = (link.out.take(), link.socket.take(), link.tls.take());
    link.sealed_bytes.set(0);
    drop((unsent, socket, tls));
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
        let more_comes = self.readable || self.lets_others_first();
        if !(more_comes && self.role.link().may_wait())
            && let Err(error) = self.send()
        {
            return Poll::Ready(CloseReason::Network(error.kind()));
        }
        if let Some(reason) = self.role.life().reason() {
            return Poll::Ready(reason);
        }
        if self.sealed && self.role.link().with_tls(|tls| tls.is_used_up()) == Some(true) {
            return Poll::Ready(CloseReason::Tls(TlsFailure::KeyUsedUp));
        }
        if more_comes {
            // But the others first.
            self.role.link().kick();
        }
        Poll::Pending
    }

    /// Whether something waits to be sent, and others may have more to go with it.
    fn lets_others_first(&mut self) -> bool {
        let waits = self.role.link().queued.get() > 0;
        self.yields = match waits && reactor::others_are_ready() {
            true => self.yields + 1,
            false => 0,
        };
        (1..=YIELDS_MAX).contains(&self.yields)
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
            match self.sealed {
                true => self.receive_sealed(&mut scratch[..wanted.min(RECORD_BYTES)]),
                false => self.receive_into(&mut scratch[..wanted]),
            }
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
        if self.undecided {
            self.undecided = false;
            if let Some(tls) = role.begins(scratch[0]).map_err(CloseReason::Tls)? {
                self.begin_tls(tls);
                let first = scratch[..received].to_vec();
                return self.open(first, received, &mut scratch[..RECORD_BYTES]).1;
            }
        }
        self.take_in(received.min(direct_bytes), received, scratch)
    }

    /// So many bytes have arrived: the first `filled` where the receiver wanted them, the others in `scratch`.
    fn take_in(&mut self, filled: usize, bytes: usize, scratch: &[u8]) -> Result<(), CloseReason> {
        let role = &*self.role;
        let taken = match filled {
            0 => Ok(()),
            _ => self.receiver.filled(filled, role),
        }
        .and_then(|()| self.receiver.feed(&scratch[..bytes - filled], role));
        role.link().within_pdu.set(self.receiver.is_within_pdu());
        taken.map_err(|error| self.violated(&error))
    }

    fn begin_tls(&mut self, tls: Box<Session>) {
        self.sealed = true;
        *self.role.link().tls.borrow_mut() = Some(tls);
    }

    /// Receives records, and takes in what is in them.
    fn receive_sealed(&mut self, scratch: &mut [u8]) -> Result<(), CloseReason> {
        let traffic = &self.role.link().traffic;
        let mut records = SEALED_IN.take();
        records.resize(SEALED_RECEIVE_BYTES, 0);
        let (records, taken) = match self.socket.receive(&mut [], &mut records) {
            Ok(0) => (records, Err(CloseReason::Peer)),
            Ok(received) => {
                self.readable = self.ended || received == records.len();
                count(&traffic.receives, 1);
                count(&traffic.received_bytes, received as u64);
                count(&self.role.link().progress, received as u64);
                self.open(records, received, scratch)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                (records, Ok(()))
            }
            Err(error) => (records, Err(CloseReason::Network(error.kind()))),
        };
        SEALED_IN.set(records);
        taken
    }

    /// Takes in what is in the first `bytes` of `records`; gives their memory back.
    fn open(
        &mut self,
        records: Vec<u8>,
        bytes: usize,
        scratch: &mut [u8],
    ) -> (Vec<u8>, Result<(), CloseReason>) {
        let role = self.role.clone();
        role.link().with_tls(|tls| tls.give(records, bytes));
        let taken = loop {
            let direct = self.receiver.direct();
            let straight = !direct.is_empty();
            let into = if straight { direct } else { &mut *scratch };
            let opened = role.link().with_tls(|tls| tls.open(into));
            let taken = match opened.unwrap_or(Ok(Opened::Nothing)) {
                Ok(Opened::Data(bytes)) if straight => self.take_in(bytes, bytes, &[]),
                Ok(Opened::Data(bytes)) => self.take_in(0, bytes, scratch),
                Ok(Opened::Secured(proven)) => {
                    role.secured(proven);
                    Ok(())
                }
                Ok(Opened::Nothing) => break Ok(()),
                Ok(Opened::End) => break Err(CloseReason::Peer),
                Err(failure) => Err(CloseReason::Tls(failure)),
            };
            if taken.is_err() {
                break taken;
            }
        };
        let within = role.link().with_tls(|tls| tls.is_within_record());
        if within == Some(true) {
            role.link().within_pdu.set(true);
        }
        let records = role.link().with_tls(Session::take_back);
        (records.unwrap_or_default(), taken)
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
        self.role.link().drop_unsealable();
        poll_fn(|cx| {
            loop {
                self.listen_to(cx);
                if self.look(cx).is_err() || self.send().is_err() {
                    return Poll::Ready(());
                }
                if self.role.link().unsent_bytes() > 0 {
                    return Poll::Pending;
                }
                if !self.role.link().say_end() {
                    return Poll::Ready(());
                }
            }
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
