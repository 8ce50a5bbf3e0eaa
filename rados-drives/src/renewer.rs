//! A thread that renews a lease.
//!
//! Guarantee: it ends when nobody has its [`Renewer`] any more, after it gave up what it kept, and the end of the process waits for
//! that ([`Ending`]).

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::ending::Ending;

/// What is renewed. Its calls block.
pub(crate) trait Kept: Send + 'static {
    /// The time between two renewals.
    fn period(&self) -> Duration;

    fn renew(&mut self);

    /// Gives it up.
    fn leave(&mut self);
}

/// How a renewer ends.
#[derive(Debug)]
enum Order {
    GoOn,
    /// Give it up.
    Leave(Ending),
    /// Somebody else has it now.
    Stop,
}

type Orders = Arc<(Mutex<Order>, Condvar)>;

/// See the module. Dropping it gives up what it keeps, which the thread does by itself.
#[derive(Debug)]
pub(crate) struct Renewer(Orders);

impl Renewer {
    /// # Errors
    /// The system has no thread for it.
    pub(crate) fn start(kept: impl Kept) -> std::io::Result<Self> {
        let orders: Orders = Arc::new((Mutex::new(Order::GoOn), Condvar::new()));
        let of_thread = orders.clone();
        thread::Builder::new()
            .name("rados lease".to_owned())
            .spawn(move || keep(kept, &of_thread))?;
        Ok(Self(orders))
    }

    /// Ends the thread without giving anything up: another client has it.
    pub(crate) fn stop(self) {
        self.order(Order::Stop);
    }

    /// The first order counts.
    fn order(&self, order: Order) {
        let (current, changed) = &*self.0;
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Order::GoOn = *current {
            *current = order;
        }
        changed.notify_all();
    }
}

impl Drop for Renewer {
    fn drop(&mut self) {
        self.order(Order::Leave(Ending::begin()));
    }
}

fn keep(mut kept: impl Kept, orders: &Orders) {
    let (order, changed) = &**orders;
    loop {
        let current = order.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = |order: &mut Order| matches!(order, Order::GoOn);
        let waiting = changed.wait_timeout_while(current, kept.period(), goes_on);
        let (mut current, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        if !goes_on(&mut current) {
            let order = std::mem::replace(&mut *current, Order::Stop);
            drop(current);
            if let Order::Leave(ending) = order {
                kept.leave();
                drop(ending);
            }
            return;
        }
        drop(current);
        kept.renew();
    }
}
