//! Addresses that nobody uses any more and that are taken for a moment still.
//!
//! The kernel lets go of a socket when all that io_uring had under way with it has ended. That is a moment after the
//! socket was closed, and a moment after the end of a process that was killed: who starts a daemon again at once would
//! be told that another program uses its port.

use std::thread;
use std::time::{Duration, Instant};

/// How long a daemon waits for such an address.
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(1);
/// How often it is tried meanwhile. The kernel tells nobody when it is free.
pub(crate) const LINGER_LOOK: Duration = Duration::from_millis(50);

/// Opens something at an address, and waits up to [`LINGER_MAX`] while that is taken. It blocks.
///
/// # Errors
/// Those of `open`; the last one, if the address is taken still.
pub(crate) fn outlast<T, E: std::fmt::Display>(
    is_taken: impl Fn(&E) -> bool,
    mut open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let began = Instant::now();
    let mut is_told = false;
    loop {
        match open() {
            Err(error) if is_taken(&error) && began.elapsed() < LINGER_MAX => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::info!(%error, "trying for a second whether it is let go of");
                }
                thread::sleep(LINGER_LOOK);
            }
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens, and answers with these errors first. Returns what came of it, and how often it was tried.
    fn opened(errors: &[&'static str]) -> (Result<(), &'static str>, usize) {
        let mut tries = 0;
        let open = || {
            tries += 1;
            errors.get(tries - 1).map_or(Ok(()), |error| Err(*error))
        };
        let opened = outlast(|error| *error == "taken", open);
        (opened, tries)
    }

    #[test]
    fn an_address_that_is_let_go_of_soon_is_waited_for() {
        assert_eq!(opened(&["taken", "taken"]), (Ok(()), 3));
    }

    #[test]
    fn an_address_that_cannot_be_had_is_not_waited_for() {
        assert_eq!(opened(&["no such address"]), (Err("no such address"), 1));
    }

    #[test]
    fn an_address_that_stays_taken_is_refused_in_the_end() {
        let began = Instant::now();
        let stays = outlast(|_| true, || Err::<(), _>("taken"));
        assert_eq!(stays, Err("taken"));
        assert!(began.elapsed() >= LINGER_MAX);
    }
}
