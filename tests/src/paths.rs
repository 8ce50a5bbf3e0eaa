//! A host that writes, and knows what was acknowledged.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabric::{Connector, TransportAddress};
use futures_util::future::{Either, join_all, select};
use initiator::{ConnectOptions, Controller, Host, Namespace};

use crate::wait_for;

/// Bytes of what is written at a time.
pub const BLOCK: usize = 4096;

/// How long a host waits for a path.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it waits before it tries its paths again.
const AGAIN: Duration = Duration::from_millis(20);

/// Blocks that a [`Writer`] writes to: each several times.
const WRITTEN_BLOCKS: u64 = 97;

/// How long it may take until a [`Writer`] goes on.
const GOES_ON_MAX: Duration = Duration::from_secs(120);

/// Writes that are under way.
const DEPTH: u64 = 8;

/// What a host wrote to each block: the last number that was acknowledged, and the last one that was sent.
#[derive(Clone, Debug, Default)]
pub struct Written {
    blocks: BTreeMap<u64, (u64, u64)>,
}

impl Written {
    /// How many blocks have something that was acknowledged.
    pub fn acknowledged(&self) -> usize {
        let known = |(acknowledged, _): &&(u64, u64)| *acknowledged > 0;
        self.blocks.values().filter(known).count()
    }

    /// Whether all that was sent was acknowledged.
    pub fn is_whole(&self) -> bool {
        let mut all = self.blocks.values();
        all.all(|(acknowledged, sent)| acknowledged == sent)
    }

    /// What was written later too.
    pub fn extend(&mut self, later: Self) {
        for (block, (acknowledged, sent)) in later.blocks {
            let of_block = self.blocks.entry(block).or_default();
            *of_block = (acknowledged.max(of_block.0), sent);
        }
    }
}

/// The bytes of a block with a number: no two are alike.
fn content(block: u64, number: u64) -> Vec<u8> {
    let mut word = block << 32 ^ number;
    let words = (0..BLOCK / 8).flat_map(|_| {
        // A step of SplitMix64.
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).to_le_bytes()
    });
    words.collect()
}

/// Runs something with the first volume behind an address.
pub fn with_volume<T: Send + 'static>(
    listen: &str,
    run: impl AsyncFnOnce(Paths) -> T + Send + 'static,
) -> T {
    with_namespace(listen, 1, run)
}

/// Runs something with a volume behind an address.
pub fn with_namespace<T: Send + 'static>(
    listen: &str,
    nsid: u32,
    run: impl AsyncFnOnce(Paths) -> T + Send + 'static,
) -> T {
    with_controllers(&[listen], async move |controllers| {
        let volume = controllers[0].namespace(nsid).await.expect("a volume");
        run(Paths::one(volume)).await
    })
}

/// Runs something with the same volume behind several addresses. What is lost of them is connected again, as by Linux.
pub fn with_paths<T: Send + 'static>(
    listen: &[&str],
    run: impl AsyncFnOnce(Paths) -> T + Send + 'static,
) -> T {
    let addresses = addresses(listen);
    let ended = reactor::run(reactor::Config::default(), async move {
        let host = Host::generate();
        let mut attached = Vec::new();
        for address in addresses {
            attached.push(Attached::open(address, host.clone()).await);
        }
        let volumes = attached.iter().map(|one| one.volume.clone()).collect();
        let result = {
            let running = pin!(run(Paths::several(volumes)));
            let kept = pin!(join_all(attached.iter().map(Attached::keep)));
            match select(running, kept).await {
                Either::Left((result, _)) => result,
                Either::Right(_) => unreachable!("paths are kept for ever"),
            }
        };
        for one in attached {
            one.controller.borrow().close();
            one.connector.shutdown().await;
        }
        result
    });
    ended.expect("this machine permits io_uring")
}

/// A volume behind one address.
struct Attached {
    connector: Connector,
    options: ConnectOptions,
    controller: RefCell<Controller>,
    volume: Rc<RefCell<Namespace>>,
}

