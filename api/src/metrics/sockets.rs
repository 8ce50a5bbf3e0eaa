//! What the kernel lost or repeated on the network, which the daemon does not see itself.

use std::fmt;
use std::fs;

use super::page::{Page, plain};

/// The port of RoCEv2 (IANA), over UDP, as `/proc/net/udp` writes it.
const ROCE_PORT: &str = "12B7";

/// What the system says of its sockets. What it does not say is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sockets {
    /// Packets for sockets of RoCE that found no room in their buffers.
    roce_drops: u64,
    /// Segments of all TCP connections of this machine that were sent again.
    tcp_retransmits: u64,
}

impl Sockets {
    pub(super) fn look() -> Self {
        let text =
            |name: &str| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
        Self::of(&[&text("udp"), &text("udp6")], &text("snmp"))
    }

    /// What tables like `/proc/net/udp` (the last column is `drops`) and `/proc/net/snmp` say.
    fn of(udp: &[&str], snmp: &str) -> Self {
        let dropped = |line: &str| {
            let mut fields = line.split_whitespace();
            let (_, port) = fields.nth(1)?.rsplit_once(':')?;
            (port == ROCE_PORT).then(|| fields.next_back()?.parse::<u64>().ok())?
        };
        let roce_drops = udp
            .iter()
            .flat_map(|table| table.lines().skip(1))
            .filter_map(dropped);
        let mut tcp = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = (
            tcp.next().unwrap_or_default(),
            tcp.next().unwrap_or_default(),
        );
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        let retransmits = pairs.find(|(name, _)| *name == "RetransSegs");
        Self {
            roce_drops: roce_drops.sum(),
            tcp_retransmits: retransmits
                .and_then(|(_, value)| value.parse().ok())
                .unwrap_or(0),
        }
    }

    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let name = plain(
            "rdma_socket_drops",
            "Packets of soft RoCE that the kernel dropped, because a socket's buffer was full",
        );
        page.counter(name, self.roce_drops)?;
        let name = plain(
            "tcp_retransmitted_segments",
            "Segments that this machine sent again, of all its TCP connections",
        );
        page.counter(name, self.tcp_retransmits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_roce_and_segments_that_were_sent_again_are_read_from_the_kernels_tables() {
        let udp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
            12: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000   990        0 77 2 0000000000000000 40\n\
            13: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000   990        0 78 2 0000000000000000 2\n\
            14: 00000000:0044 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 79 2 0000000000000000 9\n";
        let snmp = "Udp: InDatagrams\nUdp: 5\nTcp: RtoAlgorithm OutSegs RetransSegs InErrs\nTcp: 1 900 17 0\n";
        let found = Sockets::of(&[udp, ""], snmp);
        assert_eq!((found.roce_drops, found.tcp_retransmits), (42, 17));
        assert_eq!(
            Sockets::of(&["", "nonsense"], "Tcp: a\n"),
            Sockets::default()
        );
        // This machine's own tables have the form that is read here.
        let own = fs::read_to_string("/proc/self/net/udp").expect("Linux has it");
        let heading = own.lines().next().unwrap_or_default();
        assert!(heading.trim_end().ends_with("drops"), "{heading}");
    }
}
