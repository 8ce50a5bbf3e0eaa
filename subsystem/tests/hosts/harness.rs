//! A target in memory and hosts to it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use dedup::{Blocking, Engine, EngineConfig, EngineParts, VolumeSpec};
use drives::{Drive, MemoryDrive};
use fabric::{Fetched, QueueInfo, TlsSession, Transport};
use meta::{JournalMedia, MemoryMedia, MemoryStore, Store, VerifyPolicy};
use nvme::fabrics::{CNTLID_DYNAMIC, ConnectCommand, ConnectData, FabricsCommand};
use nvme::{Cqe, Nqn, SglDescriptor, Sqe, Status, properties};
use reactor::{Buffer, BufferPool};
use subsystem::limits::Limits;
use subsystem::queue::Queue;
use subsystem::serve::serve_queue;
use subsystem::target::{Pool, Target, TargetParts};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::drive::{CountingDrive, Gate};

/// CC as Linux writes it: IOSQES 6, IOCQES 4, EN.
pub(crate) const CC_ENABLE: u64 = 0x0046_0001;

/// How long a story waits for what must happen: never the measure of anything, so generous.
const PATIENCE: Duration = Duration::from_secs(120);

/// A story that takes longer hangs, and is named.
const STORY_MAX: Duration = Duration::from_secs(300);

/// Bytes of the volume that every lab has as NSID 1.
pub(crate) const VOLUME_BYTES: u64 = 64 << 20;

/// What a host gets back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    pub(crate) result: u64,
    pub(crate) data: Vec<u8>,
}

impl Reply {
    /// The status without DNR and More.
    pub(crate) fn code(&self) -> Status {
        self.status.code()
    }

    /// The data of a command that must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert!(self.status.is_success(), "{:?}", self.status);
        self
    }

    /// The command must have failed with that status, for good.
    #[track_caller]
    pub(crate) fn refused(self, status: Status) -> Self {
        assert_eq!(self.code(), status);
        assert!(self.status.is_dnr(), "{:?} would be retried", self.status);
        self
    }
}

/// A command in the queue's hands.
pub(crate) struct FakeCapsule {
    sqe: Sqe,
    arrived: Instant,
    data: Vec<u8>,
    /// The data never comes.
    stuck: bool,
    reply: oneshot::Sender<Reply>,
}

#[derive(Default)]
struct QueueState {
    ready: VecDeque<FakeCapsule>,
    closed: bool,
    /// What the target said when Connect succeeded.
    joined_as: Option<(u16, u16)>,
    /// Whose queue it said that it is.
    host: Option<String>,
    /// What the target said when the host had proved who it is: whether it makes its address known.
    proved: Option<bool>,
    /// The checksums that come with the next data.
    checksums: Option<Box<[u32]>>,
    waker: Vec<Waker>,
}

/// A queue pair in memory: both ends are clones of it.
#[derive(Clone)]
pub(crate) struct FakeQueue {
    facts: QueueInfo,
    tls: Option<TlsSession>,
    state: Rc<RefCell<QueueState>>,
    next_cid: Rc<RefCell<u16>>,
}

impl Queue for FakeQueue {
    type Capsule = FakeCapsule;

    fn info(&self) -> QueueInfo {
        self.facts
    }

    fn tls(&self) -> Option<TlsSession> {
        self.tls.clone()
    }

    fn sqe(capsule: &FakeCapsule) -> &Sqe {
        &capsule.sqe
    }

    fn arrived(capsule: &FakeCapsule) -> Instant {
        capsule.arrived
    }

    fn connected(&self, qid: u16, depth: u16) {
        let facts = self.facts;
        assert!(
            facts.qid.is_none_or(|asked| asked == qid),
            "it is the queue it was asked for"
        );
        assert!(
            facts.depth.is_none_or(|most| (2..=most).contains(&depth)),
            "no more than the transport holds"
        );
        self.state.borrow_mut().joined_as = Some((qid, depth));
    }

    fn proved(&self, is_ready_admin: bool) {
        self.state.borrow_mut().proved = Some(is_ready_admin);
    }

    fn belongs_to(&self, host_nqn: &str) {
        self.state.borrow_mut().host = Some(host_nqn.to_owned());
    }

