//! Nodes that take one drive from each other, in every order that a seed chooses: at each operation of the cluster any other node
//! may go on. Clocks say anything (a lease may be over at any moment, and for one node alone), nodes stand still for as long as all
//! others want, operations time out and happen later, or never.
//!
//! Each owner counts: it reads a number when it becomes the owner, and from then on it writes the next ones, as an engine that has its
//! maps in memory. So whatever a wrong owner does is seen: a number that is lost, or that comes twice.
//!
//! `ONEFOLD_CELL_SEEDS` is how many schedules there are.

use drives::nodes::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use reactor::sync::{Permit, Semaphore, oneshot};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;
use uuid::Uuid;

use crate::client::{Change, Client, Errno, Filled, Holder, Memory, Pending};
use crate::header::{OWNER, Owner, Tenant};
use crate::owner::{Lease, NotTaken, Take, Wanted, take};
use crate::renewer::Kept;

const SEEDS: usize = 10_000;
const NODES: u64 = 3;
/// Processes that a node runs one after the other.
const LIVES: u64 = 3;
/// What an owner does before it leaves.
const STEPS: u64 = 5;
/// How often the network moves something that was late.
const DELIVERIES: u64 = 12;

const HEADER: &str = "header";
const COUNTER: &str = "counter";

/// What all schedules together have seen: a simulation in which nothing happens proves nothing.
#[derive(Default)]
struct Seen {
    takeovers: AtomicU64,
    refused: AtomicU64,
    fences: AtomicU64,
    lost: AtomicU64,
    late: AtomicU64,
}

static SEEN: Seen = Seen {
    takeovers: AtomicU64::new(0),
    refused: AtomicU64::new(0),
    fences: AtomicU64::new(0),
    lost: AtomicU64::new(0),
    late: AtomicU64::new(0),
};

