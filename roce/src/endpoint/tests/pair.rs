//! Two endpoints and a network between them, on virtual time: everything follows from a seed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::endpoint::{
    AcceptParams, ConnectParams, DisconnectReason, Endpoint, EndpointConfig, Event, Path, PathMtu,
    QpId, RequestId, SendWork, WcKind, WcStatus,
};
use crate::memory::{Access, Memory, RegionKey};
use crate::qp::{Agreement, QueuePair};
use crate::wire::cm::tcp_service_id;
use crate::wire::icrc::{self, Flow};
use crate::wire::{Opcode, Packet, Psn};

/// The UDP source port of all packets here.
const SOURCE_PORT: u16 = 0xc123;

/// Bytes that are counted while they live.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) bytes: Vec<u8>,
    live: Rc<Cell<usize>>,
}

impl Memory for Block {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.live.set(self.live.get() - 1);
    }
}

/// What the network does to packets. Chances are in thousandths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    pub(super) latency: Duration,
    pub(super) lost: u32,
    pub(super) duplicated: u32,
    pub(super) corrupted: u32,
    /// Delayed by a random time of up to four latencies, and so reordered.
    pub(super) delayed: u32,
    /// More packets under way than this are dropped, as by a full socket buffer.
    pub(super) room: usize,
    /// The bottleneck in each direction, if there is one.
    pub(super) bottleneck: Option<Bottleneck>,
}

/// A link that takes time for every byte, and has a buffer before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bottleneck {
    pub(super) bytes_per_second: u64,
    /// Packets that would wait longer are dropped.
    pub(super) wait_max: Duration,
    /// Packets that wait longer are marked.
    pub(super) mark_above: Duration,
}

impl Network {
    pub(super) fn perfect() -> Self {
        let latency = Duration::from_micros(20);
        Self {
            latency,
            lost: 0,
            duplicated: 0,
            corrupted: 0,
            delayed: 0,
            room: usize::MAX,
            bottleneck: None,
        }
    }

    pub(super) fn random(random: &mut ChaCha12Rng) -> Self {
        let chance = |random: &mut ChaCha12Rng| match random.random_range(0..3) {
            0 => 0,
            1 => random.random_range(0..20),
            _ => random.random_range(0..100),
        };
        Self {
            latency: Duration::from_micros(random.random_range(1..2000)),
            lost: chance(random),
            duplicated: chance(random),
            corrupted: chance(random),
            delayed: chance(random),
            room: [usize::MAX, usize::MAX, 40][random.random_range(0..3)],
            bottleneck: None,
        }
    }
}

/// One end.
pub(super) struct Side {
    pub(super) endpoint: Endpoint<Block>,
    pub(super) path: Path,
    pub(super) events: Vec<Event<Block>>,
    /// No packet reaches it, and it sends none.
    pub(super) dead: bool,
}

/// Whether to drop a packet of a sender.
type Filter = Box<dyn FnMut(usize, &[u8]) -> bool>;

/// A packet on its way.
struct InFlight {
    receiver: usize,
    bytes: Vec<u8>,
    marked: bool,
}

/// Both ends.
pub(super) struct Pair {
    pub(super) now: Instant,
    pub(super) network: Network,
    pub(super) random: ChaCha12Rng,
    pub(super) sides: [Side; 2],
    /// Drops a packet if it says so: (sender, headers and payload).
    pub(super) filter: Option<Filter>,
    in_flight: BTreeMap<(Instant, u64), InFlight>,
    /// When the bottleneck of each sender's direction is free again.
    free_at: [Instant; 2],
    packets: u64,
    live: Rc<Cell<usize>>,
}

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

