//! An endpoint under a script: two connected endpoints with work in flight, and a peer (or somebody
//! with its address) that sends whatever the script says, while time passes in leaps.
//!
//! What must hold whatever comes: nothing panics; every work request that was taken is reported once;
//! a queue pair that is gone leaves nothing behind.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::endpoint::{
    AcceptParams, ConnectParams, Endpoint, EndpointConfig, Event, Path, PathMtu, QpId, SendWork,
};
use roce::memory::{Access, RegionKey};
use roce::wire::cm::tcp_service_id;
use roce::wire::{Aeth, Bth, GSI_QPN, Ieth, ImmDt, Opcode, Packet, Psn, Reth, Syndrome};

use crate::input::Input;

const SERVICE: u64 = tcp_service_id(4420);
const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));
const TARGET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1));
/// Steps of a script at most: what it finds it finds early.
const STEPS_MAX: usize = 64;
/// Packets that are kept to be delivered or changed.
const FLIGHT_MAX: usize = 64;
const REGION_BYTES: usize = 8192;

/// One side and what it posted.
struct Side {
    endpoint: Endpoint<Vec<u8>>,
    address: IpAddr,
    qp: Option<QpId>,
    region: RegionKey,
    next_id: u64,
    posted: BTreeMap<u64, ()>,
    /// Packets of the peer, on their way here.
    inbound: Vec<Vec<u8>>,
}

impl Side {
    fn new(address: IpAddr, seed: u8) -> Self {
        let config = EndpointConfig {
            max_qps: 4,
            max_pending_connects: 4,
            max_regions: 16,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_message_bytes: 1 << 16,
            ..EndpointConfig::default()
        };
        let mut endpoint = Endpoint::new(config, [seed; 32]);
        let access = Access {
            remote_read: true,
            remote_write: true,
        };
        let region = endpoint
            .register(vec![seed; REGION_BYTES], access)
            .expect("there is room");
        Self {
            endpoint,
            address,
            qp: None,
            region,
            next_id: 0,
            posted: BTreeMap::new(),
            inbound: Vec::new(),
        }
    }

    fn path(&self) -> Path {
        let remote = if self.address == HOST { TARGET } else { HOST };
        Path {
            local: self.address,
            remote,
        }
    }

