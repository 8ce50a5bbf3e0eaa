//! What no option shows alone: options that contradict each other, or that this machine cannot have.
//!
//! Guarantee: `onefold serve`, a reload and `onefold config check` ask the same functions, so what one of them refuses all
//! of them refuse.

use std::net::SocketAddr;
use std::path::Path;

use api::http::Certificate;
use fabric::{TlsMode, Transport, TransportAddress};
use subsystem::limits::Limits;

use super::{ServeArgs, volume};
use crate::control_socket::Group;
use crate::machine;
use crate::size::format_human;

/// Options that do not go together, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction {
    /// The options, without the dashes before them; the one to look at first comes first.
    pub(crate) options: &'static [&'static str],
    /// What is wrong, in the words of the command line.
    pub(crate) what: String,
}

fn contradiction(options: &'static [&'static str], what: String) -> Contradiction {
    Contradiction { options, what }
}

impl ServeArgs {
    /// What contradicts itself, on whatever machine.
    pub(crate) fn contradictions(&self) -> Vec<Contradiction> {
        let mut found = Vec::new();
        let mut add = |options, told: Result<(), String>| {
            found.extend(told.err().map(|what| contradiction(options, what)));
        };
        let distinct = TransportAddress::distinct(&self.listen).map(drop);
        add(&["listen"], distinct.map_err(|error| error.to_string()));
        add(&["warn-at"], self.check_warnings());
        add(&["volume"], volume::check_together(&self.volumes));
        add(&["tls", "listen"], self.check_tls());
        add(&["http", "listen"], self.check_ports());
        let pair = self.http.tls_files();
        add(&["http-tls-certificate", "http-tls-key"], pair.map(drop));
        add(
            &[
                "http",
                "http-clear-text",
                "http-tls-certificate",
                "http-tls-key",
            ],
            self.http.check_reach(),
        );
        add(&["queue-share", "host-share"], self.check_shares());
        add(
            &["stall-timeout-short", "stall-timeout"],
            self.check_stalls(),
        );
        add(
            &["tcp-connections", "io-queues", "reactors"],
            self.check_connections(),
        );
        add(&["tcp-capsules", "in-capsule"], self.check_capsules());
        found
    }

    /// What this machine cannot have: files, groups, memory.
    pub(crate) fn contradictions_here(&self) -> Vec<Contradiction> {
        let mut found = Vec::new();
        if let Some(group) = &self.http.api_group
            && let Err(why) = Group::find(group)
        {
            found.push(contradiction(&["api-group"], why.message));
        }
        if let Ok(Some((chain, key))) = self.http.tls_files()
            && may_read(chain)
            && may_read(key)
            && let Err(why) = Certificate::read(chain, key)
        {
            let options = &["http-tls-certificate", "http-tls-key"];
            found.push(contradiction(options, why.message));
        }
        found.extend(self.check_memory(machine::memory_bytes()));
        found
    }

    fn check_warnings(&self) -> Result<(), String> {
        match self.warn_at.is_sorted() {
            true => Ok(()),
            false => Err("the percentages to warn at must rise, such as 80, 90 and 95".to_owned()),
        }
    }

    /// RDMA has no TLS: who asks for it there would not get it.
    fn check_tls(&self) -> Result<(), String> {
        let is_tcp = |address: &TransportAddress| address.scheme.transport() == Transport::Tcp;
        let is_asked = self.tls != TlsMode::Off && !self.listen.is_empty();
        match is_asked && !self.listen.iter().any(is_tcp) {
            false => Ok(()),
            true => Err(format!(
                "--tls is {}, but no address of --listen is one of TCP, and over RDMA there is no TLS: add a tcp:// \
                 address, or leave --tls off",
                self.tls
            )),
        }
    }

    /// HTTP and NVMe over TCP cannot listen at the same place.
    fn check_ports(&self) -> Result<(), String> {
        let Some(http) = self.http.http else {
            return Ok(());
        };
        let is_same = |address: &&TransportAddress| {
            address.scheme.transport() == Transport::Tcp && overlap(http, address.socket_addr())
        };
        match self.listen.iter().find(is_same) {
            None => Ok(()),
            Some(address) => Err(format!(
                "--http {http} and --listen {address} are the same port: name another port for one of them"
            )),
        }
    }

    /// A host cannot hold less than one of its queues.
    fn check_shares(&self) -> Result<(), String> {
        let (usual, bounds) = (Limits::default(), &self.bounds);
        let (queue, host) = (bounds.queue_share, bounds.host_share);
        let are_said =
            usize::from(queue) != usual.queue_share && usize::from(host) != usual.host_share;
        match are_said && queue < host {
            false => Ok(()),
            true => Err(format!(
                "--queue-share {queue} lets a queue hold 1/{queue} of the free buffers, which is more than 1/{host}, what \
                 --host-share {host} lets its host hold: make --queue-share at least {host}"
            )),
        }
    }

    fn check_stalls(&self) -> Result<(), String> {
        let (usual, bounds) = (Limits::default(), &self.bounds);
        let (short, long) = (bounds.stall_timeout_short, bounds.stall_timeout);
        match short != usual.stall_timeout_short && short > long {
            false => Ok(()),
            true => Err(format!(
                "--stall-timeout-short is {short:?}, and --stall-timeout only {long:?}: a host would get more time when \
                 memory is short than otherwise; make --stall-timeout-short at most {long:?}"
            )),
        }
    }

