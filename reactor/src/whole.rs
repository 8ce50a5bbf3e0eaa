//! Locks of state that must never be seen half-changed.
//!
//! A reactor catches the panic of a task, and goes on with all others. That is right as long as a panic leaves
//! nothing behind that others rely on: what a task owns is dropped with it, and what it took of shared state it
//! gives back while it is dropped. It is wrong in the middle of a change of shared state: nobody undoes that,
//! and the next one to take the lock would go on from there. So a panic of who holds a [`Guard`] ends the
//! process, before anybody else takes the lock. What was acknowledged is in a journal that survives the process;
//! whoever starts it again (a supervisor) brings back what the journal says.

use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

/// A lock that is held, by the guard of its kind ([`MutexGuard`], say). A panic before it is dropped ends the process.
#[derive(Debug)]
#[must_use = "the lock is given back at once"]
pub struct Guard<G> {
    inner: G,
    /// A panic from here on leaves a change half made. One that is under way already does not: its
    /// destructors take locks too, to give back what its task held.
    ends: bool,
}

impl<G> Guard<G> {
    /// For who holds this lock from now on.
    pub fn new(inner: G) -> Self {
        Self {
            inner,
            ends: !std::thread::panicking(),
        }
    }

    /// The same, but a panic goes on: for simulations that catch those of a whole process.
    pub fn forgiving(inner: G) -> Self {
        Self { inner, ends: false }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<G> Drop for Guard<G> {
    #[inline]
    fn drop(&mut self) {
        if self.ends && std::thread::panicking() {
            end_half_changed();
        }
    }
}

/// Takes a lock of state that must never be seen half-changed.
pub fn lock_whole<T: ?Sized>(mutex: &Mutex<T>) -> Guard<MutexGuard<'_, T>> {
    Guard::new(mutex.lock().unwrap_or_else(|_| end_half_changed()))
}

/// Ends the process at once (SIGABRT), because a panic left state half-changed.
#[cold]
pub fn end_half_changed() -> ! {
    const WHY: &str = "a panic in the middle of a change left the state in memory half-changed: the process ends \
        now. What was acknowledged is in the journal; start the program again, and report the panic above";
    tracing::error!("{WHY}");
    if !tracing::dispatcher::has_been_set() {
        // Nobody writes a log: this is the last that is heard of the process.
        let _ = writeln!(std::io::stderr(), "{WHY}");
    }
    std::process::abort()
}