    /// Takes events: every work request ends once, and only one that was posted.
    fn events(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::ConnectRequest { request, .. } => {
                    if let Ok(qp) = self.endpoint.accept(now, request, AcceptParams::default()) {
                        self.adopt(qp);
                    }
                }
                Event::Completion { wr_id, len, .. } => {
                    assert!(
                        self.posted.remove(&wr_id).is_some(),
                        "ended twice, or never begun"
                    );
                    assert!(len <= 1 << 16);
                }
                Event::Rejected { qp, .. } | Event::Disconnected { qp, .. } => {
                    self.endpoint.destroy(qp);
                }
                Event::Connected { .. } | Event::Established { .. } => {}
            }
        }
    }

    /// A new queue pair takes the place of the one before.
    fn adopt(&mut self, qp: QpId) {
        if let Some(old) = self.qp.replace(qp) {
            self.endpoint.destroy(old);
        }
        for _ in 0..4 {
            self.receive(4096);
        }
    }

    fn receive(&mut self, len: usize) {
        let Some(qp) = self.qp else { return };
        let id = self.id();
        if self.endpoint.post_receive(qp, id, vec![0; len]).is_ok() {
            self.posted.insert(id, ());
        }
    }

    fn send(&mut self, now: Instant, work: SendWork<Vec<u8>>) {
        let Some(qp) = self.qp else { return };
        let id = self.id();
        if self.endpoint.post_send(now, qp, id, work).is_ok() {
            self.posted.insert(id, ());
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Packets that want to leave.
    fn transmit(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        self.endpoint.poll_transmit(now, FLIGHT_MAX, &mut |packet| {
            let mut bytes = packet.header.to_vec();
            bytes.extend_from_slice(packet.payload);
            bytes.resize(bytes.len() + usize::from(packet.pad), 0);
            packets.push(bytes);
        });
        packets
    }
}

struct World {
    now: Instant,
    sides: [Side; 2],
}

impl World {
    /// Two endpoints, connected.
    fn new() -> Self {
        let now = Instant::now();
        let mut world = Self {
            now,
            sides: [Side::new(HOST, 1), Side::new(TARGET, 2)],
        };
        let [host, target] = &mut world.sides;
        target
            .endpoint
            .listen(SERVICE)
            .expect("nobody else listens");
        let params = ConnectParams::new(SERVICE, vec![0; 32], PathMtu::Mtu1024);
        let qp = host.endpoint.connect(now, host.path(), params);
        host.adopt(qp.expect("there is room"));
        for _ in 0..6 {
            world.exchange(0);
            world.exchange(1);
        }
        assert!(
            world.sides.iter().all(|side| side.qp.is_some()),
            "connected"
        );
        world
    }

    /// Moves what one side wants to send onto the wire.
    fn collect(&mut self, from: usize) {
        let packets = self.sides[from].transmit(self.now);
        let inbound = &mut self.sides[1 - from].inbound;
        let room = FLIGHT_MAX.saturating_sub(inbound.len());
        inbound.extend(packets.into_iter().take(room));
    }

    /// Delivers everything that one side sends.
    fn exchange(&mut self, from: usize) {
        self.collect(from);
        for packet in std::mem::take(&mut self.sides[1 - from].inbound) {
            self.deliver(1 - from, &packet);
        }
    }

    fn deliver(&mut self, to: usize, packet: &[u8]) {
        let now = self.now;
        let side = &mut self.sides[to];
        let path = side.path();
        side.endpoint.handle_packet(now, path, packet);
        side.events(now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for side in &mut self.sides {
            if side
                .endpoint
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                side.endpoint.handle_timeout(self.now);
            }
            side.events(self.now);
        }
    }
}

/// A packet that looks right: for the side's queue pair, near a sequence number that the peer used
/// last, with a key that may be the right one.
fn forge(input: &mut Input<'_>, side: &Side, last: Option<&[u8]>) -> Vec<u8> {
    let opcodes = Opcode::ALL;
    let opcode = opcodes[usize::from(input.u8()) % opcodes.len()];
    let qpn = side.qp.map_or(GSI_QPN, QpId::number);
    let base = last.and_then(|packet| Bth::parse(packet).ok());
    let psn = base.map_or(0, |bth| bth.psn.value());
    let delta = u32::from(input.u8()).wrapping_sub(128);
    let mut bth = Bth::new(opcode, qpn, Psn::new(psn.wrapping_add(delta)));
    let flags = input.u8();
    bth.ack_request = flags & 1 != 0;
    let reth = Reth {
        va: side.region.va.wrapping_add(u64::from(input.u16())),
        rkey: side.region.rkey ^ u32::from(flags >> 7),
        len: u32::from(input.u16()) << (flags >> 1 & 0xf),
    };
    let aeth = Aeth {
        syndrome: Syndrome::from_byte(input.u8()).unwrap_or(Syndrome::ACK),
        msn: u32::from(input.u8()),
    };
    let len = usize::from(input.u16()) % 1100;
    let mut payload = input.bytes(len).to_vec();
    payload.resize(if opcode.may_have_payload() { len } else { 0 }, 0xa5);
    let mut packet = Packet::new(bth, &payload);
    packet.reth = opcode.has_reth().then_some(reth);
    packet.aeth = opcode.has_aeth().then_some(aeth);
    packet.imm = opcode.has_imm().then_some(ImmDt(7));
    packet.ieth = opcode.has_ieth().then_some(Ieth(reth.rkey));
    packet.deth = opcode.has_deth().then_some(roce::wire::Deth {
        qkey: 7,
        src_qpn: 9,
    });
    let mut bytes = Vec::new();
    packet.write(&mut bytes);
    bytes
}

fn work(input: &mut Input<'_>, peer: RegionKey) -> SendWork<Vec<u8>> {
    let kind = input.u8();
    let len = usize::from(input.u16()) % (REGION_BYTES + 2);
    let (remote_va, rkey) = (peer.va + u64::from(kind >> 4), peer.rkey);
    match kind % 3 {
        0 => SendWork::Send {
            data: vec![3; len],
            len,
            invalidate: (kind & 0x40 != 0).then_some(rkey),
        },
        1 => SendWork::Read {
            into: vec![0; len],
            offset: 0,
            len,
            remote_va,
            rkey,
        },
        _ => SendWork::Write {
            from: vec![4; len],
            offset: 0,
            len,
            remote_va,
            rkey,
        },
    }
}

/// Runs a script.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        let to = usize::from(step >> 7);
        match step & 0x0f {
            // What is under way arrives: all of it, or one packet, with a byte changed, twice, or never.
            0 => world.exchange(1 - to),
            1 => {
                world.collect(1 - to);
                let inbound = &mut world.sides[to].inbound;
                if !inbound.is_empty() {
                    let index = usize::from(input.u8()) % inbound.len();
                    let mut packet = inbound[index].clone();
                    let (at, value) = (usize::from(input.u16()), input.u8());
                    let at = at % packet.len();
                    packet[at] ^= value;
                    world.deliver(to, &packet);
                }
            }
            2 => {
                world.collect(1 - to);
                world.sides[to].inbound.pop();
            }
            3 => {
                world.collect(1 - to);
                world.sides[to].inbound.reverse();
            }
            // Forged packets, and any bytes at all.
            4..=6 => {
                world.collect(1 - to);
                let last = world.sides[to].inbound.last().cloned();
                let packet = forge(&mut input, &world.sides[to], last.as_deref());
                world.deliver(to, &packet);
            }
            7 => {
                let len = usize::from(input.u16()) % 1100;
                let packet = input.bytes(len);
                world.deliver(to, packet);
            }
            8 | 9 => {
                let peer = world.sides[1 - to].region;
                let work = work(&mut input, peer);
                world.sides[to].send(world.now, work);
            }
            10 => world.sides[to].receive(usize::from(input.u16())),
            11 => world.pass(Duration::from_micros(
                u64::from(input.u16()) << (step >> 4 & 7),
            )),
            12 => {
                if let Some(qp) = world.sides[to].qp {
                    world.sides[to].endpoint.disconnect(world.now, qp);
                }
            }
            13 => {
                if let Some(qp) = world.sides[to].qp.take() {
                    world.sides[to].endpoint.destroy(qp);
                }
            }
            14 => {
                let side = &mut world.sides[to];
                let params = ConnectParams::new(SERVICE, vec![0; 32], PathMtu::Mtu1024);
                if let Ok(qp) = side.endpoint.connect(world.now, side.path(), params) {
                    side.adopt(qp);
                }
            }
            _ => world.pass(Duration::from_secs(u64::from(input.u8()))),
        }
        let now = world.now;
        for side in &mut world.sides {
            side.events(now);
        }
    }
    end(world);
}

/// Nobody hears the other any more: everything that was posted must come back.
fn end(mut world: World) {
    for side in &mut world.sides {
        if let Some(qp) = side.qp.take() {
            side.endpoint.disconnect(world.now, qp);
        }
    }
    for _ in 0..64 {
        for side in &mut world.sides {
            side.transmit(world.now);
        }
        world.pass(Duration::from_secs(20));
    }
    for side in &world.sides {
        assert!(side.posted.is_empty(), "{} never ended", side.posted.len());
        assert!(
            side.endpoint.poll_timeout().is_none(),
            "a timer without a queue pair"
        );
    }
}
