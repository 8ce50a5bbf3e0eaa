//! A reactor's way to a connection: a queue, and the tasks that wait for the server.
//!
//! Guarantees: each reactor that uses a connection waits for its own queue, so that none depends on another one that may end;
//! the tasks end with the connection.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};

use futures_util::future::{Either, select};

use crate::connection::{Connection, Ending};
use crate::queue::Queue;
use crate::shared::Shared;

thread_local! {
    /// Which queue this thread's reactor uses of a connection, by the connection's number.
    static QUEUES: RefCell<HashMap<u64, usize>> = RefCell::default();
}

/// This reactor's queue; the first call begins to wait for the server.
///
/// # Errors
/// There is no reactor on this thread.
pub(crate) fn queue_of(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
) -> Result<Arc<Queue>, &'static str> {
    let known = QUEUES.with_borrow(|queues| queues.get(&connection.number).copied());
    if let Some(at) = known {
        return Ok(connection.queues[at].clone());
    }
    if reactor::current().is_none() {
        return Err("is used on a thread without a reactor");
    }
    let at = connection.deal_queue();
    QUEUES.with_borrow_mut(|queues| queues.insert(connection.number, at));
    let entry = Entry(connection.number);
    let queue = connection.queues[at].clone();
    let answers = watch(
        shared,
        connection,
        wait_for_answers(connection.clone(), queue.clone()),
    );
    let socket = watch(shared, connection, wait_for_socket(connection.clone()));
    reactor::spawn(async move {
        let _entry = entry;
        answers.await;
    })
    .detach();
    reactor::spawn(socket).detach();
    Ok(queue)
}

/// The queue of a connection, among those of its reactor. Dropped when the connection ends, or with all tasks of the reactor.
struct Entry(u64);

impl Drop for Entry {
    fn drop(&mut self) {
        // The thread may be ending, and the table with it.
        let _ = QUEUES.try_with(|queues| queues.borrow_mut().remove(&self.0));
    }
}

/// Waits until the connection ends, and ends it for the reason that `wait` finds.
fn watch(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    wait: impl Future<Output = Ending> + 'static,
) -> impl Future<Output = ()> + 'static {
    // The drive is dropped by who has it, and not by this.
    let shared: Weak<Shared> = Arc::downgrade(shared);
    let connection = connection.clone();
    async move {
        let ended = connection.ended.wait();
        let found = match select(ended, pin!(wait)).await {
            Either::Left(_) => return,
            Either::Right((ending, _)) => ending,
        };
        match shared.upgrade() {
            Some(shared) => shared.lose(&connection, found),
            None => {
                connection.end(found);
            }
        }
    }
}

async fn wait_for_answers(connection: Arc<Connection>, queue: Arc<Queue>) -> Ending {
    let broken = |error: std::io::Error| Ending {
        text: format!("its events cannot be waited for: {error}"),
        is_lie: false,
    };
    loop {
        if let Err(error) = reactor::readable(queue.call()).await {
            return broken(error);
        }
        // Before the ring is looked at: what is answered after that makes the descriptor readable again.
        let _ = rustix::io::read(queue.call(), &mut [0_u8; 8]);
        if let Err(lie) = queue.collect() {
            tracing::debug!(
                connection = connection.number,
                lie,
                "the server broke a rule"
            );
            return Ending {
                text: format!("the server breaks the rules of its queue: {lie}"),
                is_lie: true,
            };
        }
    }
}

async fn wait_for_socket(connection: Arc<Connection>) -> Ending {
    loop {
        if let Err(error) = reactor::readable(connection.socket()).await {
            return Ending {
                text: format!("its socket cannot be waited for: {error}"),
                is_lie: false,
            };
        }
        if let Some(ending) = connection.look_at_socket() {
            return ending;
        }
    }
}
