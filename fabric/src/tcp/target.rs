//! A target's side of an NVMe/TCP queue.
//!
//! Guarantees:
//!
//! - The host is not heard before its ICReq, and only once in that.
//! - At most `depth` commands are in the target's hands, until their answers have left for the kernel: a
//!   host that does not read its answers holds no more memory than its queue.
//! - Data goes from the stream into the buffer of its command; data of a command that cannot be served is
//!   passed over, so that the stream stays in step.
//! - A queue whose host does not take or send what it should begins no more commands than its share of
//!   memory allows ([`TcpListenerConfig::queue_share`]).
//! - R2Ts ask for a command's data once, all of it; what comes is checked against them.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};

use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::{ConnectCommand, FabricsCommand};
use nvme::tcp::{
    ADMIN_IN_CAPSULE_BYTES, Data, Digests, FatalError, FatalStatus, IcReq, IcResp, Pdu, PduType,
    R2t, digest,
};
use nvme::{Cqe, SglDescriptor, Sqe, Status};
use reactor::{Buffer, BufferPool, MAX_BUFFER_BYTES};

use super::link::{Link, Role, count, pdu_arrived};
use super::receive::{Checked, Destination, Owner, Sink};
use super::send::Payload;
use super::tls::session::Session;
use super::tls::{TlsMode, TlsSession};
use super::transfers::{self, Outcome, Transfers};
use super::{TcpListenerConfig, listener::Shared};
use crate::admission;
use crate::error::{CloseReason, TlsFailure};
use crate::memory::{Permit, Share};
use crate::queue::{
    Capsule, CapsuleData, Close, Fetched, Lifecycle, QueueInfo, SubmissionQueue, TransferError,
};

/// Commands that a host may send before its Connect has succeeded. One is right; a few more let it be
/// wrong and learn why.
const DEPTH_UNCONNECTED: u16 = 4;
/// SQHD of a queue without flow control (Linux `nvmet_install_queue`).
const NO_HEAD: u16 = 0xffff;

/// How a TLS record with a handshake begins: its type, and the major version that all versions have in
/// common (RFC 8446, section 5.1).
const TLS_HANDSHAKE: [u8; 2] = [22, 3];

/// An NVMe/TCP queue of a target.
pub(crate) struct TcpTarget {
    submissions: SubmissionQueue,
    link: Link,
    shared: Rc<Shared>,
    /// What the host has proven by TLS.
    tls: OnceCell<TlsSession>,
    /// What was agreed on; None before ICReq.
    agreed: Cell<Option<Agreed>>,
    depth: Cell<u16>,
    /// Commands whose answers have not left.
    in_flight: Cell<usize>,
    /// SQ flow control, as the latest Connect command asks for it; in use since that succeeded.
    flow_control_asked: Cell<bool>,
    flow_control: Cell<bool>,
    transfers: RefCell<Transfers>,
    /// Data of commands that were given out and are not answered.
    begun: Share,
    /// The place of a host that has not proved who it is, from the beginning.
    place: OnceCell<admission::Place<Slot>>,
}

/// A connection as those know it that may have to close it.
pub(super) type Slot = Weak<TcpTarget>;

#[derive(Clone, Copy, Debug)]
struct Agreed {
    digests: Digests,
    /// HPDA.
    alignment: u8,
}

/// Data on its way in.
#[allow(
    clippy::large_enum_variant,
    reason = "it lives in one place, and a box would cost each write"
)]
pub(super) enum Tag {
    /// In the capsule of this command.
    Capsule(InCapsule),
    /// For an R2T.
    Transfer(transfers::Tag, usize),
}

/// In-capsule data on its way in.
pub(super) struct InCapsule {
    sqe: Sqe,
    /// Why the data is passed over.
    lost: Option<TransferError>,
    /// The share of memory beside the pool.
    permit: Option<Permit>,
}

