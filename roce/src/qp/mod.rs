//! Reliable-connection queue pairs.
//!
//! A queue pair is a [`Requester`](requester::Requester) and a [`Responder`](responder::Responder)
//! that share a link, and the state that decides which packets they take. How the peer became known is
//! the business of connection management.
//!
//! Guarantees: every work request that was taken completes exactly once and hands its memory back,
//! also when the queue pair fails; a failed queue pair touches no memory any more and sends nothing
//! but the NAK that ended it.

mod congestion;
mod entry;
mod requester;
mod responder;

use std::collections::VecDeque;
use std::time::Instant;

use congestion::Mark;
use requester::{Requester, TRIES_MIN};
use responder::Responder;

use crate::cm::ConnId;
use crate::endpoint::{
    Counters, EndpointConfig, Event, PostError, QpId, SendWork, Transmit, WcKind, WcStatus,
};
use crate::memory::{Memory, RegionTable};
use crate::wire::{Bth, Opcode, Packet, Path, PathMtu, Psn, Reth};

/// What a queue pair borrows from its endpoint for one call.
pub(crate) struct Context<'a, M> {
    pub(crate) now: Instant,
    pub(crate) config: &'a EndpointConfig,
    pub(crate) regions: &'a mut RegionTable<M>,
    pub(crate) events: &'a mut VecDeque<Event<M>>,
    pub(crate) counters: &'a mut Counters,
}

impl<M> Context<'_, M> {
    #[expect(
        clippy::too_many_arguments,
        reason = "these are the fields of one completion"
    )]
    fn complete(
        &mut self,
        link: &Link,
        wr_id: u64,
        kind: WcKind,
        status: WcStatus,
        len: usize,
        invalidated: Option<u32>,
        memory: M,
    ) {
        let qp = QpId(link.qpn);
        self.events.push_back(Event::Completion {
            qp,
            wr_id,
            kind,
            status,
            len,
            invalidated,
            memory,
        });
    }
}

/// Where a queue pair's packets go, and how large they are.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) qpn: u32,
    pub(crate) remote_qpn: u32,
    pub(crate) path: Path,
    /// Bytes of payload in a full packet.
    pub(crate) mtu: usize,
}

impl Link {
    #[inline]
    fn packet<'a>(
        &self,
        opcode: Opcode,
        psn: Psn,
        ack_request: bool,
        payload: &'a [u8],
    ) -> Packet<'a> {
        Packet::new(
            Bth {
                ack_request,
                ..Bth::new(opcode, self.remote_qpn, psn)
            },
            payload,
        )
    }
}

/// Gives packets to the sink, with one header buffer for all of them.
pub(crate) struct Sender<'s> {
    pub(crate) header: &'s mut Vec<u8>,
    pub(crate) sink: &'s mut dyn FnMut(Transmit<'_>),
    /// Bytes that may still be sent in this turn; the last packet may exceed them.
    pub(crate) quantum: usize,
}

impl Sender<'_> {
    /// The turn is over.
    #[inline]
    fn is_full(&self) -> bool {
        self.quantum == 0
    }

    #[inline]
    pub(crate) fn packet(&mut self, path: Path, packet: Packet<'_>) {
        self.header.clear();
        packet.write_header(self.header);
        let bytes = self.header.len() + packet.payload.len();
        self.quantum = self.quantum.saturating_sub(bytes);
        (self.sink)(Transmit {
            path,
            header: self.header,
            payload: packet.payload,
            pad: packet.bth.pad,
        });
    }
}

/// What ended a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The status that its work request or connection ends with.
    pub(crate) status: WcStatus,
    /// Whether the oldest work request of the send queue failed; otherwise it was a request of the peer.
    of_send_queue: bool,
}

impl Failure {
    fn local(status: WcStatus) -> Self {
        Self {
            status,
            of_send_queue: true,
        }
    }

    fn remote(status: WcStatus) -> Self {
        Self {
            status,
            of_send_queue: false,
        }
    }
}

