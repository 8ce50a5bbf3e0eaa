//! File descriptors: how many the system lets the daemon have, and how many connections over TCP that leaves room for.
//!
//! Guarantee: the bound on connections that nobody set is one at which the pool's own files still find descriptors.
//! Every connection over TCP, which is a queue of a host, takes one; RDMA takes none.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::subsystem::Limits;

/// Descriptors that connections leave alone: those of the metadata store (512 files at most), drives, rings, the
/// control socket and its clients.
const RESERVED: u64 = 1024;

/// Raises the limit of this process as far as the system allows, and tells it.
pub(crate) fn raise() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    now.unwrap_or(u64::MAX)
}

/// Descriptors that connections may take.
fn for_connections(descriptors: u64) -> u64 {
    descriptors - RESERVED.min(descriptors / 2)
}

/// Connections of all hosts over TCP, each with all of its I/O queues and its admin queue.
fn announced(limits: &Limits) -> u64 {
    let queues = u64::from(limits.io_queues) + 1;
    queues.saturating_mul(limits.controllers as u64)
}

/// How many connections each of so many listening sockets takes: those of all hosts, if there are descriptors for
/// that many at every socket.
pub(crate) fn connections(descriptors: u64, limits: &Limits, sockets: usize) -> usize {
    let share = for_connections(descriptors) / sockets.max(1) as u64;
    let bound = announced(limits).min(share).max(1);
    usize::try_from(bound).unwrap_or(usize::MAX)
}

/// What is to be said if there are too few descriptors for what hosts are told that they may have.
pub(crate) fn shortage(descriptors: u64, limits: &Limits) -> Option<String> {
    let (wanted, there) = (announced(limits), for_connections(descriptors));
    if wanted <= there {
        return None;
    }
    let queues = u64::from(limits.io_queues) + 1;
    Some(format!(
        "{descriptors} open files are allowed, which leaves {there} for connections over TCP: {} hosts with {queues} \
         queues each, of {} that may attach; allow {} (LimitNOFILE= of a systemd unit, `ulimit -Hn`), or lower --hosts \
         or --io-queues",
        there / queues,
        limits.controllers,
        wanted.saturating_add(RESERVED)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hosts_find_room_with_all_their_queues_where_the_system_has_the_descriptors() {
        let limits = Limits::default();
        assert_eq!(announced(&limits), 1024 * 129);
        assert_eq!(connections(1 << 20, &limits, 2), 1024 * 129);
        assert_eq!(shortage(1 << 18, &limits), None);
        // Sixteen sockets share what there is.
        assert_eq!(connections((1 << 20) + RESERVED, &limits, 16), 1 << 16);
        assert_eq!(connections(u64::MAX, &limits, 0), 1024 * 129);
    }

    #[test]
    fn where_descriptors_are_few_the_pool_keeps_some_and_the_remedy_is_named() {
        let limits = Limits::default();
        assert_eq!(connections(4096, &limits, 2), 1536);
        assert_eq!(connections(256, &limits, 1), 128);
        assert_eq!(connections(0, &limits, 1), 1);
        let text = shortage(4096, &limits).expect("too few");
        for part in [
            "4096 open files",
            "3072 for",
            "23 hosts",
            "129 queues",
            "133120",
            "LimitNOFILE",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let few = Limits {
            controllers: 4,
            io_queues: 8,
            ..limits
        };
        assert_eq!(shortage(4096, &few), None);
    }
}