impl TcpTarget {
    pub(super) fn new(info: QueueInfo, shared: Rc<Shared>) -> Self {
        let bounds = shared.bounds.get();
        Self {
            submissions: SubmissionQueue::new(info),
            link: Link::new(shared.traffic.clone()),
            tls: OnceCell::new(),
            agreed: Cell::new(None),
            depth: Cell::new(DEPTH_UNCONNECTED.min(shared.config.depth_max)),
            in_flight: Cell::new(0),
            flow_control_asked: Cell::new(true),
            flow_control: Cell::new(true),
            transfers: RefCell::default(),
            begun: Share::new(bounds.queue_share, bounds.host_share, shared.held.clone()),
            place: OnceCell::new(),
            shared,
        }
    }

    /// Has this place until its host has proved who it is.
    pub(super) fn keep_place(&self, place: admission::Place<Slot>) {
        // A connection gets one place.
        let _ = self.place.set(place);
    }

    pub(crate) fn proved(&self, is_ready_admin: bool) {
        if let Some(place) = self.place.get() {
            place.proved(is_ready_admin);
        }
    }

    pub(crate) fn submissions(&self) -> &SubmissionQueue {
        &self.submissions
    }

    /// Whether the host's ICReq was answered.
    pub(super) fn is_initialized(&self) -> bool {
        self.agreed.get().is_some()
    }

    /// Whether the host owes something: data, or reading its answers.
    pub(super) fn is_waiting(&self) -> bool {
        self.link.is_waiting() || self.transfers.borrow().any_open()
    }

    pub(crate) fn tls(&self) -> Option<TlsSession> {
        self.tls.get().cloned()
    }

    /// Whether a TLS handshake is under way.
    pub(super) fn is_handshaking(&self) -> bool {
        self.link.is_handshaking()
    }

    pub(super) fn progress(&self) -> u64 {
        self.link.progress()
    }

    pub(crate) fn connected(&self, qid: u16, depth: u16) {
        let depth = depth.min(self.config().depth_max).max(1);
        self.depth.set(depth);
        self.flow_control.set(self.flow_control_asked.get());
        let mut info = self.submissions.info.get();
        info.qid = Some(qid);
        info.depth = Some(depth);
        self.submissions.info.set(info);
    }

    pub(crate) fn belongs_to(&self, host_nqn: &str) {
        self.begun.belongs_to(host_nqn);
    }

    fn config(&self) -> &TcpListenerConfig {
        &self.shared.config
    }

    /// Where data of this queue goes.
    pub(super) fn pool(&self) -> &BufferPool {
        match self.submissions.info.get().qid {
            None | Some(0) => &self.shared.admin_buffers,
            Some(_) => &self.shared.buffers,
        }
    }

    pub(crate) fn admin_buffers(&self) -> &BufferPool {
        &self.shared.admin_buffers
    }

    pub(crate) async fn next_command(&self) -> Option<Capsule> {
        let capsule = self
            .submissions
            .next_command(|sqe| self.may_begin(sqe))
            .await?;
        self.begun.take(data_bytes(&capsule.sqe));
        Some(capsule)
    }

    /// Bytes of memory for the data of commands under way, and of answers that the host has not taken.
    pub(super) fn held_bytes(&self) -> usize {
        self.link.unsent_bytes() + self.begun.bytes()
    }

    /// Whether a command may take memory.
    fn may_begin(&self, sqe: &Sqe) -> bool {
        let free_bytes = || self.pool().stats().free_bytes;
        self.begun
            .may_take(data_bytes(sqe), self.link.unsent_bytes(), free_bytes)
    }

    /// The host took or sent something.
    fn holds_less(&self) {
        if self.begun.look_again() {
            self.submissions.look_again();
        }
    }

    /// In-capsule data of at least `len` bytes, if it lies in a buffer; gives it out once.
    pub(crate) fn take_data(capsule: &Capsule, len: usize) -> Option<Fetched> {
        let CapsuleData::Buffer(own) = &capsule.data else {
            return None;
        };
        let mut own = own.borrow_mut().take_if(|own| own.buffer.len() >= len)?;
        own.buffer.set_len(len);
        Some(own)
    }