impl Pair {
    pub(super) fn new(seed: u64, config: EndpointConfig, network: Network) -> Self {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        let addresses =
            [1u16, 2].map(|host| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host)));
        let sides = [(0, 1), (1, 0)].map(|(local, remote)| Side {
            endpoint: Endpoint::new(config.clone(), random.random()),
            path: Path {
                local: addresses[local],
                remote: addresses[remote],
            },
            events: Vec::new(),
            dead: false,
        });
        let now = Instant::now();
        Self {
            now,
            free_at: [now; 2],
            network,
            random,
            sides,
            filter: None,
            in_flight: BTreeMap::new(),
            packets: 0,
            live: Rc::new(Cell::new(0)),
        }
    }

    pub(super) fn block(&self, bytes: Vec<u8>) -> Block {
        self.live.set(self.live.get() + 1);
        Block {
            bytes,
            live: Rc::clone(&self.live),
        }
    }

    /// Blocks that exist, wherever they are.
    pub(super) fn live(&self) -> usize {
        self.live.get()
    }

    fn flow(&self, sender: usize) -> Flow {
        let Path { local, remote } = self.sides[sender].path;
        Flow {
            src: local,
            dst: remote,
            src_port: SOURCE_PORT,
            dst_port: crate::wire::UDP_PORT,
        }
    }

    fn chance(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.random.random_range(0..1000) < thousandths
    }

    fn collect_packets(&mut self, sender: usize) {
        let flow = self.flow(sender);
        let mut packets = Vec::new();
        let side = &mut self.sides[sender];
        while side.endpoint.poll_transmit(self.now, 7, &mut |transmit| {
            assert_eq!(transmit.path, side.path);
            let mut bytes = transmit.header.to_vec();
            bytes.extend_from_slice(transmit.payload);
            bytes.resize(bytes.len() + usize::from(transmit.pad), 0);
            packets.push(bytes);
        }) > 0
        {}
        if side.dead {
            return;
        }
        for mut bytes in packets {
            if self
                .filter
                .as_mut()
                .is_some_and(|drops| drops(sender, &bytes))
                || self.chance(self.network.lost)
            {
                continue;
            }
            let sum = icrc::compute(&flow, 0, &bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
            if self.chance(self.network.corrupted) {
                let at = self.random.random_range(0..bytes.len());
                // Byte 4 may change on the way: the sum does not cover it.
                bytes[if at == 4 { 5 } else { at }] ^= 1 << self.random.random_range(0..8);
            }
            if self.in_flight.len() >= self.network.room {
                continue;
            }
            let Some((leaves, marked)) = self.through_bottleneck(sender, bytes.len()) else {
                continue;
            };
            let copies = 1 + usize::from(self.chance(self.network.duplicated));
            for _ in 0..copies {
                let mut delay = self.network.latency;
                if self.chance(self.network.delayed) {
                    delay += self.network.latency * self.random.random_range(0..4000) / 1000;
                }
                self.packets += 1;
                let key = (leaves + delay, self.packets);
                let in_flight = InFlight {
                    receiver: 1 - sender,
                    bytes: bytes.clone(),
                    marked,
                };
                self.in_flight.insert(key, in_flight);
            }
        }
    }

    /// When a packet has left the bottleneck, and whether it is marked; nothing if it is dropped.
    fn through_bottleneck(&mut self, sender: usize, len: usize) -> Option<(Instant, bool)> {
        let Some(bottleneck) = self.network.bottleneck else {
            return Some((self.now, false));
        };
        let start = self.free_at[sender].max(self.now);
        let wait = start - self.now;
        if wait > bottleneck.wait_max {
            return None;
        }
        let nanos = len as u64 * 1_000_000_000 / bottleneck.bytes_per_second;
        self.free_at[sender] = start + Duration::from_nanos(nanos);
        Some((self.free_at[sender], wait > bottleneck.mark_above))
    }

    /// Goes on to the next moment at which something happens; false if nothing ever will.
    pub(super) fn step(&mut self) -> bool {
        for sender in [A, B] {
            self.collect_packets(sender);
        }
        let packet = self.in_flight.keys().next().map(|(at, _)| *at);
        let timers = self
            .sides
            .iter()
            .filter_map(|side| side.endpoint.poll_timeout());
        let Some(next) = timers.chain(packet).min() else {
            self.collect_events();
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let InFlight {
                receiver,
                bytes,
                marked,
            } = entry.remove();
            if self.sides[receiver].dead || icrc::verify(&self.flow(1 - receiver), &bytes).is_err()
            {
                continue;
            }
            let side = &mut self.sides[receiver];
            let packet = &bytes[..bytes.len() - icrc::LEN];
            if marked {
                side.endpoint
                    .handle_marked_packet(self.now, side.path, packet);
            } else {
                side.endpoint.handle_packet(self.now, side.path, packet);
            }
        }
        for side in &mut self.sides {
            side.endpoint.handle_timeout(self.now);
        }
        self.collect_events();
        true
    }

    pub(super) fn collect_events(&mut self) {
        for side in &mut self.sides {
            while let Some(event) = side.endpoint.poll_event() {
                side.events.push(event);
            }
        }
    }

    /// Steps until the condition holds; panics if it does not within the virtual time.
    pub(super) fn run_until(
        &mut self,
        limit: Duration,
        what: &str,
        mut done: impl FnMut(&mut Self) -> bool,
    ) {
        let end = self.now + limit;
        loop {
            self.collect_events();
            if done(self) {
                return;
            }
            assert!(self.now < end, "{what}: not within {limit:?}");
            if !self.step() {
                // Nothing is under way and no timer runs: only the test itself can go on.
                self.now += Duration::from_millis(100);
            }
        }
    }

    /// Steps for that long, or until nothing happens any more.
    pub(super) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end && self.step() {}
    }

    /// Takes the first event for which the function gives something.
    pub(super) fn take<T>(
        &mut self,
        side: usize,
        wanted: impl Fn(&Event<Block>) -> Option<T>,
    ) -> Option<T> {
        let events = &mut self.sides[side].events;
        let at = events.iter().position(|event| wanted(event).is_some())?;
        wanted(&events.remove(at))
    }

    /// Steps until such an event comes.
    pub(super) fn expect<T>(
        &mut self,
        side: usize,
        what: &str,
        wanted: impl Fn(&Event<Block>) -> Option<T>,
    ) -> T {
        let mut found = None;
        self.run_until(Duration::from_secs(60), what, |pair| {
            found = pair.take(side, &wanted);
            found.is_some()
        });
        found.expect("run_until returned, so it was found")
    }

    pub(super) fn post_receive(&mut self, side: usize, qp: QpId, wr_id: u64, len: usize) {
        let block = self.block(vec![0; len]);
        self.sides[side]
            .endpoint
            .post_receive(qp, wr_id, block)
            .expect("receive posted");
    }
}