/// Which packets a queue pair takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The peer is not known yet: no packets are taken.
    Connecting,
    /// Packets are received; what is posted to be sent waits until the peer is known to be ready.
    ReadyToReceive,
    /// Both directions work.
    ReadyToSend,
    /// Everything was flushed.
    Closed,
}

/// What both sides agreed on when they connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreement {
    pub(crate) remote_qpn: u32,
    /// With which sequence number this side begins to send.
    pub(crate) send_psn: Psn,
    /// With which sequence number the peer begins to send.
    pub(crate) receive_psn: Psn,
    /// READs that this side may have in flight.
    pub(crate) initiator_depth: usize,
    /// READs that the peer may have in flight.
    pub(crate) responder_resources: usize,
}

/// Marks of congestion on received packets, of which the peer is told.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    /// The peer is to be told, with the number of the packet that was marked.
    pending: Option<Psn>,
    /// When it was told last.
    told: Option<Instant>,
}

/// Content of a congestion notification: nothing (annex A17.9.3).
const NOTIFICATION: [u8; 16] = [0; 16];

/// A question to the peer whether it is there, because a connection request came from its queue pair.
#[derive(Clone, Copy, Debug)]
struct Probe {
    since: Instant,
    /// Packets sent.
    tries: u32,
    /// When to send the next one, or to give the peer up.
    at: Instant,
    /// A packet is to be sent now.
    pending: bool,
}

/// How far the end of a queue pair has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Farewell {
    /// The application was told that the connection ended.
    pub(crate) reported: bool,
    /// When nothing is left to be sent: tell the peer's connection management.
    pub(crate) disconnect: bool,
    /// Tell it once, if the peer has not confirmed the connection.
    pub(crate) abandon: bool,
    /// When nothing is left to be sent: forget the queue pair.
    pub(crate) forget: bool,
}

impl Farewell {
    /// The NAK that ended a queue pair leaves before the DREQ, so that the peer learns why.
    #[inline]
    pub(crate) fn is_due(self, can_send: bool) -> bool {
        !can_send && (self.disconnect || self.forget)
    }
}

/// A reliable-connection queue pair.
pub(crate) struct QueuePair<M> {
    /// Its connection, while connection management knows it.
    pub(crate) conn: Option<ConnId>,
    pub(crate) farewell: Farewell,
    link: Link,
    state: State,
    requester: Requester<M>,
    responder: Responder<M>,
    marks: Marks,
    probe: Option<Probe>,
    /// In the endpoint's transmit ring.
    pub(crate) scheduled: bool,
    /// The earliest time for which the endpoint has queued a look at this queue pair.
    pub(crate) timer_queued: Option<Instant>,
}

impl<M: Memory> QueuePair<M> {
    /// A queue pair that takes receives and knows no peer yet.
    pub(crate) fn new(qpn: u32, path: Path, mtu: PathMtu) -> Self {
        Self {
            conn: None,
            farewell: Farewell::default(),
            link: Link {
                qpn,
                remote_qpn: 0,
                path,
                mtu: mtu.bytes(),
            },
            state: State::Connecting,
            requester: Requester::new(Psn::default(), 0),
            responder: Responder::new(),
            marks: Marks::default(),
            probe: None,
            scheduled: false,
            timer_queued: None,
        }
    }

