//! Permits of hosts to have their authentication computed.
//!
//! Guarantees:
//! - At most [`COMPUTING_MAX`] are computed at a time, one for each address. However many queues a host opens, another
//!   host waits for one computation of each other address, not of each queue.
//! - Memory is bounded by the queues that wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use reactor::lock_whole as lock;
use reactor::sync::{Permit as Unit, Semaphore};

/// Authentications that are computed at a time: the largest group takes a core for tens of milliseconds.
const COMPUTING_MAX: usize = 2;

/// Bits of an IPv6 address that its host can choose as it likes.
const IPV6_HOST_BITS: u32 = 64;

/// Permits of all hosts.
#[derive(Debug)]
pub struct Permits {
    all: Semaphore,
    /// One permit for each address that computes or waits.
    addresses: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

impl Default for Permits {
    fn default() -> Self {
        Self {
            all: Semaphore::new(COMPUTING_MAX),
            addresses: Mutex::default(),
        }
    }
}

/// A permit, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    _of_all: Unit,
    _of_address: Unit,
    _entry: AddressEntry,
}

/// An address among those that compute or wait; the last one of an address that goes takes its entry along.
#[derive(Debug)]
struct AddressEntry {
    address: IpAddr,
    own: Arc<Semaphore>,
    permits: Arc<Permits>,
}

impl Permits {
    /// Waits for a permit.
    pub async fn take(self: &Arc<Self>, address: IpAddr) -> Permit {
        let address = network(address);
        let entry = {
            let mut addresses = lock(&self.addresses);
            let own = addresses
                .entry(address)
                .or_insert_with(|| Arc::new(Semaphore::new(1)));
            AddressEntry {
                address,
                own: own.clone(),
                permits: self.clone(),
            }
        };
        // Its own comes first: an address waits once for the others.
        let of_address = entry.own.acquire(1).await;
        let of_all = self.all.acquire(1).await;
        Permit {
            _of_all: of_all,
            _of_address: of_address,
            _entry: entry,
        }
    }
}

impl Drop for AddressEntry {
    fn drop(&mut self) {
        let mut addresses = lock(&self.permits.addresses);
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
    fn an_address_has_one_permit_however_many_of_its_queues_wait() {
        let permits = Arc::new(Permits::default());
        let mut greedy: Vec<_> = (0..100)
            .map(|_| Box::pin(permits.take(address(1))))
            .collect();
        let mut taken: Vec<_> = greedy
            .iter_mut()
            .filter_map(|waiting| match poll(waiting.as_mut()) {
                Poll::Ready(permit) => Some(permit),
                Poll::Pending => None,
            })
            .collect();
        assert_eq!(taken.len(), 1);
        let Poll::Ready(other) = poll(pin!(permits.take(address(2)))) else {
            panic!("another address waits behind the queues of one");
        };
        // Both permits are taken: a third address is next, before the other queues of the first one.
        let mut third = pin!(permits.take(address(3)));
        assert!(poll(third.as_mut()).is_pending());
        taken.clear();
        assert!(poll(greedy[1].as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_ready());
        drop(other);
    }

    #[test]
    fn an_address_that_is_done_leaves_nothing_behind() {
        let permits = Arc::new(Permits::default());
        {
            let Poll::Ready(permit) = poll(pin!(permits.take(address(1)))) else {
                panic!("nobody else is there");
            };
            let mut waiting = pin!(permits.take(address(1)));
            assert!(poll(waiting.as_mut()).is_pending());
            drop(permit);
            assert!(poll(waiting.as_mut()).is_ready());
        }
        assert!(lock(&permits.addresses).is_empty());
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