    pub(crate) async fn fetch(
        &self,
        capsule: &Capsule,
        len: usize,
        mut buf: Buffer,
    ) -> Result<Fetched, TransferError> {
        let error = |status, message| Err(TransferError { status, message });
        let too_short = TransferError::new(Status::SGL_LENGTH_INVALID, "the capsule holds less");
        match &capsule.data {
            CapsuleData::Lost(error) => Err(error.clone()),
            CapsuleData::Buffer(own) => {
                let mut own = own.borrow_mut();
                let is_too_short = |own: &Fetched| own.buffer.len() < len;
                if own.as_ref().is_none_or(is_too_short) {
                    return Err(too_short);
                }
                let fits = |own: &mut Fetched| own.buffer.capacity() >= buf.len();
                if let Some(mut own) = own.take_if(fits) {
                    own.buffer.set_len(buf.len());
                    return Ok(own);
                }
                if let Some(own) = &*own {
                    buf[..len].copy_from_slice(&own.buffer[..len]);
                }
                Ok(buf.into())
            }
            CapsuleData::Kept { bytes, .. } => {
                buf[..len].copy_from_slice(bytes.get(..len).ok_or(too_short)?);
                Ok(buf.into())
            }
            CapsuleData::None | CapsuleData::Received { .. } => match capsule.sqe.sgl() {
                _ if len == 0 => Ok(buf.into()),
                Ok(SglDescriptor::Transport { length }) if len <= length as usize => {
                    self.transfer(capsule.sqe.cid(), len, buf).await
                }
                Ok(SglDescriptor::Transport { .. }) => {
                    error(Status::SGL_LENGTH_INVALID, "the SGL names less data")
                }
                Ok(SglDescriptor::InCapsule { .. }) => Err(too_short),
                Ok(SglDescriptor::Keyed { .. }) => {
                    error(Status::SGL_TYPE_INVALID, "the SGL is not one of TCP")
                }
                Err(status) => error(status, "the SGL is invalid"),
            },
        }
    }

    /// Asks for data and waits for it.
    async fn transfer(&self, cid: u16, len: usize, buf: Buffer) -> Result<Fetched, TransferError> {
        if self.submissions.life.is_ending() {
            return Err(TransferError::GONE);
        }
        let opened = self.transfers.borrow_mut().open(cid, len, buf);
        let Some((ttag, outcome)) = opened else {
            self.close(CloseReason::Violation("the host does not answer R2Ts"));
            return Err(TransferError::GONE);
        };
        let r2t = Pdu::R2t(R2t {
            cid,
            ttag,
            offset: 0,
            length: len as u32,
        });
        let digests = self.digests();
        self.link
            .send(|out| out.push_small(0, |bytes| r2t.emit(digests, 0, 0, bytes)));
        let mut guard = Abandon(Some((self, ttag)));
        let done = poll_fn(|cx| Outcome::poll(&outcome, cx)).await;
        guard.0 = None;
        done
    }

    pub(crate) fn complete(&self, capsule: Capsule, mut cqe: Cqe, data: Option<(Buffer, usize)>) {
        self.begun.give_back(data_bytes(&capsule.sqe));
        let Some(agreed) = self
            .agreed
            .get()
            .filter(|_| !self.submissions.life.is_ending())
        else {
            return;
        };
        let sqe = capsule.sqe;
        let flow_control = self.flow_control.get();
        cqe.sq_head = match flow_control {
            true => self.submissions.next_head(self.depth.get()),
            false => NO_HEAD,
        };
        cqe.sq_id = self.submissions.info.get().qid.unwrap_or_default();
        cqe.cid = sqe.cid();
        let data = match (data, sqe.sgl()) {
            (None | Some((_, 0)), _) => None,
            (Some((buffer, len)), Ok(SglDescriptor::Transport { length }))
                if len <= length as usize && len <= buffer.len() =>
            {
                Some((buffer, len))
            }
            (Some(_), Ok(SglDescriptor::Transport { .. })) => {
                cqe.status = Status::SGL_LENGTH_INVALID.with_dnr();
                None
            }
            (Some(_), _) => {
                cqe.status = Status::SGL_TYPE_INVALID.with_dnr();
                None
            }
        };
        // SUCCESS stands for a response without a result. It carries no SQHD, so that the host must
        // have given up flow control for it, as for nvmet.
        let success =
            data.is_some() && !flow_control && cqe.status == Status::SUCCESS && cqe.result == 0;
        self.link.send(|out| {
            if let Some((buffer, len)) = data {
                let header = Pdu::C2hData(Data {
                    cid: cqe.cid,
                    ttag: 0,
                    offset: 0,
                    length: len as u32,
                    last: true,
                    success,
                });
                let Agreed { digests, alignment } = agreed;
                out.push_small(0, |bytes| header.emit(digests, len, alignment, bytes));
                let check = digests.data.then(|| digest(&buffer[..len]));
                // With SUCCESS the last byte of the data is the answer.
                let answers = usize::from(success && check.is_none());
                out.push_data(Payload::Owned(buffer), 0, len, answers);
                if let Some(check) = check {
                    out.push_small(usize::from(success), |bytes| {
                        bytes.extend_from_slice(&check);
                    });
                }
            }
            if !success {
                let response = Pdu::Response(cqe);
                out.push_small(1, |bytes| response.emit(agreed.digests, 0, 0, bytes));
            }
        });
        self.holds_less();
    }

