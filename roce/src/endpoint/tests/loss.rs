//! Lost packets and full links: how fast a queue pair notices, and what it does then.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use super::pair::{A, B, Bottleneck, Joint, Network, Pair, is};
use crate::endpoint::{EndpointConfig, Event, PathMtu, QpId, WcStatus};
use crate::memory::{Access, Memory, RegionKey};
use crate::wire::{Opcode, Packet};

const BOTH: Access = Access {
    remote_read: true,
    remote_write: true,
};
const MTU: usize = 1024;

/// A pair of endpoints whose queue pair has measured its path of 40 us.
fn scene() -> (Pair, [QpId; 2], RegionKey) {
    let mut pair = Pair::new(3, EndpointConfig::default(), Network::perfect());
    let qps = pair.join(Joint::default());
    let content = (0..64 * MTU).map(|at| (at / 7) as u8).collect();
    let key = pair.register(B, content, BOTH);
    for wr_id in 0..20 {
        pair.write(A, qps[A], wr_id, key, 0);
        assert_eq!(pair.completion(A, qps[A]).0, wr_id);
        pair.read(A, qps[A], wr_id, key, 1);
        assert_eq!(pair.completion(A, qps[A]).0, wr_id);
    }
    (pair, qps, key)
}

/// Drops the packets of a sender for which the function says so, each of them `times` times.
fn drop_those(
    pair: &mut Pair,
    from: usize,
    times: usize,
    which: impl Fn(&Packet<'_>) -> bool + 'static,
) -> Rc<Cell<usize>> {
    let mut seen: HashMap<u32, usize> = HashMap::new();
    let dropped = Rc::new(Cell::new(0));
    let count = dropped.clone();
    pair.filter = Some(Box::new(move |sender, bytes| {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4), 0);
        let Ok(packet) = Packet::parse(&padded) else {
            return false;
        };
        if sender != from || !which(&packet) {
            return false;
        }
        let seen = seen.entry(packet.bth.psn.value()).or_default();
        *seen += 1;
        let drops = *seen <= times;
        count.set(count.get() + usize::from(drops));
        drops
    }));
    dropped
}

/// How long the next work request of A takes.
fn time_of(pair: &mut Pair, qp: QpId, post: impl FnOnce(&mut Pair)) -> Duration {
    let start = pair.now;
    post(pair);
    assert_eq!(pair.completion(A, qp).2, WcStatus::Success);
    pair.now - start
}

fn leave(mut pair: Pair, qps: [QpId; 2], key: RegionKey) {
    pair.deregister(B, key);
    pair.finish(qps);
}

#[test]
fn the_last_packet_of_a_burst_is_missed_within_milliseconds() {
    let (mut pair, qps, key) = scene();
    let dropped = drop_those(&mut pair, A, 1, |p| p.bth.opcode == Opcode::WriteLast);
    let took = time_of(&mut pair, qps[A], |pair| {
        pair.write(A, qps[A], 1, key, 64 * MTU)
    });
    assert_eq!(dropped.get(), 1);
    assert!(took < Duration::from_millis(4), "{took:?}");
    // One packet as a probe, and the one that was lost.
    let repeated = pair.sides[A].endpoint.counters().retransmits;
    assert!(repeated <= 34, "{repeated}");
    leave(pair, qps, key);
}

#[test]
fn a_packet_that_is_lost_in_the_middle_costs_a_round_trip() {
    let (mut pair, qps, key) = scene();
    let dropped = drop_those(&mut pair, A, 1, |p| p.bth.opcode == Opcode::WriteFirst);
    let took = time_of(&mut pair, qps[A], |pair| {
        pair.write(A, qps[A], 1, key, 64 * MTU)
    });
    assert_eq!(dropped.get(), 1);
    assert!(took < Duration::from_micros(200), "{took:?}");
    leave(pair, qps, key);
}

#[test]
fn a_repetition_that_is_lost_too_is_noticed_at_once() {
    let (mut pair, qps, key) = scene();
    let dropped = drop_those(&mut pair, A, 3, |p| p.bth.opcode == Opcode::WriteFirst);
    let took = time_of(&mut pair, qps[A], |pair| {
        pair.write(A, qps[A], 1, key, 64 * MTU)
    });
    assert_eq!(dropped.get(), 3);
    assert!(took < Duration::from_micros(500), "{took:?}");
    assert_eq!(pair.sides[A].endpoint.counters().ack_timeouts, 0);
    leave(pair, qps, key);
}