    async fn next_command(&self) -> Option<FakeCapsule> {
        std::future::poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if state.closed {
                return Poll::Ready(None);
            }
            match state.ready.pop_front() {
                Some(capsule) => Poll::Ready(Some(capsule)),
                None => {
                    state.waker.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    async fn fetch(
        &self,
        capsule: &FakeCapsule,
        len: usize,
        mut buf: Buffer,
    ) -> Result<Fetched, Status> {
        if capsule.stuck {
            self.closed().await;
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        match capsule.data.get(..len) {
            Some(data) => {
                buf[..len].copy_from_slice(data);
                let checksums = self.state.borrow_mut().checksums.take();
                Ok(Fetched {
                    buffer: buf,
                    checksums,
                })
            }
            None => Err(Status::DATA_TRANSFER_ERROR),
        }
    }

    fn complete(&self, capsule: FakeCapsule, cqe: Cqe, data: Option<(Buffer, usize)>) {
        if self.is_closed() {
            return;
        }
        let data = data
            .map(|(buffer, len)| buffer[..len].to_vec())
            .unwrap_or_default();
        let room = capsule.sqe.sgl().map_or(0, |sgl| sgl.length() as usize);
        assert!(
            data.len() <= room,
            "{} bytes for a host with room for {room}",
            data.len()
        );
        let reply = Reply {
            status: cqe.status,
            result: cqe.result,
            data,
        };
        let _ = capsule.reply.send(reply);
    }

    fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        state.ready.clear();
        state.waker.drain(..).for_each(Waker::wake);
    }
}

impl FakeQueue {
    /// Queue identifier and depth, once the queue has joined a controller.
    pub(crate) fn joined_as(&self) -> Option<(u16, u16)> {
        self.state.borrow().joined_as
    }

    /// The host that the target counts the queue's memory with, once it has joined a controller.
    pub(crate) fn host(&self) -> Option<String> {
        self.state.borrow().host.clone()
    }

    /// Whether the target said that the host has proved who it is, and whether that makes its address known.
    pub(crate) fn proved(&self) -> Option<bool> {
        self.state.borrow().proved
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.borrow().closed
    }

    /// Waits until the target has closed the queue.
    pub(crate) async fn closed(&self) {
        std::future::poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if state.closed {
                return Poll::Ready(());
            }
            state.waker.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The next data come with these CRC-32C of their blocks.
    pub(crate) fn knows_checksums(&self, checksums: &[u32]) {
        self.state.borrow_mut().checksums = Some(checksums.into());
    }

    /// Sends an entry as it is.
    pub(crate) fn send(&self, sqe: Sqe, data: Vec<u8>, stuck: bool) -> oneshot::Receiver<Reply> {
        let (reply, receiver) = oneshot::channel();
        let mut state = self.state.borrow_mut();
        if !state.closed {
            state.ready.push_back(FakeCapsule {
                sqe,
                arrived: Instant::now(),
                data,
                stuck,
                reply,
            });
            state.waker.drain(..).for_each(Waker::wake);
        }
        receiver
    }

    fn addressed(&self, mut sqe: Sqe, room: usize) -> Sqe {
        let mut next = self.next_cid.borrow_mut();
        *next = next.wrapping_add(1);
        sqe.set_cid(*next);
        sqe.set_sgl(&SglDescriptor::Keyed {
            address: 0x1000,
            length: room as u32,
            key: 7,
            invalidate: true,
        });
        sqe
    }

    /// A command that waits for its answer elsewhere; gives its identifier.
    pub(crate) fn begin(&self, sqe: Sqe) -> (u16, oneshot::Receiver<Reply>) {
        let sqe = self.addressed(sqe, 0);
        (sqe.cid(), self.send(sqe, Vec::new(), false))
    }

    /// A command with data that never comes.
    pub(crate) fn begin_stuck(&self, sqe: Sqe, len: usize) -> (u16, oneshot::Receiver<Reply>) {
        let sqe = self.addressed(sqe, len);
        (sqe.cid(), self.send(sqe, Vec::new(), true))
    }

    /// A command with data whose answer is awaited elsewhere.
    pub(crate) fn begin_with(&self, sqe: Sqe, data: Vec<u8>) -> oneshot::Receiver<Reply> {
        let sqe = self.addressed(sqe, data.len());
        self.send(sqe, data, false)
    }

    /// The host drops the connection.
    pub(crate) fn close_from_host(&self) {
        self.close();
    }

    /// A command without data.
    pub(crate) async fn call(&self, sqe: Sqe) -> Reply {
        self.call_out(sqe, Vec::new()).await
    }

    /// A command with data for the target.
    pub(crate) async fn call_out(&self, sqe: Sqe, data: Vec<u8>) -> Reply {
        let sqe = self.addressed(sqe, data.len());
        self.send(sqe, data, false).await.expect("the queue lives")
    }

    /// The same, on a queue that may end meanwhile.
    pub(crate) async fn try_call_out(&self, sqe: Sqe, data: Vec<u8>) -> Option<Reply> {
        let sqe = self.addressed(sqe, data.len());
        self.send(sqe, data, false).await.ok()
    }

    /// A command with room for data from the target.
    pub(crate) async fn call_in(&self, sqe: Sqe, room: usize) -> Reply {
        let sqe = self.addressed(sqe, room);
        self.send(sqe, Vec::new(), false)
            .await
            .expect("the queue lives")
    }
}

/// A host's name and identifier.
#[derive(Clone, Debug)]
pub(crate) struct TestHost {
    pub(crate) nqn: Nqn,
    pub(crate) id: [u8; 16],
}

impl TestHost {
    pub(crate) fn new(number: u8) -> Self {
        let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{number}");
        Self {
            nqn: nqn.parse().expect("a name"),
            id: [number; 16],
        }
    }
}

/// An association of a host: its admin queue.
pub(crate) struct Attached {
    pub(crate) host: TestHost,
    pub(crate) admin: FakeQueue,
    pub(crate) cntlid: u16,
}

/// A target in memory.
pub(crate) struct Lab {
    pub(crate) target: Arc<Target>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) buffers: BufferPool,
    /// What carries the queues that hosts open.
    pub(crate) transport: Transport,
    /// Where the hosts are that open queues.
    pub(crate) peer: Ipv4Addr,
    /// Writes that the drive was asked for, each of any number of blocks.
    pub(crate) drive_writes: Arc<AtomicUsize>,
    /// By which the drive hangs.
    pub(crate) drive_gate: Arc<Gate>,
}

/// Runs a story on a reactor.
pub(crate) fn story<F: AsyncFnOnce(Lab)>(tell: F) {
    story_with(Limits::default(), tell);
}

/// Runs a story with other limits.
pub(crate) fn story_with<F: AsyncFnOnce(Lab)>(limits: Limits, tell: F) {
    story_within(STORY_MAX, limits, tell);
}

fn story_within<F: AsyncFnOnce(Lab)>(limit: Duration, limits: Limits, tell: F) {
    let config = reactor::Config::default();
    // The name of a test is that of its thread.
    let name = std::thread::current().name().unwrap_or("it").to_owned();
    reactor::run(config, async move {
        let told = reactor::timeout(limit, async {
            let lab = Lab::new(limits).await;
            tell(lab).await;
        });
        assert!(
            told.await.is_ok(),
            "{name} hangs: it has not ended in {limit:?}"
        );
    })
    .expect("a reactor");
}

#[test]
fn a_story_that_hangs_is_named() {
    let hanging = std::thread::Builder::new().name("a story without an end".into());
    let hanging = hanging.spawn(|| {
        story_within(Duration::from_millis(1), Limits::default(), async |_| {
            std::future::pending::<()>().await;
        });
    });
    let panic = hanging.expect("a thread").join().expect_err("it hangs");
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(
        message.starts_with("a story without an end hangs"),
        "{message}"
    );
}

/// Opens a target of an engine, as a daemon does at its start.
pub(crate) fn open_target(engine: &Arc<Engine>, limits: Limits) -> Arc<Target> {
    Target::open(TargetParts {
        pool: Pool::Here(engine.clone()),
        pool_uuid: Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0),
        is_new_pool: true,
        listeners_by_default: false,
        listeners_tls: fabric::TlsMode::Off,
        listeners: ["rdma://0.0.0.0:4420", "tcp://0.0.0.0:4420"]
            .map(|address| address.parse().expect("an address"))
            .to_vec(),
        limits,
    })
    .expect("a target")
}

impl Lab {
    async fn new(limits: Limits) -> Self {
        let drive_writes = Arc::new(AtomicUsize::new(0));
        let drive_gate = Arc::<Gate>::default();
        let drive: Arc<dyn Drive> = Arc::new(CountingDrive {
            memory: MemoryDrive::new(64 << 10),
            writes: drive_writes.clone(),
            gate: drive_gate.clone(),
        });
        let journal: Arc<dyn JournalMedia> = Arc::new(MemoryMedia::new(32 << 20));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let parts = EngineParts {
            drives: vec![drive],
            journal,
            store,
            hash_keys: [9; 32].into(),
            fingerprint: meta::FingerprintFunction::Clnh,
            blocking: Blocking::Inline,
            boot: None,
            config: EngineConfig::default(),
        };
        let engine = Engine::open(parts).await.expect("an engine");
        let buffers = reactor::current().expect("a reactor").buffers().clone();
        let target = open_target(&engine, limits);
        let lab = Self {
            target,
            engine,
            buffers,
            transport: Transport::Rdma,
            peer: Ipv4Addr::new(192, 0, 2, 7),
            drive_writes,
            drive_gate,
        };
        lab.create_volume("vol0", VOLUME_BYTES, 4096).await;
        lab
    }

    /// The same pool, served by another daemon.
    pub(crate) fn with_target(self, target: Arc<Target>) -> Self {
        Self { target, ..self }
    }

    pub(crate) async fn create_volume(&self, name: &str, size_bytes: u64, lba_bytes: u32) {
        let spec = VolumeSpec {
            name: name.into(),
            size_bytes,
            lba_bytes,
            nsid: None,
            uuid: None,
            dedup: true,
            compression: meta::Compression::Off,
            verify: VerifyPolicy::Trust,
            domain: String::new(),
        };
        self.engine.create_volume(spec).await.expect("a volume");
    }

    /// A queue that a host has opened, and that has not connected yet.
    pub(crate) fn queue(&self, qid: u16, depth: u16) -> FakeQueue {
        self.queue_by_tls(qid, depth, None)
    }

    /// The same, of a host that has proved that it knows a TLS key.
    pub(crate) fn queue_by_tls(&self, qid: u16, depth: u16, tls: Option<TlsSession>) -> FakeQueue {
        let facts = QueueInfo {
            peer: SocketAddr::from((self.peer, 50_000)),
            local: SocketAddr::from(([192, 0, 2, 2], 4420)),
            // Over TCP both are known from the Connect command only.
            qid: Some(qid).filter(|_| self.transport == Transport::Rdma),
            depth: Some(depth).filter(|_| self.transport == Transport::Rdma),
            cntlid: None,
            in_capsule_bytes: 4096,
            transport: self.transport,
        };
        let queue = FakeQueue {
            facts,
            tls,
            state: Rc::default(),
            next_cid: Rc::new(RefCell::new(qid.wrapping_mul(1000))),
        };
        drop(reactor::spawn(serve_queue(
            self.target.clone(),
            queue.clone(),
        )));
        queue
    }

    /// Connects an admin queue with that keep-alive timeout.
    pub(crate) async fn connect_with(&self, host: &TestHost, kato_ms: u32) -> Attached {
        let admin = self.queue(0, 32);
        let command = ConnectCommand {
            record_format: 0,
            qid: 0,
            sqsize: 31,
            attributes: 0,
            kato_ms,
        };
        let reply = connect(&admin, command, connect_data(host, CNTLID_DYNAMIC))
            .await
            .ok();
        Attached {
            host: host.clone(),
            admin,
            cntlid: reply.result as u16,
        }
    }

    /// What a host is told that connects to a subsystem.
    pub(crate) async fn try_connect(&self, host: &TestHost, subsystem: &str) -> (Attached, Reply) {
        let admin = self.queue(0, 32);
        let command = ConnectCommand {
            record_format: 0,
            qid: 0,
            sqsize: 31,
            attributes: 0,
            kato_ms: 0,
        };
        let mut data = connect_data(host, CNTLID_DYNAMIC);
        data.subsystem = subsystem.parse().expect("a name");
        let reply = connect(&admin, command, data).await;
        let attached = Attached {
            host: host.clone(),
            admin,
            cntlid: reply.result as u16,
        };
        (attached, reply)
    }

    /// A host whose controller of that subsystem is enabled.
    pub(crate) async fn attach_to(&self, number: u8, subsystem: &str) -> Attached {
        let (attached, reply) = self.try_connect(&TestHost::new(number), subsystem).await;
        reply.ok();
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        attached
    }

    /// A host whose controller is enabled.
    pub(crate) async fn attach(&self, number: u8) -> Attached {
        let attached = self.connect_with(&TestHost::new(number), 0).await;
        attached.set_property(properties::CC, CC_ENABLE).await.ok();
        attached
    }

    /// An association with the discovery subsystem.
    pub(crate) async fn discover(&self, number: u8) -> Attached {
        self.attach_to(number, nvme::nqn::DISCOVERY).await
    }

    /// Connects an I/O queue of an association.
    pub(crate) async fn io_queue(&self, attached: &Attached, qid: u16) -> FakeQueue {
        let queue = self.queue(qid, 128);
        self.connect_io(&queue, attached, qid).await.ok();
        queue
    }

    /// Asks for an I/O queue.
    pub(crate) async fn connect_io(&self, queue: &FakeQueue, of: &Attached, qid: u16) -> Reply {
        let command = ConnectCommand {
            record_format: 0,
            qid,
            sqsize: 127,
            attributes: 0,
            kato_ms: 0,
        };
        connect(queue, command, connect_data(&of.host, of.cntlid)).await
    }

    /// Waits until so many hosts are attached, and none is on its way out.
    pub(crate) async fn attached_hosts_are(&self, count: usize) {
        let settled = async {
            while self.target.nvm.controller_count() != count {
                reactor::yield_now().await;
            }
        };
        reactor::timeout(PATIENCE, settled)
            .await
            .expect("an association that does not end");
        assert_eq!(self.target.attached_hosts().len(), count);
    }

    /// Waits until no association is left.
    pub(crate) async fn nobody_is_attached(&self) {
        self.attached_hosts_are(0).await;
    }

    /// Buffers lent to nobody: nothing leaks.
    pub(crate) async fn all_buffers_are_back(&self) {
        let mut back = pin!(async {
            while self.buffers.stats().free_bytes != self.buffers.stats().total_bytes {
                reactor::yield_now().await;
            }
        });
        reactor::timeout(PATIENCE, &mut back)
            .await
            .expect("a buffer was not given back");
    }

    /// The target still serves: a write and a read of another host.
    pub(crate) async fn still_serves(&self, other: &FakeQueue) {
        let data = vec![0xa5; 4096];
        other.call_out(write(1, 100, 1), data.clone()).await.ok();
        assert_eq!(other.call_in(read(1, 100, 1), 4096).await.ok().data, data);
    }
}

impl Attached {
    pub(crate) async fn set_property(&self, offset: u32, value: u64) -> Reply {
        self.admin
            .call(FabricsCommand::property_set(offset, false, value))
            .await
    }

    pub(crate) async fn property(&self, offset: u32, wide: bool) -> Reply {
        self.admin
            .call(FabricsCommand::property_get(offset, wide))
            .await
    }
}

/// The data of a Connect to the default subsystem.
pub(crate) fn connect_data(host: &TestHost, cntlid: u16) -> ConnectData {
    ConnectData {
        host_id: host.id,
        cntlid,
        subsystem: subsystem::DEFAULT_SUBSYSTEM_NQN.parse().expect("a name"),
        host: host.nqn.clone(),
    }
}

/// Sends a Connect.
pub(crate) async fn connect(
    queue: &FakeQueue,
    command: ConnectCommand,
    data: ConnectData,
) -> Reply {
    queue
        .call_out(command.to_sqe(), data.encode().to_vec())
        .await
}

fn range(slba: u64, blocks: u32) -> nvme::io::LbaRange {
    nvme::io::LbaRange { slba, blocks }
}

/// A Read.
pub(crate) fn read(nsid: u32, slba: u64, blocks: u32) -> Sqe {
    nvme::io::IoCommand::Read {
        nsid,
        range: range(slba, blocks),
        fua: false,
    }
    .to_sqe()
}

/// A Write.
pub(crate) fn write(nsid: u32, slba: u64, blocks: u32) -> Sqe {
    nvme::io::IoCommand::Write {
        nsid,
        range: range(slba, blocks),
        fua: false,
    }
    .to_sqe()
}
