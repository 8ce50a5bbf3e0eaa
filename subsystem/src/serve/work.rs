//! What a worker of a queue does: it takes commands, and has each worked on until it is answered.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;

use fabric::serving::{Call, Leadership, Worker};
use nvme::Status;
use nvme::command::FABRICS_OPCODE;

use crate::commands::io::fused::{self, Work};
use crate::commands::{admin, fabrics, io};
use crate::connected_queue::ConnectedQueue;
use crate::connected_queue::command::Command;
use crate::queue::Queue;

/// Commands that a leader works on before it lets other tasks of the reactor have a turn.
const COMMANDS_PER_POLL: u32 = 32;

/// Begins to work on the commands of a queue, with a worker that leads.
pub(super) fn begin<Q: Queue>(queue: &Rc<ConnectedQueue<Q>>) {
    drop(reactor::spawn(work(queue.clone())));
}

/// A worker's life; it begins as the leader.
async fn work<Q: Queue>(queue: Rc<ConnectedQueue<Q>>) {
    let worker = Rc::new(Worker::default());
    let mut lead = Leadership::taken(&queue.workers);
    let mut commands = 0;
    // The first command of a fused operation: the leader keeps it until the next one is there.
    let mut held = None;
    loop {
        let next = queue.transport.next_command();
        let next = match &held {
            None => next.await,
            Some(_) => match reactor::timeout(fused::SECOND_TIMEOUT, next).await {
                Ok(next) => next,
                Err(_) => {
                    fused::give_up(&mut held);
                    continue;
                }
            },
        };
        let Some(capsule) = next else {
            return;
        };
        if queue.handle.waiting.is_ending() {
            // The queue is about to be closed: the host repeats the command elsewhere.
            return;
        }
        let Some(command) = Command::begin(&queue, capsule) else {
            continue;
        };
        let Some(work) = fused::next(&mut held, command) else {
            continue;
        };
        let mut running = pin!(async {
            match work {
                Work::One(command) => run(command).await,
                Work::Both(both) => Box::pin(fused::run(both.0, both.1)).await,
            }
        });
        poll_fn(|cx| {
            let polled = running.as_mut().poll(cx);
            if polled.is_pending() && lead.is_held() {
                lead.hand_on(|| begin(&queue));
            }
            // Not polled again at once: a write lets the next commands come before it goes on.
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
async fn run<Q: Queue>(command: Command<Q>) {
    let queue = command.queue.clone();
    let fabrics = command.sqe().opcode() == FABRICS_OPCODE;
    let outcome = match queue.handle.qid {
        _ if !queue.auth.admits(command.sqe()) => {
            Err(Status::AUTHENTICATION_REQUIRED.with_dnr().into())
        }
        _ if fabrics => fabrics::run(&command).await,
        _ if !queue.controller.is_ready() => Err(Status::COMMAND_SEQUENCE.with_dnr().into()),
        0 => admin::run(&command).await,
        _ => match command.stopwatch() {
            None => io::run(&command).await,
            Some(stopwatch) => dedup::watched(stopwatch.clone(), io::run(&command)).await,
        },
    };
    let disconnect = fabrics && outcome.is_ok() && fabrics::is_disconnect(command.sqe());
    command.answer(outcome);
    if disconnect || queue.auth.is_over() {
        queue.handle.close();
    }
}
