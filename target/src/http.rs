//! The HTTP listener of the daemon, from its start to its end.
//!
//! Guarantee: what other machines can reach is not answered in the clear, unless somebody asked for just that.

use api::ApiState;
use api::http::{Certificate, HttpListener, HttpStage};
use subsystem::errors::Failure;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::options::{HttpArgs, is_here};

/// The listener, if one is wanted.
#[derive(Debug)]
pub(crate) struct Http(Option<Running>);

#[derive(Debug)]
struct Running {
    stage: HttpStage,
    certificate: Option<Certificate>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Http {
    /// Listens, and answers that the daemon starts.
    ///
    /// # Errors
    /// The address is taken, is not this machine's, or can be reached from others.
    pub(crate) async fn start(args: &HttpArgs) -> Result<Self, Failure> {
        let certificate = certificate(args)?;
        let Some(address) = args.http else {
            return Ok(Self(None));
        };
        args.check_reach().map_err(Failure::invalid)?;
        if certificate.is_none() && !is_here(address) {
            tracing::warn!(
                "other machines reach {address} without TLS: whoever can read that network has the tokens they send"
            );
        }
        let mut names = args.http_name.clone();
        if names.is_empty() {
            let system = rustix::system::uname();
            names.push(system.nodename().to_string_lossy().into_owned());
        }
        let listener = HttpListener::bind(address, names, certificate.clone()).await;
        let listener = listener.map_err(|error| {
            Failure::unavailable(format!(
                "--http {address}: cannot listen there: {error}; name another address or port"
            ))
        })?;
        let scheme = match &certificate {
            Some(_) => "https",
            None => "http",
        };
        tracing::info!("HTTP is answered at {scheme}://{address}/");
        let stage = listener.stage();
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(listener.serve(async {
            let _ = stopped.await;
        }));
        Ok(Self(Some(Running {
            stage,
            certificate,
            stop,
            serving,
        })))
    }

    /// The daemon serves hosts, and answers what is asked of it.
    pub(crate) fn serve(&self, state: ApiState) {
        if let Some(running) = &self.0 {
            running.stage.serve(api::router(state));
        }
    }

    /// The daemon serves no hosts, for this reason.
    pub(crate) fn waiting(&self, why: &str) {
        if let Some(running) = &self.0 {
            running.stage.wait(why);
        }
    }

    /// What a reload replaces.
    pub(crate) fn certificate(&self) -> Option<Certificate> {
        self.0.as_ref()?.certificate.clone()
    }

    /// Listens no longer.
    pub(crate) async fn end(self) {
        if let Some(running) = self.0 {
            let _ = running.stop.send(());
            let _ = running.serving.await;
        }
    }
}

/// Reads the files of the certificate that HTTP shows, which may have been renewed.
///
/// # Errors
/// They cannot be used; then the one that is shown stays.
pub(crate) fn renew(certificate: Option<&Certificate>, args: &HttpArgs) -> Result<(), Failure> {
    let files = args.tls_files().map_err(Failure::invalid)?;
    match (certificate, files) {
        (Some(certificate), Some((chain, key))) => certificate.replace(chain, key),
        // To begin with TLS, or to end it, waits for a restart.
        _ => Ok(()),
    }
}

/// The certificate that is configured.
fn certificate(args: &HttpArgs) -> Result<Option<Certificate>, Failure> {
    let files = args.tls_files().map_err(Failure::invalid)?;
    files
        .map(|(chain, key)| Certificate::read(chain, key))
        .transpose()
}
