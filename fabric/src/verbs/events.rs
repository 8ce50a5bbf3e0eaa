//! The tasks of a verbs device: one waits for the connection manager's events, one for each kernel
//! device's completions and one for its other events, and the driver gives the devices what queue
//! pairs have posted.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::device::{Adapter, Role, Shared};
use super::listener::{ListenerState, VerbsPending};
use super::parts::{Inbox, Loss, Lost, News, Request};
use super::raw::{AsyncEvent, CmEvent, CmEventKind, Context, DeviceKey, Devices, Finished, Id};
use crate::listening::log_full_backlog;
use crate::provider::PendingConnection;

/// How long to wait between looks for a device that was removed.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// How often to look, after a device was lost, whether it can be closed.
const LETTING_GO: usize = 5;

/// Why a device is lost of which the connection manager says that it was removed.
const REMOVED: &str = "it was removed";

/// How long to leave a descriptor alone that cannot be waited for.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Takes the connection manager's events.
pub(super) async fn manage(shared: Rc<Shared>) {
    loop {
        if let Err(error) = reactor::readable(shared.channel.fd()).await {
            tracing::warn!(%error, "cannot wait for the RDMA connection manager");
            reactor::sleep(ERROR_PAUSE).await;
        }
        loop {
            match shared.channel.next() {
                Ok(Some(event)) => shared.manage_event(event),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "an event of the RDMA connection manager was lost");
                    reactor::sleep(ERROR_PAUSE).await;
                    break;
                }
            }
        }
    }
}

/// Takes what the device's other parts say.
pub(super) async fn hear(shared: Rc<Shared>, mut inbox: Inbox) {
    loop {
        match inbox.next().await {
            News::Request(request) => shared.take_over(request),
            News::Loss(loss) => {
                // Requests for a device that is lost are let go of with it.
                while let Some(request) = inbox.waiting_request() {
                    shared.take_over(request);
                }
                shared.hear_of(&loss);
            }
        }
    }
}

/// Takes the completions of a kernel device.
pub(super) async fn complete(shared: Rc<Shared>, adapter: Rc<Adapter>) {
    let domain = &adapter.domain;
    let mut batch = Vec::new();
    let mut finished = Finished::default();
    loop {
        if let Err(error) = reactor::readable(domain.channel_fd()).await {
            tracing::warn!(device = domain.name(), %error, "cannot wait for completions");
            reactor::sleep(ERROR_PAUSE).await;
        }
        shared.counters.borrow_mut().wakeups += 1;
        if let Err(error) = domain.take_channel_events() {
            shared.lose(&adapter, &error.to_string());
            return;
        }
        let mut armed = false;
        loop {
            batch.clear();
            batch.append(&mut adapter.backlog.borrow_mut());
            if let Err(error) = domain.poll(&mut batch) {
                shared.lose(&adapter, &error.to_string());
                return;
            }
            shared.counters.borrow_mut().completions += batch.len() as u64;
            for work in &batch {
                let connection = adapter.connections.borrow().get(&work.queue_pair).cloned();
                match connection {
                    Some(connection) => connection.completed(work, &mut finished),
                    None => adapter.throw_away(work),
                }
            }
            match adapter.receives.as_ref().map_or(Ok(0), |r| r.refill()) {
                Ok(calls) => shared.counters.borrow_mut().posts += calls,
                Err(error) => {
                    shared.lose(&adapter, &error.to_string());
                    return;
                }
            }
            if !batch.is_empty() {
                armed = false;
                // The tasks that were woken post their work, and the driver gives it to the device,
                // before the next look.
                reactor::yield_now().await;
            } else if armed {
                break;
            } else {
                // What completes after this look but before the arming makes no event: look once more.
                if let Err(error) = domain.arm() {
                    shared.lose(&adapter, &error.to_string());
                    return;
                }
                armed = true;
            }
        }
    }
}

