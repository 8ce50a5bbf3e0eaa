//! What a command costs above its queue and below its volume, in CPU time: `cargo bench -p onefold`.
//!
//! A queue in memory hands the target commands and takes the answers, so that neither a network nor a
//! host is measured. Beside each figure stands what the volume alone costs for the same work; the
//! difference is the target's own share.

#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use dedup::{Blocking, Engine, EngineConfig, EngineParts, Volume, VolumeSpec};
use drives::MemoryDrive;
use fabric::{Fetched, QueueInfo};
use meta::{MemoryMedia, MemoryStore, VerifyPolicy};
use nvme::fabrics::{CNTLID_DYNAMIC, ConnectCommand, ConnectData, FabricsCommand};
use nvme::io::{IoCommand, LbaRange};
use nvme::{Cqe, SglDescriptor, Sqe, Status, properties};
use reactor::Buffer;
use subsystem::limits::Limits;
use subsystem::queue::Queue;
use subsystem::serve::serve_queue;
use subsystem::target::{Pool, Target, TargetParts};
use uuid::Uuid;

/// Commands of a measurement.
const COMMANDS: u64 = 400_000;
/// Commands in flight.
const DEPTH: u16 = 32;
/// Bytes of a command.
const BYTES: usize = 4096;
/// Blocks of the volume that are used.
const BLOCKS: u64 = 4096;

#[derive(Default)]
struct State {
    ready: RefCell<VecDeque<Sqe>>,
    waker: RefCell<Option<Waker>>,
    data: RefCell<Vec<u8>>,
    answered: Cell<u64>,
    last: Cell<Option<Cqe>>,
    left: Cell<u64>,
}

/// A queue that makes the next command out of each answer.
#[derive(Clone)]
struct Treadmill {
    facts: QueueInfo,
    state: Rc<State>,
}

impl Queue for Treadmill {
    type Capsule = Sqe;

    fn info(&self) -> QueueInfo {
        self.facts
    }

    fn sqe(capsule: &Sqe) -> &Sqe {
        capsule
    }

    fn connected(&self, _qid: u16, _depth: u16) {}

