//! The certificate by which the listener proves who it is.
//!
//! Guarantee: a certificate is replaced by one that can be used, or stays; connections keep the one they began with.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use openssl::error::ErrorStack;
use openssl::ssl::{Ssl, SslAcceptor, SslFiletype, SslMethod};
use reactor::lock_whole;
use subsystem::errors::Failure;
use tokio::net::TcpStream;
use tokio_openssl::SslStream;

/// A certificate with its key. Its clones are replaced together.
#[derive(Clone)]
pub struct Certificate(Arc<Mutex<SslAcceptor>>);

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificate")
    }
}

impl Certificate {
    /// Reads a certificate, with those that lead to its authority behind it, and its key: files in PEM.
    ///
    /// # Errors
    /// One of them cannot be read, or they do not belong together.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, Failure> {
        Ok(Self(Arc::new(Mutex::new(acceptor(chain, key)?))))
    }

    /// Reads the files again, and uses what they have for connections from now on.
    ///
    /// # Errors
    /// As of [`Certificate::read`]; then nothing has changed.
    pub fn replace(&self, chain: &Path, key: &Path) -> Result<(), Failure> {
        let acceptor = acceptor(chain, key)?;
        *lock_whole(&self.0) = acceptor;
        Ok(())
    }

    /// Proves to a peer who this is.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<SslStream<TcpStream>, openssl::ssl::Error> {
        let ssl = Ssl::new(lock_whole(&self.0).context())?;
        let mut stream = SslStream::new(ssl, stream)?;
        Pin::new(&mut stream).accept().await?;
        Ok(stream)
    }
}

fn acceptor(chain: &Path, key: &Path) -> Result<SslAcceptor, Failure> {
    let wrong = |what: &str, path: &Path, error: &ErrorStack| {
        let why = error.errors().first().and_then(|error| error.reason());
        Failure::invalid(format!(
            "the {what} of HTTP '{}' cannot be used: {}; it must be a file in PEM",
            path.display(),
            why.unwrap_or("it cannot be read")
        ))
    };
    let mut builder = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server())
        .map_err(|error| wrong("certificate", chain, &error))?;
    builder
        .set_certificate_chain_file(chain)
        .map_err(|error| wrong("certificate", chain, &error))?;
    builder
        .set_private_key_file(key, SslFiletype::PEM)
        .and_then(|()| builder.check_private_key())
        .map_err(|error| wrong("key", key, &error))?;
    Ok(builder.build())
}
