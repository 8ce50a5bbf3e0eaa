//! Guarantees beside others who ask for all that a node can do: a node that serves commands one after the other, and its
//! hosts, on virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::control::{Rates, cost};
use super::crowd::pretend;
use super::guarantee::Gate;
use super::turn::{HeldBy, Pass, Throttles, Turn};

const SECOND: Duration = Duration::from_secs(1);

/// What a node does in a second, in cost, and how long a command takes at least.
#[derive(Clone, Copy, Debug)]
struct Node {
    capacity: u64,
    takes: Duration,
    /// Its work is to read commands out of the sockets of its hosts, in turn; its engine takes no time.
    reads: bool,
}

impl Node {
    /// One that does so many commands of 4 KiB in a second.
    fn of(iops: u64) -> Self {
        Self {
            capacity: iops * cost(4096),
            takes: Duration::from_micros(100),
            reads: false,
        }
    }

    fn service(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(cost(bytes) as f64 / self.capacity as f64)
    }
}

/// A host that always has so many commands on its way to a volume of its own.
#[derive(Clone, Debug)]
struct Host {
    depth: usize,
    bytes: u64,
    /// How long it takes from an answer to the next command.
    pause: Duration,
    guarantee: Rates,
    /// Since when it asks, and until when.
    from: Duration,
    until: Duration,
    /// It takes no answers in this time: its commands do not end.
    stalls: Option<(Duration, Duration)>,
}

fn host(depth: usize) -> Host {
    Host {
        depth,
        bytes: 4096,
        pause: Duration::from_micros(20),
        guarantee: Rates::default(),
        from: Duration::ZERO,
        until: Duration::MAX,
        stalls: None,
    }
}

fn guaranteed(depth: usize, iops: u64) -> Host {
    Host {
        guarantee: Rates {
            iops: Some(iops),
            bandwidth_bytes: None,
        },
        ..host(depth)
    }
}

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Comes,
    Looks,
    Ends,
    /// The node reads the next one.
    Reads,
}

/// The sockets of the hosts, where commands wait that the node has not read.
#[derive(Default)]
struct Sockets {
    waiting: Vec<VecDeque<usize>>,
    next: usize,
    is_reading: bool,
    /// How much of the last ten milliseconds it has read, and since when these are.
    busy: Duration,
    since: Option<Instant>,
    is_crowded: bool,
}

impl Sockets {
    fn take(&mut self) -> Option<usize> {
        let count = self.waiting.len();
        let found = (0..count).map(|at| (self.next + at) % count);
        let found = found.into_iter().find(|at| !self.waiting[*at].is_empty())?;
        self.next = found + 1;
        self.waiting[found].pop_front()
    }

    fn works(&mut self, now: Instant, time: Duration) {
        let since = *self.since.get_or_insert(now);
        if now - since >= Duration::from_millis(10) {
            self.is_crowded = self.busy.as_secs_f64() >= 0.9 * (now - since).as_secs_f64();
            (self.since, self.busy) = (Some(now), Duration::ZERO);
        }
        self.busy += time;
    }
}

