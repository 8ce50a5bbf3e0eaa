//! The load generator: so many commands in flight on so many queues, for a time or a size.
//!
//! - Every sub-block written carries the number of its content; with `verify` each read is compared
//!   with what was written last, and at the end everything written is read back.
//! - A run that verifies says how many blocks it compared, and of how many nothing is known.
//! - Two commands in flight never overlap, so that what was written last is always known.
//! - Latencies are from submission to completion, in nanoseconds, with three significant digits.

mod content;
mod interrupt;
mod options;
mod plan;
mod progress;
mod report;

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use initiator::{ConnectOptions, Controller, Host, Namespace};
use reactor::{Buffer, BufferPool};

pub use interrupt::Interrupt;
pub use options::{Limit, Options, OptionsError, Pattern};
pub use progress::{Phase, Progress};
pub use report::{Direction, Latency, Refusal, Report};

use content::{Content, Generator};
use plan::{Kind, Operation, Plan};
use report::{Counts, End, Recorder};

/// Why a run gave no figures.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The options do not fit each other or the namespace.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] fabric::DeviceError),
    /// The target refused, or was lost before the first command.
    #[error(transparent)]
    Target(#[from] initiator::Error),
    /// The controller granted fewer queues.
    #[error(
        "the target granted {granted} of {asked} I/O queues; {}",
        remedy(.granted)
    )]
    Queues {
        /// I/O queues asked for.
        asked: u16,
        /// I/O queues that stand.
        granted: usize,
    },
}

/// What to do about too few queues.
fn remedy(granted: &usize) -> &'static str {
    match granted {
        0 => "a discovery subsystem has none: name one that `onefold discover` shows",
        _ => "ask for fewer with --queues",
    }
}

/// State that the tasks of a run share: they all live on one reactor.
struct Run {
    plan: RefCell<Plan>,
    generator: RefCell<Generator>,
    reads: RefCell<Recorder>,
    writes: RefCell<Recorder>,
    counts: RefCell<Counts>,
    interrupt: Interrupt,
    progress: Progress,
    /// When the connection was lost, and the first error that said so. It ends the run.
    lost: RefCell<Option<(Instant, initiator::Error)>>,
    verify: bool,
    block_bytes: usize,
}

/// Runs the load; call it on a reactor.
///
/// # Errors
/// When the run could not start. Commands that the target refused are counted in the report instead, and a target that
/// was lost ends the run: the report has the figures until then, and says why.
pub async fn run(options: &Options) -> Result<Report, PerfError> {
    let connector = options.connector()?;
    let mut connect = ConnectOptions::new(
        options.address.socket_addr(),
        options.subsystem.clone(),
        Host::of(options.host.as_ref()),
    );
    connect.keys.clone_from(&options.keys);
    connect.io_queues = options.queues;
    // One entry of an NVMe queue stays free: a full queue and an empty one must differ.
    connect.depth = options.depth.saturating_add(1).max(2);
    let controller = Controller::connect(&connector, connect).await?;
    if controller.io_queues() < usize::from(options.queues) {
        let granted = controller.io_queues();
        return Err(PerfError::Queues {
            asked: options.queues,
            granted,
        });
    }
    let namespace = controller.namespace(options.nsid).await?;
    let range = options.check(
        namespace.size_bytes(),
        namespace.lba_bytes(),
        controller.max_transfer_bytes(),
    )?;
    let generator = Generator::new(
        options.seed,
        options.duplicate_percent,
        options.zero_percent,
        options.compress_percent,
    );
    let run = Rc::new(Run {
        plan: RefCell::new(Plan::new(options, range)),
        generator: RefCell::new(generator),
        reads: RefCell::new(Recorder::new()),
        writes: RefCell::new(Recorder::new()),
        counts: RefCell::default(),
        interrupt: options.interrupt.clone(),
        progress: options.progress.clone(),
        lost: RefCell::new(None),
        verify: options.verify,
        block_bytes: options.block_bytes,
    });
    let pool = reactor::current().map(|handle| handle.buffers().clone());
    let Some(pool) = pool else {
        return Err(OptionsError::NoReactor.into());
    };

    run.interrupt.started();
    run.progress.begin(Phase::Load);
    let start = Instant::now();
    let workers = usize::from(options.queues) * usize::from(options.depth);
    drive(&run, &namespace, &pool, workers).await;
    let mut seconds = start.elapsed().as_secs_f64();
    let is_lost = |run: &Run| run.lost.borrow().is_some();
    if let Some((at, _)) = &*run.lost.borrow() {
        // Nothing was done between that moment and the last command's end.
        seconds = at.saturating_duration_since(start).as_secs_f64();
    }

    if options.verify && !run.interrupt.is_set() && !is_lost(&run) {
        // What was written is read back; this is not part of the measured time.
        let (reads, writes) = (
            run.reads.replace(Recorder::new()),
            run.writes.replace(Recorder::new()),
        );
        run.plan.borrow_mut().start_read_back();
        run.progress.begin(Phase::ReadBack);
        drive(&run, &namespace, &pool, workers).await;
        run.reads.replace(reads);
        run.writes.replace(writes);
    }
    if !is_lost(&run) {
        controller.disconnect().await;
        connector.shutdown().await;
    }
    let directions = [&run.reads, &run.writes].map(|recorder| recorder.borrow().direction(seconds));
    let end = match (&*run.lost.borrow(), run.interrupt.is_set()) {
        (Some((_, error)), _) => End::Lost(error.to_string()),
        (None, true) => End::Interrupted,
        (None, false) => End::Done,
    };
    let counts = run.counts.borrow();
    Ok(Report::new(seconds, directions, &counts, end, options))
}

