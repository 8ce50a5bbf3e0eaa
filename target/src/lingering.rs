//! Addresses and drives that nobody uses any more and that are taken for a moment still.
//!
//! The kernel lets go of a socket or a file when all that io_uring had under way with it has ended. That is a moment after
//! it was closed, and a moment after the end of a process that was killed: who starts a daemon again at once would
//! be told that another program uses its port, or its drive.

use std::fmt;
use std::time::{Duration, Instant};

/// How long a daemon waits for such an address or drive.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// How often it is tried meanwhile. The kernel tells nobody when it is free.
const LINGER_LOOK: Duration = Duration::from_millis(50);

/// Opens something at an address, and waits up to [`LINGER_MAX`] while that is taken. For tasks of the control plane.
///
/// # Errors
/// Those of `open`; the last one, if the address is taken still.
pub(crate) async fn outlast<T, E, Opening>(
    is_taken: impl Fn(&E) -> bool,
    open: impl FnMut() -> Opening,
) -> Result<T, E>
where
    E: fmt::Display,
    Opening: Future<Output = Result<T, E>>,
{
    outlast_by(is_taken, open, tokio::time::sleep).await
}

/// The same, by whatever sleeps where the caller runs.
///
/// # Errors
/// As of [`outlast`].
pub(crate) async fn outlast_by<T, E, Opening, Sleep: Future>(
    is_taken: impl Fn(&E) -> bool,
    mut open: impl FnMut() -> Opening,
    sleep: impl Fn(Duration) -> Sleep,
) -> Result<T, E>
where
    E: fmt::Display,
    Opening: Future<Output = Result<T, E>>,
{
    let began = Instant::now();
    let mut is_told = false;
    loop {
        match open().await {
            Err(error) if is_taken(&error) && began.elapsed() < LINGER_MAX => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::info!(%error, "trying again for a second");
                }
                sleep(LINGER_LOOK).await;
            }
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::future::ready;

    /// Opens, and answers with these errors first. Returns what came of it, and how often it was tried.
    async fn opened(errors: &[&'static str]) -> (Result<(), &'static str>, usize) {
        let mut tries = 0;
        let open = || {
            tries += 1;
            ready(errors.get(tries - 1).map_or(Ok(()), |error| Err(*error)))
        };
        let opened = outlast(|error| *error == "taken", open).await;
        (opened, tries)
    }

    #[tokio::test]
    async fn an_address_that_is_let_go_of_soon_is_waited_for() {
        assert_eq!(opened(&["taken", "taken"]).await, (Ok(()), 3));
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_had_is_not_waited_for() {
        let expected = (Err("no such address"), 1);
        assert_eq!(opened(&["no such address"]).await, expected);
    }

    #[tokio::test]
    async fn an_address_that_stays_taken_is_refused_in_the_end() {
        let began = Instant::now();
        let stays = outlast(|_| true, || ready(Err::<(), _>("taken"))).await;
        assert_eq!(stays, Err("taken"));
        assert!(began.elapsed() >= LINGER_MAX);
    }
}