impl Attached {
    async fn open(address: TransportAddress, host: Host) -> Self {
        let connector = Connector::to_reach(&address).expect("a connector");
        let options = options(&address, host);
        let controller = Controller::connect(&connector, options.clone()).await;
        let controller = controller.expect("the daemon lets hosts in");
        let volume = controller.namespace(1).await.expect("a volume");
        Self {
            connector,
            options,
            controller: RefCell::new(controller),
            volume: Rc::new(RefCell::new(volume)),
        }
    }

    /// Connects again whenever the connection is lost.
    async fn keep(&self) {
        loop {
            reactor::sleep(AGAIN).await;
            let is_alive = self.controller.borrow().is_alive();
            if is_alive {
                continue;
            }
            let again = Controller::connect(&self.connector, self.options.clone());
            if let Ok(controller) = again.await
                && let Ok(volume) = controller.namespace(1).await
            {
                self.controller.replace(controller);
                self.volume.replace(volume);
            }
        }
    }
}

fn options(address: &TransportAddress, host: Host) -> ConnectOptions {
    let nqn = "nqn.2026-11.dev.onefold:default".parse().expect("a name");
    ConnectOptions::new(address.socket_addr(), nqn, host)
}

fn addresses(listen: &[&str]) -> Vec<TransportAddress> {
    let parsed = listen.iter().map(|listen| listen.parse());
    parsed.map(|address| address.expect("an address")).collect()
}

/// Runs something with a controller of one host behind each address.
pub fn with_controllers<T: Send + 'static>(
    listen: &[&str],
    run: impl AsyncFnOnce(&[Controller]) -> T + Send + 'static,
) -> T {
    let addresses = addresses(listen);
    let ended = reactor::run(reactor::Config::default(), async move {
        let host = Host::generate();
        let (mut connectors, mut controllers) = (Vec::new(), Vec::new());
        for address in addresses {
            let connector = Connector::to_reach(&address).expect("a connector");
            let controller = Controller::connect(&connector, options(&address, host.clone())).await;
            controllers.push(controller.expect("the daemon lets hosts in"));
            connectors.push(connector);
        }
        let result = run(&controllers).await;
        controllers.iter().for_each(Controller::close);
        for connector in connectors {
            connector.shutdown().await;
        }
        result
    });
    ended.expect("this machine permits io_uring")
}

/// Where a host reaches a volume.
pub struct Paths {
    paths: Vec<Rc<RefCell<Namespace>>>,
    /// What no path takes is tried again for so long.
    patience: Duration,
}

impl Paths {
    /// By one, whose errors count.
    pub fn one(volume: Namespace) -> Self {
        Self {
            paths: vec![Rc::new(RefCell::new(volume))],
            patience: Duration::ZERO,
        }
    }

    /// By several, as Linux does: a command that fails is sent by another one, and waits while none leads to the volume.
    fn several(paths: Vec<Rc<RefCell<Namespace>>>) -> Self {
        Self {
            paths,
            patience: PATIENCE,
        }
    }

    async fn write(&self, block: u64, number: u64) -> bool {
        let began = Instant::now();
        loop {
            for path in &self.paths {
                let buffers = reactor::current().expect("inside").buffers().clone();
                let mut buffer = buffers.alloc(BLOCK).await;
                buffer.copy_from_slice(&content(block, number));
                let path = path.borrow().clone();
                let (result, _) = path.write(block * BLOCK as u64, buffer, false).await;
                if result.is_ok() {
                    return true;
                }
            }
            if began.elapsed() >= self.patience {
                return false;
            }
            reactor::sleep(AGAIN).await;
        }
    }

    /// Whether so many blocks were never written to.
    ///
    /// # Panics
    /// One cannot be read.
    pub async fn is_empty(&self, blocks: u64) -> bool {
        for block in 0..blocks {
            if self.read(block).await.iter().any(|byte| *byte != 0) {
                return false;
            }
        }
        true
    }

    async fn read(&self, block: u64) -> Vec<u8> {
        let began = Instant::now();
        loop {
            let mut last = None;
            for path in &self.paths {
                let buffers = reactor::current().expect("inside").buffers().clone();
                let buffer = buffers.alloc(BLOCK).await;
                let path = path.borrow().clone();
                let (result, buffer) = path.read(block * BLOCK as u64, buffer).await;
                match result {
                    Ok(()) => return buffer.to_vec(),
                    Err(error) => last = Some(error),
                }
            }
            assert!(
                began.elapsed() < self.patience,
                "it cannot be read: {last:?}"
            );
            reactor::sleep(AGAIN).await;
        }
    }
}

