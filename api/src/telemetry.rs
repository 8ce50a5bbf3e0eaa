//! Metrics for an OpenTelemetry collector: the figures of `/metrics`, sent to it again and again by OTLP over HTTP, in JSON.
//!
//! Guarantees:
//! - Nothing waits for the collector, and nothing is kept for it: each request has all figures since the start, and what one
//!   of them misses has the next one. There is at most one at a time, for at most [`TIMEOUT`].
//! - That a collector does not answer is logged once, until it does again.
//!
//! The crates `opentelemetry_sdk` and `opentelemetry-otlp` 0.33 are not used: they count for themselves, and have no way to
//! hand over a histogram that was counted elsewhere (opentelemetry-rust, issues 2505 and 3469). They would bring a second set
//! of numbers, and HTTP/2.

use std::fmt::{self, Display};
use std::pin::Pin;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::rt::{Read, Write};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use openssl::ssl::{SslConnector, SslMethod};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_openssl::SslStream;

use crate::metrics::{Resource, otlp_request};
use crate::server::ApiState;

/// How long a request may take.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Characters of a collector's own words that are logged.
const WORDS_MAX: usize = 200;

/// Where an OpenTelemetry collector listens: `http://HOST:PORT`, or `https`, perhaps with a path. Requests go to
/// `v1/metrics` below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    is_encrypted: bool,
    host: String,
    port: u16,
    path: String,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "'{text}' is no address of a collector: {why}; write http://HOST:PORT, such as http://127.0.0.1:4318"
            )
        };
        let uri: Uri = text.parse().map_err(|_| wrong("it is no URL"))?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("it begins neither with http:// nor with https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it has a password, which others would see"));
        }
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        let host = authority.host();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        let port = authority.port_u16();
        let behind = authority.as_str().strip_prefix(authority.host());
        if port.is_none() && behind != Some("") {
            return Err(wrong("its port is not a number from 1 to 65535"));
        }
        Ok(Self {
            is_encrypted,
            host: host.to_owned(),
            port: port.unwrap_or(if is_encrypted { 443 } else { 80 }),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl Endpoint {
    /// Host and port, as in a URL.
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Sends a request.
    async fn send(&self, body: &Value) -> Result<(), String> {
        let body = serde_json::to_vec(body).map_err(|error| error.to_string())?;
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| format!("it cannot be reached: {error}"))?;
        if !self.is_encrypted {
            return self.post(TokioIo::new(stream), body).await;
        }
        let failed = |error: &dyn Display| format!("TLS failed: {error}");
        // With the authorities that the system knows.
        let connector = SslConnector::builder(SslMethod::tls_client()).map_err(|e| failed(&e))?;
        let session = connector.build().configure();
        let session = session.and_then(|it| it.into_ssl(&self.host));
        let session = session.map_err(|error| failed(&error))?;
        let mut stream = SslStream::new(session, stream).map_err(|error| failed(&error))?;
        let connected = Pin::new(&mut stream).connect().await;
        connected.map_err(|error| failed(&error))?;
        self.post(TokioIo::new(stream), body).await
    }

    async fn post(
        &self,
        stream: impl Read + Write + Unpin + Send + 'static,
        body: Vec<u8>,
    ) -> Result<(), String> {
        let broken = |error: &dyn Display| format!("it broke the connection off: {error}");
        let request = Request::post(format!("{}/v1/metrics", self.path))
            .header(HOST, self.authority())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        let (mut sender, connection) = handshake(stream).await.map_err(|e| broken(&e))?;
        let connection = AbortOnDrop(tokio::spawn(connection));
        let answer = sender.send_request(request).await.map_err(|e| broken(&e))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect();
        let body = body.await.map_err(|error| broken(&error))?.to_bytes();
        drop(connection);
        match status {
            StatusCode::OK => rejected(&body),
            status => Err(format!(
                "it answers {status}{}",
                words(&String::from_utf8_lossy(&body))
            )),
        }
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

/// A connection's task ends with who uses it, also when that is given up.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a collector says that took the request, but not all of it.
fn rejected(body: &[u8]) -> Result<(), String> {
    // An answer without a body took everything.
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let partly = &answer["partialSuccess"];
    let rejected = &partly["rejectedDataPoints"];
    // A number of 64 bits: a text, or a number from those who are lenient.
    let count = rejected
        .as_u64()
        .or_else(|| rejected.as_str()?.parse().ok());
    match count {
        None | Some(0) => Ok(()),
        Some(count) => {
            let why = partly["errorMessage"].as_str().unwrap_or_default();
            Err(format!("it does not take {count} figures{}", words(why)))
        }
    }
}

/// The beginning of what a collector says, on one line.
fn words(text: &str) -> String {
    let text: String = text.trim().chars().take(WORDS_MAX).collect();
    match text.is_empty() {
        true => text,
        false => format!(": {}", text.escape_debug()),
    }
}

/// Sends the daemon's figures to a collector, for ever.
pub async fn push(state: ApiState, endpoint: Endpoint, host: String, every: Duration) {
    let started = SystemTime::now() - Duration::from_secs(state.target.uptime_seconds());
    let resource = Resource {
        version: subsystem::VERSION,
        pool: state.target.serial().to_owned(),
        host,
        started,
    };
    tracing::info!("metrics are sent to {endpoint} every {} s", every.as_secs());
    let mut due = interval(every);
    due.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut fails = false;
    loop {
        due.tick().await;
        let sent = async {
            let request = otlp_request(&state, &resource).await;
            endpoint
                .send(&request.map_err(|failure| failure.message)?)
                .await
        };
        let late = || Err(format!("no answer within {} s", TIMEOUT.as_secs()));
        let sent = timeout(TIMEOUT, sent).await.unwrap_or_else(|_| late());
        match (&sent, fails) {
            (Err(error), false) => tracing::warn!(
                "the collector at {endpoint} does not take metrics: {error}; it is tried every {} s",
                every.as_secs()
            ),
            (Ok(()), true) => tracing::info!("the collector at {endpoint} takes metrics again"),
            _ => {}
        }
        fails = sent.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_of_a_collector_and_anything_else_is_explained() {
        for (text, said) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
            ("http://collector", "http://collector:80"),
            (
                "https://otel.example.org/in/",
                "https://otel.example.org:443/in",
            ),
            ("http://[2001:db8::1]:4318/", "http://[2001:db8::1]:4318"),
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), said);
            assert_eq!(said.parse(), Ok(endpoint));
        }
        for (text, why) in [
            ("", "no URL"),
            ("127.0.0.1:4318", "begins neither"),
            ("grpc://collector:4317", "begins neither"),
            (
                "http://collector:99999",
                "its port is not a number from 1 to 65535",
            ),
            (
                "http://collector:",
                "its port is not a number from 1 to 65535",
            ),
            ("http://:4318", "no host"),
            ("http://me:secret@collector", "a password"),
            ("http://collector/?a=b", "a query"),
        ] {
            let refused = text.parse::<Endpoint>().expect_err(text);
            assert!(
                refused.contains(why) && refused.contains("write http://"),
                "{refused}"
            );
        }
    }

    #[test]
    fn what_a_collector_did_not_take_is_an_error_in_its_words() {
        assert_eq!(rejected(b""), Ok(()));
        assert_eq!(rejected(b"{}"), Ok(()));
        assert_eq!(
            rejected(br#"{"partialSuccess": {"rejectedDataPoints": "0"}}"#),
            Ok(())
        );
        let partly =
            br#"{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too\nold"}}"#;
        let error = rejected(partly).expect_err("some were rejected");
        assert_eq!(error, "it does not take 3 figures: too\\nold");
        assert!(words(&"x".repeat(5000)).len() < 300);
    }
}