fn note(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn coin(of: u64) -> bool {
    thread_rng().gen_range(0..of) == 0
}

/// What is to be done to an object.
#[derive(Clone)]
enum Owned {
    Expect(String, Vec<u8>),
    Set(String, Vec<u8>),
    Count(u64),
}

impl Owned {
    fn of(change: &Change<'_>) -> Self {
        match *change {
            Change::Expect(name, value) => Self::Expect(name.to_owned(), value.to_vec()),
            Change::Set(name, value) => Self::Set(name.to_owned(), value.to_vec()),
            Change::Write(0, data) => {
                Self::Count(u64::from_le_bytes(data.try_into().expect("a number")))
            }
            _ => unreachable!("no owner does that here"),
        }
    }
}

#[derive(Default)]
struct World {
    attributes: BTreeMap<String, Vec<u8>>,
    lock: Option<Holder>,
    blocklist: BTreeSet<String>,
    counter: u64,
    clients: u64,
    /// Who sent what, and was told that it took too long.
    late: Vec<(String, Vec<Owned>)>,
    acknowledged: BTreeSet<u64>,
}

impl World {
    fn check(&self, client: &str) -> Result<(), Errno> {
        match self.blocklist.contains(client) {
            true => Err(Errno::SHUT_OUT),
            false => Ok(()),
        }
    }

    fn owner(&self) -> Option<Owner> {
        Owner::parse(self.attributes.get(OWNER)?)
    }

    fn change(&mut self, client: &str, changes: &[Owned]) -> Result<(), Errno> {
        if let Err(error) = self.check(client) {
            note(&SEEN.refused);
            return Err(error);
        }
        for change in changes {
            if let Owned::Expect(name, value) = change {
                let is = self.attributes.get(name).map_or(&[][..], Vec::as_slice);
                if is != value {
                    return Err(Errno::NOT_AS_EXPECTED);
                }
            }
        }
        for change in changes {
            match change {
                Owned::Expect(..) => {}
                Owned::Set(name, value) => self.set(name, value),
                Owned::Count(number) => {
                    let owner = self
                        .owner()
                        .expect("nobody writes before it owns the drive");
                    assert!(
                        owner.addresses.iter().any(|own| own == client),
                        "{client} writes {number}, and {owner:?} owns the drive"
                    );
                    assert_eq!(
                        *number,
                        self.counter + 1,
                        "by {client}: it has seen something else"
                    );
                    self.counter = *number;
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        if name == OWNER {
            let next = Owner::parse(value).expect("an owner");
            if let Some(before) = self.owner() {
                let leaves = next.tenant == before.tenant && next.addresses.is_empty();
                assert!(
                    next.epoch > before.epoch || leaves && next.epoch == before.epoch,
                    "{next:?} after {before:?}"
                );
                if !leaves && next.tenant != before.tenant {
                    note(&SEEN.takeovers);
                }
            }
        }
        self.attributes.insert(name.to_owned(), value.to_vec());
    }
}

struct Connected {
    world: Arc<Mutex<World>>,
    name: String,
    addresses: Vec<String>,
}

impl Connected {
    fn new(world: &Arc<Mutex<World>>) -> Arc<Self> {
        let mut known = world.lock().expect("no panic");
        known.clients += 1;
        let number = known.clients;
        Arc::new(Self {
            world: world.clone(),
            name: format!("client.{number}"),
            addresses: vec![format!("10.0.0.1:0/{number}")],
        })
    }

    fn address(&self) -> &str {
        &self.addresses[0]
    }

    /// Others may go on before each operation.
    fn ask<T>(&self, run: impl FnOnce(&mut World) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut world = self.world.lock().expect("no panic");
        world.check(self.address())?;
        let result = run(&mut world);
        drop(world);
        // The answer is lost, whatever was done.
        match coin(24) {
            true => Err(Errno::TIMED_OUT),
            false => result,
        }
    }
}

impl Client for Connected {
    fn addresses(&self) -> &[String] {
        &self.addresses
    }

    fn read(&self, _: &str, _: u64, _: Memory, _: Permit) -> oneshot::Receiver<Filled> {
        oneshot::channel().1
    }

    fn change(&self, _: &str, _: &[Change<'_>], _: Permit) -> Pending<()> {
        oneshot::channel().1
    }

    fn change_now(&self, _: &str, changes: &[Change<'_>]) -> Result<(), Errno> {
        let changes: Vec<Owned> = changes.iter().map(Owned::of).collect();
        let mut world = self.world.lock().expect("no panic");
        if coin(6) {
            note(&SEEN.late);
            world.late.push((self.address().to_owned(), changes));
            return Err(Errno::TIMED_OUT);
        }
        world.change(self.address(), &changes)
    }

    fn read_now(&self, _: &str, _: u64, _: usize) -> Result<Vec<u8>, Errno> {
        self.ask(|world| Ok(world.counter.to_le_bytes().to_vec()))
    }

    fn attribute(&self, _: &str, name: &str) -> Result<Vec<u8>, Errno> {
        self.ask(|world| world.attributes.get(name).cloned().ok_or(Errno::NO_DATA))
    }

    fn lock(&self, _: &str, cookie: &str, _: Duration) -> Result<(), Errno> {
        self.ask(|world| {
            let own = Holder {
                client: self.name.clone(),
                cookie: cookie.to_owned(),
                address: self.address().to_owned(),
            };
            // A lease is over whenever a clock says so, and clocks say anything.
            let is_taken = world.lock.as_ref().is_some_and(|holder| *holder != own);
            if is_taken && !coin(3) {
                return Err(Errno::BUSY);
            }
            world.lock = Some(own);
            Ok(())
        })
    }

    fn unlock(&self, _: &str, cookie: &str) -> Result<(), Errno> {
        self.ask(|world| match &world.lock {
            Some(holder) if holder.client == self.name && holder.cookie == cookie => {
                world.lock = None;
                Ok(())
            }
            _ => Err(Errno::NOT_FOUND),
        })
    }

    fn holder(&self, _: &str) -> Result<Option<Holder>, Errno> {
        self.ask(|world| Ok(world.lock.clone()))
    }

    fn break_lock(&self, _: &str, holder: &Holder) -> Result<(), Errno> {
        self.ask(|world| match world.lock == Some(holder.clone()) {
            true => {
                world.lock = None;
                Ok(())
            }
            false => Err(Errno::NOT_FOUND),
        })
    }

    fn check_may_shut_out(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn shut_out(&self, address: &str) -> Result<(), Errno> {
        self.ask(|world| {
            world.blocklist.insert(address.to_owned());
            Ok(())
        })
    }
}

fn take_as(client: &Connected, tenant: &Tenant, how: Take) -> Result<Owner, NotTaken> {
    let wanted = Wanted {
        header: HEADER,
        new_bytes: Some(4096),
        tenant,
        take: how,
        lease: Duration::from_secs(1),
    };
    take(client, &wanted)
}

/// A process that takes the drive, and counts as long as it has it.
fn live(world: &Arc<Mutex<World>>, tenant: &Tenant) {
    let mut client = Connected::new(world);
    // Somebody at a console is sure, now and then, that the owner is gone.
    let how = match coin(8) {
        true => Take::Forced,
        false => Take::Free,
    };
    let Ok(mut owner) = take_as(&client, tenant, how) else {
        return;
    };
    let is_lost = Arc::new(AtomicBool::new(false));
    let Some(mut known) = counted(&client) else {
        return;
    };
    for _ in 0..STEPS {
        if coin(4) {
            let mut lease = lease_of(&client, &owner, &is_lost);
            lease.renew();
        }
        if is_lost.load(Ordering::Relaxed) {
            note(&SEEN.lost);
            return;
        }
        let next = known + 1;
        match client.change_now(COUNTER, &[Change::Write(0, &next.to_le_bytes())]) {
            Ok(()) => {
                known = next;
                let mut world = world.lock().expect("no panic");
                assert!(
                    world.acknowledged.insert(next),
                    "{next} was acknowledged twice"
                );
            }
            // It may happen yet: another client shuts this one out before anything else is read or written.
            Err(Errno::TIMED_OUT) => {
                note(&SEEN.fences);
                client = Connected::new(world);
                match (take_as(&client, tenant, Take::Own), counted(&client)) {
                    (Ok(again), Some(now)) => {
                        assert!(
                            now == known || now == next,
                            "{now} is there, and {known} was before {next}: somebody else had the drive"
                        );
                        (owner, known) = (again, now);
                    }
                    _ => return,
                }
            }
            Err(Errno::SHUT_OUT) => {
                note(&SEEN.lost);
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    if coin(2) {
        lease_of(&client, &owner, &is_lost).leave();
    }
}

fn counted(client: &Connected) -> Option<u64> {
    let read = client.read_now(COUNTER, 0, 8).ok()?;
    Some(u64::from_le_bytes(read.try_into().expect("a number")))
}

fn lease_of(client: &Arc<Connected>, owner: &Owner, is_lost: &Arc<AtomicBool>) -> Lease {
    let lost = is_lost.clone();
    Lease {
        name: "rados:p/d".to_owned(),
        header: HEADER.to_owned(),
        duration: Duration::from_secs(1),
        room: Semaphore::new(1),
        is_in_doubt: Arc::default(),
        client: client.clone(),
        owner: owner.clone(),
        has_logged: Arc::default(),
        has_failed: false,
        lost: Box::new(move |_| lost.store(true, Ordering::Relaxed)),
    }
}

fn schedule() {
    let world = Arc::new(Mutex::new(World::default()));
    let nodes: Vec<_> = (0..NODES)
        .map(|node| {
            let world = world.clone();
            thread::spawn(move || {
                for life in 0..LIVES {
                    let tenant = Tenant {
                        pool: Uuid::from_u128(7),
                        process: Process::elsewhere(&format!("node{node}.{life}")),
                    };
                    live(&world, &tenant);
                }
            })
        })
        .collect();
    let network = {
        let world = world.clone();
        thread::spawn(move || {
            for _ in 0..DELIVERIES {
                let mut world = world.lock().expect("no panic");
                if !world.late.is_empty() {
                    let at = thread_rng().gen_range(0..world.late.len());
                    let (client, changes) = world.late.swap_remove(at);
                    // Who sent it has heard that it took too long, and hears nothing more.
                    let _ = world.change(&client, &changes);
                }
                drop(world);
                thread::yield_now();
            }
        })
    };
    for thread in nodes.into_iter().chain([network]) {
        thread.join().expect("it ended");
    }
    let world = world.lock().expect("no panic");
    let last = world.acknowledged.last().copied().unwrap_or(0);
    assert!(
        world.counter >= last,
        "{last} was acknowledged, and is lost"
    );
}

#[test]
fn no_schedule_of_a_cell_has_two_owners_or_loses_what_was_acknowledged() {
    let seeds = std::env::var("ONEFOLD_CELL_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |seeds| seeds.parse().expect("a number"));
    shuttle::check_random(schedule, seeds);
    let Seen {
        takeovers,
        refused,
        fences,
        lost,
        late,
    } = &SEEN;
    let counts = [takeovers, refused, fences, lost, late].map(|it| it.load(Ordering::Relaxed));
    eprintln!(
        "{seeds} schedules: {} takeovers, {} refused changes of earlier owners, {} fences, {} owners that heard that they lost \
         the drive, {} late changes",
        counts[0], counts[1], counts[2], counts[3], counts[4]
    );
    // At least one of each in a hundred schedules.
    assert!(
        counts.iter().all(|count| *count * 100 >= seeds as u64),
        "{counts:?}"
    );
}