    fn initialize(&self, request: IcReq) -> Result<(), FatalError> {
        if self.is_initialized() {
            return Err(FatalError::new(
                FatalStatus::SequenceError,
                "a second ICReq",
            ));
        }
        let offered = self.config().digests;
        let digests = Digests {
            header: request.digests.header && offered,
            data: request.digests.data && offered,
        };
        let response = IcResp {
            alignment: 0,
            digests,
            max_h2c_data: self.config().maxh2cdata,
        };
        self.link
            .send(|out| out.push_small(0, |bytes| response.emit(bytes)));
        self.agreed.set(Some(Agreed {
            digests,
            alignment: request.alignment,
        }));
        Ok(())
    }

    /// A command capsule: where its data goes, if it has some.
    fn command(&self, sqe: Sqe, data_bytes: usize) -> Result<Option<Sink<Tag>>, FatalError> {
        if self.in_flight.get() >= usize::from(self.depth.get()) {
            let what = "more commands outstanding than the queue has entries";
            return Err(FatalError::new(FatalStatus::SequenceError, what));
        }
        let limit = self.config().in_capsule_bytes.max(ADMIN_IN_CAPSULE_BYTES);
        if data_bytes > limit {
            return Err(FatalError::field(
                4,
                "more in-capsule data than a capsule holds",
            ));
        }
        self.in_flight.set(self.in_flight.get() + 1);
        self.note_connect(&sqe);
        if data_bytes == 0 {
            let data = CapsuleData::None;
            self.submissions.arrived(Capsule::new(sqe, data));
            return Ok(None);
        }
        let mut arriving = InCapsule {
            sqe,
            lost: misplaced(&sqe, data_bytes),
            permit: None,
        };
        let destination = match &arriving.lost {
            Some(_) => Destination::Nowhere,
            None => self.destination_for(data_bytes, &mut arriving),
        };
        Ok(Some(Sink {
            destination,
            start: 0,
            wants_checksums: true,
            tag: Tag::Capsule(arriving),
        }))
    }

    /// Memory for in-capsule data: a buffer, or what the listener has beside the pool.
    fn destination_for(&self, bytes: usize, arriving: &mut InCapsule) -> Destination {
        // A queue that holds its share of the pool gets no more of it.
        if !self.begun.is_held_back()
            && let Some(buffer) = self.pool().try_alloc(bytes)
        {
            return Destination::Buffer(buffer);
        }
        arriving.permit = self.shared.capsule_bytes.try_acquire(bytes);
        if arriving.permit.is_some() {
            return Destination::Heap(vec![0; bytes].into_boxed_slice());
        }
        count(&self.shared.capsules_refused, 1);
        let message = "no memory for in-capsule data";
        arriving.lost = Some(TransferError::new(Status::COMMAND_INTERRUPTED, message));
        Destination::Nowhere
    }

    /// Remembers what a Connect command asks for. That it is one, and right, is the controller's to say.
    fn note_connect(&self, sqe: &Sqe) {
        if sqe.opcode() == FABRICS_OPCODE
            && let Ok(FabricsCommand::Connect(connect)) = FabricsCommand::parse(sqe)
        {
            let disabled = connect.attributes & ConnectCommand::DISABLE_SQ_FLOW_CONTROL != 0;
            self.flow_control_asked.set(!disabled);
        }
    }

