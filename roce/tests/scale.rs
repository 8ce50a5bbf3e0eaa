//! Many queue pairs: what they take, and that opening them holds nobody up.

#![allow(clippy::print_stdout)]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use roce::wire::cm::tcp_service_id;
use roce::{
    AcceptParams, ConnectParams, Endpoint, EndpointConfig, Event, Path, PathMtu, QpId, SendWork,
    WcStatus,
};

const SERVICE: u64 = tcp_service_id(4420);
/// Work requests of a burst, more than queues of usual depth have.
const BURST: u64 = 300;
/// 256 hosts with four queues each.
const QUEUE_PAIRS: usize = 1024;

struct World {
    now: Instant,
    ends: [Endpoint<Vec<u8>>; 2],
    paths: [Path; 2],
}

impl World {
    /// Exchanges packets until there are none left, and gives the events.
    fn settle(&mut self) -> Vec<(usize, Event<Vec<u8>>)> {
        let mut events = Vec::new();
        loop {
            let mut moved = 0;
            for sender in 0..2 {
                let mut packets = Vec::new();
                self.ends[sender].poll_transmit(self.now, 1000, &mut |packet| {
                    let mut bytes = [packet.header, packet.payload].concat();
                    bytes.resize(bytes.len() + usize::from(packet.pad), 0);
                    packets.push(bytes);
                });
                moved += packets.len();
                for bytes in packets {
                    let receiver = 1 - sender;
                    self.ends[receiver].handle_packet(self.now, self.paths[receiver], &bytes);
                }
            }
            for (side, end) in self.ends.iter_mut().enumerate() {
                while let Some(event) = end.poll_event() {
                    moved += 1;
                    if let Event::ConnectRequest { request, .. } = event {
                        end.accept(self.now, request, AcceptParams::default())
                            .expect("room");
                    } else {
                        events.push((side, event));
                    }
                }
            }
            self.now += Duration::from_micros(20);
            if moved == 0 {
                return events;
            }
        }
    }
}

#[test]
fn a_thousand_queue_pairs_take_little_when_they_are_idle() {
    let config = EndpointConfig {
        max_qps: QUEUE_PAIRS,
        max_pending_connects: QUEUE_PAIRS,
        ..EndpointConfig::default()
    };
    let address = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
    let mut world = World {
        now: Instant::now(),
        ends: [1, 2].map(|seed| Endpoint::new(config.clone(), [seed; 32])),
        paths: [(1, 2), (2, 1)].map(|(local, remote)| Path {
            local: address(local),
            remote: address(remote),
        }),
    };
    let (_, empty) = world.ends[1].queue_pairs();
    world.ends[1].listen(SERVICE).expect("free");
    let mut ours = Vec::new();
    for _ in 0..QUEUE_PAIRS {
        let params = ConnectParams::new(SERVICE, Vec::new(), PathMtu::Mtu1024);
        let (now, path) = (world.now, world.paths[0]);
        ours.push(world.ends[0].connect(now, path, params).expect("room"));
        if ours.len() % 64 == 0 {
            world.settle();
        }
    }
    assert!(
        world.ends[0]
            .connect(
                world.now,
                world.paths[0],
                ConnectParams::new(SERVICE, Vec::new(), PathMtu::Mtu1024)
            )
            .is_err()
    );
    let (count, fresh) = world.ends[1].queue_pairs();
    assert_eq!(count, QUEUE_PAIRS);

    // Each of them has a burst, much deeper than usual.
    let burst = |world: &mut World, qp: QpId| {
        for wr_id in 0..BURST {
            let work = SendWork::Write {
                from: Vec::new(),
                offset: 0,
                len: 0,
                remote_va: 0,
                rkey: 0,
            };
            world.ends[0]
                .post_send(world.now, qp, wr_id, work)
                .expect("room");
        }
        let events = world.settle();
        let done = events.iter().filter(|(_, event)| {
            matches!(
                event,
                Event::Completion {
                    status: WcStatus::Success,
                    ..
                }
            )
        });
        assert_eq!(done.count(), BURST as usize);
    };
    let busiest = {
        burst(&mut world, ours[0]);
        world.ends[0].queue_pairs().1
    };
    for &qp in &ours {
        burst(&mut world, qp);
    }
    let (count, used) = world.ends[0].queue_pairs();
    assert_eq!(count, QUEUE_PAIRS);
    let each = |bytes: usize| bytes / QUEUE_PAIRS;
    assert!(each(empty) <= 64, "{} bytes of table each", each(empty));
    assert!(each(fresh) <= 1024, "{} bytes each when new", each(fresh));
    assert!(
        each(used) <= 16 << 10,
        "{} bytes each after a burst (one burst: {busiest} in all)",
        each(used)
    );
    println!(
        "a queue pair takes {} bytes when new, {} after a burst",
        each(fresh),
        each(used)
    );
}
