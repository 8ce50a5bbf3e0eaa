//! Log lines that a peer can cause are limited by kind and address.
//!
//! Guarantees:
//! - Of one kind an address (of IPv6 its /64) causes at most [`LINES_OF_ADDRESS`] lines in [`WINDOW`], and all
//!   addresses together [`LINES_OF_KIND`].
//! - What was left out is counted: the next line of the kind and address says how many, or [`sweep`] or [`end`] does.
//! - Memory is bounded by [`ADDRESSES_MAX`]; addresses beyond that share the count of their kind.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one kind that an address may cause within [`WINDOW`].
pub const LINES_OF_ADDRESS: u32 = 30;

/// Lines of one kind that all addresses may cause within [`WINDOW`].
pub const LINES_OF_KIND: u32 = 1000;

/// What is counted begins anew after this time.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Pairs of kind and address that are remembered.
pub const ADDRESSES_MAX: usize = 4096;

/// How often room for new addresses is looked for.
const PRUNE_PAUSE: Duration = Duration::from_secs(1);

/// Lines about what was left out that one sweep writes.
const SWEPT_MAX: usize = 64;

/// Lines of a kind within a window.
#[derive(Clone, Copy, Debug)]
struct Count {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl Count {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            lines: 0,
            left_out: 0,
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= WINDOW
    }

    /// Begins a new window if the last one is over; what was left out stays to be told.
    fn renew(&mut self, now: Instant) {
        if self.is_over(now) {
            (self.since, self.lines) = (now, 0);
        }
    }
}