    /// A host that gets all the queues it is granted needs a connection for each of them, and one for its admin queue.
    fn check_connections(&self) -> Result<(), String> {
        let bounds = &self.bounds;
        let (Some(connections), Some(queues), Some(reactors)) =
            (bounds.tcp_connections, bounds.io_queues, self.reactors)
        else {
            return Ok(());
        };
        let there = u64::from(connections).saturating_mul(reactors as u64);
        match there < u64::from(queues) + 1 {
            false => Ok(()),
            true => Err(format!(
                "--tcp-connections {connections} on each of {reactors} threads are {there} connections, and a host needs \
                 {} for --io-queues {queues} and its admin queue: raise --tcp-connections, or lower --io-queues",
                u32::from(queues) + 1
            )),
        }
    }

    fn check_capsules(&self) -> Result<(), String> {
        let (capsules, data) = (self.bounds.tcp_capsules, self.bounds.in_capsule);
        match capsules > 0 && capsules < data {
            false => Ok(()),
            true => Err(format!(
                "--tcp-capsules has {}, which is less than --in-capsule, {} for one write: no write would ever find room \
                 there; make --tcp-capsules at least as large, or 0 to have none",
                format_human(capsules),
                format_human(data)
            )),
        }
    }

    /// What is said of memory must fit into the machine's; defaults are for every machine.
    fn check_memory(&self, machine_bytes: Option<u64>) -> Option<Contradiction> {
        let machine_bytes = machine_bytes?;
        let usual = Limits::default();
        let all: [(&'static [&'static str], u64, u64); 5] = [
            (&["index-memory"], self.index_memory.unwrap_or(0), 0),
            (
                &["metadata-cache"],
                self.metadata_cache,
                METADATA_CACHE_DEFAULT,
            ),
            (&["buffers"], self.buffers, BUFFERS_DEFAULT),
            (
                &["rdma-capsules"],
                self.bounds.rdma_capsules,
                usual.rdma.capsule_bytes_max as u64,
            ),
            (
                &["tcp-capsules"],
                self.bounds.tcp_capsules,
                usual.tcp.capsule_bytes_max as u64,
            ),
        ];
        let said = all.into_iter().filter(|(_, bytes, usual)| bytes != usual);
        let said: Vec<_> = said.collect();
        let sum = said
            .iter()
            .fold(0_u64, |sum, (_, bytes, _)| sum.saturating_add(*bytes));
        if sum <= machine_bytes {
            return None;
        }
        let (options, _, _) = said.iter().max_by_key(|(_, bytes, _)| *bytes)?;
        let names: Vec<String> = said
            .iter()
            .map(|(names, bytes, _)| format!("--{} {}", names.concat(), format_human(*bytes)))
            .collect();
        Some(contradiction(
            options,
            format!(
                "{}: together {}, and this machine has {} of memory: name less",
                names.join(", "),
                format_human(sum),
                format_human(machine_bytes)
            ),
        ))
    }
}

/// The default of `--buffers`, in bytes.
const BUFFERS_DEFAULT: u64 = 256 << 20;
/// The default of `--metadata-cache`, in bytes.
const METADATA_CACHE_DEFAULT: u64 = 1 << 30;

/// Whether two sockets cannot listen beside each other.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && one.port() != 0
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// Whether this user can tell what is in a file. The daemon's user may read what others may not.
fn may_read(path: &Path) -> bool {
    let opened = std::fs::File::open(path);
    !opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_options;

    fn args(words: &[&str]) -> ServeArgs {
        let words: Vec<String> = words.iter().map(|word| format!("--{word}")).collect();
        parse_options(&words).expect("options")
    }

    #[test]
    fn what_the_defaults_name_is_what_they_are() {
        let usual = args(&[]);
        assert_eq!(usual.contradictions(), []);
        assert_eq!(usual.check_memory(Some(1)), None, "nothing was said");
        assert_eq!(
            (usual.buffers, usual.metadata_cache),
            (BUFFERS_DEFAULT, METADATA_CACHE_DEFAULT)
        );
    }

    #[test]
    fn memory_that_the_machine_does_not_have_is_named_with_all_that_was_said() {
        let said = args(&["index-memory=3G", "buffers=2G"]);
        let told = said.check_memory(Some(4 << 30)).expect("too much");
        assert_eq!(told.options, ["index-memory"]);
        for word in [
            "--index-memory 3.00 GiB",
            "--buffers 2.00 GiB",
            "5.00 GiB",
            "4.00 GiB",
        ] {
            assert!(told.what.contains(word), "{word}: {}", told.what);
        }
        assert_eq!(said.check_memory(Some(5 << 30)), None);
        assert_eq!(said.check_memory(None), None, "nobody knows");
    }

    #[test]
    fn sockets_overlap_at_one_port_of_one_address_or_of_all() {
        let overlaps = |one: &str, other: &str| {
            let parse = |text: &str| text.parse().expect("an address");
            overlap(parse(one), parse(other))
        };
        assert!(overlaps("192.0.2.1:4420", "192.0.2.1:4420"));
        assert!(overlaps("0.0.0.0:4420", "192.0.2.1:4420"));
        assert!(!overlaps("192.0.2.2:4420", "192.0.2.1:4420"));
        assert!(!overlaps("192.0.2.1:8420", "192.0.2.1:4420"));
        assert!(!overlaps("[::]:4420", "192.0.2.1:4420"));
        assert!(!overlaps("0.0.0.0:0", "0.0.0.0:0"), "any free port");
    }
}
