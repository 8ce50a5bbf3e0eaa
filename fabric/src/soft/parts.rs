//! A soft device in several parts, each on a reactor of its own.
//!
//! Each part has an endpoint, a socket for each address, and the queue pairs whose numbers name it; the
//! kernel gives each packet to the right socket. The first part has connection management, and deals
//! each connection out to the one with the fewest of those that listen. Parts share what is in here: queues of messages, which
//! a connection needs a few of, and the list of who listens.
//!
//! Rules: the sockets of an address are opened together, in order, and only one device has an address, so
//! the kernel's numbering of them is the parts'. While a device closes the numbering changes; and a network
//! card may merge packets to several queue pairs of one peer. What comes to the wrong part is handed on.

use reactor::sync::queue::{Full, Receiver, Sender, channel};
use roce::endpoint::{EndpointConfig, Part, Path, Relay};

use crate::listening::Listening;

/// Packets that wait to be taken by the part they are for; more are dropped, and repeated.
const STRAY_PACKETS_MAX: usize = 1024;

/// Messages in the life of a connection at most, on their way to one part.
const RELAYS_PER_CONNECTION: usize = 4;

/// A packet for another part, without its ICRC, which was right.
#[derive(Debug)]
pub(super) struct Stray {
    pub(super) path: Path,
    pub(super) marked: bool,
    pub(super) packet: Box<[u8]>,
}

/// The ways to all parts.
#[derive(Clone)]
pub(super) struct Neighbours {
    pub(super) part: Part,
    relays: Vec<Sender<Relay>>,
    strays: Vec<Sender<Stray>>,
    pub(super) listening: Listening,
}

/// What comes from the other parts.
pub(super) struct Inbox {
    pub(super) relays: Receiver<Relay>,
    pub(super) strays: Receiver<Stray>,
}

/// Joins the parts of a device.
pub(super) fn join(count: usize, config: &EndpointConfig) -> Vec<(Neighbours, Inbox)> {
    let connections = config.max_qps * 2 + config.max_pending_connects;
    let parts: Vec<Part> = Part::all(count).collect();
    let relays = parts
        .iter()
        .map(|_| channel(RELAYS_PER_CONNECTION * connections));
    let (relays, relays_in): (Vec<_>, Vec<_>) = relays.unzip();
    let strays = parts.iter().map(|_| channel(STRAY_PACKETS_MAX));
    let (strays, strays_in): (Vec<_>, Vec<_>) = strays.unzip();
    let listening = Listening::default();
    let inboxes = relays_in.into_iter().zip(strays_in);
    let inboxes = inboxes.map(|(relays, strays)| Inbox { relays, strays });
    let neighbours = parts.into_iter().map(|part| Neighbours {
        part,
        relays: relays.clone(),
        strays: strays.clone(),
        listening: listening.clone(),
    });
    neighbours.zip(inboxes).collect()
}

impl Neighbours {
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
    pub(super) fn hand_on(&self, to: usize, stray: Stray) -> bool {
        let queue = self.strays.get(to);
        queue.is_some_and(|queue| queue.try_send(stray).is_ok())
    }
}
