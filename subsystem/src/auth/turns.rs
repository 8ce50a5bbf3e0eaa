//! Turns of hosts to have their authentication computed.
//!
//! Guarantees:
//! - At most [`COMPUTING_MAX`] are computed at a time, one for each address. However many queues a host opens, another
//!   host waits for one computation of each other address, not of each queue.
//! - Memory is bounded by the queues that wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lock::lock;

/// Authentications that are computed at a time: the largest group takes a core for tens of milliseconds.
const COMPUTING_MAX: usize = 2;

/// Bits of an IPv6 address that its host can choose as it likes.
const IPV6_HOST_BITS: u32 = 64;

pub(crate) struct Turns {
    all: Arc<Semaphore>,
    /// One turn for each address that computes or waits.
    addresses: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(COMPUTING_MAX)),
            addresses: Mutex::default(),
        }
    }
}

/// A turn, until it is dropped.
pub(crate) struct Turn {
    _of_all: Option<OwnedSemaphorePermit>,
    _of_address: Option<OwnedSemaphorePermit>,
    _place: Place,
}

/// An address among those that compute or wait; the last one of an address that goes takes its entry along.
struct Place {
    address: IpAddr,
    own: Arc<Semaphore>,
    turns: Arc<Turns>,
}

impl Turns {
    /// Waits for a turn.
    pub(crate) async fn take(self: &Arc<Self>, address: IpAddr) -> Turn {
        let address = network(address);
        let place = {
            let mut addresses = lock(&self.addresses);
            let own = addresses
                .entry(address)
                .or_insert_with(|| Arc::new(Semaphore::new(1)));
            Place {
                address,
                own: own.clone(),
                turns: self.clone(),
            }
        };
        // Neither is ever closed, so both are there. Its own comes first: an address waits once for the others.
        let of_address = place.own.clone().acquire_owned().await.ok();
        let of_all = self.all.clone().acquire_owned().await.ok();
        Turn {
            _of_all: of_all,
            _of_address: of_address,
            _place: place,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut addresses = lock(&self.turns.addresses);
        // The table's, and this one.
        if Arc::strong_count(&self.own) <= 2 {
            addresses.remove(&self.address);
        }
    }
}

/// What of an address tells hosts apart.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() >> IPV6_HOST_BITS << IPV6_HOST_BITS;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn address(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_address_has_one_turn_however_many_of_its_queues_wait() {
        let turns = Arc::new(Turns::default());
        let mut greedy: Vec<_> = (0..100).map(|_| Box::pin(turns.take(address(1)))).collect();
        let mut taken: Vec<_> = greedy
            .iter_mut()
            .filter_map(|waiting| match poll(waiting.as_mut()) {
                Poll::Ready(turn) => Some(turn),
                Poll::Pending => None,
            })
            .collect();
        assert_eq!(taken.len(), 1);
        let Poll::Ready(other) = poll(pin!(turns.take(address(2)))) else {
            panic!("another address waits behind the queues of one");
        };
        // Both turns are taken: a third address is next, before the other queues of the first one.
        let mut third = pin!(turns.take(address(3)));
        assert!(poll(third.as_mut()).is_pending());
        taken.clear();
        assert!(poll(greedy[1].as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_ready());
        drop(other);
    }

    #[test]
    fn an_address_that_is_done_leaves_nothing_behind() {
        let turns = Arc::new(Turns::default());
        {
            let Poll::Ready(turn) = poll(pin!(turns.take(address(1)))) else {
                panic!("nobody else is there");
            };
            let mut waiting = pin!(turns.take(address(1)));
            assert!(poll(waiting.as_mut()).is_pending());
            drop(turn);
            assert!(poll(waiting.as_mut()).is_ready());
        }
        assert!(lock(&turns.addresses).is_empty());
    }

    #[test]
    fn hosts_of_one_ipv6_network_are_one() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), address(1));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
