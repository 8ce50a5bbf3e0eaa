//! A reactor's way to a connection: a queue, at which the reactor looks, and the tasks that wait for the server.
//!
//! Guarantees: each reactor that uses a connection looks at its own queue, so that none depends on another one that may end;
//! the server calls a reactor that sleeps and waits for an answer; what it does not answer in time ends the connection; all
//! this ends with that.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use futures_util::future::{Either, select};
use reactor::Source;

use crate::connection::{Connection, Ending};
use crate::queue::Queue;
use crate::shared::Shared;

thread_local! {
    /// Which queue this thread's reactor uses of a connection, by the connection's number.
    static QUEUES: RefCell<Vec<(u64, Way)>> = const { RefCell::new(Vec::new()) };
}

/// A reactor's queue, and its number there.
#[derive(Clone, Copy)]
struct Way {
    queue: usize,
    user: usize,
}

/// This reactor's queue, and its number there; the first call begins to wait for the server.
///
/// # Errors
/// There is no reactor on this thread.
pub(crate) fn queue_of(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
) -> Result<(Arc<Queue>, usize), &'static str> {
    let known = QUEUES.with_borrow(|queues| {
        let mut all = queues.iter();
        all.find(|(number, _)| *number == connection.number)
            .copied()
    });
    if let Some((_, Way { queue, user })) = known {
        return Ok((connection.queues[queue].clone(), user));
    }
    if reactor::current().is_none() {
        return Err("is used on a thread without a reactor");
    }
    let at = connection.deal_queue();
    let queue = connection.queues[at].clone();
    let user = queue.join();
    let way = Way { queue: at, user };
    QUEUES.with_borrow_mut(|queues| queues.push((connection.number, way)));
    let entry = Entry(connection.number);
    let answers = reactor::watch(Rc::new(Answers {
        shared: Arc::downgrade(shared),
        connection: connection.clone(),
        queue: queue.clone(),
        user,
        wakers: RefCell::default(),
    }));
    let calls = watch(shared, connection, wait_for_calls(queue.clone()));
    let limit = shared.limits.command;
    let late = watch(shared, connection, wait_for_late(queue.clone(), limit));
    let socket = watch(shared, connection, wait_for_socket(connection.clone()));
    reactor::spawn(async move {
        let _these = (entry, answers);
        calls.await;
    })
    .detach();
    reactor::spawn(late).detach();
    reactor::spawn(socket).detach();
    Ok((queue, user))
}

/// The answers in a queue, as long as its reactor looks at them.
struct Answers {
    shared: Weak<Shared>,
    connection: Arc<Connection>,
    queue: Arc<Queue>,
    user: usize,
    /// Room for those that are woken.
    wakers: RefCell<Vec<Waker>>,
}

impl Source for Answers {
    fn has_events(&self) -> bool {
        self.queue.has_answers()
    }

    fn take_events(&self) {
        if !self.queue.has_answers() {
            return;
        }
        let mut wakers = self.wakers.take();
        let collected = self.queue.collect(&mut wakers);
        self.wakers.replace(wakers);
        if let Err(lie) = collected {
            let ending = Ending {
                text: format!("the server breaks the rules of its queue: {lie}"),
                is_lie: true,
            };
            end(&self.shared, &self.connection, ending);
        }
    }

    fn notify(&self) {
        self.queue.kick_if_wanted();
    }

    fn fall_asleep(&self) -> bool {
        self.queue.fall_asleep(self.user)
    }

    fn wake_up(&self) {
        self.queue.wake_up(self.user);
    }
}

/// The queue of a connection, among those of its reactor. Dropped when the connection ends, or with all tasks of the reactor.
struct Entry(u64);

impl Drop for Entry {
    fn drop(&mut self) {
        // The thread may be ending, and the table with it.
        let _ = QUEUES.try_with(|queues| {
            queues.borrow_mut().retain(|(number, _)| *number != self.0);
        });
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
        end(&shared, &connection, found);
    }
}

/// Ends a connection, also of a drive that nobody has any more.
fn end(shared: &Weak<Shared>, connection: &Arc<Connection>, ending: Ending) {
    match shared.upgrade() {
        Some(shared) => shared.lose(connection, ending),
        None => {
            connection.end(ending);
        }
    }
}

/// Lets the reactor wake up when the server calls. What it has answered is taken by who looks.
async fn wait_for_calls(queue: Arc<Queue>) -> Ending {
    loop {
        if let Err(error) = reactor::readable(queue.call()).await {
            return Ending {
                text: format!("its events cannot be waited for: {error}"),
                is_lie: false,
            };
        }
        let _ = rustix::io::read(queue.call(), &mut [0_u8; 8]);
    }
}

/// Waits until a command has been with the server for too long.
async fn wait_for_late(queue: Arc<Queue>, limit: Duration) -> Ending {
    loop {
        let now = reactor::now();
        // What is sent after this look is late after the next one at the earliest.
        let next = match queue.oldest() {
            // This process may have stood still, and not the server.
            Some((since, _)) if since + limit <= now && queue.has_answers() => {
                reactor::yield_now().await;
                continue;
            }
            Some((since, kind)) if since + limit <= now => {
                return Ending {
                    text: format!("the server did not answer {} within {limit:?}", kind.what()),
                    is_lie: false,
                };
            }
            Some((since, _)) => since + limit,
            None => now + limit,
        };
        reactor::sleep_until(next).await;
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