/// Commands of each host that ended in each second.
fn run(node: Node, hosts: &[Host], seconds: u64) -> Vec<Vec<u64>> {
    let began = Instant::now();
    let gate = Arc::new(Gate::new(began));
    let guarantee = |it: &Host| {
        let made = Arc::new(gate.guarantee(began));
        made.set(began, it.guarantee);
        made
    };
    let is_guaranteed = |it: &Host| it.guarantee != Rates::default();
    let made = hosts
        .iter()
        .map(|it| is_guaranteed(it).then(|| guarantee(it)));
    let made: Vec<_> = made.collect();
    gate.set(began, made.iter().flatten().cloned().collect());
    let is_any = made.iter().any(Option::is_some);
    let throttles = (0..).zip(&made).map(|(user, of)| Throttles {
        held_by: is_any.then(|| {
            Arc::new(HeldBy {
                limits: Vec::new(),
                guarantees: of.iter().cloned().collect(),
                gate: Some(gate.clone()),
                user,
            })
        }),
    });
    let throttles: Vec<_> = throttles.collect();
    let mut done = vec![vec![0; seconds as usize]; hosts.len()];
    let mut commands: Vec<(usize, Option<Turn<'_>>, Option<Pass>)> = Vec::new();
    let mut events = BinaryHeap::new();
    for (at, it) in hosts.iter().enumerate() {
        for _ in 0..it.depth {
            events.push(Reverse((began + it.from, Event::Comes, commands.len())));
            commands.push((at, None, None));
        }
    }
    let mut sockets = Sockets {
        waiting: vec![VecDeque::new(); hosts.len()],
        ..Sockets::default()
    };
    let mut free = began;
    while let Some(Reverse((now, event, at))) = events.pop() {
        let time = now - began;
        if time >= seconds as u32 * SECOND {
            break;
        }
        if event == Event::Reads {
            sockets.is_reading = false;
            if let Some(read) = sockets.take() {
                let service = node.service(hosts[commands[read].0].bytes);
                sockets.works(now, service);
                sockets.is_reading = true;
                events.push(Reverse((now + service, Event::Looks, read)));
                events.push(Reverse((now + service, Event::Reads, 0)));
            }
            continue;
        }
        let (host, turn, pass) = &mut commands[at];
        let it = &hosts[*host];
        if event == Event::Comes && node.reads {
            sockets.waiting[*host].push_back(at);
            if !sockets.is_reading {
                sockets.is_reading = true;
                events.push(Reverse((now, Event::Reads, 0)));
            }
            continue;
        }
        if event == Event::Ends {
            if let Some((_, until)) = it.stalls.filter(|it| (it.0..it.1).contains(&time)) {
                events.push(Reverse((began + until, Event::Ends, at)));
                continue;
            }
            done[*host][time.as_secs() as usize] += 1;
            if let Some(mut pass) = pass.take() {
                pass.end(|| now);
            }
            if time < it.until {
                events.push(Reverse((now + it.pause, Event::Comes, at)));
            }
            continue;
        }
        let queued = turn.get_or_insert_with(|| throttles[*host].queue_up(now, it.bytes));
        if let Some(wait) = queued.wait(now) {
            assert!(!wait.is_zero(), "it would look for ever");
            events.push(Reverse((now + wait, Event::Looks, at)));
            continue;
        }
        pretend(now, sockets.is_crowded);
        *pass = queued.pass(now);
        *turn = None;
        free = match node.reads {
            true => now,
            false => free.max(now) + node.service(it.bytes),
        };
        events.push(Reverse((free + node.takes, Event::Ends, at)));
    }
    done
}

/// The mean of a host over the seconds from `from` on.
fn mean(of: &[u64], from: usize) -> u64 {
    of[from..].iter().sum::<u64>() / (of.len() - from) as u64
}

#[test]
fn a_volume_with_few_commands_gets_what_it_is_guaranteed_beside_one_with_many() {
    let node = Node::of(20_000);
    let without = run(node, &[host(4), host(256)], 4);
    assert!(mean(&without[0], 1) < 500, "{without:?}");
    let with = run(node, &[guaranteed(4, 5000), host(256)], 12);
    assert!(mean(&with[0], 2) >= 4900, "{with:?}");
    let all = mean(&with[0], 2) + mean(&with[1], 2);
    assert!(all >= 18_000, "what is free is used: {all}, {with:?}");
}

#[test]
fn a_guarantee_is_kept_where_commands_wait_in_sockets_that_a_busy_node_does_not_read() {
    let node = Node {
        reads: true,
        ..Node::of(20_000)
    };
    let neighbours = vec![host(16); 16];
    let with = |first: Host| {
        let all: Vec<_> = std::iter::once(first).chain(neighbours.clone()).collect();
        run(node, &all, 12)
    };
    let without = with(host(2));
    assert!(mean(&without[0], 2) < 1500, "{without:?}");
    let kept = with(guaranteed(2, 6000));
    assert!(mean(&kept[0], 3) >= 5500, "{kept:?}");
    let all: u64 = kept.iter().map(|of| mean(of, 3)).sum();
    assert!(all >= 15_000, "what is free is used: {all}, {kept:?}");
    // One that asks for little of it takes little from the others.
    let little = with(Host {
        pause: SECOND / 10,
        ..guaranteed(1, 6000)
    });
    let all: u64 = little[1..].iter().map(|of| mean(of, 3)).sum();
    assert!(all >= 14_000, "{all}, {little:?}");
}

#[test]
fn nobody_is_held_back_for_a_guarantee_that_nobody_asks_for() {
    let node = Node::of(20_000);
    let idle = Host {
        pause: SECOND / 10,
        ..guaranteed(1, 10_000)
    };
    let done = run(node, &[idle, host(256)], 10);
    assert!(mean(&done[1], 2) >= 18_000, "{done:?}");
    let gone = Host {
        until: 5 * SECOND,
        ..guaranteed(64, 15_000)
    };
    let done = run(node, &[gone, host(256)], 10);
    assert!(mean(&done[0][..5], 2) >= 14_700, "{done:?}");
    assert!(mean(&done[1], 7) >= 19_500, "{done:?}");
}

#[test]
fn who_has_too_few_commands_for_its_guarantee_does_not_take_what_it_cannot_use() {
    // 120 us for a command and 20 us between two: about 6,000.
    let done = run(Node::of(20_000), &[guaranteed(1, 15_000), host(256)], 20);
    assert!(mean(&done[0], 2) >= 3000, "{done:?}");
    assert!(mean(&done[1], 2) >= 9_000, "{done:?}");
}

#[test]
fn a_host_that_lets_its_commands_lie_holds_others_back_for_a_moment_only() {
    let stalling = Host {
        stalls: Some((3 * SECOND, 13 * SECOND)),
        ..guaranteed(16, 10_000)
    };
    let done = run(Node::of(20_000), &[stalling, host(256)], 20);
    assert!(mean(&done[1][..13], 8) >= 17_000, "{done:?}");
    assert!(mean(&done[0], 15) >= 9_000, "{done:?}");
}

#[test]
fn guarantees_of_more_than_the_node_can_do_leave_others_a_little() {
    let hosts = [guaranteed(64, 15_000), guaranteed(64, 15_000), host(256)];
    let done = run(Node::of(20_000), &hosts, 12);
    assert!(mean(&done[2], 4) >= 600, "{done:?}");
    assert!(mean(&done[0], 4) >= 7000, "{done:?}");
    assert!(mean(&done[1], 4) >= 7000, "{done:?}");
}

#[test]
fn beyond_its_guarantee_a_volume_shares_with_the_others() {
    let hosts = [guaranteed(64, 8_000), host(256), guaranteed(2, 6000)];
    let done = run(Node::of(20_000), &hosts, 12);
    assert!(mean(&done[0], 4) >= 8_000, "{done:?}");
    assert!(mean(&done[1], 4) >= 2_000, "{done:?}");
    assert!(mean(&done[2], 4) >= 5_800, "{done:?}");
    let all: u64 = done.iter().map(|of| mean(of, 4)).sum();
    assert!(all >= 19_000, "{done:?}");
}

#[test]
fn a_guarantee_of_bytes_is_kept_beside_many_small_commands() {
    let node = Node::of(20_000);
    let large = Host {
        bytes: 256 << 10,
        guarantee: Rates {
            iops: None,
            bandwidth_bytes: Some(100 << 20),
        },
        ..host(2)
    };
    let done = run(node, &[large, host(256), host(256)], 12);
    // 400 of them cost 108 MB a second, of 410.
    assert!(mean(&done[0], 3) >= 390, "{done:?}");
    let all: u64 = done[1..].iter().map(|of| mean(of, 3)).sum();
    assert!(all >= 12_000, "{done:?}");
    // With a guarantee of commands too it gets the one that is less.
    let less = Host {
        bytes: 256 << 10,
        guarantee: Rates {
            iops: Some(100),
            bandwidth_bytes: Some(100 << 20),
        },
        ..host(1)
    };
    let done = run(node, &[less, host(256), host(256)], 12);
    assert!(mean(&done[0], 3) >= 95, "{done:?}");
}

/// What hosts of a story ask for: their depth, the blocks of their commands, and their part of 80 % of the node as a
/// guarantee, if they have one.
fn hosts_of(node: Node, asked: &[(usize, u64, u64)]) -> Vec<Host> {
    let parts: u64 = asked.iter().map(|(_, _, part)| part).sum();
    let host = |&(depth, blocks, part): &(usize, u64, u64)| {
        let bytes = blocks << 12;
        let iops = node.capacity * 8 / 10 * part / parts.max(8) / cost(bytes);
        // What it asks for is half more than its guarantee, at least.
        let alone =
            (node.takes + Duration::from_micros(20) + 2 * node.service(bytes)).as_secs_f64();
        let needed = (1.5 * iops as f64 * alone).ceil() as usize + 1;
        Host {
            bytes,
            guarantee: Rates {
                iops: (iops > 0).then_some(iops),
                bandwidth_bytes: None,
            },
            ..host(depth.max(if iops > 0 { needed } else { 1 }))
        }
    };
    asked.iter().map(host).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever others ask for, guarantees of 80 % of the node are kept within a fifth after four seconds, nobody starves, and
    /// what is free is used.
    #[test]
    fn guarantees_are_kept_whatever_others_ask_for(
        thousands in 15_u64..60,
        asked in prop::collection::vec((1_usize..200, 1_u64..32, 0_u64..4), 1..5),
        neighbours in prop::collection::vec((64_usize..400, 1_u64..64), 1..3),
    ) {
        let node = Node::of(1000 * thousands);
        let mut hosts = hosts_of(node, &asked);
        let greedy = |&(depth, blocks): &(usize, u64)| Host { bytes: blocks << 12, ..host(depth) };
        hosts.extend(neighbours.iter().map(greedy));
        let done = run(node, &hosts, 16);
        let mut all = 0;
        for (host, done) in hosts.iter().zip(&done) {
            let iops = mean(done, 4);
            all += iops * cost(host.bytes);
            let wanted = host.guarantee.iops.unwrap_or(0);
            prop_assert!(iops >= wanted * 8 / 10, "{wanted}: {done:?} of {host:?}");
            prop_assert!(iops > 0 || wanted == 0 && done.iter().sum::<u64>() > 0, "{done:?} of {host:?}");
        }
        prop_assert!(all >= node.capacity * 6 / 10, "{all} of {}: {done:?}", node.capacity);
    }
}