#[test]
fn a_nak_that_is_lost_costs_milliseconds() {
    let (mut pair, qps, key) = scene();
    let first = Rc::new(Cell::new(true));
    let once = first.clone();
    let mut refusals = 0;
    pair.filter = Some(Box::new(move |sender, bytes| {
        if sender == A && is(bytes, Opcode::WriteFirst) {
            return once.replace(false);
        }
        let refuses = sender == B && is(bytes, Opcode::Acknowledge) && bytes[12] == 0x60;
        refusals += usize::from(refuses);
        refuses && refusals == 1
    }));
    let took = time_of(&mut pair, qps[A], |pair| {
        pair.write(A, qps[A], 1, key, 64 * MTU)
    });
    assert!(!first.get());
    assert!(took < Duration::from_millis(4), "{took:?}");
    leave(pair, qps, key);
}

/// Reads 16 times so many packets, and says how many of those READs were under way at once.
fn reads_at_once(pair: &mut Pair, qp: QpId, packets: usize) -> usize {
    let key = pair.register(B, vec![7; packets * MTU], BOTH);
    let most = Rc::new(Cell::new(0));
    let seen = most.clone();
    let mut under_way = 0;
    pair.filter = Some(Box::new(move |sender, bytes| {
        under_way += usize::from(sender == A && is(bytes, Opcode::ReadRequest));
        seen.set(seen.get().max(under_way));
        let ends = is(bytes, Opcode::ReadResponseOnly) || is(bytes, Opcode::ReadResponseLast);
        under_way -= usize::from(sender == B && ends);
        false
    }));
    for wr_id in 0..16 {
        pair.read(A, qp, wr_id, key, packets * MTU);
    }
    for wr_id in 0..16 {
        let done = pair.completion(A, qp);
        assert_eq!((done.0, done.2), (wr_id, WcStatus::Success));
    }
    pair.deregister(B, key);
    most.get()
}

#[test]
fn a_burst_of_answers_is_bounded_however_many_reads_wait() {
    let (mut pair, qps, key) = scene();
    // Four are what the connection allows.
    for (packets, at_once) in [(1, 4), (24, 3), (64, 1), (100, 1)] {
        let most = reads_at_once(&mut pair, qps[A], packets);
        assert_eq!(most, at_once, "READs of {packets} packets");
    }
    leave(pair, qps, key);
}

#[test]
fn what_was_read_again_does_not_count_for_ever() {
    let (mut pair, qps, key) = scene();
    drop_those(&mut pair, B, 1, |p| {
        p.bth.opcode == Opcode::ReadResponseMiddle
    });
    time_of(&mut pair, qps[A], |pair| {
        pair.read(A, qps[A], 1, key, 64 * MTU)
    });
    assert_eq!(reads_at_once(&mut pair, qps[A], 24), 3);
    leave(pair, qps, key);
}

#[test]
fn a_read_response_that_is_lost_is_asked_for_at_once_and_once() {
    for times in [1, 2, 3] {
        let (mut pair, qps, key) = scene();
        let asked = Rc::new(Cell::new(0));
        let count = asked.clone();
        let start = pair.sides[B].endpoint.counters().packets_sent;
        let dropped = Rc::new(Cell::new(0));
        let drops = dropped.clone();
        let mut victim = None;
        pair.filter = Some(Box::new(move |sender, bytes| {
            let asks = sender == A && is(bytes, Opcode::ReadRequest);
            count.set(count.get() + usize::from(asks));
            let psn = [bytes[9], bytes[10], bytes[11]];
            if sender == B && is(bytes, Opcode::ReadResponseMiddle) && victim.is_none() {
                victim = Some(psn);
            }
            let hit = sender == B && victim == Some(psn) && drops.get() < times;
            drops.set(drops.get() + usize::from(hit));
            hit
        }));
        let took = time_of(&mut pair, qps[A], |pair| {
            pair.read(A, qps[A], 1, key, 64 * MTU)
        });
        assert_eq!(dropped.get(), times);
        assert_eq!(
            asked.get(),
            1 + times,
            "the READ, and one more for each loss"
        );
        assert!(took < Duration::from_micros(600), "{took:?}");
        let sent = pair.sides[B].endpoint.counters().packets_sent - start;
        assert!(sent <= 64 * (1 + times as u64), "{sent}");
        leave(pair, qps, key);
    }
}

