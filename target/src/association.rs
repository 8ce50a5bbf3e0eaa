//! The life of a queue: Connect, commands, the end; and with an admin queue, the life of its
//! association.
//!
//! Guarantees:
//! - A queue that does not connect in time is closed.
//! - Commands run side by side, each to its end; there are at most as many as the queue has entries,
//!   which the transport enforces.
//! - When a queue ends, for whatever reason, its waiting commands are dropped and its working ones
//!   finish before the queue is forgotten. When an admin queue ends, its I/O queues end with it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, pin_mut, select_biased};
use nvme::Status;
use nvme::command::FABRICS_OPCODE;

use crate::auth::exchange::QueueAuth;
use crate::command::Command;
use crate::connect::{self, Joined};
use crate::line::Line;
use crate::queue::Queue;
use crate::subsystem::Target;
use crate::{admin, crew, fabrics, io};

/// How long a queue may take from its creation to a Connect that succeeds. Hosts send it at once; their
/// own patience is 60 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a stopping target waits for a queue's commands before it closes the queue under them.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a queue gives back the memory of workers that it no longer needs.
const SHRINK_INTERVAL: Duration = Duration::from_secs(10);

/// Serves a queue from its creation to its end. Runs on the queue's reactor.
pub async fn serve_queue<Q: Queue>(target: Arc<Target>, queue: Q) {
    let facts = queue.facts();
    let Some(reactor) = reactor::current() else {
        tracing::error!("a queue cannot be served outside of a reactor");
        return queue.close();
    };
    let buffers = reactor.buffers().clone();
    let admin_buffers = queue.admin_buffers().unwrap_or_else(|| buffers.clone());
    let joining = connect::join(&target, &queue, &admin_buffers);
    let joined = reactor::timeout(CONNECT_TIMEOUT, joining).await;
    let Ok(Some(Joined {
        controller,
        handle,
        authenticates,
        ..
    })) = joined
    else {
        tracing::debug!(peer = %facts.peer, qid = facts.qid, "queue ended before it connected");
        queue.close();
        return;
    };
    let buffers = match handle.qid {
        0 => admin_buffers,
        _ => buffers,
    };
    let auth = QueueAuth::new(authenticates, target.limits.auth_timeout);
    let line = Line::new(target, controller, handle, queue, buffers, auth);
    crew::begin(&line);
    let why = watch(&line).await;
    let Line {
        controller,
        handle,
        queue,
        in_flight,
        crew,
        ..
    } = &*line;
    if why == End::Stopping {
        // What the engine works on is answered; what still waits is repeated by the host later.
        handle.waiting.end();
        let _ = reactor::timeout(QUIESCE_TIMEOUT, in_flight.none_left()).await;
    }
    queue.close();
    handle.close();
    handle.waiting.end();
    if handle.qid == 0 {
        controller.end();
    }
    in_flight.none_left().await;
    handle.pass_all_barriers();
    crew.dismiss();
    controller.detach(handle);
    if handle.qid == 0 {
        controller.queues_gone().await;
        controller.subsystem.remove(controller.id);
        if !controller.is_admitted() {
            return;
        }
        line.target.controllers_changed(&controller.subsystem);
        fabric::log_of_peer!(
            info,
            "host gone",
            facts.peer.ip(),
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
            Self::KeyMade => "it came for a TLS key, and has it",
            Self::Stopping => "the daemon stops",
        }
    }
}

/// Waits for whatever ends the queue. No command passes here: its crew takes them.
async fn watch<Q: Queue>(line: &Rc<Line<Q>>) -> End {
    let (controller, handle) = (&line.controller, &line.handle);
    let close_requested = handle.close_requested().fuse();
    let stopped = line.target.stopped().fuse();
    let lost = line.crew.lost().fuse();
    let silent = async {
        match handle.qid {
            0 => loop {
                controller.keep_alive_expired().await;
                // A host that computes for its authentication sends nothing else, and a slow one computes for
                // longer than its keep-alive timeout. That has a timeout of its own.
                if !line.auth.is_awaited() {
                    break;
                }
            },
            _ => std::future::pending().await,
        }
    }
    .fuse();
    let barriers = handle.pass_barriers(&line.in_flight).fuse();
    pin_mut!(close_requested, stopped, lost, silent, barriers);
    loop {
        let shrink = reactor::sleep(line.auth.pause(SHRINK_INTERVAL)).fuse();
        pin_mut!(shrink);
        select_biased! {
            () = close_requested => return End::Controller,
            () = stopped => return End::Stopping,
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
            // It has no end: the queue that asks is there.
            () = barriers => {}
            () = shrink => line.crew.shrink(),
        }
        if line.auth.is_late() && line.auth.has_made_key() {
            return End::KeyMade;
        }
        if line.auth.is_late() {
            let (host, peer, qid) = (&controller.host.nqn, controller.peer, handle.qid);
            if !line.auth.has_failed() {
                line.target.auth.timed_out(peer.ip(), host);
            }
            fabric::log_of_peer!(warn, "does not authenticate", peer.ip(), %host, %peer, qid, "the host does not authenticate: closed");
            return End::Authentication;
        }
    }
}

/// Works on a command until it is answered.
pub(crate) async fn run<Q: Queue>(command: Command<Q>) {
    let line = command.line.clone();
    let fabrics = command.sqe().opcode() == FABRICS_OPCODE;
    let outcome = match line.handle.qid {
        _ if !line.auth.admits(command.sqe()) => {
            Err(Status::AUTHENTICATION_REQUIRED.with_dnr().into())
        }
        _ if fabrics => fabrics::run(&command).await,
        _ if !line.controller.is_ready() => Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
        0 => admin::run(&command).await,
        _ => io::run(&command).await,
    };
    let disconnect = fabrics && outcome.is_ok() && fabrics::is_disconnect(command.sqe());
    command.answer(outcome);
    if disconnect || line.auth.is_over() {
        line.handle.close();
    }
}
