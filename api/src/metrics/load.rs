//! What hosts ask of volumes, and what that does on the network.

use std::fmt;

use subsystem::figures::{IoFigures, NetworkFigures};

use super::page::{Page, Times, bytes, plain, seconds};
use crate::status::{Latency, Status};

/// Reads and writes of volumes.
pub(super) fn volumes(page: &mut Page<'_>, status: &Status) -> fmt::Result {
    let each = |read: fn(&IoFigures) -> u64, write: fn(&IoFigures) -> u64| {
        status.volumes.iter().flat_map(move |volume| {
            let of = |operation, value| {
                let labels = vec![("volume", volume.name.as_str()), ("operation", operation)];
                (labels, value)
            };
            [of("read", read(&volume.io)), of("write", write(&volume.io))]
        })
    };
    let name = plain(
        "volume_commands",
        "Reads and writes of a volume that succeeded; writes without data are writes too",
    );
    page.counters(name, each(|io| io.read_commands, |io| io.write_commands))?;
    let name = bytes(
        "volume_data",
        "Data that reads and writes of a volume moved",
    );
    page.counters(name, each(|io| io.read_bytes, |io| io.written_bytes))?;
    let times = status.volumes.iter().flat_map(|volume| {
        volume.latency.0.iter().map(|(operation, latency)| {
            let labels = vec![
                ("volume", volume.name.as_str()),
                ("operation", operation.name()),
            ];
            (labels, times_of(latency))
        })
    });
    let name = seconds(
        "volume_latency",
        "How long commands on a volume took that succeeded, from their arrival to their answer",
    );
    page.histograms(name, times)
}

/// What limits of volumes and hosts held back.
pub(super) fn limits(page: &mut Page<'_>, status: &Status) -> fmt::Result {
    let each = || {
        status.limits.iter().map(|limit| {
            let labels = vec![("kind", limit.kind.name()), ("name", limit.name.as_str())];
            (labels, limit)
        })
    };
    let name = plain(
        "limit_held_commands",
        "Commands that had to wait for a limit of their volume or host",
    );
    page.counters(name, each().map(|(labels, it)| (labels, it.held_commands)))?;
    let name = seconds(
        "limit_held",
        "How long commands waited for a limit of their volume or host, all together",
    );
    page.counters(
        name,
        each().map(|(labels, it)| (labels, it.held_ns as f64 / 1e9)),
    )
}

/// What guarantees are worth, and what was held back for them.
pub(super) fn guarantees(page: &mut Page<'_>, status: &Status) -> fmt::Result {
    let Some(surplus) = &status.surplus else {
        return Ok(());
    };
    let name = plain(
        "guarantee_short",
        "1 while a volume or host asks for what it is guaranteed, and gets less",
    );
    let each = status.limits.iter().filter_map(|limit| {
        let labels = vec![("kind", limit.kind.name()), ("name", limit.name.as_str())];
        Some((labels, u64::from(limit.achieved.as_ref()?.is_short)))
    });
    page.gauges(name, each)?;
    let name = plain(
        "guarantee_held_commands",
        "Commands that had to wait for guarantees of others",
    );
    page.counters(name, [(Vec::new(), surplus.held_commands)])?;
    let name = seconds(
        "guarantee_held",
        "How long commands waited for guarantees of others, all together",
    );
    page.counters(name, [(Vec::new(), surplus.held_ns as f64 / 1e9)])
}

/// The bounds of exported buckets are powers of two, in nanoseconds: one to an octave, from 8 us to 8.6 s. So 24 series for
/// each operation that a volume has seen bound what a server has to keep, and what it interpolates between them is within a
/// factor of two of the truth. The daemon's own percentiles come from four buckets to an octave.
const EXPORTED_OCTAVES: std::ops::RangeInclusive<u32> = 13..=33;

fn times_of(latency: &Latency) -> Times {
    let mut buckets: Vec<(f64, u64)> = EXPORTED_OCTAVES
        .map(|octave| (1_u64 << octave) as f64 / 1e9)
        .chain([f64::INFINITY])
        .zip(std::iter::repeat(0))
        .collect();
    for (below_ns, commands) in latency.buckets() {
        let below = below_ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e9);
        if let Some((_, count)) = buckets.iter_mut().find(|(bound, _)| below <= *bound) {
            *count += commands;
        }
    }
    Times {
        sum_seconds: latency.total_ns() as f64 / 1e9,
        buckets,
    }
}

/// The network of each data-plane thread.
pub(super) fn networks(page: &mut Page<'_>, networks: &[(String, NetworkFigures)]) -> fmt::Result {
    type Figure = fn(&NetworkFigures) -> u64;
    let figures: [(&'static str, &'static str, Figure); 15] = [
        (
            "rdma_packets_received",
            "Soft RoCE: packets received",
            |it| it.rdma_packets_received,
        ),
        ("rdma_packets_sent", "Soft RoCE: packets sent", |it| {
            it.rdma_packets_sent
        }),
        (
            "rdma_retransmits",
            "Soft RoCE: packets sent again, or READs asked for again",
            |it| it.rdma_retransmits,
        ),
        (
            "rdma_timeouts",
            "Soft RoCE: acknowledgements that did not come in time",
            |it| it.rdma_timeouts,
        ),
        (
            "rdma_naks_sent",
            "Soft RoCE: negative acknowledgements sent",
            |it| it.rdma_naks_sent,
        ),
        (
            "rdma_naks_received",
            "Soft RoCE: negative acknowledgements received",
            |it| it.rdma_naks_received,
        ),
        (
            "rdma_checksum_errors",
            "Soft RoCE: packets dropped because their checksum was wrong",
            |it| it.rdma_checksum_errors,
        ),
        (
            "rdma_out_of_sequence",
            "Soft RoCE: packets dropped because they came ahead of others",
            |it| it.rdma_out_of_sequence,
        ),
        (
            "rdma_unexpected",
            "Soft RoCE: packets dropped because nobody has a use for them",
            |it| it.rdma_unexpected,
        ),
        (
            "rdma_send_errors",
            "Soft RoCE: packets that the kernel refused to send",
            |it| it.rdma_send_errors,
        ),
        (
            "rdma_congestion_notifications",
            "Soft RoCE: congestion notifications received",
            |it| it.rdma_congestion_notifications,
        ),
        (
            "rdma_queue_pair_errors",
            "Soft RoCE: queue pairs that failed",
            |it| it.rdma_queue_pair_errors,
        ),
        (
            "rdma_failed_requests",
            "RDMA devices of the kernel: work requests that failed",
            |it| it.rdma_failed_requests,
        ),
        ("tcp_receives", "TCP: receive system calls", |it| {
            it.tcp_receives
        }),
        ("tcp_sends", "TCP: send system calls", |it| it.tcp_sends),
    ];
    let each = |figure: Figure| {
        let networks = networks.iter();
        networks.map(move |(reactor, it)| (vec![("reactor", reactor.as_str())], figure(it)))
    };
    for (name, help, figure) in figures {
        page.counters(plain(name, help), each(figure))?;
    }
    let name = bytes("tcp_received", "TCP: data received");
    page.counters(name, each(|it| it.tcp_received_bytes))?;
    let name = bytes("tcp_sent", "TCP: data sent");
    page.counters(name, each(|it| it.tcp_sent_bytes))
}
