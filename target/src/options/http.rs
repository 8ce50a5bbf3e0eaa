//! The options of `onefold serve` for its HTTP listener.

use std::net::SocketAddr;

use clap::Args;

/// Where Prometheus, scripts and browsers come in.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "HTTP")]
pub struct HttpArgs {
    /// Answer HTTP at this address: /healthz and /metrics [default: nowhere]
    ///
    /// An address of this machine alone, such as 127.0.0.1:8420.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub http: Option<SocketAddr>,
    /// A name by which requests over HTTP may call this machine (repeatable) [default: its host name]
    ///
    /// Its addresses and localhost are always known. Requests for other names are refused: a page of another site
    /// could have sent them through the browser of somebody here.
    #[arg(long = "http-name", value_name = "NAME")]
    pub http_name: Vec<String>,
}

/// Parses where to listen.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("'{text}' is not an address and a port, such as 127.0.0.1:8420 or [::1]:8420")
    })
}
