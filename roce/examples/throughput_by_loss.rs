//! What loss costs, on virtual time: two endpoints, a link of 1 GB/s with a buffer of 1 ms, one
//! direction full of WRITEs or READs of 128 KiB, four at a time.
//!
//! ```text
//! cargo run -p roce --example throughput_by_loss
//! ```
//!
//! The figures follow from the seeds: they are the same on every machine. `stall` is the longest time
//! without any completion.

#![allow(clippy::print_stdout, clippy::expect_used)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;
use roce::wire::cm::tcp_service_id;
use roce::{
    AcceptParams, Access, ConnectParams, Endpoint, EndpointConfig, Event, Path, PathMtu, QpId,
    SendWork, WcKind, WcStatus,
};

const SERVICE: u64 = tcp_service_id(4420);
const MESSAGE: usize = 128 << 10;
const DEPTH: usize = 4;
const TIME: Duration = Duration::from_millis(500);
const BYTES_PER_SECOND: u64 = 1_000_000_000;
const BUFFER: Duration = Duration::from_millis(1);

struct World {
    now: Instant,
    latency: Duration,
    loss: f64,
    random: ChaCha12Rng,
    ends: [Endpoint<Vec<u8>>; 2],
    paths: [Path; 2],
    free_at: [Instant; 2],
    in_flight: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    packets: u64,
}

impl World {
    fn new(seed: u64, latency: Duration, loss: f64) -> Self {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        let address = |n| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n));
        let paths = [(1, 2), (2, 1)].map(|(local, remote)| Path {
            local: address(local),
            remote: address(remote),
        });
        let ends = [(); 2].map(|()| Endpoint::new(EndpointConfig::default(), random.random()));
        let now = Instant::now();
        Self {
            now,
            latency,
            loss,
            random,
            ends,
            paths,
            free_at: [now; 2],
            in_flight: BTreeMap::new(),
            packets: 0,
        }
    }

    fn send(&mut self) {
        for sender in 0..2 {
            let mut packets = Vec::new();
            let end = &mut self.ends[sender];
            while end.poll_transmit(self.now, 256, &mut |packet| {
                let mut bytes = [packet.header, packet.payload].concat();
                bytes.resize(bytes.len() + usize::from(packet.pad), 0);
                packets.push(bytes);
            }) > 0
            {}
            for bytes in packets {
                let start = self.free_at[sender].max(self.now);
                if start - self.now > BUFFER || self.random.random_bool(self.loss) {
                    continue;
                }
                // 70 bytes of Ethernet, IPv6, UDP and ICRC around each.
                let nanos = (bytes.len() as u64 + 70) * 1_000_000_000 / BYTES_PER_SECOND;
                self.free_at[sender] = start + Duration::from_nanos(nanos);
                self.packets += 1;
                let key = (self.free_at[sender] + self.latency, self.packets);
                self.in_flight.insert(key, (1 - sender, bytes));
            }
        }
    }

    /// Goes on to the next thing that happens, and gives the events.
    fn step(&mut self) -> Vec<(usize, Event<Vec<u8>>)> {
        self.send();
        let timers = self.ends.iter().filter_map(Endpoint::poll_timeout);
        let packet = self.in_flight.keys().next().map(|(at, _)| *at);
        self.now = self
            .now
            .max(timers.chain(packet).min().expect("something to do"));
        while let Some(entry) = self.in_flight.first_entry()
            && entry.key().0 <= self.now
        {
            let (receiver, bytes) = entry.remove();
            self.ends[receiver].handle_packet(self.now, self.paths[receiver], &bytes);
        }
        let mut events = Vec::new();
        for (side, end) in self.ends.iter_mut().enumerate() {
            end.handle_timeout(self.now);
            events.extend(std::iter::from_fn(|| end.poll_event()).map(|event| (side, event)));
        }
        events
    }

    fn connect(&mut self) -> [QpId; 2] {
        self.ends[1].listen(SERVICE).expect("free");
        let params = ConnectParams::new(SERVICE, Vec::new(), PathMtu::Mtu4096);
        let a = self.ends[0]
            .connect(self.now, self.paths[0], params)
            .expect("room");
        let mut b = None;
        loop {
            for (_, event) in self.step() {
                match event {
                    Event::ConnectRequest { request, .. } => {
                        let accepted =
                            self.ends[1].accept(self.now, request, AcceptParams::default());
                        b = accepted.ok();
                    }
                    Event::Connected { .. } => return [a, b.expect("accepted")],
                    _ => {}
                }
            }
        }
    }

    /// Bytes per second, and the longest stall.
    fn measure(&mut self, kind: WcKind) -> (f64, Duration) {
        let [qp, _] = self.connect();
        let access = Access {
            remote_read: true,
            remote_write: true,
        };
        let key = self.ends[1]
            .register(vec![7; MESSAGE], access)
            .expect("room");
        let post = |world: &mut Self| {
            let memory = vec![0; MESSAGE];
            let (remote_va, rkey) = (key.va, key.rkey);
            let work = match kind {
                WcKind::Read => SendWork::Read {
                    into: memory,
                    offset: 0,
                    len: MESSAGE,
                    remote_va,
                    rkey,
                },
                _ => SendWork::Write {
                    from: memory,
                    offset: 0,
                    len: MESSAGE,
                    remote_va,
                    rkey,
                },
            };
            let now = world.now;
            world.ends[0].post_send(now, qp, 0, work).expect("room");
        };
        (0..DEPTH).for_each(|_| post(self));
        let (start, mut last) = (self.now, self.now);
        let (mut done, mut longest) = (0_u64, Duration::ZERO);
        while self.now < start + TIME {
            for (side, event) in self.step() {
                if let (0, Event::Completion { status, .. }) = (side, event) {
                    assert_eq!(status, WcStatus::Success);
                    done += 1;
                    longest = longest.max(self.now - last);
                    last = self.now;
                    post(self);
                }
            }
        }
        let seconds = (self.now - start).as_secs_f64();
        (done as f64 * MESSAGE as f64 / seconds, longest)
    }
}

fn main() {
    println!("| round trip | loss | WRITE MB/s | stall ms | READ MB/s | stall ms |");
    println!("|---|---|---|---|---|---|");
    for micros in [40, 200, 2000] {
        for loss in [0.0, 0.001, 0.01, 0.05] {
            let [write, read] = [WcKind::Write, WcKind::Read].map(|kind| {
                let runs = (1..=3).map(|seed| {
                    let latency = Duration::from_micros(micros / 2);
                    World::new(seed, latency, loss).measure(kind)
                });
                runs.fold((0.0, Duration::ZERO), |(rate, stall), run| {
                    (rate + run.0 / 3.0, stall.max(run.1))
                })
            });
            println!(
                "| {micros} us | {} % | {:.0} | {:.1} | {:.0} | {:.1} |",
                loss * 100.0,
                write.0 / 1e6,
                write.1.as_secs_f64() * 1e3,
                read.0 / 1e6,
                read.1.as_secs_f64() * 1e3,
            );
        }
    }
}
