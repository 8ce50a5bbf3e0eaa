//! Limits of a volume: requests of guests are held back by them, and hold nothing up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use subsystem::throttle::{IoLimits, Limited};

use crate::front_end::{DATA, DISCARD, FLUSH, FrontEnd, IN, Memory, used_of};
use crate::harness::Lab;

/// A byte a second: a block has to wait for more than an hour.
const BYTE_BY_BYTE: IoLimits = IoLimits {
    iops: None,
    bandwidth_bytes: Some(1),
    burst_ms: 0,
    guarantee_iops: None,
    guarantee_bandwidth_bytes: None,
};

fn of(lab: &Lab) -> Limited {
    Limited::Volume(lab.engine.volume("disk").expect("the volume").info().uuid)
}

fn set(lab: &Lab, limits: Option<IoLimits>) {
    let of = of(lab);
    lab.change(move |catalog| {
        match limits {
            Some(limits) => catalog.limits.insert(of, Arc::new(limits)),
            None => catalog.limits.remove(&of),
        };
    });
}

/// Bytes of the reactor's buffers that nobody holds.
fn free_bytes(lab: &Lab) -> usize {
    lab.on(|| async {
        let reactor = reactor::current().expect("a reactor");
        reactor.buffers().stats().free_bytes
    })
}

/// Offers reads of a block that are held back.
fn held(guest: &mut FrontEnd, heads: &[u16]) {
    for head in heads {
        guest.put_request(0, *head, (IN, 0), &[(DATA, 4096)]);
        guest.offer(0, *head);
    }
    guest.kick(0);
}

#[test]
fn requests_of_a_guest_wait_for_the_limits_of_its_volume_without_a_buffer() {
    let lab = Lab::new(4096);
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    assert_eq!(guest.writes(0, &[7; 4096]), 0);
    let free = free_bytes(&lab);
    set(&lab, Some(BYTE_BY_BYTE));
    held(&mut guest, &[0, 3, 6]);
    // What moves no data goes on before them.
    guest.put_request(0, 9, (FLUSH, 0), &[]);
    guest.offer(0, 9);
    guest.kick(0);
    assert_eq!(guest.answered(0).0, 9);
    assert_eq!(free_bytes(&lab), free);
    set(&lab, None);
    for _ in 0..3 {
        guest.answered(0);
    }
    assert_eq!(guest.memory.get(DATA, 4096), vec![7; 4096]);
    assert_eq!(lab.target.held_back(&of(&lab)).commands, 3);
}

#[test]
fn a_queue_that_stops_does_not_wait_for_limits() {
    let lab = Lab::new(4096);
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    assert_eq!(guest.writes(0, &[7; 4096]), 0);
    set(&lab, Some(BYTE_BY_BYTE));
    held(&mut guest, &[0, 3, 6]);
    // A request that is not held back, behind them: when it is answered, they were taken.
    guest.put_request(0, 9, (FLUSH, 0), &[]);
    guest.offer(0, 9);
    guest.kick(0);
    assert_eq!(guest.answered(0).0, 9);
    assert_eq!(guest.stop_queue(0), 5);
    assert_eq!(guest.load(used_of(0) + 2), 5, "all of them are answered");
}

#[test]
fn requests_count_as_commands_and_come_at_the_rate_of_the_limit() {
    let lab = Lab::new(4096);
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    let limits = IoLimits {
        iops: Some(20),
        bandwidth_bytes: None,
        burst_ms: 0,
        ..IoLimits::default()
    };
    set(&lab, Some(limits));
    let began = Instant::now();
    // A write of several pieces is one command, and so is a trim.
    assert_eq!(guest.writes(0, &[7; 1 << 20]), 0);
    for _ in 0..4 {
        assert_eq!(guest.writes(0, &[7; 512]), 0);
    }
    let range = [&[0; 8][..], &8_u32.to_le_bytes(), &[0; 4]].concat();
    guest.memory.put(DATA, &range);
    assert_eq!(guest.does((DISCARD, 0), &[(DATA, 16)]), 0);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(290), "{took:?}");
    assert_eq!(lab.target.held_back(&of(&lab)).commands, 6);
}

#[test]
fn requests_of_a_guest_are_seen_by_the_guarantee_of_its_volume() {
    let lab = Lab::new(4096);
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    assert_eq!(guest.writes(0, &[7; 4096]), 0);
    let guarantee = IoLimits {
        guarantee_iops: Some(1000),
        ..IoLimits::default()
    };
    set(&lab, Some(guarantee));
    let began = Instant::now();
    let achieved = |lab: &Lab| lab.target.achieved(&of(lab)).expect("a guarantee");
    while achieved(&lab).iops == 0 || achieved(&lab).bandwidth_bytes == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "never seen");
        assert_eq!(guest.writes(0, &[7; 4096]), 0);
    }
    set(&lab, None);
    assert_eq!(lab.target.achieved(&of(&lab)), None);
}
