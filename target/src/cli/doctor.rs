//! `onefold doctor`: looks at this machine, and says what to do.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use api::client::Client;
use api::socket::daemon_of;
use clap::Args;
use fabric::{Transport, TransportAddress};
use serde::Serialize;
use serde_json::Value;

use super::args::PoolArg;
use super::default_pool::NODE_CONFIG;
use super::run::{converse, on_reactor};
use super::{Outcome, print, print_json};
use crate::doctor::{Finding, Machine, PoolFound, Port, State, Tried, examine, worst};
use crate::exit::EXIT_FAILED;

/// The port of NVMe over fabrics (IANA), over TCP.
const NVME_PORT: u16 = 4420;

/// Buffers of the reactor that is started to see whether io_uring works.
const RING_BUFFER_BYTES: usize = 1 << 20;

/// `onefold doctor`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold doctor\n  onefold doctor --pool /srv/pool --json\n\n\
                  It only looks. Run it as root to see the firewall. Exit 0: nothing fails (there may be\n\
                  warnings); 1: something does not work."
)]
pub struct DoctorArgs {
    /// The pool whose drives are looked at.
    #[command(flatten)]
    pub pool: PoolArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    /// The worst of all findings.
    state: State,
    findings: &'a [Finding],
}

/// `onefold doctor`
pub(super) fn run(args: &DoctorArgs) -> Outcome {
    let dir = &args.pool.pool;
    let daemon = daemon_of(dir);
    let tried = Tried {
        io_uring: on_reactor(RING_BUFFER_BYTES, async {}).map_err(|failure| failure.message),
        firewall: firewall_rules(),
        daemon,
        ports: ports(dir, daemon.is_some()),
        health: smart,
        unix_seconds: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs()),
    };
    let findings = examine(&Machine::this(), &tried, &PoolFound::in_folder(dir));
    let state = worst(&findings);
    if args.json {
        let report = Report {
            state,
            findings: &findings,
        };
        print_json(&report)?;
    } else {
        print(&text(&findings));
    }
    Ok(match state {
        State::Fail => ExitCode::from(EXIT_FAILED),
        State::Ok | State::Warn => ExitCode::SUCCESS,
    })
}

/// Where the daemon listens; without one, where the node's configuration or the defaults would have it listen.
fn ports(pool: &Path, is_served: bool) -> Vec<Port> {
    let file = std::fs::read_to_string(NODE_CONFIG).unwrap_or_default();
    let file: toml::Table = file.parse().unwrap_or_default();
    let of = |table: &str, key: &str| file.get(table)?.get(key).cloned();
    let addresses: Vec<TransportAddress> = match is_served {
        // One that does not answer listens nowhere.
        true => converse(Client::new(pool).listeners())
            .unwrap_or_default()
            .iter()
            .map(|listener| listener.address)
            .collect(),
        false => {
            let listed = of("listen", "addresses");
            let listed = listed.as_ref().and_then(toml::Value::as_array);
            let texts = listed.into_iter().flatten().filter_map(toml::Value::as_str);
            texts.filter_map(|text| text.parse().ok()).collect()
        }
    };
    let mut ports: Vec<Port> = addresses.iter().map(port_of).collect();
    if addresses.is_empty() {
        ports = vec![Port::tcp(NVME_PORT, true), Port::ROCE];
    }
    // The file is that of the node's own pool.
    let http =
        of("http", "listen").filter(|_| pool == Path::new(super::default_pool::default_pool()));
    let http = http.and_then(|text| text.as_str()?.parse::<SocketAddr>().ok());
    ports.extend(http.map(|http| Port::tcp(http.port(), !http.ip().is_loopback())));
    let mut distinct: Vec<Port> = Vec::new();
    for port in ports {
        if !distinct.contains(&port) {
            distinct.push(port);
        }
    }
    distinct
}

fn port_of(address: &TransportAddress) -> Port {
    match address.scheme.transport() {
        Transport::Tcp => Port::tcp(address.port, !address.host.is_loopback()),
        Transport::Rdma => Port::ROCE,
    }
}

/// What `smartctl` prints of a drive. Its exit code is bits that the output explains.
fn smart(drive: &Path) -> Result<Value, String> {
    let output = Command::new("smartctl")
        .args(["--json", "--health", "--attributes", "--"])
        .arg(drive)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("`smartctl` cannot be run: {error}"))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`smartctl` prints no JSON: {error}"))
}

/// What `nft list ruleset` prints.
fn firewall_rules() -> Result<String, String> {
    let output = Command::new("nft")
        .args(["list", "ruleset"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("`nft` cannot be run: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(why.lines().next().unwrap_or("nft failed").trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One line for each finding, and below it what to do.
fn text(findings: &[Finding]) -> String {
    let width = |text: &dyn Fn(&Finding) -> usize| findings.iter().map(text).max().unwrap_or(0);
    let check = width(&|finding| finding.check.len());
    let state = width(&|finding| finding.state.name().len());
    let mut text = String::new();
    for finding in findings {
        let name = finding.state.name();
        text += &format!(
            "{name:state$}  {:check$}  {}\n",
            finding.check, finding.found
        );
        if let Some(remedy) = &finding.remedy {
            text += &format!("{:1$}{remedy}\n", "", state + check + 4);
        }
    }
    let count = |of: State| {
        findings
            .iter()
            .filter(|finding| finding.state == of)
            .count()
    };
    text += &match (count(State::Fail), count(State::Warn)) {
        (0, 0) => "Nothing is wrong.\n".to_owned(),
        (fails, warns) => {
            let verb = if fails == 1 { "does" } else { "do" };
            let plural = if warns == 1 { "" } else { "s" };
            format!("{fails} {verb} not work, {warns} warning{plural}.\n")
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_a_line_with_its_remedy_below() {
        let finding = |state, check, remedy: Option<&str>| Finding {
            check,
            state,
            found: format!("this is {check}"),
            remedy: remedy.map(str::to_owned),
        };
        let findings = [
            finding(State::Ok, "time", None),
            finding(State::Fail, "io_uring", Some("switch it on")),
        ];
        assert_eq!(
            text(&findings),
            "ok    time      this is time\n\
             fail  io_uring  this is io_uring\n                switch it on\n\
             1 does not work, 0 warnings.\n"
        );
        assert!(text(&findings[..1]).ends_with("Nothing is wrong.\n"));
    }
}
