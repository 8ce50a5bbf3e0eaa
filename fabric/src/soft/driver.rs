//! The tasks of a soft device: receivers that drain the sockets, and the driver that sends, keeps the
//! time, and tells queue pairs what happened.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use reactor::sync::queue::Receiver;
use roce::endpoint::{
    DisconnectReason, Event, Part, Path, PathMtu, QpId, RejectReason, Relay, WcKind, WcStatus,
};
use roce::wire::icrc::{self, Flow};

use super::SoftCounters;
use super::connection::SoftPending;
use super::device::Shared;
use super::parts::MisroutedPacket;
use super::socket::{self, Datagrams, Links, Socket};
use super::socket_send::{QPN_BYTES, Sendable};
use super::strict::{Headers, Sequence};
use crate::address::ROCE_PORT;
use crate::error::CloseReason;
use crate::listening::log_full_backlog;
use crate::memory::FabricMemory;
use crate::provider::{Completion, QueuePairHandler, WorkKind, WorkStatus};

/// Batches taken from a socket before others have their turn.
const BATCHES_PER_TURN: usize = 4;

/// How often the driver lets others have a turn as long as they post work meanwhile.
const YIELDS_MAX: usize = 8;

/// How long to leave a socket alone that reports an error.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// At least so long between two warnings of the same kind: what goes wrong may go wrong for every
/// packet.
const WARNING_PAUSE: Duration = Duration::from_secs(1);

/// How long to wait for room in a full send buffer before a message counts as lost: peers that take
/// nothing must not stop the others.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// Drains one socket whenever it is readable.
pub(super) async fn receive(shared: Rc<Shared>, index: usize) {
    let Some(socket) = shared.sockets.get(index) else {
        return;
    };
    loop {
        if let Err(error) = reactor::readable(socket.fd()).await {
            tracing::warn!(address = %socket.address(), %error, "cannot wait for packets");
            reactor::sleep(ERROR_PAUSE).await;
        }
        loop {
            let more = shared.drain(socket, shared.headers.get(index).and_then(Option::as_ref));
            shared.dispatch();
            // The driver runs after the tasks that were just woken, so what they post and the
            // acknowledgements leave together.
            shared.kick();
            reactor::yield_now().await;
            if !more {
                break;
            }
        }
    }
}

/// Takes what other parts say about connections.
pub(super) async fn take_relays(shared: Rc<Shared>, mut relays: Receiver<Relay>) {
    while let Some(relay) = relays.recv().await {
        let now = shared.look_at_clock();
        shared.endpoint.borrow_mut().handle_relay(now, relay);
        shared.dispatch();
        shared.wake_if_idle();
        shared.kick();
    }
}

/// Takes packets that came to other parts.
pub(super) async fn take_misrouted(shared: Rc<Shared>, mut misrouted: Receiver<MisroutedPacket>) {
    while let Some(packet) = misrouted.recv().await {
        let MisroutedPacket {
            path,
            marked,
            packet,
        } = packet;
        let now = shared.look_at_clock();
        let mut endpoint = shared.endpoint.borrow_mut();
        if marked {
            endpoint.handle_marked_packet(now, path, &packet);
        } else {
            endpoint.handle_packet(now, path, &packet);
        }
        drop(endpoint);
        shared.dispatch();
        shared.kick();
    }
}

/// Sends what the endpoint has to send, and serves its timer.
pub(super) async fn drive(shared: Rc<Shared>) {
    let closing = Closing(shared);
    let shared = &closing.0;
    let mut timer = Timer::default();
    loop {
        // Those that wake each other post their work first: it leaves together.
        for _ in 0..YIELDS_MAX {
            shared.due.set(false);
            reactor::yield_now().await;
            if !shared.due.get() {
                break;
            }
        }
        shared.due.set(false);
        shared.tick();
        shared.dispatch();
        shared.tell_other_parts();
        while shared.send_round().await == shared.config.packets_per_round {
            reactor::yield_now().await;
        }
        shared.dispatch();
        shared.tell_other_parts();
        let deadline = shared.endpoint.borrow().poll_timeout();
        poll_fn(|cx| {
            if shared.due.get() {
                return Poll::Ready(());
            }
            shared.set_driver_waker(cx.waker());
            timer.poll(deadline, cx)
        })
        .await;
    }
}

