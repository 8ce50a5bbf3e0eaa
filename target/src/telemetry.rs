//! Metrics that are sent to a collector while the daemon serves its pool.

use api::ApiState;
use tokio::task::JoinHandle;

use crate::options::TelemetryArgs;

/// Sends as long as it lives.
pub(crate) struct Sending(Option<JoinHandle<()>>);

impl Sending {
    /// Begins, if a collector is named.
    pub(crate) fn start(args: &TelemetryArgs, state: &ApiState) -> Self {
        let sending = args.otlp_endpoint.clone().map(|endpoint| {
            let host = rustix::system::uname();
            let host = host.nodename().to_string_lossy().into_owned();
            let every = args.otlp_interval;
            tokio::spawn(api::telemetry::push(state.clone(), endpoint, host, every))
        });
        Self(sending)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(sending) = &self.0 {
            sending.abort();
        }
    }
}
