//! Nodes that share a pool on sleds, in every order that a seed chooses, on virtual time: links fail in one way or in both, messages are late
//! and overtake each other, drives are slow, sleds lose power and forget their tables, nodes stand still, die and come back, and each machine
//! and each sled has a clock of its own. What nodes guess of each other is wrong now and then.
//!
//! Real are the reservations of a sled and its node table, the fences (`fencing.rs`), and what nodes say and decide (`node/votes.rs`,
//! `node/deciding.rs`). Modelled are the way of a command in a sled (`world.rs`), the association with it (`drives.rs`), the metadata on the
//! drives (`media.rs`, `metadata.rs`), and the order of a takeover (`process.rs`); each names what it mirrors.
//!
//! Each owner adds to a list. Whatever happens (`truth.rs`):
//! - no drive is changed by a process after another one was told that it has the drive;
//! - whoever has read the pool to have it finds all that was acknowledged, in an epoch that nobody had, and from then on nobody else
//!   acknowledges anything;
//! - when failures end, a node serves the pool soon, unless half of the drives with the newest metadata are gone for good, or more.
//!
//! `ONEFOLD_NODES_SEEDS` is how many seeds there are, `ONEFOLD_NODES_SEED` replays one and tells what happens.

mod drives;
mod media;
mod metadata;
mod process;
mod truth;
mod world;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use rand::Rng;

use media::Media;
use process::Member;
use truth::Seen;
use world::{Ms, Sim, World};

const SEEDS: u64 = 10_000;
const NODES: usize = 3;
/// Failures of a story, and how long they happen.
const FAILURES: usize = 8;
const FAILING: Ms = 4500;
/// How long the nodes have afterwards until one serves the pool.
const SOON: Ms = 20_000;

/// The processes that nodes run now.
type Members = Rc<RefCell<Vec<Option<Rc<Member>>>>>;

/// A rule of the model that is broken on purpose. Those of the program are broken by `tests/breaks/nodes.txt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// Half of the drives with the metadata are enough to take the pool.
    HalfTakesOver,
    /// An owner goes on without more than half of them.
    OwnerGoesOn,
    /// The pool is read before the drives are taken, and not afterwards.
    ReadBeforeTaken,
    /// A sled answers who takes a drive while others have writes under way.
    AnsweredEarly,
}

thread_local! {
    static BROKEN: Cell<Option<Broken>> = const { Cell::new(None) };
}

fn is_broken(broken: Broken) -> bool {
    BROKEN.get() == Some(broken)
}

thread_local! {
    static MEMBERS: RefCell<Members> = RefCell::default();
}

fn start(sim: &Sim, node: usize) {
    let may_start = sim.with(|world| {
        let machine = &world.machines[node];
        machine.process.is_none() && !machine.is_gone
    });
    if may_start {
        let identity = sim.with(|world| world.rng.random_range(2..1_000_000));
        let member = Member::start(sim, node, identity);
        MEMBERS.with_borrow(|members| members.borrow_mut()[node] = Some(member));
    }
}

/// A machine starts a process soon.
fn start_later(sim: &Sim, node: usize) {
    let pause = sim.with(|world| world.rng.random_range(20..500));
    sim.after(pause, move |sim| start(sim, node));
}

