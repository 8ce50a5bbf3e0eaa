//! The control interface on TCP: HTTP/1.1 for Prometheus, scripts and browsers.
//!
//! Guarantees:
//! - It answers as soon as the daemon starts, and says so: `/healthz` is 503 with the reason until hosts are served.
//! - Nobody holds it up: connections, requests' bodies and the time of each step are bounded; a peer that sends or reads
//!   too slowly is closed.
//! - No page of another site uses it through a visitor's browser: a request names this machine by an address or by a
//!   name that it is known by (a name could be made to lead here: DNS rebinding), comes from no other origin, and no
//!   answer is shown in a frame.

mod site;
mod stall;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use subsystem::errors::Failure;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::REQUEST_BYTES_MAX;
use crate::caller::Peer;
use crate::errors::ErrorBody;
use site::Site;
use stall::Stalling;
pub use tls::Certificate;

/// Connections at one time. Prometheus needs one, a browser six.
const CONNECTIONS_MAX: usize = 128;
/// How long a peer may take to send the head of a request, or stay silent between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// How long it may take to send the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(15);
/// How long it may leave an answer unread.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// The pause after a connection that could not be taken: descriptors are short, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// How long the server waits at its end for requests that are under way.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// What the listener answers with.
#[derive(Clone, Debug)]
enum Stage {
    /// The daemon starts, or stops: what it does.
    Waiting(Arc<str>),
    /// The routes.
    Serving(Router),
}

/// Where the stage is set.
#[derive(Clone, Debug)]
pub struct HttpStage(Arc<RwLock<Stage>>);

impl HttpStage {
    /// From now on requests are answered by these routes.
    pub fn serve(&self, routes: Router) {
        self.set(Stage::Serving(routes));
    }

    /// From now on requests are told that the daemon is busy with this.
    pub fn wait(&self, what: &str) {
        self.set(Stage::Waiting(what.into()));
    }

    fn set(&self, stage: Stage) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    fn now(&self) -> Stage {
        let stage = self.0.read().unwrap_or_else(PoisonError::into_inner);
        stage.clone()
    }
}

/// The listener.
#[derive(Debug)]
pub struct HttpListener {
    listener: TcpListener,
    site: Site,
    stage: HttpStage,
    certificate: Option<Certificate>,
}

impl HttpListener {
    /// Listens at an address, by TLS if there is a certificate. `names` are those by which this machine is known, beside
    /// its addresses.
    ///
    /// # Errors
    /// The address is taken, or this machine does not have it.
    pub async fn bind(
        address: SocketAddr,
        names: Vec<String>,
        certificate: Option<Certificate>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self {
            listener,
            site: Site::new(names),
            certificate,
            stage: HttpStage(Arc::new(RwLock::new(Stage::Waiting(
                "the daemon starts: it opens the pool".into(),
            )))),
        })
    }

    /// Where the routes are set.
    #[must_use]
    pub fn stage(&self) -> HttpStage {
        self.stage.clone()
    }

    /// Answers requests until `stop` is ready, and those under way a moment longer.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let site = Arc::new(self.site);
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (stopping, _) = watch::channel(false);
        let mut connections = JoinSet::new();
        let accepting = async {
            loop {
                // The semaphore is never closed.
                let Ok(place) = places.clone().acquire_owned().await else {
                    return;
                };
                let (stream, peer) = match self.listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::debug!(%error, "an HTTP connection could not be taken");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let (site, stage) = (site.clone(), self.stage.clone());
                let (certificate, stopping) = (self.certificate.clone(), stopping.subscribe());
                connections.spawn(async move {
                    // An answer is one write: waiting for more of it only delays it.
                    let _ = stream.set_nodelay(true);
                    match certificate {
                        None => connection(stream, peer, &site, &stage, stopping).await,
                        Some(certificate) => {
                            let proved =
                                tokio::time::timeout(HEAD_TIMEOUT, certificate.accept(stream));
                            if let Ok(Ok(stream)) = proved.await {
                                connection(stream, peer, &site, &stage, stopping).await;
                            }
                        }
                    }
                    drop(place);
                });
                while connections.try_join_next().is_some() {}
            }
        };
        tokio::select! {
            () = accepting => {}
            () = stop => {}
        }
        stopping.send_replace(true);
        let ended = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(END_TIMEOUT, ended).await;
    }
}

/// Serves one connection to its end.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    peer: SocketAddr,
    site: &Site,
    stage: &HttpStage,
    mut stopping: watch::Receiver<bool>,
) {
    let stream = TokioIo::new(Stalling::new(stream, ANSWER_TIMEOUT));
    let service = service_fn(|request| async {
        Ok::<_, std::convert::Infallible>(site::guarded(answer(site, stage, peer, request).await))
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX);
    let mut serving = std::pin::pin!(builder.serve_connection(stream, service));
    let stop = async { drop(stopping.wait_for(|stopping| *stopping).await) };
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stop => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "an HTTP connection ended");
    }
}

/// The answer to a request.
async fn answer(
    site: &Site,
    stage: &HttpStage,
    peer: SocketAddr,
    request: hyper::Request<Incoming>,
) -> Response {
    if let Err(refusal) = site.admit(&request) {
        return refusal.into_response();
    }
    let routes = match stage.now() {
        Stage::Serving(routes) => routes,
        Stage::Waiting(what) => {
            return (StatusCode::SERVICE_UNAVAILABLE, format!("{what}\n")).into_response();
        }
    };
    match whole(request).await {
        Ok(mut request) => {
            request.extensions_mut().insert(Peer(peer));
            match routes.oneshot(request).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            }
        }
        Err(refusal) => refusal,
    }
}

/// The request with all of its body.
async fn whole(request: hyper::Request<Incoming>) -> Result<Request, Response> {
    let refuse = |status, why: &str| {
        let refusal = ErrorBody::from(&Failure::invalid(why));
        (status, Json(refusal)).into_response()
    };
    let too_long = || {
        let why = format!("a request's body has at most {REQUEST_BYTES_MAX} bytes");
        refuse(StatusCode::PAYLOAD_TOO_LARGE, &why)
    };
    let (head, body) = request.into_parts();
    let announced = head.headers.get(CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > REQUEST_BYTES_MAX as u64) {
        return Err(too_long());
    }
    let body = Limited::new(body, REQUEST_BYTES_MAX).collect();
    match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, Body::from(body.to_bytes()))),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_long()),
        Ok(Err(_)) => Err(refuse(
            StatusCode::BAD_REQUEST,
            "the request's body is not complete",
        )),
        Err(_) => Err(refuse(
            StatusCode::REQUEST_TIMEOUT,
            "the request's body did not come in time",
        )),
    }
}
