//! `onefold doctor`: looks at this machine, and says what to do.

use std::process::{Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use api::socket::is_served;
use clap::Args;
use serde::Serialize;

use super::args::PoolArg;
use super::run::on_reactor;
use super::{Outcome, print, print_json};
use crate::doctor::{Finding, Machine, PoolFound, State, Tried, examine, worst};
use crate::exit::EXIT_FAILED;

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
    let tried = Tried {
        io_uring: on_reactor(RING_BUFFER_BYTES, async {}).map_err(|failure| failure.message),
        firewall: firewall_rules(),
        is_served: is_served(dir),
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
        (fails, warns) => format!("{fails} do not work, {warns} warnings.\n"),
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
             1 do not work, 0 warnings.\n"
        );
        assert!(text(&findings[..1]).ends_with("Nothing is wrong.\n"));
    }
}
