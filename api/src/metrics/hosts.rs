//! Hosts, and how they come in: transports, logins, reactors.

use std::collections::BTreeMap;
use std::fmt;

use subsystem::figures::{RefusalFigures, TransportFigures};

use super::page::{Page, bytes, plain, seconds};
use crate::status::Status;

/// Associations of hosts, and their logins.
pub(super) fn hosts(page: &mut Page<'_>, status: &Status) -> fmt::Result {
    // A host has an association on each of its paths, and those of one path have the same labels.
    let mut queues: BTreeMap<_, u64> = BTreeMap::new();
    for host in &status.hosts {
        let labels = [
            ("host", host.hostnqn.as_str()),
            ("subsystem", host.subsystem.as_str()),
            ("address", host.address.as_str()),
            ("transport", host.transport.as_str()),
        ];
        *queues.entry(labels).or_default() += u64::from(host.queues);
    }
    let name = plain("hosts", "Associations of hosts, discovery not counted");
    page.gauge(name, status.hosts.len() as u64)?;
    page.gauges(
        plain("host_queues", "I/O queues of a host"),
        queues
            .iter()
            .map(|(labels, queues)| (labels.to_vec(), *queues)),
    )?;
    let auth = &status.authentication;
    let results = [
        ("succeeded", auth.succeeded),
        ("failed", auth.failed),
        ("held_off", auth.held_off),
    ];
    page.counters(
        plain(
            "authentications",
            "Authentications of hosts, by their result",
        ),
        results.map(|(result, count)| (vec![("result", result)], count)),
    )?;
    let tls = &status.tls;
    let results = [
        ("succeeded", tls.succeeded),
        ("failed", tls.failed),
        ("held_off", tls.held_off),
        ("refused", tls.refused),
    ];
    page.counters(
        plain("tls_handshakes", "TLS handshakes of hosts, by their result"),
        results.map(|(result, count)| (vec![("result", result)], count)),
    )
}

/// Requests of administrators that were refused.
pub(super) fn administrators(
    page: &mut Page<'_>,
    refused: [(&'static str, u64); 4],
) -> fmt::Result {
    let name = plain(
        "api_refused",
        "Requests to the API that were refused for who asked, by the reason",
    );
    page.counters(
        name,
        refused.map(|(reason, count)| (vec![("reason", reason)], count)),
    )
}

/// Why something was refused, and how often.
fn refusals(refused: &RefusalFigures) -> [(&'static str, u64); 8] {
    // Taken apart by name: a reason that is added must come here too.
    let RefusalFigures {
        too_many,
        handshake,
        violation,
        digest,
        stalled,
        no_memory,
        connect,
        host,
    } = *refused;
    [
        ("too_many", too_many),
        ("handshake", handshake),
        ("violation", violation),
        ("digest", digest),
        ("stalled", stalled),
        ("no_memory", no_memory),
        // Those for the host's name have a reason of their own: a sum over all reasons counts nothing twice.
        ("connect", connect.saturating_sub(host)),
        ("host", host),
    ]
}

/// Connections, by transport.
pub(super) fn transports(page: &mut Page<'_>, status: &Status) -> fmt::Result {
    type Figure = fn(&TransportFigures) -> u64;
    let each = |figure: Figure| {
        let transports = status.transports.iter();
        transports.map(move |it| (vec![("transport", it.transport.as_str())], figure(it)))
    };
    let name = plain("controllers", "Controllers of hosts, discovery included");
    page.gauges(name, each(|it| it.controllers))?;
    let name = plain("queues", "Queues that have joined a controller");
    page.gauges(name, each(|it| it.queues))?;
    let name = plain("accepted_connections", "Connections accepted");
    page.counters(name, each(|it| it.accepted))?;
    let refused = status.transports.iter().flat_map(|it| {
        let transport = it.transport.as_str();
        let labelled =
            move |(reason, count)| (vec![("transport", transport), ("reason", reason)], count);
        refusals(&it.refused).map(labelled)
    });
    let name = plain(
        "refused",
        "Connections and commands that were refused or given up, by the reason",
    );
    page.counters(name, refused)?;
    let name = bytes("queue_memory", "Memory held for capsules of queues");
    page.gauges(name, each(|it| it.queue_bytes))?;
    let name = bytes("queue_memory_limit", "Its bound");
    page.gauges(name, each(|it| it.queue_bytes_max))?;
    let name = bytes(
        "held",
        "Data of running commands, and of answers that hosts have not read",
    );
    page.gauges(name, each(|it| it.held_bytes))?;
    let name = plain(
        "held_back",
        "How often a queue delayed its next command, because it used its share of memory",
    );
    page.counters(name, each(|it| it.held_back))
}

/// The data-plane threads.
pub(super) fn reactors(page: &mut Page<'_>, status: &Status) -> fmt::Result {
    let reactors = || {
        let labelled = status.reactors.iter();
        labelled.map(|it| (vec![("reactor", it.name.as_str())], it))
    };
    let name = plain("reactor_queues", "Queues of a data-plane thread");
    page.gauges(name, reactors().map(|(labels, it)| (labels, it.queues)))?;
    let name = plain(
        "reactor_commands",
        "Reads and writes of a data-plane thread",
    );
    page.counters(name, reactors().map(|(labels, it)| (labels, it.commands)))?;
    let name = plain(
        "reactor_in_flight_commands",
        "Commands that have arrived at a data-plane thread and are not answered yet",
    );
    page.gauges(name, reactors().map(|(labels, it)| (labels, it.in_flight)))?;
    let name = seconds(
        "reactor_busy",
        "Time in which a data-plane thread worked: without sleep, and without polling for work",
    );
    let busy = |micros: u64| micros as f64 / 1e6;
    page.counters(
        name,
        reactors().map(|(labels, it)| (labels, busy(it.busy_micros))),
    )?;
    let name = bytes("reactor_buffer", "Memory for data on its way");
    page.gauges(
        name,
        reactors().map(|(labels, it)| (labels, it.buffer_bytes)),
    )?;
    let name = bytes("reactor_buffer_used", "The part of it that is in use");
    page.gauges(
        name,
        reactors().map(|(labels, it)| (labels, it.buffer_used_bytes)),
    )?;
    let name = plain(
        "reactor_buffer_waits",
        "How often a command waited for a buffer",
    );
    page.counters(
        name,
        reactors().map(|(labels, it)| (labels, it.buffer_waits)),
    )
}
