//! The options of `onefold serve` for metrics that it sends.

use std::time::Duration;

use api::telemetry::Endpoint;
use clap::Args;

use crate::time::parse_timeout;

/// Where metrics are sent.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "API")]
pub struct TelemetryArgs {
    /// Send metrics to this OpenTelemetry collector [default: nowhere]
    ///
    /// The figures of /metrics, by OTLP over HTTP in JSON, to v1/metrics below the URL, such as http://127.0.0.1:4318.
    /// Over https the collector must have a certificate that this system trusts.
    #[arg(long, value_name = "URL", hide_short_help = true)]
    pub otlp_endpoint: Option<Endpoint>,
    /// How often, from 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_timeout, hide_short_help = true)]
    pub otlp_interval: Duration,
}
