//! A soft device in several parts, each on a reactor of its own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use fabric::{
    Connector, Device, DeviceConfig, DevicePart, HostQueue, HostQueueParams, Listener, QueueLimits,
    SoftConfig, TargetQueue,
};
use nvme::Status;
use reactor::ReactorThread;

const PARTS: usize = 3;

thread_local! {
    /// The part on this reactor.
    static DEVICE: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// A target whose device has a part on each of three reactors, with a piece of memory on each.
struct Spread {
    address: SocketAddr,
    reactors: Vec<ReactorThread>,
    /// Queues that each part accepted.
    accepted: Vec<Arc<AtomicUsize>>,
}

impl Spread {
    async fn start(soft: SoftConfig) -> Self {
        let address: IpAddr = own_address();
        let config = DeviceConfig {
            soft,
            ..DeviceConfig::on(vec![address])
        };
        let mut reactors = Vec::new();
        for index in 0..PARTS {
            let config = reactor::Config {
                name: format!("part{index}"),
                buffer_pool: reactor::PoolConfig { bytes: 32 << 20 },
                ..Default::default()
            };
            reactors.push(reactor::start(config).expect("a reactor"));
        }
        let accepted: Vec<Arc<AtomicUsize>> = (0..PARTS).map(|_| Arc::default()).collect();
        let count = accepted[0].clone();
        let first = reactors[0].handle().spawn(move || async move {
            let (device, parts) = Device::open_parts(config, PARTS).expect("a free address");
            serve_part(device, count);
            parts
        });
        let parts: Vec<DevicePart> = first.await.expect("it runs");
        assert_eq!(parts.len(), PARTS - 1);
        for (index, part) in parts.into_iter().enumerate() {
            let count = accepted[index + 1].clone();
            let started = reactors[index + 1].handle().spawn(move || async move {
                serve_part(part.start().expect("a part").expect("a soft part"), count);
            });
            started.await.expect("it runs");
        }
        Self {
            address: SocketAddr::new(address, PORT),
            reactors,
            accepted,
        }
    }

    async fn queue(&self, host: &Connector) -> HostQueue {
        let params = HostQueueParams { depth: 16, ..IO };
        HostQueue::connect(host, self.address, params)
            .await
            .expect("a queue")
    }

    /// Packets that came to another part than theirs.
    async fn forwarded(&self) -> u64 {
        let mut sum = 0;
        for reactor in &self.reactors {
            let counters = reactor.handle().spawn(|| async {
                DEVICE.with_borrow(|device| device.as_ref().map(Device::counters))
            });
            let counters = counters.await.expect("it runs");
            sum += counters.expect("a device").forwarded;
        }
        sum
    }

    /// Waits until the device has so many queue pairs left on all reactors.
    async fn forgotten(&self, left: usize) {
        loop {
            let mut sum = 0;
            for reactor in &self.reactors {
                let counters = reactor.handle().spawn(|| async {
                    DEVICE.with_borrow(|device| device.as_ref().map(Device::counters))
                });
                let counters = counters.await.expect("it runs").expect("a device");
                sum += counters.queue_pairs;
            }
            if sum <= left {
                return;
            }
            reactor::sleep(LOOK_AGAIN).await;
        }
    }

    fn accepted(&self) -> Vec<usize> {
        let counts = self.accepted.iter();
        counts.map(|count| count.load(Ordering::SeqCst)).collect()
    }
}

fn serve_part(device: Device, accepted: Arc<AtomicUsize>) {
    let listener = Listener::bind(&device, PORT).expect("a free port");
    let disk = Rc::new(RefCell::new(vec![0; 8 << 20]));
    DEVICE.set(Some(device));
    reactor::spawn(async move {
        while let Some(incoming) = listener.accept().await {
            if let Ok(queue) = TargetQueue::accept_rdma(incoming, QueueLimits::default()) {
                accepted.fetch_add(1, Ordering::SeqCst);
                reactor::spawn(serve(disk.clone(), queue));
            }
        }
    });
}

/// Writes and reads of many lengths, among them some of several packets and pieces.
async fn exercise(queue: &HostQueue, seed: u64, rounds: usize) {
    for round in 0..rounds {
        let len = [512, 4096, 8192, 65_536, 300_000][round % 5];
        let offset = (round % 7) * 4096;
        let data = pattern(seed * 1000 + round as u64, len);
        assert_eq!(write(queue, offset, &data).await, Status::SUCCESS);
        assert!(read(queue, offset, len).await == data, "queue {seed}");
    }
}

#[test]
fn connections_are_spread_over_the_parts_and_each_serves_its_own() {
    run(async {
        let target = Spread::start(SoftConfig::default()).await;
        let host: Connector = device(SoftConfig::default()).into();
        let mut queues = Vec::new();
        for _ in 0..2 * PARTS {
            queues.push(target.queue(&host).await);
        }
        assert_eq!(target.accepted(), [2; PARTS]);
        // Queues of one part share its piece of memory: one after the other.
        for (seed, queue) in queues.iter().enumerate() {
            exercise(queue, seed as u64, 5).await;
        }
        // A queue that ends on any part is told so to the host's connection management.
        for queue in &queues {
            queue.close();
            queue.closed().await;
        }
        let again = target.queue(&host).await;
        exercise(&again, 99, 2).await;
        assert_eq!(target.forwarded().await, 0, "the kernel knows the part");
    });
}

#[test]
fn a_connection_goes_to_the_part_with_the_fewest() {
    run(async {
        let target = Spread::start(SoftConfig::default()).await;
        let host: Connector = device(SoftConfig::default()).into();
        let mut queues = Vec::new();
        for _ in 0..3 * PARTS {
            queues.push(target.queue(&host).await);
        }
        assert_eq!(target.accepted(), [3; PARTS]);
        // All of the last part end: it gets the next ones.
        for part in [8, 5, 2] {
            let queue = queues.remove(part);
            queue.close();
            queue.closed().await;
        }
        target.forgotten(2 * PARTS).await;
        for _ in 0..3 {
            queues.push(target.queue(&host).await);
        }
        assert_eq!(target.accepted(), [3, 3, 6]);
    });
}

#[test]
fn packets_that_come_to_the_wrong_part_are_forwarded() {
    run(async {
        let scattered = SoftConfig {
            scatter: true,
            ..SoftConfig::default()
        };
        let target = Spread::start(scattered).await;
        let host: Connector = device(SoftConfig::default()).into();
        let mut queues = Vec::new();
        for _ in 0..PARTS {
            queues.push(target.queue(&host).await);
        }
        assert_eq!(target.accepted(), [1; PARTS]);
        let all = queues.iter().enumerate();
        let all = all.map(|(seed, queue)| exercise(queue, seed as u64, 5));
        futures_util::future::join_all(all).await;
        // One host's packets all come to the same socket, and are for three parts.
        assert!(target.forwarded().await > 0);
    });
}

#[test]
fn data_is_right_on_all_parts_when_packets_are_lost() {
    run(async {
        let lossy = SoftConfig {
            drop_every: Some(60),
            ..SoftConfig::default()
        };
        let target = Spread::start(lossy.clone()).await;
        let host: Connector = device(lossy).into();
        let mut queues = Vec::new();
        for _ in 0..PARTS {
            queues.push(target.queue(&host).await);
        }
        let all = queues.iter().enumerate();
        let all = all.map(|(seed, queue)| exercise(queue, seed as u64, 10));
        futures_util::future::join_all(all).await;
        assert_eq!(target.accepted().iter().sum::<usize>(), PARTS);
    });
}

#[test]
fn a_part_that_stands_still_holds_up_no_other() {
    run(async {
        let target = Spread::start(SoftConfig::default()).await;
        let host: Connector = device(SoftConfig::default()).into();
        // In turns: one queue for each part.
        let mut queues = Vec::new();
        for _ in 0..PARTS {
            queues.push(target.queue(&host).await);
        }
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (stands, standing) = reactor::sync::oneshot::channel();
        let blocked = target.reactors[1].handle().spawn(move || async move {
            let _ = stands.send(());
            let _ = released.recv();
        });
        standing.await.expect("it runs");
        exercise(&queues[0], 0, 5).await;
        exercise(&queues[2], 2, 5).await;
        let more = target.queue(&host).await;
        exercise(&more, 3, 2).await;
        release.send(()).expect("it waits");
        blocked.await.expect("it goes on");
        exercise(&queues[1], 1, 2).await;
    });
}
