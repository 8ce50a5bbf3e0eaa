//! Connections whose hosts have not yet proved who they are: how many there may be, and which one gives way.
//!
//! Guarantees:
//! - They have places of their own, in two parts of equal size: one for addresses with a ready admin queue, one for all
//!   others. Who fills one part takes nothing from the other.
//! - In a full part a newcomer gets a place only at the cost of a peer that never answered, whose address may be
//!   forged, or of an address that has at least two places more than the newcomer's. So addresses that ask share the
//!   places equally, and a crowd of hosts that behave cannot send each other away without end.
//! - A connection keeps its place until its host has proved who it is or until it ends.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// What counts as one address: an IPv4 address, or the 64 bits of an IPv6 address that name its network, because a
/// machine there has as many of the others as it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Origin(IpAddr);

impl Origin {
    fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            v4 => v4,
        })
    }
}

/// Addresses with a ready admin queue. Clones are the same table; any thread may use it.
#[derive(Clone, Debug, Default)]
pub struct KnownAddresses(Arc<Mutex<HashMap<Origin, usize>>>);

/// As long as it is there, its address is known.
#[derive(Debug)]
pub struct Acquaintance {
    known: KnownAddresses,
    origin: Origin,
}

impl KnownAddresses {
    /// An admin queue of a host at this address is ready.
    #[must_use]
    pub fn enter(&self, address: IpAddr) -> Acquaintance {
        let origin = Origin::of(address);
        *self.lock().entry(origin).or_default() += 1;
        Acquaintance {
            known: self.clone(),
            origin,
        }
    }

    /// Whether a host at this address has a ready admin queue.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.lock().contains_key(&Origin::of(address))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Origin, usize>> {
        // Every change is one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Acquaintance {
    fn drop(&mut self) {
        let mut known = self.known.lock();
        if let Some(queues) = known.get_mut(&self.origin) {
            *queues -= 1;
            if *queues == 0 {
                known.remove(&self.origin);
            }
        }
    }
}

/// All places are taken, and nobody has to give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "all places for hosts that have not authenticated are taken; the host may connect again when others have \
     authenticated or gone"
)]
pub struct Crowded;

/// The number of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlaceNumber(u64);

/// The places. `T` stands for a connection.
#[derive(Debug)]
pub struct Admission<T> {
    /// In each part.
    places_max: usize,
    next: u64,
    /// Unknown addresses, and known ones.
    parts: [Part<T>; 2],
}

#[derive(Debug)]
struct Part<T> {
    /// Oldest first.
    taken: BTreeMap<PlaceNumber, Taken<T>>,
    by_origin: HashMap<Origin, usize>,
}

#[derive(Debug)]
struct Taken<T> {
    origin: Origin,
    /// The peer reacted to something that was sent to its address.
    answered: bool,
    connection: T,
}

impl<T> Admission<T> {
    /// So many places in each part.
    #[must_use]
    pub fn new(places_max: usize) -> Self {
        Self {
            places_max: places_max.max(1),
            next: 0,
            parts: Default::default(),
        }
    }

    /// Gives a connection from this address a place. If another connection is evicted for it, that one is returned and
    /// has lost its place.
    ///
    /// # Errors
    /// If nobody has to give way.
    pub fn admit(
        &mut self,
        address: IpAddr,
        is_known: bool,
        answered: bool,
        connection: T,
    ) -> Result<(PlaceNumber, Option<T>), Crowded> {
        let origin = Origin::of(address);
        let part = &mut self.parts[usize::from(is_known)];
        let displaced = match part.taken.len() < self.places_max {
            true => None,
            false => {
                let number = part.who_gives_way(origin).ok_or(Crowded)?;
                part.take_out(number)
            }
        };
        let number = PlaceNumber(self.next);
        self.next += 1;
        *part.by_origin.entry(origin).or_default() += 1;
        let taken = Taken {
            origin,
            answered,
            connection,
        };
        part.taken.insert(number, taken);
        Ok((number, displaced))
    }

    /// The peer has reacted to something that was sent to its address, so that it is no forged one.
    pub fn answered(&mut self, number: PlaceNumber) {
        for part in &mut self.parts {
            if let Some(taken) = part.taken.get_mut(&number) {
                taken.answered = true;
            }
        }
    }

    /// The host has proved who it is, or its connection is over. Nothing happens if the place was given away.
    pub fn leave(&mut self, number: PlaceNumber) {
        self.parts.iter_mut().for_each(|part| {
            part.take_out(number);
        });
    }