/// Tells everyone that the device is gone when the driver goes, be it because the last holder let go
/// of the device or because the reactor stops. It also undoes the circle of queue pairs that keep the
/// device and a device that keeps queue pairs.
struct Closing(Rc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.closed.set(true);
        let handlers = self.0.handlers.take();
        let all: Vec<_> = handlers.keys().copied().collect();
        for qp in all {
            self.0.endpoint.borrow_mut().destroy(qp);
        }
        // What was posted comes back as flushed, before the handlers hear that it is over.
        loop {
            let event = self.0.endpoint.borrow_mut().poll_event();
            match event {
                Some(Event::Completion {
                    qp,
                    wr_id,
                    kind,
                    status,
                    len,
                    invalidated,
                    memory,
                }) => {
                    let (kind, status) = (work_kind(kind), work_status(status));
                    if let Some(handler) = handlers.get(&qp) {
                        let id = wr_id;
                        handler.completed(Completion {
                            id,
                            kind,
                            status,
                            len,
                            invalidated,
                            memory,
                        });
                    }
                }
                Some(_) => {}
                None => break,
            }
        }
        for handler in handlers.into_values() {
            handler.closed(CloseReason::Local);
        }
        for listener in self.0.listeners.borrow().values().flatten() {
            listener.wake();
        }
    }
}

