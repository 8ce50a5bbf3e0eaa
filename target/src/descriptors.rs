//! File descriptors: how many the daemon may open, and how many TCP connections fit in that.
//!
//! Guarantee: the default bounds on hosts, queues and connections leave enough descriptors for the pool's own files. Every
//! TCP connection, which is one queue of a host, takes one descriptor; RDMA takes none.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use subsystem::limits::Limits;

/// Descriptors that connections leave alone: those of the metadata store (512 files at most), drives, rings, the
/// control socket and its clients.
const RESERVED: u64 = 1024;

/// I/O queues that a host keeps where nobody chose a number: a host has one for each of its processors at most, and
/// more hosts are worth more than more queues of each.
const IO_QUEUES_KEPT: u16 = 16;

/// Raises the limit of this process as far as the system allows, and returns it.
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

/// Which bounds were set on the command line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) hosts: bool,
    pub(crate) io_queues: bool,
}

/// Lowers the bounds that were not set, until all hosts can have all their queues: first I/O queues, then hosts.
pub(crate) fn fit(descriptors: u64, limits: &mut Limits, asked: Asked) {
    let there = for_connections(descriptors);
    if announced(limits) <= there {
        return;
    }
    if !asked.io_queues {
        // One connection of each host is its admin queue.
        let of_each = there / (limits.controllers.max(1) as u64);
        let kept = if asked.hosts { 1 } else { IO_QUEUES_KEPT };
        let fitting = u16::try_from(of_each.saturating_sub(1)).unwrap_or(u16::MAX);
        limits.io_queues = limits.io_queues.min(fitting.max(kept));
        limits.descriptors = Some(descriptors);
    }
    if !asked.hosts {
        let fitting = there / (u64::from(limits.io_queues) + 1);
        let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
        limits.controllers = limits.controllers.min(fitting.max(1));
        limits.descriptors = Some(descriptors);
    }
}

/// How many connections each of so many listening sockets takes: those of all hosts, if there are descriptors for
/// that many at every socket.
pub(crate) fn connections(descriptors: u64, limits: &Limits, sockets: usize) -> usize {
    let share = for_connections(descriptors) / sockets.max(1) as u64;
    let bound = announced(limits).min(share).max(1);
    usize::try_from(bound).unwrap_or(usize::MAX)
}

/// A warning, if there are too few descriptors for the bounds that hosts are told.
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
    fn what_nobody_asked_for_fits_the_limit_of_open_files() {
        let fitted = |descriptors, asked, usual: Limits| {
            let mut limits = usual;
            fit(descriptors, &mut limits, asked);
            (limits.controllers, limits.io_queues, limits.descriptors)
        };
        let (usual, nothing) = (Limits::default(), Asked::default());
        // Debian's limit for a login and for a service leaves the defaults as they are.
        assert_eq!(fitted(524_288, nothing, usual), (1024, 128, None));
        assert_eq!(fitted(20_000, nothing, usual), (1024, 17, Some(20_000)));
        assert_eq!(fitted(4096, nothing, usual), (180, 16, Some(4096)));
        assert_eq!(fitted(1024, nothing, usual), (30, 16, Some(1024)));
        assert_eq!(fitted(8, nothing, usual), (1, 16, Some(8)));
        for descriptors in (0..200_000).step_by(997) {
            let mut limits = usual;
            fit(descriptors, &mut limits, nothing);
            let one_host = limits.controllers == 1;
            assert!(
                one_host || shortage(descriptors, &limits).is_none(),
                "{descriptors}"
            );
        }
        // What was asked for stays, and is warned of.
        let hosts = Asked {
            hosts: true,
            ..nothing
        };
        assert_eq!(fitted(4096, hosts, usual), (1024, 2, Some(4096)));
        let queues = Asked {
            io_queues: true,
            ..nothing
        };
        assert_eq!(fitted(4096, queues, usual), (23, 128, Some(4096)));
        let both = Asked {
            hosts: true,
            io_queues: true,
        };
        assert_eq!(fitted(4096, both, usual), (1024, 128, None));
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