    fn h2c_data(&self, data: &Data) -> Result<Option<Sink<Tag>>, FatalError> {
        if data.length > self.config().maxh2cdata {
            let what = "more data in a PDU than MAXH2CDATA";
            return Err(FatalError::new(FatalStatus::LimitExceeded, what));
        }
        let sink = self.transfers.borrow_mut().data(data)?;
        Ok(Some(Sink {
            destination: sink.destination,
            start: sink.start,
            wants_checksums: sink.wants_checksums,
            tag: Tag::Transfer(sink.tag, data.length as usize),
        }))
    }
}

/// Memory that the data of a command takes, by what the host says; nobody gets a larger buffer.
fn data_bytes(sqe: &Sqe) -> usize {
    match sqe.sgl() {
        // Whatever its descriptor says: it gets no buffer.
        Ok(SglDescriptor::Transport { .. }) if !sqe.moves_data() => 0,
        Ok(SglDescriptor::Transport { length } | SglDescriptor::InCapsule { length, .. }) => {
            (length as usize).min(MAX_BUFFER_BYTES)
        }
        Ok(SglDescriptor::Keyed { .. }) | Err(_) => 0,
    }
}

/// What is wrong with a command that has so much data in its capsule, as far as the data goes.
fn misplaced(sqe: &Sqe, data_bytes: usize) -> Option<TransferError> {
    let (status, message) = match sqe.sgl() {
        Ok(SglDescriptor::InCapsule { offset: 0, length }) if length as usize == data_bytes => {
            return None;
        }
        Ok(SglDescriptor::InCapsule { offset: 0, .. }) => (
            Status::SGL_LENGTH_INVALID,
            "the SGL names another length than the capsule has",
        ),
        Ok(SglDescriptor::InCapsule { .. }) => (
            Status::SGL_OFFSET_INVALID,
            "the in-capsule offset is not zero",
        ),
        Ok(_) => (
            Status::SGL_TYPE_INVALID,
            "in-capsule data that the SGL does not name",
        ),
        Err(status) => (status, "the SGL is invalid"),
    };
    Some(TransferError::new(status.with_dnr(), message))
}

impl Owner for TcpTarget {
    type Tag = Tag;

    fn digests(&self) -> Digests {
        self.agreed
            .get()
            .map_or(Digests::default(), |agreed| agreed.digests)
    }

    fn pdu(&self, pdu: Pdu, data_bytes: usize) -> Result<Option<Sink<Tag>>, FatalError> {
        pdu_arrived(&self.link);
        match pdu {
            Pdu::IcReq(request) => self.initialize(request).map(|()| None),
            Pdu::H2cTermReq(request) => {
                self.end(CloseReason::Terminated(request.text()));
                Ok(None)
            }
            _ if !self.is_initialized() => {
                let what = "a PDU before ICReq";
                Err(FatalError::new(FatalStatus::SequenceError, what))
            }
            // What follows a Terminate request is not executed.
            _ if self.submissions.life.is_ending() => Ok(None),
            Pdu::Command(sqe) => self.command(sqe, data_bytes),
            Pdu::H2cData(data) => self.h2c_data(&data),
            // The frame lets none of these through: a host does not send them.
            Pdu::IcResp(_)
            | Pdu::C2hTermReq(_)
            | Pdu::Response(_)
            | Pdu::C2hData(_)
            | Pdu::R2t(_) => Err(FatalError::field(0, "a PDU that a host does not send")),
        }
    }