    /// Places that are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.parts.iter().map(|part| part.taken.len()).sum()
    }
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self {
            taken: BTreeMap::new(),
            by_origin: HashMap::new(),
        }
    }
}

impl<T> Part<T> {
    fn who_gives_way(&self, newcomer: Origin) -> Option<PlaceNumber> {
        let places_of = |origin| self.by_origin.get(&origin).copied().unwrap_or_default();
        // Of those with the most places the oldest: its number is the smallest.
        let greediest = |candidates: &dyn Fn(&Taken<T>) -> bool| {
            self.taken
                .iter()
                .filter(|(_, taken)| candidates(taken))
                .max_by_key(|(number, taken)| {
                    (places_of(taken.origin), std::cmp::Reverse(**number))
                })
                .map(|(number, taken)| (*number, places_of(taken.origin)))
        };
        if let Some((number, _)) = greediest(&|taken| !taken.answered) {
            return Some(number);
        }
        greediest(&|_| true)
            .filter(|(_, places)| *places >= places_of(newcomer) + 2)
            .map(|(number, _)| number)
    }

    fn take_out(&mut self, number: PlaceNumber) -> Option<T> {
        let taken = self.taken.remove(&number)?;
        if let Some(places) = self.by_origin.get_mut(&taken.origin) {
            *places -= 1;
            if *places == 0 {
                self.by_origin.remove(&taken.origin);
            }
        }
        Some(taken.connection)
    }
}

/// The places at a listener.
#[derive(Debug)]
pub(crate) struct Entrance<T> {
    admission: RefCell<Admission<T>>,
    known: KnownAddresses,
    turned_away: Cell<u64>,
}

/// A connection's place at a listener; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place<T> {
    entrance: Rc<Entrance<T>>,
    address: IpAddr,
    number: PlaceNumber,
    known: RefCell<Option<Acquaintance>>,
}

impl<T> Entrance<T> {
    pub(crate) fn new(places_max: usize, known: KnownAddresses) -> Self {
        Self {
            admission: RefCell::new(Admission::new(places_max)),
            known,
            turned_away: Cell::new(0),
        }
    }

    /// As [`Admission::admit`].
    pub(crate) fn admit(
        self: &Rc<Self>,
        address: IpAddr,
        answered: bool,
        connection: T,
    ) -> Result<(Place<T>, Option<T>), Crowded> {
        let is_known = self.known.contains(address);
        let mut admission = self.admission.borrow_mut();
        let admitted = admission.admit(address, is_known, answered, connection);
        if !matches!(admitted, Ok((_, None))) {
            self.turned_away.set(self.turned_away.get().wrapping_add(1));
            let turned_away = self.turned_away.get();
            // A flood must not flood the log too.
            if turned_away.is_power_of_two() {
                tracing::warn!(
                    turned_away,
                    %address,
                    places = admission.places_max,
                    "all places for hosts that have not authenticated are taken: a connection was refused or closed. \
                     Keep hosts without a key away from this port (firewall), or serve them at an address of their own"
                );
            }
        }
        let (number, displaced) = admitted?;
        let place = Place {
            entrance: self.clone(),
            address,
            number,
            known: RefCell::default(),
        };
        Ok((place, displaced))
    }

    /// Connections that got no place, and connections that had to give way.
    pub(crate) fn turned_away(&self) -> u64 {
        self.turned_away.get()
    }
}

impl<T> Place<T> {
    /// As [`Admission::answered`].
    pub(crate) fn answered(&self) {
        self.entrance.admission.borrow_mut().answered(self.number);
    }

