//! What the listeners of a reactor saw.

use fabric::{Listener, TcpListener, Transport};
use subsystem::figures::{NetworkFigures, RefusalFigures, Report, TransportFigures};

use super::{Bound, Service};

impl Bound {
    /// What the listeners of this reactor saw, and the reactor itself.
    pub(super) fn report<S: Service>(&self, service: &S) -> Report {
        let mut transports = Vec::new();
        let mut add = |transport: Transport, mut seen: Vec<TransportFigures>| {
            let name = transport.to_string();
            let closed = self.closed.iter().filter(|closed| closed.transport == name);
            seen.extend(closed.cloned());
            if seen.is_empty() {
                return;
            }
            let mut sum = TransportFigures {
                transport: transport.to_string(),
                ..TransportFigures::default()
            };
            seen.iter().for_each(|figures| sum.add(figures));
            transports.push(sum);
        };
        add(
            Transport::Rdma,
            self.rdma
                .iter()
                .map(|o| rdma_figures(&o.listener))
                .collect(),
        );
        add(
            Transport::Tcp,
            self.tcp.iter().map(|o| tcp_figures(&o.listener)).collect(),
        );
        Report {
            transports,
            reactor: service.reactor_figures(),
            network: self.network(),
        }
    }

    /// What happened on the network.
    fn network(&self) -> NetworkFigures {
        let mut sum = self.closed_network;
        for (_, device) in &self.devices {
            let (soft, verbs) = (device.counters(), device.verbs_counters());
            let seen = &soft.endpoint;
            sum.rdma_packets_received += soft.packets_received;
            sum.rdma_packets_sent += seen.packets_sent;
            sum.rdma_retransmits += seen.retransmits;
            sum.rdma_timeouts += seen.ack_timeouts;
            sum.rdma_naks_sent += seen.naks_sent;
            sum.rdma_naks_received += seen.naks_received;
            sum.rdma_checksum_errors += soft.icrc_errors;
            sum.rdma_out_of_sequence += seen.out_of_sequence;
            sum.rdma_unexpected += seen.malformed
                + seen.unknown_qp
                + seen.wrong_address
                + seen.unexpected
                + seen.management_dropped;
            sum.rdma_send_errors += soft.send_errors;
            sum.rdma_congestion_notifications += seen.notifications_received;
            sum.rdma_queue_pair_errors += seen.qp_errors;
            sum.rdma_failed_requests += verbs.map_or(0, |verbs| verbs.failed_requests);
        }
        for open in &self.tcp {
            add_tcp(&mut sum, &open.listener);
        }
        sum
    }
}

/// Adds what a TCP listener sent and received.
pub(super) fn add_tcp(sum: &mut NetworkFigures, listener: &TcpListener) {
    let seen = listener.counters();
    sum.tcp_received_bytes += seen.received_bytes;
    sum.tcp_sent_bytes += seen.sent_bytes;
    sum.tcp_receives += seen.receives;
    sum.tcp_sends += seen.sends;
}

/// What an RDMA listener saw.
pub(super) fn rdma_figures(listener: &Listener) -> TransportFigures {
    let counters = listener.counters();
    TransportFigures {
        accepted: counters.accepted,
        refused: RefusalFigures {
            too_many: counters.turned_away,
            handshake: counters.refused_invalid,
            no_memory: counters.refused_no_resources,
            ..RefusalFigures::default()
        },
        queue_bytes: counters.queue_bytes,
        queue_bytes_max: counters.queue_bytes_max,
        held_bytes: counters.held_bytes,
        held_back: counters.held_back,
        ..TransportFigures::default()
    }
}

/// What a TCP listener saw.
pub(super) fn tcp_figures(listener: &TcpListener) -> TransportFigures {
    let counters = listener.counters();
    TransportFigures {
        accepted: counters.accepted,
        refused: RefusalFigures {
            too_many: counters.refused,
            handshake: counters.handshakes_failed,
            violation: counters.violations,
            digest: counters.digest_errors,
            stalled: counters.stalled,
            no_memory: counters.capsules_refused,
            ..RefusalFigures::default()
        },
        queue_bytes: counters.queue_bytes,
        queue_bytes_max: counters.queue_bytes_max,
        held_bytes: counters.held_bytes,
        held_back: counters.held_back,
        ..TransportFigures::default()
    }
}