    fn data(&self, sink: Sink<Tag>, checked: Checked) -> Result<(), FatalError> {
        pdu_arrived(&self.link);
        if checked.is_damaged {
            count(&self.link.traffic.digest_errors, 1);
        }
        match sink.tag {
            Tag::Transfer(ttag, bytes) => {
                let mut transfers = self.transfers.borrow_mut();
                transfers.arrived(ttag, sink.destination, bytes, checked);
            }
            Tag::Capsule(arrived) => {
                let InCapsule { sqe, lost, permit } = arrived;
                let damaged = || {
                    let status = Status::TRANSIENT_TRANSPORT;
                    TransferError::new(status, "the data digest is wrong")
                };
                let lost = lost.or_else(|| checked.is_damaged.then(damaged));
                let data = match (lost, sink.destination, permit) {
                    (Some(error), ..) => CapsuleData::Lost(error),
                    (None, Destination::Buffer(buffer), _) => {
                        let checksums = checked.checksums.map(Vec::into_boxed_slice);
                        CapsuleData::Buffer(RefCell::new(Some(Fetched { buffer, checksums })))
                    }
                    (None, Destination::Heap(bytes), Some(_permit)) => {
                        CapsuleData::Kept { bytes, _permit }
                    }
                    (None, ..) => CapsuleData::None,
                };
                self.submissions.arrived(Capsule::new(sqe, data));
            }
        }
        Ok(())
    }
}

impl Role for TcpTarget {
    const TERMINATE: PduType = PduType::C2hTermReq;

    fn link(&self) -> &Link {
        &self.link
    }

    fn life(&self) -> &Lifecycle {
        &self.submissions.life
    }

    fn expects_transfers(&self) -> bool {
        self.transfers.borrow().any_large()
    }

    fn sent(&self, answers: usize) {
        self.in_flight
            .set(self.in_flight.get().saturating_sub(answers));
        self.holds_less();
    }

    fn foreign(&self, first: &[u8]) -> Option<&'static str> {
        let begins_tls = first.starts_with(&TLS_HANDSHAKE) && !self.is_initialized();
        begins_tls.then_some(
            "the host begins TLS, which this port does not speak: allow TLS on it, or attach the host without \
             --tls over a network that is protected otherwise",
        )
    }

    fn begins(&self, first: u8) -> Result<Option<Box<Session>>, TlsFailure> {
        let peer = self.submissions.info.get().peer;
        let begins_tls = first == TLS_HANDSHAKE[0];
        match (self.shared.tls.get(), &self.shared.keys) {
            (TlsMode::Required, _) if !begins_tls => Err(TlsFailure::Clear),
            (TlsMode::Off, _) | (_, None) => Ok(None),
            _ if !begins_tls => Ok(None),
            (_, Some(keys)) if keys.holds_off(peer) => Err(TlsFailure::HeldOff),
            (_, Some(keys)) => {
                let key_bytes_max = self.config().tls_key_bytes_max;
                let session = Session::accept(keys.clone(), peer, key_bytes_max);
                session.map(|tls| Some(Box::new(tls)))
            }
        }
    }

    fn secured(&self, proven: TlsSession) {
        count(&self.shared.tls_handshakes, 1);
        // A connection has one handshake.
        let _ = self.tls.set(proven);
    }

    fn end(&self, reason: CloseReason) {
        if !self.submissions.end(reason.clone()) {
            return;
        }
        let info = self.submissions.info.get();
        match reason {
            CloseReason::Violation(violation) => {
                crate::log_of_peer!(warn, "violation", info.peer.ip(), peer = %info.peer, qid = info.qid, violation, "queue closed");
            }
            CloseReason::Tls(failure) => {
                count(&self.shared.tls_failures, 1);
                match &self.shared.keys {
                    _ if failure == TlsFailure::HeldOff => {}
                    // They count these, and tell of them. At once: the host may be back soon.
                    Some(keys) if self.tls.get().is_none() => keys.failed(info.peer, &failure),
                    _ => {
                        crate::log_of_peer!(warn, "TLS", info.peer.ip(), peer = %info.peer, qid = info.qid, %failure, "queue closed");
                    }
                }
            }
            _ => {}
        }
        self.transfers.borrow_mut().end();
    }
}

impl Close for TcpTarget {
    fn close(&self, reason: CloseReason) {
        self.end(reason);
        self.link.kick();
    }
}

/// Tells the table when nobody waits for a transfer any more.
struct Abandon<'a>(Option<(&'a TcpTarget, transfers::Tag)>);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if let Some((target, tag)) = self.0 {
            target.transfers.borrow_mut().abandon(tag);
        }
    }
}
