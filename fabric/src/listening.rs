//! Which parts of a device listen where. The parts live on reactors of their own; the one that receives
//! connection requests looks here to whom it may deal one out.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The listeners of all parts of a device. Clones are the same list; it is locked once for each connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listening(Arc<Mutex<Vec<Place>>>);

/// A place where a part listens: an address, or all of the device's, and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    part: usize,
    address: Option<IpAddr>,
    port: u16,
}

impl Listening {
    fn with<R>(&self, what: impl FnOnce(&mut Vec<Place>) -> R) -> R {
        // Each change is one step: what a panicking thread left is whole.
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A part listens there from now on.
    pub(crate) fn begin(&self, part: usize, address: Option<IpAddr>, port: u16) {
        self.with(|all| {
            all.push(Place {
                part,
                address,
                port,
            });
        });
    }

    /// It does so no longer.
    pub(crate) fn end(&self, part: usize, address: Option<IpAddr>, port: u16) {
        let ended = Place {
            part,
            address,
            port,
        };
        self.with(|all| all.retain(|place| *place != ended));
    }

    /// The parts that take connections to an address and a port, each once, in order.
    pub(crate) fn parts(&self, local: IpAddr, port: u16) -> Vec<usize> {
        let takes = |place: &&Place| {
            place.port == port && place.address.is_none_or(|address| address == local)
        };
        let mut parts: Vec<usize> =
            self.with(|all| all.iter().filter(takes).map(|place| place.part).collect());
        parts.sort_unstable();
        parts.dedup();
        parts
    }
}

/// Tells the log that a connection request was refused because its listener's backlog is full.
pub(crate) fn log_full_backlog(peer: IpAddr, port: u16) {
    crate::log_of_peer!(
        warn,
        "full backlog",
        peer,
        %peer,
        port,
        "connection request refused: the listener's backlog is full; the host may ask again. If this lasts, see which \
         hosts connect again and again, or serve fewer hosts on this machine"
    );
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::peer_log::LINES_OF_ADDRESS;

    /// Counts log lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicU32>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_host_that_fills_a_backlog_does_not_fill_the_log() {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            for _ in 0..1000 {
                log_full_backlog(IpAddr::from([192, 0, 2, 77]), 4420);
            }
        });
        assert_eq!(lines.0.load(Ordering::Relaxed), LINES_OF_ADDRESS);
    }

    #[test]
    fn a_connection_goes_to_those_that_listen_on_its_address_and_port() {
        let listening = Listening::default();
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        listening.begin(1, None, 4420);
        listening.begin(0, Some(one), 4420);
        listening.begin(1, Some(one), 4420);
        listening.begin(2, Some(one), 4421);
        assert_eq!(listening.parts(one, 4420), [0, 1]);
        assert_eq!(listening.parts(other, 4420), [1]);
        assert_eq!(listening.parts(one, 4421), [2]);
        listening.end(0, Some(one), 4420);
        assert_eq!(listening.parts(one, 4420), [1]);
        assert!(listening.parts(one, 4422).is_empty());
    }
}
