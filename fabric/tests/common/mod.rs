//! What the tests of the fabric share: devices on loopback addresses of their own, and a target that
//! serves a piece of memory.

#![allow(dead_code, unreachable_pub)]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use fabric::{
    Capsule, Device, DeviceConfig, Fetched, HostData, HostQueue, HostQueueParams, Incoming,
    Listener, QueueLimits, SoftConfig, TargetQueue,
};
use nvme::{Cqe, Sqe, Status};
use reactor::Buffer;

pub const PORT: u16 = 4420;
pub const IO: HostQueueParams = HostQueueParams {
    qid: 1,
    depth: 32,
    cntlid: 1,
    in_capsule_bytes: 4096,
};

/// Between two looks at a condition that nothing wakes for: other tests need the cores.
pub const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Runs a test on a reactor. The limit is only for tests that hang: on a busy machine any of them can
/// be starved for seconds.
pub fn run<F: Future>(test: F) -> F::Output {
    let config = reactor::Config {
        buffer_pool: reactor::PoolConfig { bytes: 64 << 20 },
        name: "test".into(),
        ..Default::default()
    };
    reactor::run(config, async {
        let output = reactor::timeout(Duration::from_secs(120), test).await;
        output.expect("the test hangs")
    })
    .expect("a reactor")
}

pub async fn buffer(len: usize) -> Buffer {
    reactor::current()
        .expect("on a reactor")
        .buffers()
        .alloc(len)
        .await
}

/// Says that this machine, or this user, has not what the test needs. Where all tests have to run (CI=true) that
/// is a failure.
pub fn left_out(why: impl std::fmt::Display) {
    eprintln!("left out: {why}");
    let must_run = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!must_run, "left out, though CI runs all tests: {why}");
}

/// Waits until every buffer of the reactor is free again.
pub async fn all_buffers_back() {
    loop {
        let stats = reactor::current().expect("on a reactor").buffers().stats();
        if stats.free_bytes == stats.total_bytes {
            return;
        }
        reactor::sleep(LOOK_AGAIN).await;
    }
}

/// A loopback address that no other test has.
pub fn own_address() -> IpAddr {
    let random = getrandom::u32().expect("randomness").to_le_bytes();
    IpAddr::from([127, random[0] | 0x80, random[1], random[2].clamp(1, 254)])
}

pub fn device(soft: SoftConfig) -> Device {
    let config = DeviceConfig {
        soft,
        ..DeviceConfig::on(vec![own_address()])
    };
    Device::open(config).expect("a device on a loopback address")
}

pub fn address(target: &Device) -> SocketAddr {
    SocketAddr::new(target.addresses()[0], PORT)
}

/// Bytes that differ at every place and for every seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8))
        .flat_map(|_| next().to_le_bytes())
        .take(len)
        .collect()
}

/// The commands of the test's own little language: byte offset in dwords 10 and 11, bytes in 12.
pub const FLUSH: u8 = 0;
pub const WRITE: u8 = 1;
pub const READ: u8 = 2;
/// Never answered.
pub const HANG: u8 = 9;
/// Never answered either; the opcode says that no data moves.
pub const HANG_WITHOUT_DATA: u8 = 12;
/// Fabrics Connect, of which this target takes everything.
pub const CONNECT: u8 = 0x7f;

pub fn command(opcode: u8, offset: usize, len: usize) -> Sqe {
    Sqe::new(opcode)
        .with_cdw(10, offset as u32)
        .with_cdw(12, len as u32)
}

/// A target with one piece of memory. Remembers its queues.
#[derive(Clone)]
pub struct Target {
    pub device: Device,
    pub disk: Rc<RefCell<Vec<u8>>>,
    pub queues: Rc<RefCell<Vec<TargetQueue>>>,
}

impl Target {
    pub fn start(soft: SoftConfig) -> Self {
        Self::start_on(device(soft))
    }

    pub fn start_on(device: Device) -> Self {
        let listener = Listener::bind(&device, PORT).expect("a free port");
        let target = Self::over(device);
        reactor::spawn(target.clone().listen(listener));
        target
    }

