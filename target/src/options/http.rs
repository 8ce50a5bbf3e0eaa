//! The options of `onefold serve` for its HTTP listener.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use super::parse_switch;

/// Where administrators, Prometheus, scripts and browsers come in.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "API")]
pub struct HttpArgs {
    /// A group whose members may use the pool's control socket [default: nobody but the daemon's user]
    ///
    /// They may look at everything, make and attach volumes, scrub and check. What takes something from somebody is
    /// left to root.
    #[arg(long, value_name = "GROUP", hide_short_help = true)]
    pub api_group: Option<String>,
    /// Answer HTTP here: the API, /healthz, /metrics [default: nowhere]
    ///
    /// Programs of this machine need no token for /healthz and /metrics, all else does (`onefold token create`).
    /// Addresses that other machines reach need TLS.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub http: Option<SocketAddr>,
    /// A name by which requests over HTTP may call this machine (repeatable) [default: its host name]
    ///
    /// Its addresses and localhost are always known. Requests for other names are refused: another site's page could
    /// have sent them.
    #[arg(long = "http-name", value_name = "NAME", hide_short_help = true)]
    pub http_name: Vec<String>,
    /// Certificate of the HTTP listener, with those that lead to its authority behind it: a file in PEM
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub http_tls_certificate: Option<PathBuf>,
    /// Its key: a file in PEM
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub http_tls_key: Option<PathBuf>,
    /// Answer other machines without TLS
    ///
    /// Whoever can read the network between them then has their tokens.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "on|off", value_parser = parse_switch, default_value = "off", default_missing_value = "on", action = clap::ArgAction::Set, hide_default_value = true, hide_short_help = true)]
    pub http_clear_text: bool,
}

impl HttpArgs {
    /// The files of the certificate and of its key.
    ///
    /// # Errors
    /// There is only one of them.
    pub(crate) fn tls_files(&self) -> Result<Option<(&Path, &Path)>, String> {
        match (&self.http_tls_certificate, &self.http_tls_key) {
            (None, None) => Ok(None),
            (Some(chain), Some(key)) => Ok(Some((chain, key))),
            _ => Err(
                "--http-tls-certificate and --http-tls-key belong together: give both, or none"
                    .to_owned(),
            ),
        }
    }

    /// Refuses to be reached from other machines without TLS, where nobody asked for that: what they send and read
    /// would not be encrypted.
    ///
    /// # Errors
    /// Names what to do about it.
    pub(crate) fn check_reach(&self) -> Result<(), String> {
        let is_encrypted = self.http_tls_certificate.is_some();
        let Some(address) = self.http.filter(|address| !is_here(*address)) else {
            return Ok(());
        };
        match is_encrypted || self.http_clear_text {
            true => Ok(()),
            false => Err(format!(
                "--http {address}: other machines can reach this address, and nothing there would be encrypted: give \
                 --http-tls-certificate and --http-tls-key, or listen on 127.0.0.1:{port} and let them come by ssh -L \
                 {port}:127.0.0.1:{port}; --http-clear-text serves them all the same",
                port = address.port()
            )),
        }
    }
}

/// Whether only this machine reaches the address.
pub(crate) fn is_here(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Parses where to listen.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("'{text}' is not an address and a port, such as 127.0.0.1:8420 or [::1]:8420")
    })
}
