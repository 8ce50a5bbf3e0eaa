//! A host's side of an NVMe/TCP queue.
//!
//! Guarantees:
//!
//! - Nothing is sent before the target's ICResp, and the queue uses what both agreed on.
//! - Data for the target leaves from the caller's buffer, only as far as the target asked for it; data
//!   from the target goes into the caller's buffer, in order, and never beyond the command's length.
//! - A buffer comes back only when the kernel has taken all of it that was queued.
//! - What Linux refuses is refused: data of unknown commands, gaps, SUCCESS or a good completion before
//!   all data is there, R2Ts for data that was sent or is not the command's.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use nvme::auth::TlsPsk;
use nvme::command::FABRICS_OPCODE;
use nvme::tcp::{
    ADMIN_IN_CAPSULE_BYTES, Data, Digests, FatalError, FatalStatus, IcReq, IcResp, Pdu, PduType,
    R2t, Sender, digest,
};
use nvme::{Cqe, SglDescriptor, Sqe, Status};
use reactor::Buffer;
use reactor::net::Watch;

use super::TcpHostConfig;
use super::link::{self, Link, Opening, Role, pdu_arrived};
use super::receive::{Checked, Destination, Owner, Sink};
use super::send::Payload;
use super::socket::Socket;
use super::tls::TlsSession;
use super::tls::session::Session;
use crate::error::{CloseReason, TlsFailure};
use crate::memory::Budget;
use crate::queue::{
    Close, Command, Commands, HostData, HostError, HostQueueParams, Lifecycle, Outcome,
    QueueConnectError, Reply,
};
use crate::waiters::Waiters;

/// Reads of this size or more are received straight into their buffers.
const LARGE_BYTES: usize = 16 << 10;

/// An NVMe/TCP queue of a host.
pub(crate) struct TcpHost {
    peer: SocketAddr,
    params: HostQueueParams,
    asked: Digests,
    life: Lifecycle,
    link: Link,
    /// A TLS handshake is done.
    secured: Cell<bool>,
    /// The target's answer.
    agreed: Cell<Option<IcResp>>,
    connecting: RefCell<Waiters>,
    slots_budget: Budget,
    commands: RefCell<Commands<Transfer>>,
    /// Commands that are answered while their data waits to be sent.
    answered: RefCell<Vec<(Command<Transfer>, Cqe)>>,
    /// Large reads that are outstanding.
    large_reads: Cell<usize>,
}

/// The data of an outstanding command.
enum Transfer {
    None,
    ToTarget {
        buffer: Rc<Buffer>,
        len: usize,
        /// Bytes that were queued for sending.
        sent: usize,
    },
    FromTarget {
        /// Out while a PDU of data arrives.
        buffer: Option<Buffer>,
        len: usize,
        received: usize,
        /// A data digest was wrong.
        damaged: bool,
    },
}

/// Data on its way in: the PDU that brings it.
pub(super) struct Tag(Data);

impl TcpHost {
    /// Connects, and agrees with the target.
    pub(crate) async fn connect(
        config: &TcpHostConfig,
        peer: SocketAddr,
        params: HostQueueParams,
    ) -> Result<Rc<Self>, QueueConnectError> {
        let failed = |reason| QueueConnectError::Failed { peer, reason };
        let connecting = async {
            let Some(tls) = &config.tls else {
                return Self::connect_with(config, None, peer, params).await;
            };
            let mut refused = TlsFailure::NoIdentity;
            for psk in &tls.psks {
                match Self::connect_with(config, Some(psk), peer, params).await {
                    // The target may have another one of the keys.
                    Err(CloseReason::Tls(failure)) => refused = failure,
                    connected => return connected,
                }
            }
            Err(CloseReason::Tls(refused))
        };
        match reactor::timeout(config.timeout, connecting).await {
            Ok(connected) => connected.map_err(failed),
            Err(_) => Err(failed(CloseReason::ConnectTimeout)),
        }
    }