/// Spreads a counter over all numbers (the finisher of SplitMix64). Which packets are dropped on
/// purpose must follow from the counter, so that tests can be repeated, and must have no period: a
/// READ's answer of as many packets as the period would lose the same one each time.
fn scatter(counter: u64) -> u64 {
    let mixed = (counter ^ (counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The queue pair number of connection management, as it stands in bytes 5 to 7 of a packet.
const MANAGEMENT_QPN: [u8; 3] = [0, 0, 1];

/// What is worth a warning, but not one for every packet.
#[derive(Default)]
pub(super) struct Warnings {
    unanswered: Warning,
    send: Warning,
}

#[derive(Default)]
struct Warning {
    said: Cell<Option<Instant>>,
    times: Cell<u64>,
}

impl Warning {
    /// Says it, with how often it happened since it was said last; or only counts.
    fn say(&self, now: Instant, say: impl FnOnce(u64)) {
        self.times.set(self.times.get() + 1);
        let recently = self
            .said
            .get()
            .is_some_and(|at| now.saturating_duration_since(at) < WARNING_PAUSE);
        if !recently {
            self.said.set(Some(now));
            say(self.times.replace(0));
        }
    }
}

/// A timer that is armed again only when it has to ring earlier: deadlines move on with almost every
/// packet, and ringing too early costs one look at the endpoint.
#[derive(Default)]
struct Timer {
    armed: Option<reactor::Sleep>,
}

impl Timer {
    fn poll(&mut self, deadline: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = deadline else {
            return Poll::Pending;
        };
        if self
            .armed
            .as_ref()
            .is_none_or(|sleep| deadline < sleep.deadline())
        {
            self.armed = Some(reactor::sleep_until(deadline));
        }
        let Some(sleep) = &mut self.armed else {
            return Poll::Pending;
        };
        let rung = Pin::new(sleep).poll(cx);
        if rung.is_ready() {
            self.armed = None;
        }
        rung
    }
}

impl Shared {
    fn tick(&self) {
        let now = self.look_at_clock();
        let mut endpoint = self.endpoint.borrow_mut();
        if endpoint.poll_timeout().is_some_and(|at| at <= now) {
            endpoint.handle_timeout(now);
        }
    }

    /// Takes a bounded number of batches from a socket; true if more may wait.
    fn drain(&self, socket: &Socket, headers: Option<&RefCell<Headers>>) -> bool {
        let mut receiving = self.receiving.borrow_mut();
        for _ in 0..BATCHES_PER_TURN {
            let more = match receiving.receive(socket) {
                Ok(more) => more,
                Err(error) => {
                    // Errors of earlier sends (unreachable hosts) are reported here, once each.
                    tracing::debug!(address = %socket.address(), %error, "receive");
                    return error.kind() == io::ErrorKind::Interrupted;
                }
            };
            let now = self.look_at_clock();
            let mut headers = headers.map(RefCell::borrow_mut);
            if let Some(headers) = &mut headers
                && let Err(error) = headers.refill()
            {
                tracing::debug!(address = %socket.address(), %error, "receive headers");
            }
            for datagrams in receiving.iter() {
                let sequence = headers.as_mut().map(|headers| {
                    let Datagrams { source, local, .. } = datagrams;
                    let bytes = datagrams.bytes();
                    headers
                        .take(source, local, bytes, bytes.len())
                        .map(Sequence::new)
                });
                match sequence {
                    None => self.take_packets(now, &datagrams, Sequence::unknown()),
                    Some(Some(known)) => self.take_packets(now, &datagrams, known),
                    // Its header was lost: it cannot be checked, and is repeated.
                    Some(None) => {
                        self.counters.borrow_mut().icrc_errors += datagrams.iter().count() as u64;
                    }
                }
            }
            if !more {
                return false;
            }
        }
        true
    }

    fn take_packets(&self, now: Instant, datagrams: &Datagrams<'_>, mut sequence: Sequence) {
        let (src, dst) = (datagrams.source.ip(), datagrams.local);
        let flow = Flow {
            src,
            dst,
            src_port: datagrams.source.port(),
            dst_port: ROCE_PORT,
        };
        let path = Path {
            local: dst,
            remote: src,
        };
        let mut counters = self.counters.borrow_mut();
        let mut endpoint = self.endpoint.borrow_mut();
        self.links.borrow_mut().learn(path, datagrams.link);
        let dropped = endpoint.counters().management_dropped;
        let intact = datagrams.iter().filter_map(|packet| {
            let body = self.intact(now, &flow, packet, &mut sequence, &mut counters)?;
            let Some(to) = self.other_part(body) else {
                return Some(body);
            };
            let packet = MisroutedPacket {
                path,
                marked: datagrams.marked,
                packet: body.into(),
            };
            counters.forwarded += u64::from(self.parts.forward(to, packet));
            None
        });
        // Each is taken as soon as it was checked: it is in the cache then.
        endpoint.handle_packets(now, path, datagrams.marked, intact);
        if endpoint.counters().management_dropped > dropped {
            self.warnings.unanswered.say(now, |times| {
                tracing::warn!(peer = %src, local = %dst, times,
                    "connection management packets dropped unanswered: late duplicates, or not \
                     what the connection's state allows");
            });
        }
    }

    /// A packet without its ICRC, if that is right; one that is dropped is counted.
    fn intact<'p>(
        &self,
        now: Instant,
        flow: &Flow,
        packet: &'p [u8],
        sequence: &mut Sequence,
        counters: &mut SoftCounters,
    ) -> Option<&'p [u8]> {
        counters.packets_received += 1;
        if let Some(every) = self.config.drop_every
            && scatter(counters.packets_received).is_multiple_of(u64::from(every.max(1)))
        {
            counters.dropped_on_purpose += 1;
            return None;
        }
        let verified = icrc::verify_expecting(flow, packet, sequence.expected());
        if verified.is_ok_and(|verified| sequence.accepts(verified)) {
            return packet.get(..packet.len() - icrc::LEN);
        }
        counters.icrc_errors += 1;
        if packet.get(QPN_BYTES) == Some(&MANAGEMENT_QPN) {
            counters.management_icrc_errors += 1;
            self.warnings.unanswered.say(now, |times| {
                tracing::warn!(peer = %flow.src, local = %flow.dst, times,
                    "connection management packets dropped unanswered: their ICRC is wrong \
                     (address translation on the way, or a damaged packet)");
            });
        }
        None
    }

    /// The part that a packet is for, if it is another one.
    fn other_part(&self, packet: &[u8]) -> Option<usize> {
        let part = self.parts.part;
        if part == Part::WHOLE {
            return None;
        }
        let &[high, middle, low] = packet.get(QPN_BYTES)? else {
            return None;
        };
        let qpn = u32::from_be_bytes([0, high, middle, low]);
        (!part.owns(qpn)).then_some(part.of(qpn))
    }

    /// Gives the other parts what this one's endpoint has for them.
    fn tell_other_parts(&self) {
        loop {
            let relay = self.endpoint.borrow_mut().poll_relay();
            match relay {
                Some((to, relay)) => self.parts.tell(to, relay),
                None => return,
            }
        }
    }

    fn wake_if_idle(&self) {
        if self.is_idle() {
            self.idle.borrow_mut().wake_all();
        }
    }

    /// Sends one round of packets, and says how many.
    async fn send_round(&self) -> usize {
        self.send_stuck().await;
        let count = self.send_gathered();
        self.send_stuck().await;
        count
    }

    /// Sends what full sockets did not take, when they do, or gives it up.
    async fn send_stuck(&self) {
        while let Some((socket, at)) = self.stuck() {
            let at = match reactor::timeout(FULL_PAUSE, reactor::writable(socket.fd())).await {
                Ok(Ok(())) => at,
                Ok(Err(_)) | Err(_) => self.give_up(at),
            };
            let rest = self
                .sending
                .borrow()
                .copied()
                .map(|batch| self.send_some(batch, at));
            self.stuck.set(rest.flatten());
        }
    }

    /// The socket that did not take all of the last round, and the message that is to be sent next.
    fn stuck(&self) -> Option<(&Socket, usize)> {
        let at = self.stuck.get()?;
        let sending = self.sending.borrow();
        let message = sending.copied()?.messages().get(at)?;
        Some((self.socket_for(message.path.local)?, at))
    }

    /// Takes a round of packets from the endpoint and sends them, as far as the sockets take them:
    /// gives how many there were. What a full socket did not take is copied, and waits for the driver;
    /// nothing else is sent before it.
    pub(super) fn send_gathered(&self) -> usize {
        if self.stuck.get().is_some() {
            return 0;
        }
        self.posted.set((0, 0));
        let mut endpoint = self.endpoint.borrow_mut();
        let mut sending = self.sending.borrow_mut();
        let offload = |local| self.socket_for(local).is_some_and(Socket::offload);
        let limit = self.config.packets_per_round;
        let gathered = sending.gather(&mut endpoint, self.look_at_clock(), limit, &offload);
        let count = gathered.packets();
        if let Some(at) = self.send_some(gathered.sendable(), 0) {
            gathered.keep(at);
            self.stuck.set(Some(0));
        }
        count
    }

    /// Counts a message that no buffer has room for as lost; the protocol repeats it.
    fn give_up(&self, at: usize) -> usize {
        let sending = self.sending.borrow();
        let messages = sending.copied().map_or(&[][..], Sendable::messages);
        let packets = messages.get(at).map_or(0, |message| message.count);
        self.counters.borrow_mut().send_errors += packets as u64;
        at + 1
    }

    /// Sends messages from the `at`-th on: gives the next one to send if its socket is full.
    fn send_some(&self, batch: Sendable<'_>, mut at: usize) -> Option<usize> {
        let messages = batch.messages();
        let mut counters = self.counters.borrow_mut();
        let links = self.links.borrow();
        while let Some(first) = messages.get(at) {
            let local = first.path.local;
            let Some(socket) = self.socket_for(local) else {
                counters.send_errors += first.count as u64;
                at += 1;
                continue;
            };
            // Sockets differ only between families and addresses, so runs are long.
            let run = messages[at..]
                .iter()
                .take_while(|m| m.path.local == local)
                .count();
            match socket.send(batch, at, run, &links) {
                Ok(sent) => {
                    counters.messages_sent += sent as u64;
                    at += sent.max(1);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Some(at);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The packets count as lost, and the protocol repeats them.
                    counters.send_errors += first.count as u64;
                    self.refused(socket, batch, at, &error, &links);
                    at += 1;
                }
            }
        }
        None
    }

    /// The kernel refused a message: finds out whether segments are why, and says what is wrong.
    fn refused(
        &self,
        socket: &Socket,
        batch: Sendable<'_>,
        at: usize,
        error: &io::Error,
        links: &Links,
    ) {
        let message = batch.messages()[at];
        if message.count > 1 && socket.send_first(batch, at, links).is_ok() {
            // The same packet, but not as a segment: segments are what is refused.
            tracing::info!(%error, "no segmentation offload; sending packets singly");
            socket.disable_offload();
            return;
        }
        self.warnings.send.say(reactor::now(), |times| {
            tracing::warn!(peer = %message.path.remote, local = %message.path.local, %error, times,
                "packets cannot be sent; they are tried again until their connection gives up");
        });
    }

    fn socket_for(&self, local: IpAddr) -> Option<&Socket> {
        if let [only] = &self.sockets[..] {
            return (only.address().is_ipv4() == local.is_ipv4()).then_some(only);
        }
        self.sockets
            .iter()
            .find(|socket| socket.address() == local)
            .or_else(|| {
                self.sockets.iter().find(|s| {
                    s.address().is_unspecified() && s.address().is_ipv4() == local.is_ipv4()
                })
            })
    }

    /// Tells queue pairs and listeners what happened.
    pub(super) fn dispatch(self: &Rc<Self>) {
        loop {
            let event = self.endpoint.borrow_mut().poll_event();
            match event {
                Some(event) => self.handle_event(event),
                None => return,
            }
        }
    }

    fn handle_event(self: &Rc<Self>, event: Event<FabricMemory>) {
        match event {
            Event::ConnectRequest {
                request,
                path,
                service_id,
                private_data,
                mtu,
            } => {
                let port = (service_id & 0xffff) as u16;
                if let Some(to) = self.deal(path.local, port) {
                    let mut endpoint = self.endpoint.borrow_mut();
                    endpoint.hand_over(request, to, service_id, private_data);
                    drop(endpoint);
                    return self.kick();
                }
                let pending =
                    SoftPending::new(self.clone(), request, path, port, private_data, mtu);
                self.offer(pending, path, port, mtu);
            }
            Event::Connected { qp, private_data } => {
                self.tell(qp, |handler| handler.established(&private_data));
            }
            Event::Established { qp } => self.tell(qp, |handler| handler.established(&[])),
            Event::Rejected {
                qp,
                reason,
                private_data,
            } => {
                self.finish(
                    qp,
                    CloseReason::Refused {
                        reason: reason.code(),
                        private_data,
                    },
                );
            }
            Event::Disconnected { qp, reason } => {
                self.finish(qp, close_reason(reason));
            }
            Event::Completion {
                qp,
                wr_id,
                kind,
                status,
                len,
                invalidated,
                memory,
            } => {
                let (kind, status) = (work_kind(kind), work_status(status));
                let completion = Completion {
                    id: wr_id,
                    kind,
                    status,
                    len,
                    invalidated,
                    memory,
                };
                self.tell(qp, |handler| handler.completed(completion));
            }
        }
    }

    /// The part that shall have a connection that was asked for, if it is another one: of those that listen there the
    /// one with the fewest.
    fn deal(&self, local: IpAddr, port: u16) -> Option<usize> {
        let part = self.parts.part;
        if part.index() > 0 || part.count() == 1 {
            return None;
        }
        let endpoint = self.endpoint.borrow();
        // The request itself waits here.
        let own = |of: &usize| usize::from(*of == part.index());
        let connections = |of: &usize| endpoint.connections_of(*of) - own(of);
        let parts = self.parts.listening.parts(local, port);
        let to = parts.into_iter().min_by_key(connections)?;
        (to != part.index()).then_some(to)
    }

    fn tell(&self, qp: QpId, what: impl FnOnce(&dyn QueuePairHandler)) {
        let handler = self.handlers.borrow().get(&qp).cloned();
        if let Some(handler) = handler {
            what(&*handler);
        }
    }

    fn finish(&self, qp: QpId, reason: CloseReason) {
        let handler = self.handlers.borrow_mut().remove(&qp);
        self.endpoint.borrow_mut().destroy(qp);
        if let Some(handler) = handler {
            handler.closed(reason);
        }
        self.wake_if_idle();
        self.kick();
    }

    fn offer(&self, pending: SoftPending, path: Path, port: u16, mtu: PathMtu) {
        let listener = {
            let listeners = self.listeners.borrow();
            let on_port = listeners.get(&port).map(Vec::as_slice).unwrap_or_default();
            let exact = on_port.iter().find(|l| l.address == Some(path.local));
            exact
                .or_else(|| on_port.iter().find(|l| l.address.is_none()))
                .cloned()
        };
        let Some(listener) = listener else {
            return pending.refuse(RejectReason::InvalidServiceId);
        };
        // The active side chooses the path MTU for both; packets that do not fit this side's way back
        // would never arrive.
        if socket::route(path.remote).is_ok_and(|route| {
            PathMtu::for_interface(route.mtu).is_none_or(|ours| ours.bytes() < mtu.bytes())
        }) {
            crate::log_of_peer!(warn, "path MTU", path.remote, peer = %path.remote, mtu = mtu.bytes(),
                "connection refused: the peer's path MTU is larger than the way back carries; \
                 give both ends the same network MTU");
            return pending.refuse(RejectReason::InvalidMtu);
        }
        if let Err(pending) = listener.offer(pending) {
            log_full_backlog(path.remote, port);
            pending.refuse(RejectReason::NoResources);
        }
    }
}

fn close_reason(reason: DisconnectReason) -> CloseReason {
    match reason {
        DisconnectReason::Local => CloseReason::Local,
        DisconnectReason::Remote => CloseReason::Peer,
        DisconnectReason::Timeout => CloseReason::ConnectTimeout,
        DisconnectReason::Error(status) => CloseReason::Failed(work_status(status)),
        DisconnectReason::Rejected(reason) => CloseReason::Refused {
            reason: reason.code(),
            private_data: Vec::new(),
        },
        DisconnectReason::Stale => CloseReason::Stale,
    }
}

fn work_kind(kind: WcKind) -> WorkKind {
    match kind {
        WcKind::Send => WorkKind::Send,
        WcKind::Receive => WorkKind::Receive,
        WcKind::Read => WorkKind::Read,
        WcKind::Write => WorkKind::Write,
    }
}

fn work_status(status: WcStatus) -> WorkStatus {
    match status {
        WcStatus::Success => WorkStatus::Success,
        WcStatus::Flushed => WorkStatus::Flushed,
        WcStatus::RemoteAccess => WorkStatus::RemoteAccess,
        WcStatus::RetryExceeded => WorkStatus::NoAnswer,
        WcStatus::RnrRetryExceeded => WorkStatus::ReceiverNotReady,
        WcStatus::LocalLength
        | WcStatus::BadResponse
        | WcStatus::RemoteInvalidRequest
        | WcStatus::RemoteOperation => WorkStatus::Protocol,
    }
}