/// Something fails now, and works again later.
fn fail(sim: &Sim) {
    let (what, node, sled, for_long) = sim.with(|world| {
        let rng = &mut world.rng;
        let (what, sled) = (
            rng.random_range(0..20),
            rng.random_range(0..world.sleds.len()),
        );
        let for_long: Ms = world.rng.random_range(50..4000);
        (what, world.rng.random_range(0..NODES), sled, for_long)
    });
    // The owner, mostly.
    let owner = sim.with(|world| world.truth.owner_of(&world.machines));
    let node = match owner {
        Some(owner) if sim.with(|world| world.rng.random()) => owner,
        _ => node,
    };
    sim.with(|world| {
        world.tell(|| format!("failure {what} of node {node} and sled {sled} for {for_long}"))
    });
    let cut = |pairs: Vec<(usize, usize)>| {
        let ways = sim.with(|world| match world.rng.random_range(0..4) {
            0 => [true, false],
            1 => [false, true],
            _ => [true, true],
        });
        let heals = pairs.clone();
        for (node, sled) in pairs {
            sim.with(|world| world.machines[node].is_cut[sled] = ways);
        }
        sim.after(for_long, move |sim| {
            for (node, sled) in heals {
                sim.with(|world| world.machines[node].is_cut[sled] = [false; 2]);
            }
        });
    };
    let sleds = sim.with(|world| world.sleds.len());
    match what {
        0..4 => cut(vec![(node, sled)]),
        4..6 => cut((0..sleds)
            .filter(|other| *other != sled)
            .map(|sled| (node, sled))
            .collect()),
        6 => cut((0..sleds).map(|sled| (node, sled)).collect()),
        7..9 => cut((0..NODES).map(|node| (node, sled)).collect()),
        9..12 => {
            sim.with(|world| world.stop_sled(sled));
            sim.after(for_long / 3, move |sim| {
                sim.with(|world| world.sleds[sled].is_up = !world.sleds[sled].is_gone);
            });
        }
        12..14 => {
            sim.with(|world| world.sleds[sled].slow = for_long / 4);
            sim.after(for_long, move |sim| {
                sim.with(|world| world.sleds[sled].slow = 0)
            });
        }
        14..16 => {
            sim.with(|world| world.machines[node].is_paused = true);
            sim.after(for_long, move |sim| sim.wake(node));
        }
        16..18 => {
            sim.with(|world| world.kill(node));
            start_later(sim, node);
        }
        18 => MEMBERS.with_borrow(|members| {
            if let Some(member) = &members.borrow()[node] {
                member.is_to_leave.set(true);
            }
        }),
        _ => {
            let is_sled = sim.with(|world| world.rng.random());
            match is_sled {
                true => sim.with(|world| {
                    world.sleds[sled].is_gone = true;
                    world.stop_sled(sled);
                }),
                false => sim.with(|world| {
                    world.machines[node].is_gone = true;
                    world.kill(node);
                }),
            }
        }
    }
}

/// From now on nothing fails.
fn calm(sim: &Sim) {
    sim.with(|world| {
        world.is_calm = true;
        world.tell(|| "calm".to_owned());
        for sled in &mut world.sleds {
            (sled.is_up, sled.slow) = (!sled.is_gone, 0);
        }
        for machine in &mut world.machines {
            machine.is_cut.fill([false; 2]);
        }
        // One is left at least.
        if world.machines.iter().all(|machine| machine.is_gone) {
            world.machines[0].is_gone = false;
        }
    });
    for node in 0..NODES {
        sim.wake(node);
        start_later(sim, node);
    }
}

/// Whether nobody can be expected to serve the pool: half of the drives with the newest metadata are gone, or more; or the machine that
/// was copying the metadata anew, because a drive with it was away at a takeover, is gone with its folder; or the tables have forgotten who had it, and a drive or a machine that may have it is gone, or several machines have reserved drives, because a takeover
/// ended on the way. People are told then to decide.
fn is_unservable(sim: &Sim) -> bool {
    sim.with(|world| {
        let all = (0..).zip(&world.sleds);
        let all = all.map(|(at, sled)| (at, Rc::new(sled.media.clone())));
        let all: Vec<(usize, Rc<Media>)> = all.collect();
        let Some(newest) = media::newest(&all) else {
            return true;
        };
        let is_there = |at: &&usize| {
            let sled = &world.sleds[**at];
            !sled.is_gone && sled.media.superblock.is_some()
        };
        let there = newest.members.iter().filter(is_there).count();
        let is_any_gone = world.sleds.iter().any(|sled| sled.is_gone)
            || world.machines.iter().any(|machine| machine.is_gone);
        let holders = world.sleds.iter().filter_map(|sled| sled.holder());
        let machines: BTreeSet<u64> = holders.map(|host| host.as_u64_pair().0).collect();
        let is_undecided = is_any_gone || machines.len() > 1;
        let copied_by = world.truth.copies_anew;
        let is_folder_gone = copied_by.is_some_and(|node| world.machines[node].is_gone);
        let is_too_few = there * 2 <= newest.members.len();
        is_too_few || is_folder_gone || world.truth.is_forgotten && is_undecided
    })
}