/// Takes what a kernel device reports outside of completions.
pub(super) async fn watch(shared: Rc<Shared>, adapter: Rc<Adapter>) {
    let domain = &adapter.domain;
    let device = domain.name();
    loop {
        if let Err(error) = reactor::readable(domain.async_fd()).await {
            tracing::warn!(device, %error, "cannot wait for the device's events");
            reactor::sleep(ERROR_PAUSE).await;
        }
        loop {
            let lost = match domain.next_async_event() {
                Ok(None) => break,
                Ok(Some(event)) => shared.device_event(&adapter, event),
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = lost {
                tracing::error!(
                    device,
                    why,
                    "an RDMA device is lost; its connections are closed"
                );
                shared.lose(&adapter, &why);
                return;
            }
        }
    }
}

/// Gives the devices what was posted, and ends connections.
pub(super) async fn drive(shared: Rc<Shared>) {
    let closing = Closing(shared);
    let shared = &closing.0;
    loop {
        loop {
            let marked = std::mem::take(&mut *shared.marked.borrow_mut());
            if marked.is_empty() {
                break;
            }
            for connection in marked {
                connection.marked.set(false);
                connection.work();
            }
        }
        poll_fn(|cx| {
            if !shared.marked.borrow().is_empty() {
                return Poll::Ready(());
            }
            shared.set_driver_waker(cx.waker());
            Poll::Pending
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
        let roles = std::mem::take(&mut *self.0.roles.borrow_mut());
        for role in roles.into_values() {
            match role {
                Role::Connection(connection) => connection.abandon(),
                Role::Listener(_) => {}
                Role::Goodbye(id) => drop(id),
            }
        }
        let listeners = self.0.listeners.take();
        listeners.iter().for_each(|listener| listener.close());
        self.0.marked.take();
        self.0.adapters.take();
    }
}

impl Shared {
    fn manage_event(self: &Rc<Self>, event: CmEvent) {
        let role = self.roles.borrow().get(&event.id).cloned();
        match (role, event.what) {
            (
                Some(Role::Listener(listener)),
                CmEventKind::Request {
                    id,
                    private_data,
                    responder_resources,
                    initiator_depth,
                },
            ) => {
                let (local, port) = (id.local(), listener.port());
                let listening = &self.parts.listening;
                let parts = local.map_or_else(Vec::new, |local| listening.parts(local.ip(), port));
                // An identifier that was just made has no queue pair.
                let Some(id) = id.loose() else { return };
                self.deal_out(Request {
                    id,
                    port,
                    private_data,
                    responder_resources,
                    initiator_depth,
                    slot: self.parts.slot(&parts),
                });
            }
            (Some(Role::Listener(listener)), CmEventKind::DeviceRemoved) => {
                self.roles.borrow_mut().remove(&event.id);
                if let Some((address, context)) = listener.remove(event.id) {
                    if let Some(context) = context {
                        self.lose_device(context.key(), REMOVED);
                        self.tell_of(context.key(), REMOVED);
                    }
                    tracing::error!(%address, port = listener.port(),
                        "the RDMA device of a listener was removed; it listens again when one is back");
                    self.listen_again(&listener, address);
                }
            }
            (Some(Role::Connection(connection)), what) => {
                if let CmEventKind::DeviceRemoved = what {
                    self.lose_context(connection.context());
                }
                connection.event(what);
            }
            (Some(Role::Goodbye(_)), CmEventKind::Disconnected | CmEventKind::TimewaitOver) => {
                self.end_goodbye(event.id);
            }
            // An identifier that was let go of. A request to it is refused by being dropped.
            (_, what) => drop(what),
        }
    }
}

impl Shared {
    /// Gives a request to the part that shall answer it.
    fn deal_out(self: &Rc<Self>, request: Request) {
        if self.parts.is_here(&request.slot) {
            self.take_over(request);
        } else if let Err(request) = self.parts.hand_over(request) {
            let peer = request.id.keep().peer();
            self.refuse(peer, request.port);
        }
    }

    /// Lets a listener of this part have a request.
    fn take_over(self: &Rc<Self>, request: Request) {
        let port = request.port;
        let pending = VerbsPending::new(self, request);
        let listener = pending.as_ref().and_then(|pending| {
            let listeners = self.listeners.borrow();
            let local = pending.local().ip();
            let theirs = listeners.iter().filter(|l| l.takes(local, port));
            // One that names the address comes first, as with the kernel.
            theirs.max_by_key(|l| l.address().is_some()).cloned()
        });
        let peer = pending.as_ref().map(PendingConnection::peer);
        let taken = match (pending, listener) {
            (Some(pending), Some(listener)) => listener.offer(pending),
            _ => false,
        };
        if !taken {
            self.refuse(peer, port);
        }
    }

    fn refuse(&self, peer: Option<SocketAddr>, port: u16) {
        self.counters.borrow_mut().refused += 1;
        match peer {
            Some(peer) => log_full_backlog(peer.ip(), port),
            None => tracing::debug!(port, "connection request refused: its peer is gone"),
        }
    }

    /// The device of this context was removed.
    fn lose_context(&self, context: Option<Context>) {
        let adapter = context.and_then(|context| self.adapter_of(context.key()));
        if let Some(adapter) = adapter {
            self.lose(&adapter, REMOVED);
        }
    }

    /// Another part has lost something.
    fn hear_of(&self, loss: &Loss) {
        match loss.lost {
            Lost::Device(device) => self.lose_device(device, &loss.why),
            Lost::CompletionQueue(queue) => {
                let adapters = self.adapters.borrow().clone();
                let its = |adapter: &&Rc<Adapter>| adapter.domain.has_queue(queue);
                if let Some(adapter) = adapters.iter().find(its) {
                    self.let_go(adapter, &loss.why);
                }
            }
        }
    }

    /// Tells the other parts that a device is lost.
    fn tell_of(&self, device: DeviceKey, why: &str) {
        self.parts.tell(&Loss {
            lost: Lost::Device(device),
            why: why.to_owned(),
        });
    }

    /// Takes note of a device's event; says so if the device is lost with it.
    fn device_event(&self, adapter: &Rc<Adapter>, event: AsyncEvent) -> Option<String> {
        let device = adapter.domain.name();
        self.counters.borrow_mut().device_events += 1;
        match event {
            AsyncEvent::Fatal => return Some("it was removed, or broke".into()),
            // The parts share the device's events, so it may be another one's.
            AsyncEvent::CompletionQueue(queue) => {
                let loss = Loss {
                    lost: Lost::CompletionQueue(queue),
                    why: "a completion queue overflowed".into(),
                };
                self.hear_of(&loss);
                self.parts.tell(&loss);
            }
            AsyncEvent::PortDown(port) => {
                tracing::warn!(device, port, "a port of the RDMA device went down");
            }
            AsyncEvent::PortUp(port) => {
                tracing::info!(device, port, "a port of the RDMA device came up");
            }
            AsyncEvent::Other(what) => tracing::debug!(device, what, "device event"),
        }
        None
    }

    /// This part has found that a device is lost.
    fn lose(&self, adapter: &Rc<Adapter>, why: &str) {
        let device = adapter.domain.context().key();
        let is_news = self.adapter_of(device).is_some();
        self.lose_device(device, why);
        if is_news {
            self.tell_of(device, why);
        }
    }

    /// Lets go of a device that is lost, and of the requests that wait for it.
    fn lose_device(&self, device: DeviceKey, why: &str) {
        let listeners = self.listeners.borrow().clone();
        listeners.iter().for_each(|l| l.forget_device(device));
        if let Some(adapter) = self.adapter_of(device) {
            self.let_go(&adapter, why);
        }
    }

    /// Closes every connection of this part with a device, and lets go of the device: the kernel may wait
    /// for that before it removes it.
    pub(super) fn let_go(&self, adapter: &Rc<Adapter>, why: &str) {
        let connections: Vec<_> = adapter.connections.borrow().values().cloned().collect();
        for connection in connections {
            connection.device_lost(why);
        }
        let mut adapters = self.adapters.borrow_mut();
        let before = adapters.len();
        adapters.retain(|known| !Rc::ptr_eq(known, adapter));
        if adapters.len() < before {
            adapter.stop();
            let libraries = self.libraries;
            reactor::spawn(async move {
                for _ in 0..LETTING_GO {
                    reactor::sleep(LISTEN_PAUSE).await;
                    // The connection manager's library looks which devices there are, and closes those
                    // that are not there any more and not in use.
                    drop(Devices::open(libraries));
                }
            })
            .detach();
        }
    }

    /// Listens again on the address of a device that was removed, as soon as one owns it.
    fn listen_again(self: &Rc<Self>, listener: &Rc<ListenerState>, address: IpAddr) {
        let (shared, listener) = (Rc::downgrade(self), Rc::downgrade(listener));
        reactor::spawn(async move {
            loop {
                reactor::sleep(LISTEN_PAUSE).await;
                // Whoever listened may have gone meanwhile.
                let (Some(shared), Some(listener)) = (shared.upgrade(), listener.upgrade()) else {
                    return;
                };
                if shared.closed.get() {
                    return;
                }
                match shared.listen_on(&listener, address) {
                    Ok(()) => {
                        tracing::info!(%address, port = listener.port(), "an RDMA device is back");
                        return;
                    }
                    Err(error) => tracing::debug!(%address, %error, "no RDMA device yet"),
                }
            }
        })
        .detach();
    }
}

/// Kept until the peer agrees to the end of its connection.
pub(super) type Goodbye = Rc<Id>;
