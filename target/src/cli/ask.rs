//! Questions before a command that cannot be undone.
//!
//! Guarantee: where there is no terminal to ask on, nothing is lost unless `--yes` says so.

use std::io::{self, IsTerminal, Write};

use api::client::Client;
use api::namespaces::NamespaceView;
use api::status::AttachedHost;
use api::subsystems::SubsystemView;
use subsystem::errors::Failure;

/// Attached hosts that a question names; further ones are counted.
const HOSTS_NAMED_MAX: usize = 8;

/// Asks for confirmation, unless `--yes` gave it: `facts` are lines about the consequences, `expected` is what has to be
/// typed, and `called` is how the question names that.
///
/// # Errors
/// Nobody agreed, or there is no terminal.
pub(super) fn agree(
    yes: bool,
    facts: &[String],
    act: &str,
    called: &str,
    expected: &str,
) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    let facts: String = facts.iter().map(|fact| format!("{fact}\n")).collect();
    if !io::stdin().is_terminal() {
        let why = format!("{act}: there is no terminal to ask on, so this needs --yes\n{facts}");
        return Err(Failure::invalid(why.trim_end()));
    }
    match answer(&format!("{facts}{act}? Type {called}: "))? == expected {
        true => Ok(()),
        false => Err(Failure::invalid("nothing was changed")),
    }
}

/// Prints facts on standard error, beside the command's result.
pub(super) fn tell(facts: impl IntoIterator<Item = String>) {
    let mut stderr = io::stderr().lock();
    for fact in facts {
        // Standard error that is closed is no reason to fail: it is done.
        let _ = writeln!(stderr, "{fact}");
    }
}

/// Asks on the terminal, beside what the command prints as its result.
pub(super) fn answer(question: &str) -> Result<String, Failure> {
    let failed =
        |error: io::Error| Failure::invalid(format!("cannot ask on this terminal: {error}"));
    let mut stderr = io::stderr().lock();
    stderr
        .write_all(question.as_bytes())
        .and_then(|()| stderr.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    Ok(answer.trim().to_owned())
}

/// Namespaces and attached hosts.
pub(super) struct Attached {
    subsystems: Vec<SubsystemView>,
    hosts: Vec<AttachedHost>,
}

impl Attached {
    pub(super) async fn of(client: &Client) -> Result<Self, Failure> {
        Ok(Self {
            subsystems: client.subsystems().await?,
            hosts: client.status().await?.hosts,
        })
    }

    /// The namespaces that show a volume.
    fn namespaces<'a>(&'a self, volume: &'a str) -> impl Iterator<Item = &'a NamespaceView> {
        let all = self.subsystems.iter().flat_map(|s| &s.namespaces);
        all.filter(move |namespace| namespace.volume == volume)
    }

    /// The consequences of deleting a volume.
    pub(super) fn facts_of_volume(&self, volume: &str) -> Vec<String> {
        let sees = |host: &&AttachedHost| {
            self.namespaces(volume).any(|namespace| {
                let shown = namespace.hosts.as_ref();
                namespace.subsystem.as_str() == host.subsystem
                    && shown.is_none_or(|names| names.iter().any(|n| n.as_str() == host.hostnqn))
            })
        };
        let hosts = self.hosts.iter().filter(sees);
        let mut facts = named(&format!("volume '{volume}'"), hosts);
        facts.extend(self.namespaces(volume).filter_map(protected));
        facts
    }

    /// The consequences of deleting a subsystem.
    pub(super) fn facts_of_subsystem(&self, subsystem: &SubsystemView) -> Vec<String> {
        let nqn = subsystem.nqn.as_str();
        let hosts = self.hosts.iter().filter(|host| host.subsystem == nqn);
        let mut facts = named(&format!("subsystem '{nqn}'"), hosts);
        if let count @ 1.. = subsystem.namespaces.len() {
            facts.push(format!(
                "It has {count} namespaces; their volumes stay in the pool."
            ));
        }
        facts.extend(subsystem.namespaces.iter().filter_map(protected));
        facts
    }

    /// The consequences of removing the last listener.
    pub(super) fn facts_of_all(&self) -> Vec<String> {
        named("this target", self.hosts.iter())
    }
}

/// That a namespace cannot be written, if it cannot be for good.
pub(super) fn protected(namespace: &NamespaceView) -> Option<String> {
    use subsystem::catalog::WriteProtect;
    (namespace.write_protect == WriteProtect::Permanent).then(|| {
        format!(
            "Namespace {} of '{}' (volume '{}') is permanently write protected; attached again, it is not.",
            namespace.nsid, namespace.subsystem, namespace.volume
        )
    })
}

/// That hosts are attached to something, if any are.
fn named<'a>(what: &str, hosts: impl Iterator<Item = &'a AttachedHost>) -> Vec<String> {
    let mut names: Vec<String> = hosts
        .map(|host| format!("{} ({})", host.hostnqn, host.address))
        .collect();
    // A host is there once for each of its controllers.
    names.sort();
    names.dedup();
    let more = names.len().saturating_sub(HOSTS_NAMED_MAX);
    names.truncate(HOSTS_NAMED_MAX);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    match names.is_empty() {
        true => Vec::new(),
        false => vec![format!("Attached to {what}: {}.", names.join(", "))],
    }
}

#[cfg(test)]
mod tests {
    use api::status::IoFigures;

    use super::*;

    fn host(number: u8) -> AttachedHost {
        AttachedHost {
            hostnqn: format!("nqn.2026-11.org.example:host{number:02}"),
            subsystem: subsystem::DEFAULT_SUBSYSTEM_NQN.into(),
            address: "192.0.2.7".into(),
            transport: "tcp".into(),
            tls: None,
            queues: 1,
            io: IoFigures::default(),
        }
    }

    #[test]
    fn hosts_are_named_once_and_not_without_end() {
        assert!(named("volume 'a'", [].iter()).is_empty());
        let twice = [host(1), host(1)];
        assert_eq!(
            named("volume 'a'", twice.iter()),
            ["Attached to volume 'a': nqn.2026-11.org.example:host01 (192.0.2.7)."]
        );
        let many: Vec<_> = (0..30).map(host).collect();
        let text = named("volume 'a'", many.iter()).remove(0);
        assert!(
            text.contains("host07") && !text.contains("host08"),
            "{text}"
        );
        assert!(text.ends_with("22 more."), "{text}");
    }
}
