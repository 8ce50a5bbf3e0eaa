//! `onefold discover`: which subsystems a target offers.

use std::process::ExitCode;

use bench::perf::OptionsError;
use clap::Args;
use fabric::{Connector, Scheme, TcpHostConfig, TransportAddress};
use nvme::log::{DiscoveryEntry, DiscoverySubtype, Transport};
use subsystem::errors::Failure;

use super::host::TlsArgs;
use super::run::on_reactor;
use super::table::{Align, table};
use super::{Outcome, print, print_json};

/// Memory for discovery: a few admin commands.
const DISCOVER_BUFFER_BYTES: usize = 4 << 20;

/// An entry of the discovery log as `discover --json` prints it.
#[derive(serde::Serialize)]
struct Offer {
    transport: &'static str,
    address: String,
    port: String,
    subsystem: String,
    kind: &'static str,
}

impl From<&DiscoveryEntry> for Offer {
    fn from(entry: &DiscoveryEntry) -> Self {
        Self {
            transport: match entry.transport {
                Transport::Rdma { .. } => "rdma",
                Transport::Tcp { .. } => "tcp",
            },
            address: entry.traddr.clone(),
            port: entry.trsvcid.clone(),
            subsystem: entry.subnqn.to_string(),
            kind: match entry.subtype {
                DiscoverySubtype::Nvme => "nvme",
                DiscoverySubtype::Referral => "referral",
                DiscoverySubtype::CurrentDiscovery => "discovery",
            },
        }
    }
}

/// `onefold discover`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold discover tcp://192.0.2.5:4420\n  onefold discover rdma://192.0.2.5:4420\n  \
                  onefold discover tcp://192.0.2.5:4420 --hostnqn HOSTNQN --tls-key-file host.tls"
)]
pub struct DiscoverArgs {
    /// The target
    #[arg(value_name = "tcp|rdma://ADDR:PORT")]
    pub address: TransportAddress,
    /// Ask as this host [default: one that nobody has seen before]
    #[arg(long, value_name = "NQN")]
    pub hostnqn: Option<nvme::Nqn>,
    /// How the connection is protected.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `onefold discover`
pub(super) fn run(args: &DiscoverArgs) -> Outcome {
    let address = args.address;
    let host = initiator::Host::of(args.hostnqn.as_ref());
    let tls = args
        .tls
        .config(args.hostnqn.as_ref(), nvme::nqn::DISCOVERY)?;
    if tls.is_some() && address.scheme != Scheme::Tcp {
        let error = OptionsError::Tls {
            scheme: address.scheme,
        };
        return Err(Failure::invalid(error.to_string()).into());
    }
    let work = async move {
        let connector = match tls {
            Some(_) => Connector::tcp(TcpHostConfig {
                tls,
                ..TcpHostConfig::default()
            }),
            None => {
                Connector::to_reach(&address).map_err(|e| Failure::unavailable(e.to_string()))?
            }
        };
        let entries = initiator::discover(&connector, address.socket_addr(), host)
            .await
            .map_err(|e| Failure::unavailable(e.to_string()))?;
        connector.shutdown().await;
        Ok::<_, Failure>(entries)
    };
    let entries = on_reactor(DISCOVER_BUFFER_BYTES, work)??;
    let offers: Vec<Offer> = entries.iter().map(Offer::from).collect();
    if args.json {
        print_json(&offers)?;
    } else if offers.is_empty() {
        print("The target offers nothing at this address.\n");
    } else {
        let rows: Vec<_> = offers
            .into_iter()
            .map(|o| {
                vec![
                    o.transport.into(),
                    o.address,
                    o.port,
                    o.kind.into(),
                    o.subsystem,
                ]
            })
            .collect();
        let headings = ["TRANSPORT", "ADDRESS", "PORT", "KIND", "SUBSYSTEM"];
        print(&table(&headings, &rows, &[Align::Left; 5]));
    }
    Ok(ExitCode::SUCCESS)
}