#[test]
fn a_late_answer_is_not_taken_for_a_loss() {
    let (mut pair, qps, key) = scene();
    // The peer is not scheduled for 3 ms.
    pair.network.latency = Duration::from_micros(1500);
    let took = time_of(&mut pair, qps[A], |pair| {
        pair.write(A, qps[A], 1, key, 64 * MTU)
    });
    assert!(took < Duration::from_millis(4), "{took:?}");
    let counters = pair.sides[A].endpoint.counters();
    assert!(counters.ack_timeouts >= 1, "it was probed for");
    assert_eq!(counters.retransmits, 1, "with one packet");
    leave(pair, qps, key);
}

/// A link of 1 GB/s with a buffer of half a millisecond.
fn narrow(mark_above: Duration) -> Network {
    Network {
        bottleneck: Some(Bottleneck {
            bytes_per_second: 1_000_000_000,
            wait_max: Duration::from_micros(500),
            mark_above,
        }),
        ..Network::perfect()
    }
}

/// Several queue pairs write 4 MiB each, in messages of 64 KiB, four at a time.
fn writers(pair: &mut Pair, count: usize) -> Duration {
    let all: Vec<_> = (0..count)
        .map(|_| {
            let qps = pair.join(Joint {
                mtu: PathMtu::Mtu4096,
                ..Joint::default()
            });
            (qps, pair.register(B, vec![0; 64 << 10], BOTH))
        })
        .collect();
    let start = pair.now;
    for (qps, key) in &all {
        (0..4).for_each(|_| pair.write(A, qps[A], 0, *key, 64 << 10));
    }
    let mut left: HashMap<QpId, (usize, RegionKey)> =
        all.iter().map(|(qps, key)| (qps[A], (64, *key))).collect();
    pair.run_until(Duration::from_secs(10), "all written", |pair| {
        for event in std::mem::take(&mut pair.sides[A].events) {
            if let Event::Completion { qp, status, .. } = event {
                assert_eq!(status, WcStatus::Success);
                let (left, key) = left.get_mut(&qp).expect("a writer");
                *left -= 1;
                if *left >= 4 {
                    pair.write(A, qp, 0, *key, 64 << 10);
                }
            }
        }
        left.values().all(|(left, _)| *left == 0)
    });
    let took = pair.now - start;
    for (qps, key) in all {
        assert_eq!(pair.deregister(B, key), vec![7; 64 << 10]);
        for side in [A, B] {
            pair.sides[side].endpoint.destroy(qps[side]);
        }
    }
    pair.finish([QpId(0), QpId(0)]);
    took
}

#[test]
fn writers_that_overload_a_link_share_it_without_much_waste() {
    for count in [1, 4, 16] {
        let mut pair = Pair::new(5, EndpointConfig::default(), narrow(Duration::MAX));
        let took = writers(&mut pair, count);
        let ideal = Duration::from_millis(4 * count as u64);
        let counters = pair.sides[A].endpoint.counters();
        assert!(took < ideal * 3, "{count}: {took:?} {counters:?}");
    }
}

#[test]
fn marks_of_the_network_slow_writers_down_before_packets_are_lost() {
    let lost = |mark_above| {
        let mut pair = Pair::new(5, EndpointConfig::default(), narrow(mark_above));
        let took = writers(&mut pair, 4);
        let [a, b] = [A, B].map(|side| pair.sides[side].endpoint.counters().clone());
        assert_eq!(a.notifications_received, b.notifications_sent);
        (a, b, took)
    };
    let (a, b, without) = lost(Duration::MAX);
    assert_eq!((b.marks_received, b.notifications_sent), (0, 0));
    let (marked_a, marked_b, with) = lost(Duration::from_micros(50));
    assert!(marked_b.marks_received > 0);
    // No more than one for each queue pair in 50 us.
    let allowed = 4 * (with.as_micros() as u64 / 50 + 1);
    assert!(marked_b.notifications_sent <= allowed);
    assert!(
        marked_a.retransmits * 2 < a.retransmits,
        "{marked_a:?} {a:?}"
    );
    assert!(with < without * 2, "{with:?} {without:?}");
}

