//! The HTTP listener of the daemon, from its start to its end.
//!
//! Guarantee: what other machines can reach is never answered in the clear.

use std::net::SocketAddr;

use api::ApiState;
use api::http::{HttpListener, HttpStage};
use subsystem::errors::Failure;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::options::HttpArgs;

/// The listener, if one is wanted.
#[derive(Debug)]
pub(crate) struct Http(Option<Running>);

#[derive(Debug)]
struct Running {
    stage: HttpStage,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Http {
    /// Listens, and answers that the daemon starts.
    ///
    /// # Errors
    /// The address is taken, is not this machine's, or can be reached from others.
    pub(crate) async fn start(args: &HttpArgs) -> Result<Self, Failure> {
        let Some(address) = args.http else {
            return Ok(Self(None));
        };
        check(address)?;
        let mut names = args.http_name.clone();
        if names.is_empty() {
            let system = rustix::system::uname();
            names.push(system.nodename().to_string_lossy().into_owned());
        }
        let listener = HttpListener::bind(address, names).await.map_err(|error| {
            Failure::unavailable(format!(
                "--http {address}: cannot listen there: {error}; name another address or port"
            ))
        })?;
        tracing::info!("HTTP is answered at http://{address}/");
        let stage = listener.stage();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(listener.serve(async {
            let _ = stopped.await;
        }));
        Ok(Self(Some(Running {
            stage,
            stop,
            serving,
        })))
    }

    /// The daemon serves hosts, and answers what is asked of it.
    pub(crate) fn serve(&self, state: ApiState) {
        if let Some(running) = &self.0 {
            running.stage.serve(api::public(state));
        }
    }

    /// The daemon stops.
    pub(crate) fn stopping(&self) {
        if let Some(running) = &self.0 {
            running.stage.wait("the daemon stops");
        }
    }

    /// Listens no longer.
    pub(crate) async fn end(self) {
        if let Some(running) = self.0 {
            let _ = running.stop.send(());
            let _ = running.serving.await;
        }
    }
}

/// Refuses to be reached from other machines: what they send and read would not be encrypted.
fn check(address: SocketAddr) -> Result<(), Failure> {
    match address.ip().to_canonical().is_loopback() {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "--http {address}: other machines can reach this address, and nothing there would be encrypted: listen \
             on 127.0.0.1:{port}, and let them come by ssh -L {port}:127.0.0.1:{port} or a proxy with TLS",
            port = address.port()
        ))),
    }
}
