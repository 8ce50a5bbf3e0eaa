//! The life of a queue: Connect, commands, the end; and with an admin queue, the life of its
//! association.
//!
//! Guarantees:
//! - A queue that does not connect in time is closed.
//! - Commands run side by side, each to its end; there are at most as many as the queue has entries,
//!   which the transport enforces.
//! - When a queue ends, for whatever reason, its waiting commands are dropped and its working ones
//!   finish before the queue is forgotten. When an admin queue ends, its I/O queues end with it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, pin_mut, select_biased};
use nvme::command::FABRICS_OPCODE;
use nvme::{Cqe, Status};

use crate::command::Command;
use crate::connect::{self, Joined};
use crate::controller::{Controller, QueueHandle};
use crate::queue::Queue;
use crate::subsystem::Target;
use crate::{admin, fabrics, io};

/// How long a queue may take from its creation to a Connect that succeeds. Hosts send it at once; their
/// own patience is 60 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a stopping target waits for a queue's commands before it closes the queue under them.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves a queue from its creation to its end. Runs on the queue's reactor.
pub async fn serve_queue<Q: Queue>(target: Arc<Target>, queue: Q) {
    let facts = queue.facts();
    let joined = reactor::timeout(CONNECT_TIMEOUT, connect::join(&target, &queue)).await;
    let Ok(Some(Joined { controller, handle })) = joined else {
        tracing::debug!(peer = %facts.peer, qid = facts.qid, "queue ended before it connected");
        queue.close();
        return;
    };
    if handle.qid == 0 {
        tracing::info!(
            host = %controller.host.nqn,
            peer = %facts.peer,
            cntlid = controller.id,
            subsystem = %controller.subsystem.nqn,
            "host connected"
        );
    }
    let why = serve(&target, &controller, &handle, &queue).await;
    if why == End::Stopping {
        // What the engine works on is answered; what still waits is repeated by the host later.
        handle.commands.end();
        let _ = reactor::timeout(QUIESCE_TIMEOUT, handle.commands.drained()).await;
    }
    queue.close();
    handle.close();
    handle.commands.end();
    if handle.qid == 0 {
        controller.end();
    }
    handle.commands.drained().await;
    controller.detach(&handle);
    if handle.qid == 0 {
        controller.queues_gone().await;
        controller.subsystem.remove(controller.id);
        tracing::info!(
            host = %controller.host.nqn,
            peer = %facts.peer,
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
    Stopping,
}

impl End {
    const fn reason(self) -> &'static str {
        match self {
            Self::Transport => "its connection ended",
            Self::Controller => "its controller ended",
            Self::KeepAlive => "it was silent for longer than its keep-alive timeout",
            Self::Stopping => "the daemon stops",
        }
    }
}

async fn serve<Q: Queue>(
    target: &Arc<Target>,
    controller: &Arc<Controller>,
    handle: &Arc<QueueHandle>,
    queue: &Q,
) -> End {
    let close_requested = handle.close_requested().fuse();
    let stopped = target.stopped().fuse();
    let silent = async {
        match handle.qid {
            0 => controller.keep_alive_expired().await,
            _ => std::future::pending().await,
        }
    }
    .fuse();
    pin_mut!(close_requested, stopped, silent);
    loop {
        let next = queue.next_command().fuse();
        pin_mut!(next);
        select_biased! {
            () = close_requested => return End::Controller,
            () = stopped => return End::Stopping,
            () = silent => {
                tracing::warn!(
                    controller = ?controller,
                    kato_ms = controller.kato_ms(),
                    "the host is silent: keep-alive timeout"
                );
                controller.fail();
                return End::KeepAlive;
            }
            capsule = next => match capsule {
                None => return End::Transport,
                Some(capsule) => start(target, controller, handle, queue, capsule),
            },
        }
    }
}

/// Starts a command in a task of its own.
fn start<Q: Queue>(
    target: &Arc<Target>,
    controller: &Arc<Controller>,
    handle: &Arc<QueueHandle>,
    queue: &Q,
    capsule: Q::Capsule,
) {
    controller.saw_command();
    let in_flight = match handle.commands.begin(Q::sqe(&capsule).cid()) {
        Ok(in_flight) => in_flight,
        Err(status) => return queue.complete(capsule, Cqe::new(status, 0), None),
    };
    let command = Command::new(
        target.clone(),
        controller.clone(),
        handle.clone(),
        queue.clone(),
        capsule,
        in_flight,
    );
    drop(reactor::spawn(run(command)));
}

async fn run<Q: Queue>(command: Command<Q>) {
    let fabrics = command.sqe().opcode() == FABRICS_OPCODE;
    let outcome = match command.handle.qid {
        _ if fabrics => fabrics::run(&command).await,
        _ if !command.controller.is_ready() => Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
        0 => admin::run(&command).await,
        _ => io::run(&command).await,
    };
    let disconnect = fabrics && outcome.is_ok() && fabrics::is_disconnect(command.sqe());
    let handle = command.handle.clone();
    command.answer(outcome);
    if disconnect {
        handle.close();
    }
}