/// How a queue pair of [`Pair::join`] is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joint {
    pub(super) mtu: PathMtu,
    pub(super) reads: u8,
    /// Where the sequence numbers of A and B begin.
    pub(super) psn: [u32; 2],
}

impl Default for Joint {
    fn default() -> Self {
        Self {
            mtu: PathMtu::Mtu1024,
            reads: 4,
            psn: [0x00ff_fff0, 77],
        }
    }
}

impl Pair {
    /// Makes a connected queue pair on both sides, without connection management.
    pub(super) fn join(&mut self, joint: Joint) -> [QpId; 2] {
        let numbers = [A, B].map(|side| self.sides[side].endpoint.random_qpn());
        for side in [A, B] {
            let path = self.sides[side].path;
            let mut qp = QueuePair::new(numbers[side], path, joint.mtu);
            qp.ready_to_receive(Agreement {
                remote_qpn: numbers[1 - side],
                send_psn: Psn::new(joint.psn[side]),
                receive_psn: Psn::new(joint.psn[1 - side]),
                initiator_depth: usize::from(joint.reads),
                responder_resources: usize::from(joint.reads),
            });
            qp.ready_to_send();
            let endpoint = &mut self.sides[side].endpoint;
            endpoint.now = Some(self.now);
            endpoint.qps.insert(numbers[side], Box::new(qp));
        }
        numbers.map(QpId)
    }

    /// Destroys the queue pairs, takes all completions, and checks that no memory is left behind.
    pub(super) fn finish(&mut self, qps: [QpId; 2]) {
        for side in [A, B] {
            self.sides[side].endpoint.destroy(qps[side]);
        }
        // NAKs that are still to be sent go out first.
        for sender in [A, B] {
            self.collect_packets(sender);
        }
        self.collect_events();
        for side in &mut self.sides {
            side.events.clear();
            assert_eq!(side.endpoint.qps.len(), 0, "queue pairs are forgotten");
            assert_eq!(side.endpoint.regions.len(), 0, "regions were taken back");
        }
        assert_eq!(self.live(), 0, "memory left behind");
    }
}

/// The service of these tests.
pub(super) const SERVICE: u64 = tcp_service_id(4420);

/// Whether a packet (headers and payload) is of an operation.
pub(super) fn is(packet: &[u8], opcode: Opcode) -> bool {
    packet[0] == opcode.byte()
}

