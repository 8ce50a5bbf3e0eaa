//! How commands run: beside a daemon, or on a reactor of their own.

use dedup::ErrorKind;
use subsystem::errors::Failure;

/// Talks with the daemon.
pub(super) fn converse<T>(talk: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::new(ErrorKind::Internal, format!("cannot start: {e}")))?;
    runtime.block_on(talk)
}

/// Does what a host does, on a reactor of its own on this thread.
pub(super) fn on_reactor<T>(
    buffer_bytes: usize,
    work: impl Future<Output = T>,
) -> Result<T, Failure> {
    let config = reactor::Config {
        name: "onefold-host".to_owned(),
        buffer_pool: reactor::PoolConfig {
            bytes: buffer_bytes,
        },
        ..reactor::Config::default()
    };
    reactor::run(config, work)
        .map_err(|e| Failure::unavailable(format!("the reactor cannot start: {e}")))
}