fn story(seed: u64, is_told: bool) -> Seen {
    let sleds = 3 + (seed % 3) as usize;
    let first: Vec<usize> = match seed % 2 {
        0 => vec![0, 1, 2],
        _ => vec![0, 1],
    };
    let sim = Sim::new(seed, sleds, NODES, |at| Media::new(&first, at));
    sim.with(|world| world.is_told = is_told);
    MEMBERS.with_borrow_mut(|members| *members = Rc::new(RefCell::new(vec![None; NODES])));
    for node in 0..NODES {
        start_later(&sim, node);
    }
    sim.with(|world| world.is_calm = true);
    let is_served = |world: &World| world.truth.is_served;
    assert!(sim.run(SOON, is_served), "nobody serves the pool at first");
    let begins = sim.with(|world| {
        world.is_calm = false;
        (world.truth.is_served, world.truth.is_forgotten) = (false, false);
        world.now
    });
    for _ in 0..FAILURES {
        let at = sim.with(|world| world.rng.random_range(0..FAILING));
        sim.at(begins + at, fail);
    }
    sim.at(begins + FAILING, calm);
    sim.run(begins + FAILING + 1, |_| false);
    if !sim.run(begins + FAILING + SOON, is_served) {
        sim.with(|world| world.truth.seen.unserved += 1);
        let may_be = is_unservable(&sim);
        assert!(may_be, "nobody serves the pool in the end");
    }
    let seen = sim.with(|world| world.truth.seen);
    MEMBERS.with_borrow(|members| members.borrow_mut().clear());
    sim.end();
    seen
}

#[test]
fn no_order_of_nodes_on_sleds_has_two_owners_or_loses_what_was_acknowledged() {
    let number = |name: &str| {
        let value = std::env::var(name).ok()?;
        Some(value.parse::<u64>().expect("a number"))
    };
    let seeds = match number("ONEFOLD_NODES_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ONEFOLD_NODES_SEEDS").unwrap_or(SEEDS),
    };
    let is_told = seeds.end - seeds.start == 1;
    let run = |seed| match std::panic::catch_unwind(|| story(seed, is_told)) {
        Ok(seen) => seen,
        Err(why) => {
            eprintln!(
                "to see it again: ONEFOLD_NODES_SEED={seed} cargo test -p fabric-drives simulation"
            );
            std::panic::resume_unwind(why);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = Seen::default();
    std::thread::scope(|scope| {
        let parts = (0..threads).map(|part| {
            let seeds = seeds.clone().skip(part).step_by(threads);
            scope.spawn(move || {
                let mut seen = Seen::default();
                seeds.for_each(|seed| seen.add(run(seed)));
                seen
            })
        });
        for part in parts.collect::<Vec<_>>() {
            match part.join() {
                Ok(seen) => all.add(seen),
                Err(why) => std::panic::resume_unwind(why),
            }
        }
    });
    let count = seeds.end - seeds.start;
    eprintln!("{count} seeds: {all:?}");
    // Each of them at least once in a hundred seeds.
    assert!(count < 1000 || all.least() * 100 >= count, "{all:?}");
}

/// Whether one of so many seeds notices that the rule is broken. The first one did when this was written.
fn is_noticed(broken: Broken, first: u64) -> bool {
    BROKEN.set(Some(broken));
    let mut seeds = first..first + SEEDS;
    let noticed = seeds.find(|seed| std::panic::catch_unwind(|| story(*seed, false)).is_err());
    BROKEN.set(None);
    eprintln!("{broken:?}: noticed with seed {noticed:?}");
    noticed.is_some()
}

#[test]
fn the_simulation_notices_a_takeover_with_half_of_the_drives() {
    assert!(is_noticed(Broken::HalfTakesOver, 143));
}

#[test]
fn the_simulation_notices_an_owner_that_goes_on_without_more_than_half_of_the_drives() {
    assert!(is_noticed(Broken::OwnerGoesOn, 1646));
}

#[test]
fn the_simulation_notices_a_pool_that_is_read_before_its_drives_are_taken() {
    assert!(is_noticed(Broken::ReadBeforeTaken, 692));
}

#[test]
fn the_simulation_notices_a_drive_that_is_taken_while_writes_are_under_way() {
    assert!(is_noticed(Broken::AnsweredEarly, 14));
}