    async fn connect_with(
        config: &TcpHostConfig,
        psk: Option<&TlsPsk>,
        peer: SocketAddr,
        params: HostQueueParams,
    ) -> Result<Rc<Self>, CloseReason> {
        let network = |error: io::Error| CloseReason::Network(error.kind());
        let socket = Socket::connect(peer, config.paced).map_err(network)?;
        let watch = Watch::new(socket.descriptor()).map_err(network)?;
        poll_fn(|cx| {
            loop {
                match watch.poll_ready(cx) {
                    Poll::Ready(Ok(ready)) if !ready.writable => {}
                    Poll::Ready(ready) => {
                        return Poll::Ready(ready.and_then(|_| socket.connected()));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
        .map_err(network)?;
        let host = Rc::new(Self {
            peer,
            params,
            asked: Digests {
                header: config.header_digest,
                data: config.data_digest,
            },
            life: Lifecycle::default(),
            link: Link::default(),
            secured: Cell::new(false),
            agreed: Cell::new(None),
            connecting: RefCell::default(),
            slots_budget: Budget::new(params.depth.into()),
            commands: RefCell::new(Commands::new(params.depth)),
            answered: RefCell::default(),
            large_reads: Cell::new(0),
        });
        let request = IcReq {
            alignment: 0,
            digests: host.asked,
            // One R2T for a command at a time.
            max_r2t: 0,
        };
        host.link
            .send(|out| out.push_small(0, |bytes| request.emit(bytes)));
        let mut guard = EndOnDrop(Some(host.clone()));
        let opening = match psk {
            None => Opening::Clear,
            Some(psk) => Opening::Tls(
                Session::connect(psk.clone(), config.tls_key_bytes_max)
                    .map_err(CloseReason::Tls)
                    .map(Box::new)?,
            ),
        };
        let run = link::drive(host.clone(), socket, watch, Sender::Controller, opening);
        drop(reactor::spawn(run));
        host.initialized().await.map_err(|reason| match reason {
            // A target that hangs up without a word may not speak TLS.
            CloseReason::Peer | CloseReason::Network(_) if psk.is_some() && !host.secured.get() => {
                CloseReason::Tls(TlsFailure::Ended)
            }
            reason => reason,
        })?;
        guard.0 = None;
        Ok(host)
    }

    /// Waits for ICResp.
    async fn initialized(&self) -> Result<(), CloseReason> {
        poll_fn(|cx| match (self.life.reason(), self.agreed.get()) {
            (Some(reason), _) => Poll::Ready(Err(reason)),
            (None, Some(_)) => Poll::Ready(Ok(())),
            (None, None) => {
                self.connecting.borrow_mut().register(cx);
                Poll::Pending
            }
        })
        .await
    }

    pub(crate) fn life(&self) -> &Lifecycle {
        &self.life
    }

    fn gone(&self) -> HostError {
        HostError::closed(self.peer, &self.life)
    }

    pub(crate) async fn submit(&self, sqe: Sqe, data: HostData) -> Outcome {
        let permit = self.slots_budget.acquire(1).await;
        let Some(agreed) = self.agreed.get().filter(|_| !self.life.is_ending()) else {
            return Err(self.gone());
        };
        let reply = {
            let mut commands = self.commands.borrow_mut();
            // There is a free slot whenever there is a permit.
            let Some(cid) = commands.next_cid() else {
                return Err(HostError::NoResources);
            };
            let transfer = self.send(sqe, cid, data, &agreed);
            commands.begin(transfer, permit)
        };
        Reply::wait(&reply).await
    }

    /// Queues a command, with its data if that fits the capsule.
    fn send(&self, mut sqe: Sqe, cid: u16, data: HostData, agreed: &IcResp) -> Transfer {
        sqe.set_cid(cid);
        let IcResp {
            digests, alignment, ..
        } = *agreed;
        let fabrics = self.params.qid == 0 || sqe.opcode() == FABRICS_OPCODE;
        let in_capsule_max = match fabrics {
            true => ADMIN_IN_CAPSULE_BYTES,
            false => self.params.in_capsule_bytes,
        };
        let (transfer, in_capsule) = match data {
            HostData::None => (Transfer::None, None),
            HostData::FromTarget(buffer, len) => {
                if len >= LARGE_BYTES {
                    self.large_reads.set(self.large_reads.get() + 1);
                }
                let transfer = Transfer::FromTarget {
                    buffer: Some(buffer),
                    len,
                    received: 0,
                    damaged: false,
                };
                (transfer, None)
            }
            HostData::ToTarget(buffer, len) => {
                let buffer = Rc::new(buffer);
                let whole = (len > 0 && len <= in_capsule_max).then(|| buffer.clone());
                let sent = if whole.is_some() { len } else { 0 };
                (Transfer::ToTarget { buffer, len, sent }, whole)
            }
        };
        let length = match &transfer {
            Transfer::None => 0,
            Transfer::ToTarget { len, .. } | Transfer::FromTarget { len, .. } => *len,
        };
        sqe.set_sgl(&match in_capsule {
            Some(_) => SglDescriptor::InCapsule {
                offset: 0,
                length: length as u32,
            },
            None => SglDescriptor::Transport {
                length: length as u32,
            },
        });
        let data_bytes = if in_capsule.is_some() { length } else { 0 };
        self.link.send(|out| {
            let command = Pdu::Command(sqe);
            out.push_small(0, |bytes| {
                command.emit(digests, data_bytes, alignment, bytes)
            });
            if let Some(buffer) = in_capsule {
                let check = digests.data.then(|| digest(&buffer[..length]));
                out.push_data(Payload::Shared(buffer), 0, length, 0);
                if let Some(check) = check {
                    out.push_small(0, |bytes| bytes.extend_from_slice(&check));
                }
            }
        });
        transfer
    }

    fn ic_resp(&self, response: IcResp) -> Result<(), FatalError> {
        if self.agreed.get().is_some() {
            return Err(FatalError::new(
                FatalStatus::SequenceError,
                "a second ICResp",
            ));
        }
        if response.digests != self.asked {
            return Err(FatalError::field(11, "other digests than were asked for"));
        }
        self.agreed.set(Some(response));
        self.connecting.borrow_mut().wake_all();
        Ok(())
    }

    /// A C2HData PDU: where its data goes.
    fn c2h_data(&self, data: Data) -> Result<Option<Sink<Tag>>, FatalError> {
        let mut commands = self.commands.borrow_mut();
        let unknown = FatalError::field(8, "data for a command that is not an outstanding read");
        let Some(Transfer::FromTarget {
            buffer,
            len,
            received,
            ..
        }) = commands.get(data.cid)
        else {
            return Err(unknown);
        };
        let out_of_range = |what| FatalError::new(FatalStatus::DataOutOfRange, what);
        if data.offset as usize != *received {
            return Err(out_of_range("C2HData that leaves a gap or overlaps"));
        }
        if data.length as usize > *len - *received {
            return Err(out_of_range("C2HData beyond the command's length"));
        }
        let destination = buffer.take().map(Destination::Buffer).ok_or(unknown)?;
        Ok(Some(Sink {
            destination,
            start: *received,
            wants_checksums: false,
            tag: Tag(data),
        }))
    }

    /// R2T: queues the data that the target asks for.
    fn r2t(&self, r2t: &R2t) -> Result<(), FatalError> {
        let Some(IcResp {
            digests,
            alignment,
            max_h2c_data,
        }) = self.agreed.get()
        else {
            return Err(FatalError::new(
                FatalStatus::SequenceError,
                "an R2T before ICResp",
            ));
        };
        let mut commands = self.commands.borrow_mut();
        let Some(Transfer::ToTarget { buffer, len, sent }) = commands.get(r2t.cid) else {
            return Err(FatalError::field(
                8,
                "an R2T for a command that is not an outstanding write",
            ));
        };
        let (offset, length) = (r2t.offset as usize, r2t.length as usize);
        let end = offset.saturating_add(length);
        if length == 0 || offset != *sent || end > *len {
            let what = "an R2T for data that was sent, or that the command does not have";
            return Err(FatalError::new(FatalStatus::DataOutOfRange, what));
        }
        *sent = end;
        let piece_max = max_h2c_data as usize;
        self.link.send(|out| {
            let mut at = offset;
            while at < end {
                let piece = piece_max.min(end - at);
                let header = Pdu::H2cData(Data {
                    cid: r2t.cid,
                    ttag: r2t.ttag,
                    offset: at as u32,
                    length: piece as u32,
                    last: at + piece == end,
                    success: false,
                });
                out.push_small(0, |bytes| header.emit(digests, piece, alignment, bytes));
                let check = digests.data.then(|| digest(&buffer[at..at + piece]));
                out.push_data(Payload::Shared(buffer.clone()), at, at + piece, 0);
                if let Some(check) = check {
                    out.push_small(0, |bytes| bytes.extend_from_slice(&check));
                }
                at += piece;
            }
        });
        if end - offset >= LARGE_BYTES {
            self.link.send_at_once();
        }
        Ok(())
    }

    /// A command is answered. Data that was damaged on its way makes it fail, whatever the target says.
    fn response(&self, mut cqe: Cqe) -> Result<(), FatalError> {
        let unknown = FatalError::field(8, "a completion of a command that is not outstanding");
        let mut commands = self.commands.borrow_mut();
        let transfer = commands.get(cqe.cid).ok_or(unknown)?;
        if let Transfer::FromTarget { len, received, .. } = transfer
            && cqe.status.is_success()
            && received < len
        {
            let what = "a read completed without all of its data";
            return Err(FatalError::new(FatalStatus::SequenceError, what));
        }
        let command = commands.take(cqe.cid).ok_or(unknown)?;
        drop(commands);
        if let Transfer::FromTarget { len, damaged, .. } = &command.kept {
            if *len >= LARGE_BYTES {
                self.large_reads.set(self.large_reads.get() - 1);
            }
            if *damaged && cqe.status.is_success() {
                cqe.status = Status::TRANSIENT_TRANSPORT;
            }
        }
        self.answered.borrow_mut().push((command, cqe));
        self.end_answered();
        Ok(())
    }

    /// Ends commands that are answered and whose data nobody sends any more.
    fn end_answered(&self) {
        let mut answered = self.answered.borrow_mut();
        let mut index = 0;
        while index < answered.len() {
            let sending = match &answered[index].0.kept {
                Transfer::ToTarget { buffer, .. } => Rc::strong_count(buffer) > 1,
                Transfer::None | Transfer::FromTarget { .. } => false,
            };
            if sending {
                index += 1;
                continue;
            }
            let (command, cqe) = answered.swap_remove(index);
            command.end(|transfer| {
                let buffer = match transfer {
                    Transfer::None => None,
                    Transfer::ToTarget { buffer, .. } => Rc::into_inner(buffer),
                    Transfer::FromTarget { buffer, .. } => buffer,
                };
                Ok((cqe, buffer))
            });
        }
    }
}

impl Owner for TcpHost {
    type Tag = Tag;

    fn digests(&self) -> Digests {
        self.agreed
            .get()
            .map_or(Digests::default(), |agreed| agreed.digests)
    }

    fn pdu(&self, pdu: Pdu, _data_bytes: usize) -> Result<Option<Sink<Tag>>, FatalError> {
        pdu_arrived(&self.link);
        match pdu {
            Pdu::IcResp(response) => self.ic_resp(response).map(|()| None),
            Pdu::C2hTermReq(request) => {
                self.end(CloseReason::Terminated(request.text()));
                Ok(None)
            }
            _ if self.agreed.get().is_none() => {
                let what = "a PDU before ICResp";
                Err(FatalError::new(FatalStatus::SequenceError, what))
            }
            _ if self.life.is_ending() => Ok(None),
            Pdu::Response(cqe) => self.response(cqe).map(|()| None),
            Pdu::C2hData(data) => self.c2h_data(data),
            Pdu::R2t(r2t) => self.r2t(&r2t).map(|()| None),
            // The frame lets none of these through: a controller does not send them.
            Pdu::IcReq(_) | Pdu::H2cTermReq(_) | Pdu::Command(_) | Pdu::H2cData(_) => Err(
                FatalError::field(0, "a PDU that a controller does not send"),
            ),
        }
    }

    fn data(&self, sink: Sink<Tag>, checked: Checked) -> Result<(), FatalError> {
        pdu_arrived(&self.link);
        let Tag(data) = sink.tag;
        if let Destination::Buffer(back) = sink.destination
            && let Some(Transfer::FromTarget {
                buffer,
                received,
                damaged,
                ..
            }) = self.commands.borrow_mut().get(data.cid)
        {
            *buffer = Some(back);
            *damaged |= checked.is_damaged;
            *received += data.length as usize;
        }
        if data.success {
            let mut cqe = Cqe::new(Status::SUCCESS, 0);
            cqe.cid = data.cid;
            self.response(cqe)?;
        }
        Ok(())
    }
}

impl Role for TcpHost {
    const TERMINATE: PduType = PduType::H2cTermReq;

    fn link(&self) -> &Link {
        &self.link
    }

    fn life(&self) -> &Lifecycle {
        &self.life
    }

    fn expects_transfers(&self) -> bool {
        self.large_reads.get() > 0
    }

    fn sent(&self, _answers: usize) {
        if !self.answered.borrow().is_empty() {
            self.end_answered();
        }
    }

    fn secured(&self, _proven: TlsSession) {
        self.secured.set(true);
    }

    fn end(&self, reason: CloseReason) {
        if !self.life.end(reason.clone()) {
            return;
        }
        if let CloseReason::Violation(violation) = reason {
            tracing::warn!(peer = %self.peer, qid = self.params.qid, violation, "queue closed");
        }
        self.connecting.borrow_mut().wake_all();
        let error = self.gone();
        let commands = self.commands.borrow_mut().take_all();
        let answered = self.answered.take();
        for command in commands {
            command.end(|_| Err(error.clone()));
        }
        for (command, _) in answered {
            command.end(|_| Err(error.clone()));
        }
    }
}

impl Close for TcpHost {
    fn close(&self, reason: CloseReason) {
        self.end(reason);
        self.link.kick();
    }
}

/// Ends a connection that nobody waits for any more.
struct EndOnDrop(Option<Rc<TcpHost>>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(host) = &self.0 {
            host.close(CloseReason::Local);
        }
    }
}
