//! A soft device in several parts, each on a reactor of its own.
//!
//! Each part has an endpoint, a socket for each address, and the queue pairs whose numbers name it; the
//! kernel gives each packet to the right socket. The first part has connection management, and deals
//! each connection out to the one with the fewest of those that listen. Parts share what is in here: queues of messages, which
//! a connection needs a few of, and the list of who listens.
//!
//! Rules: the sockets of an address are opened together, in order, and only one device has an address, so
//! the kernel's numbering of them is the parts'. While a device closes the numbering changes; and a network
//! card may merge packets to several queue pairs of one peer. What comes to the wrong part is forwarded.

use reactor::sync::queue::{Full, Receiver, Sender, channel};
use roce::endpoint::{EndpointConfig, Part, Path, Relay};

use crate::listening::Listening;

/// Packets that wait to be taken by the part they are for; more are dropped, and repeated.
const MISROUTED_PACKETS_MAX: usize = 1024;

/// Messages in the life of a connection at most, on their way to one part.
const RELAYS_PER_CONNECTION: usize = 4;

/// A packet for another part, without its ICRC, which was right.
#[derive(Debug)]
pub(super) struct MisroutedPacket {
    pub(super) path: Path,
    pub(super) marked: bool,
    pub(super) packet: Box<[u8]>,
}

/// The ways to all parts.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) part: Part,
    relays: Vec<Sender<Relay>>,
    misrouted: Vec<Sender<MisroutedPacket>>,
    pub(super) listening: Listening,
}

/// What comes from the other parts.
pub(super) struct Inbox {
    pub(super) relays: Receiver<Relay>,
    pub(super) misrouted: Receiver<MisroutedPacket>,
}

/// Joins the parts of a device.
pub(super) fn join(count: usize, config: &EndpointConfig) -> Vec<(Parts, Inbox)> {
    let connections = config.max_qps * 2 + config.max_pending_connects;
    let parts: Vec<Part> = Part::all(count).collect();
    let relays = parts
        .iter()
        .map(|_| channel(RELAYS_PER_CONNECTION * connections));
    let (relays, relays_in): (Vec<_>, Vec<_>) = relays.unzip();
    let misrouted = parts.iter().map(|_| channel(MISROUTED_PACKETS_MAX));
    let (misrouted, misrouted_in): (Vec<_>, Vec<_>) = misrouted.unzip();
    let listening = Listening::default();
    let inboxes = relays_in.into_iter().zip(misrouted_in);
    let inboxes = inboxes.map(|(relays, misrouted)| Inbox { relays, misrouted });
    let parts = parts.into_iter().map(|part| Parts {
        part,
        relays: relays.clone(),
        misrouted: misrouted.clone(),
        listening: listening.clone(),
    });
    parts.zip(inboxes).collect()
}

impl Parts {
    pub(super) fn tell(&self, to: usize, relay: Relay) {
        let part = self.part.index();
        match self.relays.get(to).map(|queue| queue.try_send(relay)) {
            Some(Ok(())) => {}
            // It ends, and its connections with it.
            Some(Err(Full::Closed(_))) | None => tracing::debug!(part, to, "the part is gone"),
            // There is room for all connections that may exist.
            Some(Err(Full::Full(_))) => tracing::error!(part, to, "a connection's message is lost"),
        }
    }

    /// Hands a packet on; false if it is lost.
    pub(super) fn forward(&self, to: usize, packet: MisroutedPacket) -> bool {
        let queue = self.misrouted.get(to);
        queue.is_some_and(|queue| queue.try_send(packet).is_ok())
    }
}