impl Pair {
    /// A connects to B, B accepts; both know that it is done.
    pub(super) fn connect(&mut self) -> [QpId; 2] {
        let b = &mut self.sides[B].endpoint;
        // Fails when an earlier connection of the same test listened before.
        let _ = b.listen(SERVICE);
        let params = ConnectParams::new(SERVICE, b"ask".to_vec(), PathMtu::Mtu1024);
        let path = self.sides[A].path;
        let a = self.sides[A]
            .endpoint
            .connect(self.now, path, params)
            .expect("connect");
        let request = self.request();
        let accept = AcceptParams {
            private_data: b"answer".to_vec(),
        };
        let b = self.sides[B]
            .endpoint
            .accept(self.now, request, accept)
            .expect("accept");
        self.expect(A, "Connected", |event| match event {
            Event::Connected { qp, private_data } if *qp == a => {
                assert!(private_data.starts_with(b"answer\0"));
                Some(())
            }
            _ => None,
        });
        self.expect(B, "Established", |event| {
            matches!(event, Event::Established { qp } if *qp == b).then_some(())
        });
        [a, b]
    }

    /// Steps until B is asked.
    pub(super) fn request(&mut self) -> RequestId {
        self.expect(B, "ConnectRequest", |event| match event {
            Event::ConnectRequest {
                request,
                service_id,
                private_data,
                ..
            } => {
                assert_eq!(*service_id, SERVICE);
                assert!(
                    private_data.starts_with(b"ask\0"),
                    "after the RDMA CM's own header"
                );
                Some(*request)
            }
            _ => None,
        })
    }

    /// Steps until the next completion of a queue pair.
    pub(super) fn completion(&mut self, side: usize, of: QpId) -> (u64, WcKind, WcStatus, usize) {
        self.expect(side, "Completion", |event| match event {
            Event::Completion {
                qp,
                wr_id,
                kind,
                status,
                len,
                ..
            } if *qp == of => Some((*wr_id, *kind, *status, *len)),
            _ => None,
        })
    }

    /// Steps until a queue pair's connection ends.
    pub(super) fn disconnected(&mut self, side: usize, of: QpId) -> DisconnectReason {
        self.expect(side, "Disconnected", |event| match event {
            Event::Disconnected { qp, reason } if *qp == of => Some(*reason),
            _ => None,
        })
    }

    pub(super) fn send(&mut self, side: usize, qp: QpId, wr_id: u64, bytes: &[u8]) {
        let data = self.block(bytes.to_vec());
        let work = SendWork::Send {
            data,
            len: bytes.len(),
            invalidate: None,
        };
        self.post(side, qp, wr_id, work);
    }

    pub(super) fn read(&mut self, side: usize, qp: QpId, wr_id: u64, key: RegionKey, len: usize) {
        let into = self.block(vec![0; len]);
        let RegionKey { rkey, va } = key;
        self.post(
            side,
            qp,
            wr_id,
            SendWork::Read {
                into,
                offset: 0,
                len,
                remote_va: va,
                rkey,
            },
        );
    }

    pub(super) fn write(&mut self, side: usize, qp: QpId, wr_id: u64, key: RegionKey, len: usize) {
        let from = self.block(vec![7; len]);
        let RegionKey { rkey, va } = key;
        self.post(
            side,
            qp,
            wr_id,
            SendWork::Write {
                from,
                offset: 0,
                len,
                remote_va: va,
                rkey,
            },
        );
    }

    pub(super) fn post(&mut self, side: usize, qp: QpId, wr_id: u64, work: SendWork<Block>) {
        self.sides[side]
            .endpoint
            .post_send(self.now, qp, wr_id, work)
            .expect("posted");
    }

    pub(super) fn register(&mut self, side: usize, bytes: Vec<u8>, access: Access) -> RegionKey {
        let block = self.block(bytes);
        self.sides[side]
            .endpoint
            .register(block, access)
            .expect("registered")
    }

    pub(super) fn deregister(&mut self, side: usize, key: RegionKey) -> Vec<u8> {
        self.sides[side]
            .endpoint
            .deregister(key.rkey)
            .expect("deregistered")
            .bytes
            .clone()
    }

    /// Sends a packet of one's own making to a side, as if from its peer.
    pub(super) fn inject(&mut self, receiver: usize, packet: Packet<'_>) {
        let mut bytes = Vec::new();
        packet.write(&mut bytes);
        let side = &mut self.sides[receiver];
        side.endpoint.handle_packet(self.now, side.path, &bytes);
    }

    /// What a side wants to send now, instead of it being sent.
    pub(super) fn drain(&mut self, side: usize, limit: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        self.sides[side]
            .endpoint
            .poll_transmit(self.now, limit, &mut |transmit| {
                packets.push([transmit.header, transmit.payload].concat());
            });
        packets
    }
}