    /// A target that does not listen yet.
    pub fn over(device: Device) -> Self {
        let disk = Rc::new(RefCell::new(vec![0; 8 << 20]));
        Self {
            device,
            disk,
            queues: Rc::default(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        address(&self.device)
    }

    pub async fn listen(self, listener: Listener) {
        while let Some(incoming) = listener.accept().await {
            self.take(incoming);
        }
    }

    pub fn take(&self, incoming: Incoming) {
        let Ok(queue) = TargetQueue::accept_rdma(incoming, QueueLimits::default()) else {
            return;
        };
        self.queues.borrow_mut().push(queue.clone());
        reactor::spawn(serve(self.disk.clone(), queue));
    }
}

/// Serves a queue from the piece of memory.
pub async fn serve(disk: Rc<RefCell<Vec<u8>>>, queue: TargetQueue) {
    // This target asks nobody who they are.
    queue.proved(false);
    while let Some(capsule) = queue.next_command().await {
        reactor::spawn(execute(disk.clone(), queue.clone(), capsule));
    }
}

thread_local! {
    /// Blocks of written data whose checksums came with them, and were right.
    pub static CHECKED_BLOCKS: Cell<usize> = const { Cell::new(0) };
}

fn look_at_checksums(data: &Fetched, len: usize) {
    let Some(checksums) = &data.checksums else {
        return;
    };
    let blocks = data.buffer[..len].chunks(4096);
    let expected = blocks.map(|block| u32::from_le_bytes(nvme::tcp::digest(block)));
    assert!(checksums.iter().copied().eq(expected), "of {len} bytes");
    CHECKED_BLOCKS.set(CHECKED_BLOCKS.get() + checksums.len());
}

/// Does what a command asks for.
pub async fn execute(disk: Rc<RefCell<Vec<u8>>>, queue: TargetQueue, capsule: Capsule) {
    let (offset, len) = (capsule.sqe.slba() as usize, capsule.sqe.cdw(12) as usize);
    let done = Cqe::new(Status::SUCCESS, 7);
    match capsule.sqe.opcode() {
        HANG | HANG_WITHOUT_DATA => {
            queue.closed().await;
        }
        WRITE => match queue.fetch(&capsule, len, buffer(len).await).await {
            Ok(data) => {
                look_at_checksums(&data, len);
                disk.borrow_mut()[offset..offset + len].copy_from_slice(&data.buffer[..len]);
                queue.complete(capsule, done, None);
            }
            Err(error) => queue.complete(capsule, Cqe::new(error.status, 0), None),
        },
        READ => {
            let mut data = buffer(len).await;
            data[..len].copy_from_slice(&disk.borrow()[offset..offset + len]);
            // The result stays 0, so that the transport may leave the response out.
            queue.complete(capsule, Cqe::new(Status::SUCCESS, 0), Some((data, len)));
        }
        FLUSH => queue.complete(capsule, done, None),
        CONNECT => {
            let depth = capsule.sqe.cdw(11) as u16 + 1;
            queue.connected((capsule.sqe.cdw(10) >> 16) as u16, depth);
            queue.complete(capsule, done, None);
        }
        _ => queue.complete(
            capsule,
            Cqe::new(Status::INVALID_OPCODE.with_dnr(), 0),
            None,
        ),
    }
}

pub async fn connect(host: &Device, target: &Target) -> HostQueue {
    HostQueue::connect(&host.clone().into(), target.address(), IO)
        .await
        .expect("a queue")
}

pub async fn write(queue: &HostQueue, offset: usize, data: &[u8]) -> Status {
    let mut buf = buffer(data.len()).await;
    buf[..data.len()].copy_from_slice(data);
    let sqe = command(WRITE, offset, data.len());
    let (cqe, buf) = queue
        .submit(sqe, HostData::ToTarget(buf, data.len()))
        .await
        .expect("a completion");
    assert!(buf.is_some(), "the buffer comes back");
    cqe.status
}

pub async fn read(queue: &HostQueue, offset: usize, len: usize) -> Vec<u8> {
    let sqe = command(READ, offset, len);
    let data = HostData::FromTarget(buffer(len).await, len);
    let (cqe, buf) = queue.submit(sqe, data).await.expect("a completion");
    assert_eq!(cqe.status, Status::SUCCESS);
    buf.expect("the buffer comes back")[..len].to_vec()
}
