//! Serves a queue: Connect, commands, the end. The life of an admin queue is that of its association.
//!
//! Guarantees:
//! - A queue that does not connect in time is closed.
//! - Commands run concurrently, each to its end; the transport allows at most as many as the queue has entries.
//! - When a queue ends, for any reason, its running commands finish before the queue is forgotten. When an admin queue
//!   ends, its I/O queues end too, and the association is forgotten when all of them are.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fabric::TargetQueue;
use fabric::serving::auth::QueueAuth;
use fabric::serving::{Call, Leadership, Worker};
use futures_util::{FutureExt, pin_mut, select_biased};
use nvme::Status;
use nvme::command::FABRICS_OPCODE;

use crate::commands::{admin, fabrics, io};
use crate::connect::{self, Joined};
use crate::limits::{AUTH_LIMITS, CONNECT_TIMEOUT, QUIESCE_TIMEOUT};
use crate::queue::{Command, ConnectedQueue};
use crate::target::Sled;

/// How often a queue ends workers that it no longer needs.
const SHRINK_INTERVAL: Duration = Duration::from_secs(10);

/// Commands that a leader works on before it lets other tasks of the reactor have a turn.
const COMMANDS_PER_POLL: u32 = 32;

/// Serves a queue from its creation to its end. Runs on the queue's reactor.
pub async fn serve_queue(sled: Arc<Sled>, transport: TargetQueue) {
    let info = transport.info();
    let Some(reactor) = reactor::current() else {
        tracing::error!("a queue cannot be served outside of a reactor");
        return transport.close();
    };
    let buffers = reactor.buffers().clone();
    let admin_buffers = transport.admin_buffers().unwrap_or_else(|| buffers.clone());
    let joining = connect::join(&sled, &transport, &admin_buffers);
    let joined = reactor::timeout(CONNECT_TIMEOUT, joining).await;
    let Ok(Some(Joined {
        controller,
        handle,
        has_to_authenticate,
        ..
    })) = joined
    else {
        tracing::debug!(peer = %info.peer, qid = info.qid, "queue ended before it connected");
        return transport.close();
    };
    let is_admin = handle.qid == 0;
    let buffers = if is_admin { admin_buffers } else { buffers };
    let auth = QueueAuth::new(has_to_authenticate, AUTH_LIMITS.timeout);
    let queue = ConnectedQueue::new(sled, controller, handle, transport, buffers, auth);
    if !has_to_authenticate {
        queue.proved();
    }
    begin(&queue);
    let why = watch(&queue).await;
    let ConnectedQueue {
        controller, handle, ..
    } = &*queue;
    queue.end();
    if why == End::Stopping {
        // What the drives work on is answered; the host repeats the rest later.
        let _ = reactor::timeout(QUIESCE_TIMEOUT, queue.in_flight.none_left()).await;
    }
    queue.transport.close();
    handle.close.set();
    if is_admin {
        controller.end();
    }
    queue.in_flight.none_left().await;
    handle.barriers.pass_all();
    queue.workers.end_idle();
    controller.detach(handle);
    if !is_admin {
        return;
    }
    controller.queues_gone().await;
    queue.sled.registry(controller.kind).remove(controller.id);
    if controller.is_admitted() && !controller.is_discovery() {
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
    Stopping,
}

impl End {
    const fn reason(self) -> &'static str {
        match self {
            Self::Transport => "its connection ended",
            Self::Controller => "its controller ended",
            Self::KeepAlive => "it was silent for longer than its keep-alive timeout",
            Self::Authentication => "it did not authenticate in time",
            Self::Stopping => "the sled stops",
        }
    }
}

/// Waits for the end of the queue. Commands do not pass here: the workers take them.
async fn watch(queue: &Rc<ConnectedQueue>) -> End {
    let (controller, handle) = (&queue.controller, &queue.handle);
    let close_requested = handle.close.wait().fuse();
    let stopped = queue.sled.stopped().fuse();
    let lost = queue.workers.lost().fuse();
    let silent = async {
        match handle.qid {
            0 => loop {
                controller.keep_alive_expired().await;
                // Authentication has a timeout of its own.
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
            () = close_requested => return match controller.is_silent(reactor::now()) {
                true => End::KeepAlive,
                false => End::Controller,
            },
            () = lost => return End::Transport,
            () = silent => {
                controller.fail();
                return End::KeepAlive;
            }
            // This future never ends.
            () = barriers => {}
            () = shrink => queue.workers.shrink(),
        }
        if queue.auth.is_late() {
            let (host, peer, qid) = (&controller.host.nqn, controller.peer, handle.qid);
            if !queue.auth.has_failed() {
                queue.sled.access().exchanges.failed(peer.ip(), host);
            }
            fabric::log_of_peer!(warn, "does not authenticate", peer.ip(), %host, %peer, qid, "the host does not authenticate: closed");
            return End::Authentication;
        }
    }
}

/// Begins to work on the commands of a queue, with a worker that leads.
fn begin(queue: &Rc<ConnectedQueue>) {
    drop(reactor::spawn(work(queue.clone())));
}

/// A worker's life; it begins as the leader.
async fn work(queue: Rc<ConnectedQueue>) {
    let worker = Rc::new(Worker::default());
    let mut lead = Leadership::taken(&queue.workers);
    let mut commands = 0;
    loop {
        let Some(capsule) = queue.transport.next_command().await else {
            return;
        };
        if queue.is_ending() {
            // The queue is about to be closed: the host repeats the command elsewhere.
            return;
        }
        let Some(command) = Command::begin(&queue, capsule) else {
            continue;
        };
        let mut running = pin!(run(command));
        poll_fn(|cx| {
            let polled = running.as_mut().poll(cx);
            if polled.is_pending() && lead.is_held() {
                lead.hand_on(|| begin(&queue));
            }
            polled
        })
        .await;
        if !lead.is_held() {
            queue.workers.add_idle(&worker);
            if worker.called().await == Call::End {
                return;
            }
            lead.take();
            commands = 0;
        } else {
            commands += 1;
            if commands == COMMANDS_PER_POLL {
                commands = 0;
                reactor::yield_now().await;
            }
        }
    }
}

/// Works on a command until it is answered.
async fn run(command: Command) {
    let queue = command.queue.clone();
    let is_fabrics = command.sqe().opcode() == FABRICS_OPCODE;
    let outcome = match queue.handle.qid {
        _ if !queue.auth.admits(command.sqe()) => {
            Err(Status::AUTHENTICATION_REQUIRED.with_dnr().into())
        }
        _ if is_fabrics => fabrics::run(&command).await,
        _ if !queue.controller.is_ready() => Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
        0 => admin::run(&command).await,
        _ => io::run(&command).await,
    };
    let disconnects = is_fabrics && outcome.is_ok() && fabrics::is_disconnect(command.sqe());
    command.answer(outcome);
    if disconnects || queue.auth.is_over() {
        queue.handle.close.set();
    }
}