/// Runs `workers` tasks until the plan is done.
async fn drive(run: &Rc<Run>, namespace: &Namespace, pool: &BufferPool, workers: usize) {
    let tasks = (0..workers).map(|user| {
        let (run, namespace, pool) = (run.clone(), namespace.for_user(user), pool.clone());
        reactor::spawn(async move {
            let mut buffer = pool.alloc(run.block_bytes).await;
            loop {
                if run.interrupt.is_set() {
                    run.plan.borrow_mut().stop();
                }
                let operation = run.plan.borrow_mut().next(Instant::now());
                match operation {
                    Operation::Done => return,
                    Operation::Wait => reactor::sleep(Duration::from_micros(100)).await,
                    Operation::Run {
                        kind: Kind::Read,
                        slot,
                    } => {
                        buffer = run.read(&namespace, slot, buffer).await;
                    }
                    Operation::Run {
                        kind: Kind::Write,
                        slot,
                    } => {
                        buffer = run.write(&namespace, slot, buffer).await;
                    }
                }
            }
        })
    });
    for ended in join_all(tasks).await {
        if let Err(error) = ended {
            tracing::error!(%error, "a load task died");
            run.counts.borrow_mut().errors += 1;
        }
    }
}

impl Run {
    async fn write(&self, namespace: &Namespace, slot: u64, mut buffer: Buffer) -> Buffer {
        let contents = self.generator.borrow_mut().fill(&mut buffer);
        let start = Instant::now();
        let (result, buffer) = namespace
            .write(slot * self.block_bytes as u64, buffer, false)
            .await;
        let ended = result.is_ok();
        self.note("write", result, &self.writes, start);
        // A write that failed may or may not have happened: nothing is known of the slot then.
        let contents = if ended { Some(contents) } else { None };
        self.plan.borrow_mut().written(slot, contents);
        buffer
    }

    async fn read(&self, namespace: &Namespace, slot: u64, buffer: Buffer) -> Buffer {
        let start = Instant::now();
        let (result, buffer) = namespace.read(slot * self.block_bytes as u64, buffer).await;
        let ended = result.is_ok();
        self.note("read", result, &self.reads, start);
        let mut plan = self.plan.borrow_mut();
        if ended && self.verify {
            let generator = self.generator.borrow();
            self.counts.borrow_mut().judged += generator.judge(&buffer, plan.contents(slot));
        }
        plan.finished(slot);
        buffer
    }

    fn note(
        &self,
        command: &'static str,
        result: Result<(), initiator::Error>,
        to: &RefCell<Recorder>,
        start: Instant,
    ) {
        let Err(error) = result else {
            to.borrow_mut().record(start.elapsed(), self.block_bytes);
            self.progress.count(self.block_bytes);
            return;
        };
        let mut counts = self.counts.borrow_mut();
        counts.errors += 1;
        match error.status() {
            Some(status) => counts.refusals.record(command, status),
            None => {
                self.plan.borrow_mut().stop();
                let mut lost = self.lost.borrow_mut();
                lost.get_or_insert((Instant::now(), error));
            }
        }
    }
}

/// What lies in a slot, a [`Content`] for each of its sub-blocks; empty when nothing is known.
type Contents = Vec<Content>;