    /// The host has proved who it is. With `is_ready_admin`, others from its address find room that is kept for them,
    /// as long as this place is there.
    pub(crate) fn proved(&self, is_ready_admin: bool) {
        self.entrance.admission.borrow_mut().leave(self.number);
        if is_ready_admin {
            *self.known.borrow_mut() = Some(self.entrance.known.enter(self.address));
        }
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        self.entrance.admission.borrow_mut().leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn an_address_that_takes_all_places_gives_them_up_to_others_one_by_one() {
        let mut admission = Admission::new(8);
        for number in 0..8 {
            assert_eq!(
                admission
                    .admit(address(1), false, true, number)
                    .map(|a| a.1),
                Ok(None)
            );
        }
        assert_eq!(admission.admit(address(1), false, true, 8), Err(Crowded));
        for number in 0..4 {
            let (_, displaced) = admission
                .admit(address(2), false, true, 100 + number)
                .expect("room");
            assert_eq!(displaced, Some(number), "the oldest of the greedy one");
        }
        assert_eq!(
            admission.admit(address(2), false, true, 104),
            Err(Crowded),
            "four of each"
        );
        let (_, displaced) = admission.admit(address(3), false, true, 200).expect("room");
        assert_eq!(displaced, Some(4));
    }

    #[test]
    fn hosts_that_have_a_place_each_keep_it() {
        let mut admission = Admission::new(4);
        for last in 0..4 {
            assert!(admission.admit(address(last), false, true, last).is_ok());
        }
        assert_eq!(admission.admit(address(9), false, true, 9), Err(Crowded));
    }

    #[test]
    fn forged_addresses_push_out_each_other_and_nobody_who_answers() {
        let mut admission = Admission::new(8);
        let (mut honest, mut displaced) = (Vec::new(), Vec::new());
        for last in 0..4 {
            let (place, _) = admission
                .admit(address(last), false, false, last)
                .expect("room");
            admission.answered(place);
            honest.push(place);
        }
        for last in 100..200 {
            let admitted = admission.admit(address(last), false, false, last);
            displaced.extend(admitted.expect("forged ones give way").1);
        }
        assert_eq!(
            displaced,
            (100..196).collect::<Vec<_>>(),
            "the oldest first"
        );
        let (_, gone) = admission
            .admit(address(50), false, false, 50)
            .expect("a new host");
        assert_eq!(gone, Some(196));
        honest.into_iter().for_each(|place| admission.leave(place));
        assert_eq!(admission.taken(), 4);
    }

    #[test]
    fn known_addresses_have_room_of_their_own() {
        let known = KnownAddresses::default();
        let entrance = Rc::new(Entrance::new(2, known.clone()));
        let (admin, _) = entrance.admit(address(1), true, ()).expect("room");
        admin.proved(true);
        let crowd: Vec<_> = (100..102)
            .map(|last| entrance.admit(address(last), true, ()).expect("room"))
            .collect();
        assert!(entrance.admit(address(2), true, ()).is_err());
        let queues: Vec<_> = (0..2)
            .map(|_| entrance.admit(address(1), true, ()).expect("room is kept"))
            .collect();
        assert!(entrance.admit(address(1), true, ()).is_err());
        assert_eq!(entrance.turned_away(), 2);
        drop((queues, crowd));
        assert!(known.contains(address(1)));
        drop(admin);
        assert!(!known.contains(address(1)));
        assert_eq!(entrance.admission.borrow().taken(), 0);
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_count_as_one() {
        let mut admission = Admission::new(2);
        let at = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(admission.admit(at("2001:db8::1"), false, true, 1).is_ok());
        assert!(admission.admit(at("2001:db8::2"), false, true, 2).is_ok());
        let (_, displaced) = admission
            .admit(at("2001:db8:1::1"), false, true, 3)
            .expect("room");
        assert_eq!(displaced, Some(1));
        assert_eq!(Origin::of(at("::ffff:192.0.2.1")), Origin::of(address(1)));
    }

    proptest! {
        #[test]
        fn whatever_happens_the_counts_are_right_and_the_bound_holds(
            places in 1..6_usize,
            steps in prop::collection::vec((0..5_u8, any::<bool>(), any::<bool>(), 0..4_u8), 1..200),
        ) {
            let mut admission = Admission::new(places);
            let mut open: Vec<(PlaceNumber, u64)> = Vec::new();
            for (step, (last, known, answered, what)) in steps.into_iter().enumerate() {
                let step = step as u64;
                match what {
                    0 if !open.is_empty() => admission.leave(open.remove(usize::from(last) % open.len()).0),
                    1 if !open.is_empty() => admission.answered(open[usize::from(last) % open.len()].0),
                    _ => if let Ok((place, displaced)) = admission.admit(address(last), known, answered, step) {
                        open.retain(|(_, who)| Some(*who) != displaced);
                        open.push((place, step));
                    },
                }
                prop_assert_eq!(admission.taken(), open.len());
                for part in &admission.parts {
                    prop_assert!(part.taken.len() <= places);
                    prop_assert_eq!(part.by_origin.values().sum::<usize>(), part.taken.len());
                }
            }
        }
    }
}
