//! A soak: many hosts over every transport for some time, while connections are cut, hosts lose their
//! power, networks lose packets, the pool fills up and the daemon is killed. At the end every block is
//! read and must be what its host was told.
//!
//! `ONEFOLD_SOAK_SECONDS=3600 cargo test -p tests --test soak -- --nocapture` soaks for an hour
//! (`tests/lab/soak.sh 60`, in minutes); without it for some seconds, because this runs with every
//! change. `ONEFOLD_SOAK_SEED=n` repeats the hosts' choices (not the timing).

#![allow(clippy::print_stdout, reason = "the figures of a soak are its result")]

mod hostile;

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use hostile::{PATIENCE, Place, Stage, Usage, WAYS, Way, options, run};
use initiator::{Controller, Host, Namespace};
use nvme::Status;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Seconds, unless the environment says another number.
const SECONDS: u64 = 15;
/// Hosts that work and verify.
const HOSTS: u64 = 6;
/// Tasks of a host, each with blocks of its own.
const LANES: u64 = 4;
/// Blocks of a lane.
const LANE_BLOCKS: u64 = 512;
const BLOCK_BYTES: usize = 4096;
/// Blocks of one command at most.
const COMMAND_BLOCKS: u64 = 32;
/// Contents that all hosts write: what the pool stores once.
const COMMON_CONTENTS: u64 = 500;
/// The daemon's memory may grow by this much in the part of a soak without kills: the maps of a pool
/// that fills, and what the allocator keeps.
const GROWTH_BYTES_MAX: u64 = 96 << 20;
/// File descriptors that may come: RocksDB's files change in number.
const GROWTH_DESCRIPTORS_MAX: usize = 64;

/// How often hosts show that they live.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// After this time a host that died may come back: the target has forgotten it, and with it whatever
/// it had sent. Hosts that come back earlier must expect that an old write overtakes a new one.
const FORGOTTEN: Duration = Duration::from_secs(5);

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) => default,
    }
}