/// What was left out, and of whom; `None` are addresses that there was no room for.
type LeftOut = (&'static str, Option<IpAddr>, u64);

#[derive(Default)]
struct Limiter {
    kinds: HashMap<&'static str, Count>,
    addresses: HashMap<(&'static str, IpAddr), Count>,
    /// When room for new addresses was looked for last.
    pruned: Option<Instant>,
}

impl Limiter {
    /// Whether a line may be written: then with how many were left out before it.
    fn permit(&mut self, kind: &'static str, address: IpAddr, now: Instant) -> Option<u64> {
        let key = (kind, whole(address));
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&key) {
            self.prune(now);
        }
        let of_kind = self.kinds.entry(kind).or_insert_with(|| Count::new(now));
        of_kind.renew(now);
        let has_room = self.addresses.len() < ADDRESSES_MAX || self.addresses.contains_key(&key);
        if !has_room {
            if of_kind.lines >= LINES_OF_KIND {
                of_kind.left_out += 1;
                return None;
            }
            of_kind.lines += 1;
            return Some(std::mem::take(&mut of_kind.left_out));
        }
        let count = self.addresses.entry(key).or_insert_with(|| Count::new(now));
        count.renew(now);
        if count.lines >= LINES_OF_ADDRESS || of_kind.lines >= LINES_OF_KIND {
            count.left_out += 1;
            return None;
        }
        count.lines += 1;
        of_kind.lines += 1;
        Some(std::mem::take(&mut count.left_out))
    }

    /// Forgets who caused nothing lately, and has nothing left out; a flood does not make it look each time.
    fn prune(&mut self, now: Instant) {
        let lately = |at: Instant| now.saturating_duration_since(at) < PRUNE_PAUSE;
        if self.pruned.is_some_and(lately) {
            return;
        }
        self.pruned = Some(now);
        self.addresses
            .retain(|_, count| count.left_out > 0 || !count.is_over(now));
    }

    /// All that was left out and not told yet.
    fn left_out(&mut self) -> Vec<LeftOut> {
        let of_addresses = self.addresses.drain();
        let of_addresses =
            of_addresses.map(|((kind, address), count)| (kind, Some(address), count));
        let of_kinds = self.kinds.drain();
        let of_kinds = of_kinds.map(|(kind, count)| (kind, None, count));
        let all = of_addresses.chain(of_kinds);
        let all = all.filter(|(_, _, count)| count.left_out > 0);
        let mut found: Vec<LeftOut> = all
            .map(|(kind, address, count)| (kind, address, count.left_out))
            .collect();
        // The log of a program that ends stays bounded too.
        found.sort_by_key(|(_, _, left_out)| std::cmp::Reverse(*left_out));
        found.truncate(SWEPT_MAX);
        found
    }

    /// What was left out in windows that are over, each once; forgets who caused nothing since.
    fn sweep(&mut self, now: Instant) -> Vec<LeftOut> {
        let mut found = Vec::new();
        self.addresses.retain(|(kind, address), count| {
            if !count.is_over(now) || found.len() >= SWEPT_MAX {
                return true;
            }
            if count.left_out > 0 {
                found.push((*kind, Some(*address), count.left_out));
            }
            false
        });
        for (kind, count) in &mut self.kinds {
            if count.is_over(now) && count.left_out > 0 {
                found.push((kind, None, std::mem::take(&mut count.left_out)));
            }
        }
        found
    }
}

/// An address, or of IPv6 the /64 that one host can have all addresses of.
fn whole(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

static LIMITER: Mutex<Option<Limiter>> = Mutex::new(None);

fn with<T>(look: impl FnOnce(&mut Limiter) -> T) -> T {
    // It holds counts alone: whoever panicked left nothing half done that matters.
    let mut limiter = LIMITER.lock().unwrap_or_else(PoisonError::into_inner);
    look(limiter.get_or_insert_default())
}

/// Whether a line of this kind that a peer caused may be written now; use it by [`log_of_peer!`](crate::log_of_peer).
/// Gives the number of lines that were left out before it.
pub fn permit(kind: &'static str, address: IpAddr) -> Option<u64> {
    with(|limiter| limiter.permit(kind, address, Instant::now()))
}

/// Tells the log what was left out in the last minutes. Call it now and then.
pub fn sweep() {
    tell(with(|limiter| limiter.sweep(Instant::now())));
}

/// Tells the log all that was left out and not told yet, those with the most lines first. Call it when the program ends.
pub fn end() {
    tell(with(Limiter::left_out));
}

fn tell(all: Vec<LeftOut>) {
    for (kind, address, left_out) in all {
        let address = address.map(tracing::field::display);
        tracing::warn!(address, left_out, "lines of the log were left out: {kind}");
    }
}

/// Writes a line that a peer at an address caused, if it may cause one now: level, kind (a text), address, and what
/// `tracing` takes.
#[macro_export]
macro_rules! log_of_peer {
    ($level:ident, $kind:expr, $address:expr, $($line:tt)+) => {
        if let Some(left_out) = $crate::peer_log::permit($kind, $address) {
            // The field is there only if there is something to tell.
            let left_out = (left_out > 0).then_some(left_out);
            tracing::$level!(left_out, $($line)+);
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn an_address_gets_its_lines_and_then_a_count_of_what_was_left_out() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        let written = (0..1000).filter_map(|_| limiter.permit("refused", address(1), now));
        assert_eq!(written.count() as u32, LINES_OF_ADDRESS);
        assert_eq!(
            limiter.permit("refused", address(2), now),
            Some(0),
            "another address"
        );
        assert_eq!(
            limiter.permit("silent", address(1), now),
            Some(0),
            "another kind"
        );
        let later = now + WINDOW;
        let left_out = 1000 - u64::from(LINES_OF_ADDRESS);
        assert_eq!(limiter.permit("refused", address(1), later), Some(left_out));
        assert_eq!(
            limiter.permit("refused", address(1), later),
            Some(0),
            "told once"
        );
    }

    #[test]
    fn what_no_line_follows_is_told_by_the_sweep() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        for _ in 0..LINES_OF_ADDRESS + 5 {
            limiter.permit("refused", address(1), now);
        }
        assert_eq!(limiter.sweep(now), []);
        assert_eq!(
            limiter.sweep(now + WINDOW),
            [("refused", Some(address(1)), 5)]
        );
        assert_eq!(limiter.sweep(now + WINDOW), []);
        assert!(limiter.addresses.is_empty(), "it is forgotten");
    }

    #[test]
    fn what_was_left_out_until_the_program_ends_is_told_then_and_once() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        for left_out in [5, 70] {
            for _ in 0..LINES_OF_ADDRESS + left_out {
                limiter.permit("refused", address(left_out), now);
            }
        }
        limiter.permit("refused", address(1), now);
        assert_eq!(
            limiter.left_out(),
            [
                ("refused", Some(address(70)), 70),
                ("refused", Some(address(5)), 5)
            ]
        );
        assert_eq!(limiter.left_out(), []);
    }

    #[test]
    fn a_flood_of_addresses_takes_bounded_memory_and_lines_and_is_counted() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        let count = 3 * ADDRESSES_MAX as u32;
        let written: Vec<u64> = (0..count)
            .filter_map(|number| limiter.permit("refused", address(number), now))
            .collect();
        assert_eq!(written.len() as u32, LINES_OF_KIND);
        assert_eq!(limiter.addresses.len(), ADDRESSES_MAX);
        let (mut told, mut later) = (0, now);
        while !limiter.addresses.is_empty() {
            later += WINDOW;
            told += limiter
                .sweep(later)
                .iter()
                .map(|(_, _, left_out)| left_out)
                .sum::<u64>();
        }
        assert_eq!(told, u64::from(count - LINES_OF_KIND));
    }

    #[test]
    fn a_host_with_a_network_of_ipv6_is_one_address() {
        let of = |text: &str| whole(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.7"), of("192.0.2.7"));
    }
}