    async fn next_command(&self) -> Option<Sqe> {
        poll_fn(|cx| match self.state.ready.borrow_mut().pop_front() {
            Some(sqe) => Poll::Ready(Some(sqe)),
            None => {
                *self.state.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    async fn fetch(&self, _: &Sqe, len: usize, mut buf: Buffer) -> Result<Fetched, Status> {
        let data = self.state.data.borrow();
        buf[..data.len().min(len)].copy_from_slice(&data[..data.len().min(len)]);
        Ok(buf.into())
    }

    fn complete(&self, capsule: Sqe, cqe: Cqe, _: Option<(Buffer, usize)>) {
        let state = &self.state;
        state.answered.set(state.answered.get() + 1);
        state.last.set(Some(cqe));
        if let Some(left) = state.left.get().checked_sub(1) {
            state.left.set(left);
            self.push(next(capsule, left));
        }
    }

    fn close(&self) {}
}

/// The same command at another place.
fn next(sqe: Sqe, number: u64) -> Sqe {
    let mut next = sqe;
    let slba = number.wrapping_mul(2_654_435_761) % BLOCKS;
    next.0[40..48].copy_from_slice(&slba.to_le_bytes());
    next
}

impl Treadmill {
    fn new(qid: u16) -> Self {
        let facts = QueueInfo {
            peer: SocketAddr::from(([192, 0, 2, 7], 50_000)),
            local: SocketAddr::from(([192, 0, 2, 2], 4420)),
            qid: Some(qid),
            depth: Some(128),
            cntlid: None,
            in_capsule_bytes: BYTES,
            transport: fabric::Transport::Rdma,
        };
        Self {
            facts,
            state: Rc::default(),
        }
    }

    fn push(&self, sqe: Sqe) {
        self.state.ready.borrow_mut().push_back(sqe);
        if let Some(waker) = self.state.waker.take() {
            waker.wake();
        }
    }

    async fn call(&self, mut sqe: Sqe, data: Vec<u8>) -> u64 {
        sqe.set_sgl(&descriptor(data.len()));
        *self.state.data.borrow_mut() = data;
        self.push(sqe);
        let cqe = loop {
            if let Some(cqe) = self.state.last.take() {
                break cqe;
            }
            reactor::yield_now().await;
        };
        assert!(cqe.status.is_success(), "{:?}", cqe.status);
        cqe.result
    }

    /// Runs commands like this one, and gives the CPU time of each.
    async fn run(&self, command: IoCommand, data: Vec<u8>) -> Duration {
        *self.state.data.borrow_mut() = data;
        self.state.answered.set(0);
        self.state.left.set(COMMANDS - u64::from(DEPTH));
        let start = cpu_time();
        for cid in 0..DEPTH {
            let mut sqe = next(command.to_sqe(), u64::from(cid));
            sqe.set_cid(cid);
            sqe.set_sgl(&descriptor(BYTES));
            self.push(sqe);
        }
        while self.state.answered.get() < COMMANDS {
            reactor::yield_now().await;
        }
        let cqe = self.state.last.take().expect("an answer");
        assert!(cqe.status.is_success(), "{:?}", cqe.status);
        (cpu_time() - start) / COMMANDS as u32
    }
}

fn descriptor(len: usize) -> SglDescriptor {
    SglDescriptor::Keyed {
        address: 0x1000,
        length: len as u32,
        key: 7,
        invalidate: true,
    }
}

/// CPU time of this thread: the first figure of schedstat, in nanoseconds (proc(5)).
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let figure = text.split_whitespace().next().expect("three figures");
    Duration::from_nanos(figure.parse().expect("nanoseconds"))
}

async fn engine() -> Arc<Engine> {
    let parts = EngineParts {
        drives: vec![Arc::new(MemoryDrive::new(64 << 10))],
        journal: Arc::new(MemoryMedia::new(32 << 20)),
        store: Arc::new(MemoryStore::new()),
        hash_keys: [9; 32].into(),
        fingerprint: meta::FingerprintFunction::Clnh,
        blocking: Blocking::Inline,
        boot: None,
        config: EngineConfig::default(),
    };
    let engine = Engine::open(parts).await.expect("an engine");
    let spec = VolumeSpec {
        name: "vol0".into(),
        size_bytes: BLOCKS * BYTES as u64,
        lba_bytes: 4096,
        nsid: None,
        uuid: None,
        dedup: true,
        compression: meta::Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    };
    engine.create_volume(spec).await.expect("a volume");
    engine
}

/// The same reads without a target.
async fn volume_alone(volume: &Volume) -> Duration {
    let buffers = reactor::current().expect("a reactor").buffers().clone();
    let start = cpu_time();
    for number in 0..COMMANDS {
        let buffer = buffers.alloc(BYTES).await;
        let slba = number.wrapping_mul(2_654_435_761) % BLOCKS;
        let (result, _) = volume.read(slba * BYTES as u64, buffer).await;
        result.expect("a read");
    }
    (cpu_time() - start) / COMMANDS as u32
}

async fn connect(target: &Arc<Target>, qid: u16, cntlid: u16) -> (Treadmill, u16) {
    let queue = Treadmill::new(qid);
    drop(reactor::spawn(serve_queue(target.clone(), queue.clone())));
    let command = ConnectCommand {
        record_format: 0,
        qid,
        sqsize: 127,
        attributes: 0,
        kato_ms: 0,
    };
    let data = ConnectData {
        host_id: [1; 16],
        cntlid,
        subsystem: subsystem::DEFAULT_SUBSYSTEM_NQN.parse().expect("a name"),
        host: "nqn.2014-08.org.nvmexpress:uuid:1".parse().expect("a name"),
    };
    let cntlid = queue.call(command.to_sqe(), data.encode().to_vec()).await;
    (queue, cntlid as u16)
}

async fn measure() {
    let engine = engine().await;
    let target = Target::open(TargetParts {
        pool: Pool::Here(engine.clone()),
        pool_uuid: Uuid::from_u128(1),
        is_new_pool: true,
        listeners_by_default: false,
        listeners_tls: fabric::TlsMode::Off,
        listeners: Vec::new(),
        limits: Limits::default(),
    })
    .expect("a target");
    let (admin, cntlid) = connect(&target, 0, CNTLID_DYNAMIC).await;
    let enable = FabricsCommand::property_set(properties::CC, false, 0x0046_0001);
    admin.call(enable, Vec::new()).await;
    let (io, _) = connect(&target, 1, cntlid).await;
    let range = LbaRange { slba: 0, blocks: 1 };
    let read = IoCommand::Read {
        nsid: 1,
        range,
        fua: false,
    };
    let write = IoCommand::Write {
        nsid: 1,
        range,
        fua: false,
    };
    let volume = engine.volume("vol0").expect("the volume");
    for _ in 0..3 {
        let (through, alone) = (io.run(read, Vec::new()).await, volume_alone(&volume).await);
        println!(
            "4 KiB reads of what was never written: {} ns, of which the volume {} ns, the target {} ns",
            through.as_nanos(),
            alone.as_nanos(),
            through.saturating_sub(alone).as_nanos()
        );
    }
    let zeros = io.run(write, vec![0; BYTES]).await;
    println!("4 KiB writes of zeros: {} ns", zeros.as_nanos());
}

fn main() {
    reactor::run(reactor::Config::default(), measure()).expect("a reactor");
}