/// What happened, for the report.
#[derive(Default)]
struct Tally {
    sessions: AtomicU64,
    orderly: AtomicU64,
    hung_up: AtomicU64,
    died: AtomicU64,
    lost: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    trims: AtomicU64,
    flushes: AtomicU64,
    full: AtomicU64,
    refills: AtomicU64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        write!(
            f,
            "{} sessions ({} left in order, {} hung up, {} died, {} lost the target); {} reads, {} \
             writes, {} trims and zeroes, {} flushes; {} refused for want of space, {} refills",
            get(&self.sessions),
            get(&self.orderly),
            get(&self.hung_up),
            get(&self.died),
            get(&self.lost),
            get(&self.reads),
            get(&self.writes),
            get(&self.trims),
            get(&self.flushes),
            get(&self.full),
            get(&self.refills),
        )
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A block of that content: 0 is zeroes, every other number is in all its words.
fn fill(block: &mut [u8], content: u64) {
    for (index, word) in block.chunks_exact_mut(8).enumerate() {
        let value = match content {
            0 => 0,
            _ => content ^ (index as u64) << 52,
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The content of a block; `None` if it is a mixture or nothing that was ever written.
fn content(block: &[u8]) -> Option<u64> {
    let first = block.first_chunk().map(|word| u64::from_le_bytes(*word))?;
    let mut right = vec![0; block.len()];
    fill(&mut right, first);
    (right == block).then_some(first)
}

/// Blocks that one task writes, and what may be in each: one content when it is known, several while
/// a write is under way or when its answer was lost.
struct Lane {
    first_block: u64,
    blocks: Vec<Vec<u64>>,
    random: ChaCha8Rng,
    next_content: u64,
}

/// The way to the target is gone: connect again.
struct Lost;

impl Lane {
    fn new(host: u64, lane: u64, seed: u64) -> Self {
        let number = host * LANES + lane;
        Self {
            first_block: number * LANE_BLOCKS,
            blocks: vec![vec![0]; LANE_BLOCKS as usize],
            random: ChaCha8Rng::seed_from_u64(seed << 16 | number),
            next_content: (number + 1) << 32,
        }
    }

    /// Some blocks in a row.
    fn choose(&mut self) -> (u64, u64) {
        let count = self.random.random_range(1..=COMMAND_BLOCKS);
        (self.random.random_range(0..=LANE_BLOCKS - count), count)
    }

    fn new_content(&mut self) -> u64 {
        if self.random.random_ratio(1, 3) {
            return self.random.random_range(1..=COMMON_CONTENTS);
        }
        self.next_content += 1;
        self.next_content
    }

    fn may_become(&mut self, first: u64, contents: &[u64]) {
        for (block, content) in self.blocks[first as usize..].iter_mut().zip(contents) {
            if !block.contains(content) {
                block.push(*content);
            }
        }
    }

    fn is_now(&mut self, first: u64, contents: &[u64]) {
        for (block, content) in self.blocks[first as usize..].iter_mut().zip(contents) {
            *block = vec![*content];
        }
    }

    /// Checks what was read; from here on it is known.
    fn saw(&mut self, first: u64, bytes: &[u8]) {
        let contents: Vec<u64> = bytes
            .chunks_exact(BLOCK_BYTES)
            .zip(first..)
            .map(|(bytes, block)| {
                let place = self.first_block + block;
                let seen = content(bytes)
                    .unwrap_or_else(|| panic!("block {place}: a mixture, or nobody's content"));
                let possible = &self.blocks[block as usize];
                assert!(
                    possible.contains(&seen),
                    "block {place}: {seen:#x} is there, it may be one of {possible:#x?}"
                );
                seen
            })
            .collect();
        self.is_now(first, &contents);
    }

    fn offset(&self, first: u64) -> u64 {
        (self.first_block + first) * BLOCK_BYTES as u64
    }
}

/// Sorts out what an error means: refused for want of space is part of the story, a lost connection
/// too, and everything else fails it.
fn judge(result: Result<(), initiator::Error>, tally: &Tally) -> Result<bool, Lost> {
    match result {
        Ok(()) => Ok(true),
        Err(error) => match error.status() {
            Some(status) if status.code() == Status::CAPACITY_EXCEEDED => {
                count(&tally.full);
                Ok(false)
            }
            Some(status) => panic!("a command failed with {status}: {error}"),
            None => Err(Lost),
        },
    }
}

/// One command and what is known after it. The lane is locked only between waits.
async fn step(lane: &Mutex<Lane>, namespace: &Namespace, tally: &Tally) -> Result<(), Lost> {
    let with = |work: &mut dyn FnMut(&mut Lane)| work(&mut lane.lock().expect("no task panicked"));
    let (mut first, mut blocks, mut kind, mut offset) = (0, 0, 0, 0);
    let mut contents = Vec::new();
    with(&mut |lane| {
        (first, blocks) = lane.choose();
        kind = lane.random.random_range(0..20);
        offset = lane.offset(first);
        contents = match kind {
            0..9 => Vec::new(),
            9..17 => (0..blocks).map(|_| lane.new_content()).collect(),
            _ => vec![0; blocks as usize],
        };
        lane.may_become(first, &contents);
    });
    let bytes = blocks as usize * BLOCK_BYTES;
    let done = match kind {
        0..8 => {
            let mut buffer = initiator::buffer(bytes).await;
            buffer.fill(0xee);
            let (result, buffer) = namespace.read(offset, buffer).await;
            count(&tally.reads);
            if judge(result, tally)? {
                with(&mut |lane| lane.saw(first, &buffer));
            }
            return Ok(());
        }
        8 => {
            count(&tally.flushes);
            judge(namespace.flush().await, tally)?;
            return Ok(());
        }
        9..17 => {
            let mut buffer = initiator::buffer(bytes).await;
            for (block, content) in buffer.chunks_exact_mut(BLOCK_BYTES).zip(&contents) {
                fill(block, *content);
            }
            count(&tally.writes);
            let force = kind == 9;
            judge(namespace.write(offset, buffer, force).await.0, tally)?
        }
        17 | 18 => {
            count(&tally.trims);
            judge(namespace.trim(offset, bytes as u64).await, tally)?
        }
        _ => {
            count(&tally.trims);
            judge(namespace.write_zeroes(offset, bytes as u64).await, tally)?
        }
    };
    if done {
        with(&mut |lane| lane.is_now(first, &contents));
    }
    Ok(())
}

/// How a session ends.
#[derive(Clone, Copy, Debug)]
enum Parting {
    Orderly,
    HangUp,
    Die,
}

/// Connects, as soon as the target lets it; `None` when it is not there for the moment.
async fn attach(place: Place, host: &Host) -> Option<(fabric::Connector, Controller, Namespace)> {
    let connector = place.connector();
    let mut options = options(place.address, 2);
    options.host = host.clone();
    options.keep_alive = KEEP_ALIVE;
    // A daemon that was killed answers nothing: the queue pairs notice, or this does.
    options.command_timeout = Duration::from_secs(20);
    let controller = Controller::connect(&connector, options).await.ok()?;
    let namespace = controller.namespace(1).await.ok()?;
    Some((connector, controller, namespace))
}

type Lanes = Arc<Vec<Mutex<Lane>>>;

/// A host's visit: it works with all its lanes for a while, then leaves.
async fn visit(
    place: Place,
    host: Host,
    lanes: Lanes,
    parting: Parting,
    until: Instant,
    tally: Arc<Tally>,
) {
    let Some((connector, controller, namespace)) = attach(place, &host).await else {
        count(&tally.lost);
        return reactor::sleep(Duration::from_millis(100)).await;
    };
    count(&tally.sessions);
    let tasks: Vec<_> = (0..lanes.len())
        .map(|index| {
            let (lanes, tally) = (lanes.clone(), tally.clone());
            let namespace = namespace.for_user(index);
            reactor::spawn(async move {
                while Instant::now() < until {
                    step(&lanes[index], &namespace, &tally).await?;
                }
                Ok::<(), Lost>(())
            })
        })
        .collect();
    if matches!(parting, Parting::HangUp) {
        // In the middle of its commands.
        reactor::sleep_until(until).await;
        count(&tally.hung_up);
        for task in &tasks {
            task.abort();
        }
        drop((tasks, namespace, controller));
        return connector.shutdown().await;
    }
    let mut lost = false;
    for task in tasks {
        lost |= task
            .await
            .unwrap_or_else(|error| panic!("{error}"))
            .is_err();
    }
    drop(namespace);
    if lost {
        count(&tally.lost);
        drop(controller);
        reactor::sleep(FORGOTTEN).await;
    } else {
        count(&tally.orderly);
        controller.disconnect().await;
    }
    connector.shutdown().await;
}

/// One host: visit after visit, over one transport or another.
fn host(
    number: u64,
    seed: u64,
    places: Vec<Place>,
    end: Arc<AtomicBool>,
    tally: Arc<Tally>,
) -> Lanes {
    let lanes: Lanes = Arc::new(
        (0..LANES)
            .map(|lane| Mutex::new(Lane::new(number, lane, seed)))
            .collect(),
    );
    let mut random = ChaCha8Rng::seed_from_u64(seed << 8 | number);
    let name = Host::generate();
    while !end.load(Ordering::Relaxed) {
        let place = places[random.random_range(0..places.len())];
        let parting = match random.random_range(0..5) {
            0 => Parting::HangUp,
            1 => Parting::Die,
            _ => Parting::Orderly,
        };
        let time = Duration::from_millis(random.random_range(100..3000));
        let until = Instant::now() + time;
        let work = {
            let (name, lanes, tally) = (name.clone(), lanes.clone(), tally.clone());
            move || visit(place, name, lanes, parting, until, tally)
        };
        let reactor = reactor::start(reactor::Config {
            buffer_pool: reactor::PoolConfig { bytes: 8 << 20 },
            ..reactor::Config::default()
        });
        let reactor = reactor.expect("a reactor");
        let task = reactor.handle().spawn(work);
        if matches!(parting, Parting::Die) {
            // Its power goes: no word to the target, and nobody waits for answers.
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            count(&tally.died);
            reactor.stop_and_join();
            drop(task);
            std::thread::sleep(FORGOTTEN);
            assert!(
                lanes.iter().all(|lane| !lane.is_poisoned()),
                "what a host read is wrong"
            );
        } else {
            if let Err(error) = task.wait() {
                panic!("host {number}: {error}");
            }
            reactor.stop_and_join();
        }
    }
    lanes
}

/// Fills the pool with contents of its own until there is no space left, and gives all back.
fn hog(places: Vec<Place>, end: Arc<AtomicBool>, tally: Arc<Tally>) {
    let name = Host::generate();
    let mut next = 1_u64 << 48;
    while !end.load(Ordering::Relaxed) {
        run(async {
            let Some((connector, controller, _)) = attach(places[0], &name).await else {
                return reactor::sleep(Duration::from_millis(200)).await;
            };
            if let Ok(namespace) = controller.namespace(2).await {
                let _ = gorge(&namespace, &end, &tally, &mut next).await;
            }
            controller.disconnect().await;
            connector.shutdown().await;
        });
    }
}

async fn gorge(
    namespace: &Namespace,
    end: &AtomicBool,
    tally: &Tally,
    next: &mut u64,
) -> Result<(), Lost> {
    const CHUNK: usize = 256 << 10;
    let mut offset = 0;
    let mut refused = 0;
    while offset < namespace.size_bytes() && !end.load(Ordering::Relaxed) {
        let mut buffer = initiator::buffer(CHUNK).await;
        for block in buffer.chunks_exact_mut(BLOCK_BYTES) {
            *next += 1;
            fill(block, *next);
        }
        if judge(namespace.write(offset, buffer, false).await.0, tally)? {
            offset += CHUNK as u64;
        } else {
            // Others feel it for a moment.
            refused += 1;
            if refused == 20 {
                break;
            }
            reactor::sleep(Duration::from_millis(20)).await;
        }
    }
    let mut at = 0;
    while at < namespace.size_bytes() {
        let len = (namespace.size_bytes() - at).min(64 << 20);
        judge(namespace.trim(at, len).await, tally)?;
        at += len;
    }
    count(&tally.refills);
    Ok(())
}

/// Reads everything that every host wrote.
async fn verify(place: Place, all: &[Lanes]) -> u64 {
    let mut blocks = 0;
    let (connector, controller, namespace) = loop {
        match attach(place, &Host::generate()).await {
            Some(attached) => break attached,
            None => reactor::sleep(Duration::from_millis(100)).await,
        }
    };
    for lane in all.iter().flat_map(|lanes| lanes.iter()) {
        let lock = || lane.lock().expect("no task panicked");
        for first in (0..LANE_BLOCKS).step_by(COMMAND_BLOCKS as usize) {
            let offset = lock().offset(first);
            let buffer = initiator::buffer(COMMAND_BLOCKS as usize * BLOCK_BYTES).await;
            let (result, buffer) = namespace.read(offset, buffer).await;
            result.expect("every block can be read");
            lock().saw(first, &buffer);
            blocks += COMMAND_BLOCKS;
        }
    }
    controller.disconnect().await;
    connector.shutdown().await;
    blocks
}

#[test]
fn hosts_in_trouble_get_what_they_were_told_and_the_daemon_does_not_grow() {
    let seconds = setting("ONEFOLD_SOAK_SECONDS", SECONDS);
    let seed = setting("ONEFOLD_SOAK_SEED", 1);
    let start = Instant::now();
    let time = Duration::from_secs(seconds);
    let mut stage = Stage::with(10, "192M", &["vol0=128M", "hog=256M"]);
    let mut places: Vec<Place> = WAYS.iter().map(|way| stage.at(*way)).collect();
    // And a network that loses packets.
    places.push(Place {
        drop_every: Some(211),
        ..stage.at(Way::Rdma)
    });
    let (end, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(Tally::default()));
    let hosts: Vec<JoinHandle<Lanes>> = (0..HOSTS)
        .map(|number| {
            let (places, end, tally) = (places.clone(), end.clone(), tally.clone());
            std::thread::spawn(move || host(number, seed, places, end, tally))
        })
        .collect();
    let glutton = {
        let (places, end, tally) = (places.clone(), end.clone(), tally.clone());
        std::thread::spawn(move || hog(places, end, tally))
    };
    // Two thirds of the time with kills, the rest without: there memory and descriptors must stay.
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut kills = 0;
    let gap = (time / 6).clamp(Duration::from_secs(3), Duration::from_secs(20));
    while start.elapsed() < time * 2 / 3 {
        std::thread::sleep(gap.mul_f64(random.random_range(0.5..1.5)));
        let worried = hosts.iter().any(JoinHandle::is_finished) || glutton.is_finished();
        assert!(!worried, "a host failed");
        stage.kill_and_restart();
        kills += 1;
    }
    let settled = start + time * 3 / 4;
    std::thread::sleep(settled.saturating_duration_since(Instant::now()));
    let before = stage.usage();
    let mut most = before;
    while start.elapsed() < time {
        std::thread::sleep(Duration::from_millis(500));
        let now = stage.usage();
        most = Usage {
            resident_bytes: most.resident_bytes.max(now.resident_bytes),
            descriptors: most.descriptors.max(now.descriptors),
        };
    }
    end.store(true, Ordering::Relaxed);
    let lanes: Vec<Lanes> = hosts
        .into_iter()
        .map(|host| {
            host.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .collect();
    glutton
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let blocks = run(verify(places[0], &lanes));
    stage.hosts_are(0);
    let after = stage.usage();
    println!(
        "soaked for {:?}, killed the daemon {kills} times: {tally}",
        start.elapsed()
    );
    println!("verified {blocks} blocks; usage {before:?}, at most {most:?}, at the end {after:?}");
    assert!(
        after.resident_bytes <= before.resident_bytes + GROWTH_BYTES_MAX
            && after.descriptors <= before.descriptors + GROWTH_DESCRIPTORS_MAX,
        "the daemon grew: {before:?}, then {after:?}"
    );
    assert!(tally.writes.load(Ordering::Relaxed) > 0 && tally.sessions.load(Ordering::Relaxed) > 0);
    assert!(start.elapsed() < time + PATIENCE, "it ended in time");
    stage.end();
}