#[test]
fn a_queue_pair_with_long_messages_leaves_others_their_share() {
    let mut pair = Pair::new(7, EndpointConfig::default(), narrow(Duration::MAX));
    let greedy = pair.join(Joint {
        mtu: PathMtu::Mtu4096,
        ..Joint::default()
    });
    let modest = pair.join(Joint::default());
    let key = pair.register(B, vec![0; 4 << 20], BOTH);
    for wr_id in 0..8 {
        pair.write(A, greedy[A], wr_id, key, 4 << 20);
    }
    let start = pair.now;
    for wr_id in 0..50 {
        pair.write(A, modest[A], wr_id, key, 512);
        assert_eq!(pair.completion(A, modest[A]).0, wr_id);
    }
    // At most the buffer of the link is before each message.
    let each = (pair.now - start) / 50;
    assert!(each < Duration::from_millis(2), "{each:?}");
    for side in [A, B] {
        pair.sides[side].endpoint.destroy(greedy[side]);
    }
    leave(pair, modest, key);
}

/// Random writes, reads and messages for 300 ms of virtual time; gives the longest time without any
/// completion.
fn longest_stall(seed: u64, network: Network) -> Duration {
    let mut pair = Pair::new(seed, EndpointConfig::default(), network);
    let qps = pair.join(Joint {
        mtu: PathMtu::Mtu4096,
        reads: 16,
        ..Joint::default()
    });
    let content: Vec<u8> = (0..256 << 10).map(|at: usize| (at / 5) as u8).collect();
    let readable = pair.register(B, content.clone(), BOTH);
    let writable = pair.register(B, vec![0; 256 << 10], BOTH);
    let post = |pair: &mut Pair, wr_id: u64| match wr_id % 3 {
        0 => pair.write(A, qps[A], wr_id, writable, 128 << 10),
        1 => pair.read(A, qps[A], wr_id, readable, 128 << 10),
        _ => {
            pair.post_receive(B, qps[B], wr_id, 4096);
            pair.send(A, qps[A], wr_id, &content[..4096]);
        }
    };
    let (mut next, mut done) = (0, 0);
    while next < 12 {
        post(&mut pair, next);
        next += 1;
    }
    let (end, mut last, mut longest) = (
        pair.now + Duration::from_millis(300),
        pair.now,
        Duration::ZERO,
    );
    let what = format!("seed {seed} {network:?}");
    pair.run_until(Duration::from_secs(600), &what, |pair| {
        for event in std::mem::take(&mut pair.sides[A].events) {
            let Event::Completion {
                wr_id,
                status,
                memory,
                ..
            } = event
            else {
                continue;
            };
            assert_eq!((wr_id, status), (done, WcStatus::Success), "{what}");
            if wr_id % 3 == 1 {
                assert!(memory.bytes() == &content[..128 << 10], "{what}: {wr_id}");
            }
            done += 1;
            longest = longest.max(pair.now - last);
            last = pair.now;
            if pair.now < end {
                post(pair, next);
                next += 1;
            }
        }
        for event in std::mem::take(&mut pair.sides[B].events) {
            if let Event::Completion { memory, .. } = event {
                assert!(memory.bytes() == &content[..4096], "{what}");
            }
        }
        done == next
    });
    assert_eq!(pair.deregister(B, readable), content);
    let written = pair.deregister(B, writable);
    assert!(written[..128 << 10].iter().all(|byte| *byte == 7));
    pair.finish(qps);
    longest
}

#[test]
fn at_one_percent_loss_nothing_stalls_for_two_seconds_and_data_is_right() {
    for seed in super::seeds(12) {
        let network = Network {
            latency: Duration::from_micros([20, 200, 2000][seed as usize % 3]),
            lost: 10,
            duplicated: [0, 5][seed as usize % 2],
            delayed: [0, 0, 0, 20][seed as usize % 4],
            corrupted: 1,
            ..narrow(Duration::from_micros(100))
        };
        let stall = longest_stall(seed, network);
        assert!(stall < Duration::from_secs(2), "seed {seed}: {stall:?}");
    }
}

#[test]
fn at_five_percent_loss_everything_still_arrives() {
    for seed in super::seeds(4) {
        let network = Network {
            lost: 50,
            ..narrow(Duration::from_micros(100))
        };
        let stall = longest_stall(seed, network);
        assert!(stall < Duration::from_secs(8), "seed {seed}: {stall:?}");
    }
}