/// Writes blocks over and over, and flushes nothing, until a write fails, or until `count` rounds are done after those `before`;
/// `each` is told of each round.
pub async fn write_rounds(
    paths: &Paths,
    blocks: u64,
    count: u64,
    before: u64,
    each: impl Fn(u64),
) -> Written {
    let mut written = Written::default();
    for number in (before + 1..).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let first = number * DEPTH % blocks;
        let of_round: Vec<u64> = (0..DEPTH).map(|at| (first + at * 7) % blocks).collect();
        for block in &of_round {
            written.blocks.entry(*block).or_default().1 = number;
        }
        let writes = of_round.iter().map(|block| paths.write(*block, number));
        let ended = join_all(writes).await;
        for (block, is_acknowledged) in of_round.iter().zip(&ended) {
            if *is_acknowledged {
                written.blocks.entry(*block).or_default().0 = number;
            }
        }
        if !ended.iter().all(|ended| *ended) {
            break;
        }
        each(number);
    }
    written
}

/// Each block has what was acknowledged last, or what was sent after that.
pub async fn verify(paths: &Paths, written: Written) {
    for (block, (acknowledged, sent)) in written.blocks {
        let found = paths.read(block).await;
        let is_old = match acknowledged {
            0 => found.iter().all(|byte| *byte == 0),
            number => found == content(block, number),
        };
        assert!(
            is_old || found == content(block, sent),
            "block {block} has neither what was acknowledged ({acknowledged}) nor what was sent last ({sent})"
        );
    }
}

/// Writes and counts rounds until it is told to stop; all that was written is there then.
async fn write_until(paths: &Paths, stop: &AtomicBool, rounds: &AtomicU64) {
    let mut all = Written::default();
    while !stop.load(Ordering::Acquire) {
        let done = rounds.load(Ordering::Acquire);
        let count = |_| {
            rounds.fetch_add(1, Ordering::AcqRel);
        };
        let written = write_rounds(paths, WRITTEN_BLOCKS, 1, done, count).await;
        assert!(written.is_whole(), "no command of the host may fail");
        all.extend(written);
    }
    verify(paths, all).await;
}

/// A host that writes by all paths until it is told to stop.
pub struct Writer {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    /// Starts it, and waits until it has written something.
    ///
    /// # Panics
    /// It does not write.
    #[must_use]
    pub fn start(listen: &[String]) -> Self {
        let listen = listen.to_vec();
        Self::run(move |stop, rounds| {
            let listen: Vec<&str> = listen.iter().map(String::as_str).collect();
            with_paths(&listen, async move |paths| {
                write_until(&paths, &stop, &rounds).await;
            });
        })
    }

    /// The same by one path that has to work all the time: nothing is sent again.
    ///
    /// # Panics
    /// It does not write.
    #[must_use]
    pub fn start_by_one(listen: &str) -> Self {
        let listen = listen.to_owned();
        Self::run(move |stop, rounds| {
            with_volume(&listen, async move |paths| {
                write_until(&paths, &stop, &rounds).await;
            });
        })
    }

    fn run(host: impl FnOnce(Arc<AtomicBool>, Arc<AtomicU64>) + Send + 'static) -> Self {
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopping, counted) = (stop.clone(), rounds.clone());
        let thread = thread::spawn(move || host(stopping, counted));
        let writer = Self {
            stop,
            rounds,
            thread,
        };
        writer.goes_on();
        writer
    }

    /// Waits for some more rounds; how long that took.
    ///
    /// # Panics
    /// It does not write.
    pub fn goes_on(&self) -> Duration {
        let began = Instant::now();
        let seen = self.rounds.load(Ordering::Acquire);
        wait_for("the host's writes", GOES_ON_MAX, || {
            (self.rounds.load(Ordering::Acquire) > seen + 20).then_some(())
        });
        began.elapsed()
    }

    /// All that was acknowledged is there.
    ///
    /// # Panics
    /// Something is not, or a command failed.
    pub fn end(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.join().expect("the host found what it wrote");
    }
}