    /// Bytes that this takes, posted memory not included.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.requester.heap_bytes() + self.responder.heap_bytes()
    }

    #[inline]
    pub(crate) fn path(&self) -> Path {
        self.link.path
    }

    /// The peer is known: its packets count from here on.
    pub(crate) fn ready_to_receive(&mut self, agreement: Agreement) {
        if self.state != State::Connecting {
            return;
        }
        self.link.remote_qpn = agreement.remote_qpn;
        self.requester = Requester::new(agreement.send_psn, agreement.initiator_depth);
        self.responder
            .start(agreement.receive_psn, agreement.responder_resources);
        self.state = State::ReadyToReceive;
    }

    /// The peer is ready: what was posted goes out.
    pub(crate) fn ready_to_send(&mut self) {
        if self.state == State::ReadyToReceive {
            self.state = State::ReadyToSend;
        }
    }

    #[inline]
    pub(crate) fn is_waiting_for_peer(&self) -> bool {
        self.state == State::ReadyToReceive
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    pub(crate) fn post_receive(
        &mut self,
        config: &EndpointConfig,
        wr_id: u64,
        memory: M,
    ) -> Result<(), (PostError, M)> {
        if self.state == State::Closed {
            return Err((PostError::NotConnected, memory));
        }
        self.responder
            .post(config.max_recv_wr, wr_id, memory)
            .map_err(|memory| (PostError::QueueFull, memory))
    }

    pub(crate) fn post_send(
        &mut self,
        config: &EndpointConfig,
        wr_id: u64,
        work: SendWork<M>,
    ) -> Result<(), (PostError, SendWork<M>)> {
        match self.state {
            State::ReadyToReceive | State::ReadyToSend => {
                self.requester.post(config, self.link.mtu, wr_id, work)
            }
            State::Connecting | State::Closed => Err((PostError::NotConnected, work)),
        }
    }

    /// Takes a packet of the peer. An error means that the queue pair failed and was flushed.
    pub(crate) fn handle_packet(
        &mut self,
        packet: &Packet<'_>,
        context: &mut Context<'_, M>,
    ) -> Result<(), Failure> {
        if matches!(self.state, State::Connecting | State::Closed) {
            context.counters.unexpected += 1;
            return Ok(());
        }
        // The peer sent something: it is there.
        self.probe = None;
        let opcode = packet.bth.opcode;
        let link = &self.link;
        let handled = if opcode == Opcode::CongestionNotification {
            context.counters.notifications_received += 1;
            let (psn, config) = (packet.bth.psn, context.config);
            match Mark::of_notification(psn, self.requester.high, config) {
                Some(mark) => self.requester.congested(mark, context.now, config),
                None => context.counters.unexpected += 1,
            }
            Ok(())
        } else if opcode.is_request() {
            self.responder.handle_request(packet, context, link)
        } else if opcode.is_read_response() {
            self.requester.handle_read_response(packet, context, link)
        } else if let (Opcode::Acknowledge, Some(aeth)) = (opcode, packet.aeth) {
            self.requester
                .handle_acknowledge(packet.bth.psn, aeth, context, link)
        } else {
            context.counters.unexpected += 1;
            Ok(())
        };
        handled.inspect_err(|failure| self.fail(*failure, context))
    }

    /// The network marked a packet of the peer as having met congestion: the peer is told, but not
    /// more often than the configuration says.
    pub(crate) fn congested(&mut self, opcode: Opcode, psn: Psn, context: &mut Context<'_, M>) {
        if matches!(self.state, State::Connecting | State::Closed) {
            return;
        }
        context.counters.marks_received += 1;
        if opcode.is_read_response() {
            // This side asked for what filled the path, and it can ask for less.
            let (now, config) = (context.now, context.config);
            self.requester.congested(Mark::Known, now, config);
        }
        let recently = self.marks.told.is_some_and(|at| {
            context.now.saturating_duration_since(at) < context.config.notification_interval
        });
        if !recently {
            self.marks = Marks {
                pending: Some(psn),
                told: Some(context.now),
            };
        }
    }

    pub(crate) fn handle_timeout(&mut self, context: &mut Context<'_, M>) -> Result<(), Failure> {
        if self.state != State::ReadyToSend {
            return Ok(());
        }
        let handled = self.requester.handle_timeout(context);
        let handled = handled.and_then(|()| self.probe_again(context));
        handled.inspect_err(|failure| self.fail(*failure, context))
    }

    /// Finds out whether the peer is there: it answers a request that it has had already. If it is silent for as long
    /// as any peer may be, the queue pair fails.
    pub(crate) fn probe(&mut self, context: &Context<'_, M>) {
        if self.state == State::ReadyToSend && self.probe.is_none() {
            self.probe = Some(Probe {
                since: context.now,
                tries: 0,
                at: context.now,
                pending: true,
            });
        }
    }

    fn probe_again(&mut self, context: &Context<'_, M>) -> Result<(), Failure> {
        let Some(probe) = &mut self.probe else {
            return Ok(());
        };
        if probe.pending || probe.at > context.now {
            return Ok(());
        }
        let waited = context.now.saturating_duration_since(probe.since);
        if probe.tries > TRIES_MIN && waited >= context.config.give_up_after {
            return Err(Failure::local(WcStatus::RetryExceeded));
        }
        probe.pending = true;
        Ok(())
    }

    /// When `handle_timeout` wants to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let deadline = self.requester.deadline();
        match &self.probe {
            Some(probe) if !probe.pending => {
                Some(deadline.map_or(probe.at, |deadline| deadline.min(probe.at)))
            }
            _ => deadline,
        }
    }

    /// Whether `transmit` would send something.
    #[inline]
    pub(crate) fn can_send(&self, config: &EndpointConfig) -> bool {
        self.responder.can_send()
            || self.marks.pending.is_some()
            || self.probe.is_some_and(|probe| probe.pending)
            || (self.state == State::ReadyToSend && self.requester.can_send(config))
    }

    /// Sends at most `limit` packets and returns how many. An error means that the queue pair failed
    /// and was flushed.
    pub(crate) fn transmit(
        &mut self,
        context: &mut Context<'_, M>,
        limit: usize,
        sender: &mut Sender<'_>,
    ) -> Result<usize, (usize, Failure)> {
        let mut sent = 0;
        if let Some(probe) = &mut self.probe
            && limit > 0
            && std::mem::take(&mut probe.pending)
        {
            probe.tries += 1;
            probe.at = context.now + context.config.give_up_after / (TRIES_MIN + 1);
            // A request that the peer has had already: it acknowledges that, and does nothing else.
            let psn = self.requester.unacked.prev();
            let reth = Some(Reth {
                va: 0,
                rkey: 0,
                len: 0,
            });
            let packet = self.link.packet(Opcode::WriteOnly, psn, true, &[]);
            sender.packet(self.link.path, Packet { reth, ..packet });
            sent += 1;
        }
        if sent < limit
            && let Some(psn) = self.marks.pending.take()
        {
            let opcode = Opcode::CongestionNotification;
            let packet = self.link.packet(opcode, psn, false, &NOTIFICATION);
            sender.packet(self.link.path, packet);
            context.counters.notifications_sent += 1;
            sent += 1;
        }
        // What the peer waits for goes first.
        if let Err(failure) = self
            .responder
            .transmit(&self.link, context, limit, sender, &mut sent)
        {
            self.fail(failure, context);
            return Err((sent, failure));
        }
        if self.state == State::ReadyToSend {
            sent += self
                .requester
                .transmit(&self.link, context, limit - sent, sender);
        }
        // Shorter than everything else: it can be the last segment of a run.
        if sent < limit {
            let said = self.responder.acknowledge(&self.link, context, sender);
            sent += usize::from(said);
        }
        Ok(sent)
    }

    /// Ends the queue pair: all that was posted completes as flushed, and no more packets are sent.
    pub(crate) fn close(&mut self, context: &mut Context<'_, M>) {
        self.flush(WcStatus::Flushed, WcStatus::Flushed, context);
        self.responder.silence();
        self.marks.pending = None;
    }

    fn fail(&mut self, failure: Failure, context: &mut Context<'_, M>) {
        context.counters.qp_errors += 1;
        let sends = if failure.of_send_queue {
            failure.status
        } else {
            WcStatus::Flushed
        };
        let receives = match (failure.of_send_queue, failure.status) {
            (false, WcStatus::LocalLength) => WcStatus::LocalLength,
            _ => WcStatus::Flushed,
        };
        self.flush(sends, receives, context);
    }

    fn flush(&mut self, sends: WcStatus, receives: WcStatus, context: &mut Context<'_, M>) {
        self.state = State::Closed;
        self.probe = None;
        self.requester.flush(sends, context, &self.link);
        self.responder.flush(receives, context, &self.link);
    }
}
