//! Serves a queue: Connect, commands, the end. The life of an admin queue is that of its association.
//!
//! Guarantees:
//! - A queue that does not connect in time is closed.
//! - Commands run concurrently, each to its end; the transport allows at most as many as the queue has entries.
//! - When a queue ends, for any reason, its waiting commands are dropped, and its running ones finish before the queue is
//!   forgotten. When an admin queue ends, its I/O queues end too.

mod connect;
mod work;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fabric::serving::auth::QueueAuth;
use futures_util::{FutureExt, pin_mut, select_biased};

use crate::connected_queue::ConnectedQueue;
use crate::queue::Queue;
use crate::target::Target;
use connect::Joined;

/// The time from a queue's creation to a successful Connect. Hosts send it at once, and give up after 60 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a stopping target waits for a queue's commands before it closes the queue.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a queue ends workers that it no longer needs.
const SHRINK_INTERVAL: Duration = Duration::from_secs(10);

/// Serves a queue from its creation to its end. Runs on the queue's reactor.
pub async fn serve_queue<Q: Queue>(target: Arc<Target>, transport: Q) {
    let info = transport.info();
    let Some(reactor) = reactor::current() else {
        tracing::error!("a queue cannot be served outside of a reactor");
        return transport.close();
    };
    let buffers = reactor.buffers().clone();
    let admin_buffers = transport.admin_buffers().unwrap_or_else(|| buffers.clone());
    let joining = connect::join(&target, &transport, &admin_buffers);
    let joined = reactor::timeout(CONNECT_TIMEOUT, joining).await;
    let Ok(Some(Joined {
        controller,
        handle,
        authenticates,
        ..
    })) = joined
    else {
        tracing::debug!(peer = %info.peer, qid = info.qid, "queue ended before it connected");
        transport.close();
        return;
    };
    let buffers = match handle.qid {
        0 => admin_buffers,
        _ => buffers,
    };
    let auth = QueueAuth::new(authenticates, target.limits.auth_timeout);
    let queue = ConnectedQueue::new(target, controller, handle, transport, buffers, auth);
    work::begin(&queue);
    let why = watch(&queue).await;
    let ConnectedQueue {
        controller,
        handle,
        transport,
        in_flight,
        workers,
        ..
    } = &*queue;
    if why == End::Stopping {
        // Commands in the engine are answered; the host repeats the waiting ones later.
        handle.waiting.end();
        let _ = reactor::timeout(QUIESCE_TIMEOUT, in_flight.none_left()).await;
    }
    transport.close();
    handle.close();
    handle.waiting.end();
    if handle.qid == 0 {
        controller.end();
    }
    in_flight.none_left().await;
    handle.barriers.pass_all();
    workers.end_idle();
    controller.detach(handle);
    if handle.qid == 0 {
        controller.queues_gone().await;
        controller.subsystem.remove(controller.id);
        if !controller.is_admitted() {
            return;
        }
        queue.target.controllers_changed(&controller.subsystem);
        fabric::log_of_peer!(
            info,
            "host gone",
            info.peer.ip(),
            event = "detach",
            host = %controller.host.nqn,
            peer = %info.peer,
            cntlid = controller.id,
            reason = why.reason(),
            "host gone"
        );
    }
}

/// Why a queue ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Transport,
    Controller,
    KeepAlive,
    Authentication,
    KeyMade,
    Stopping,
}

impl End {
    const fn reason(self) -> &'static str {
        match self {
            Self::Transport => "its connection ended",
            Self::Controller => "its controller ended",
            Self::KeepAlive => "it was silent for longer than its keep-alive timeout",
            Self::Authentication => "it did not authenticate in time",
            Self::KeyMade => "it connected to have a TLS key made, and has it",
            Self::Stopping => "the daemon stops",
        }
    }
}

/// Waits for the end of the queue. Commands do not pass here: the workers take them.
async fn watch<Q: Queue>(queue: &Rc<ConnectedQueue<Q>>) -> End {
    let (controller, handle) = (&queue.controller, &queue.handle);
    let close_requested = handle.close_requested().fuse();
    let stopped = queue.target.stopped().fuse();
    let lost = queue.workers.lost().fuse();
    let silent = async {
        match handle.qid {
            0 => loop {
                controller.keep_alive_expired().await;
                // A host that computes its authentication sends nothing meanwhile, and a slow one may compute for
                // longer than its keep-alive timeout. Authentication has a timeout of its own.
                if !queue.auth.is_awaited() {
                    break;
                }
            },
            _ => std::future::pending().await,
        }
    }
    .fuse();
    let barriers = handle.barriers.pass(&queue.in_flight).fuse();
    pin_mut!(close_requested, stopped, lost, silent, barriers);
    loop {
        let shrink = reactor::sleep(queue.auth.pause(SHRINK_INTERVAL)).fuse();
        pin_mut!(shrink);
        select_biased! {
            // First: the end of the admin queue, which has nothing to wait for, asks the others to close too.
            () = stopped => return End::Stopping,
            () = close_requested => return match controller.is_silent() {
                true => End::KeepAlive,
                false => End::Controller,
            },
            () = lost => return End::Transport,
            () = silent => {
                fabric::log_of_peer!(
                    warn,
                    "silent",
                    controller.peer.ip(),
                    controller = %controller,
                    kato_ms = controller.kato_ms(),
                    "the host is silent: keep-alive timeout"
                );
                controller.fail();
                return End::KeepAlive;
            }
            // This future never ends while the handle exists.
            () = barriers => {}
            () = shrink => queue.workers.shrink(),
        }
        if queue.auth.is_late() && queue.auth.has_made_key() {
            return End::KeyMade;
        }
        if queue.auth.is_late() {
            let (host, peer, qid) = (&controller.host.nqn, controller.peer, handle.qid);
            if !queue.auth.has_failed() {
                queue.target.auth.exchanges.failed(peer.ip(), host);
            }
            fabric::log_of_peer!(warn, "does not authenticate", peer.ip(), %host, %peer, qid, "the host does not authenticate: closed");
            return End::Authentication;
        }
    }
}
