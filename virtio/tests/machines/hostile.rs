//! Guests and front-ends that lie: nobody but they themselves is harmed.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use crate::front_end::{
    BASE, DATA, Descriptor, FrontEnd, IN, INDIRECT, MEMORY_BYTES, Memory, NEXT, OUT, SIZE, WRITE,
    available_of, descriptors_of, event, send, used_of,
};
use crate::harness::{Lab, wait_for};

/// What is on the disk, where no story writes, and must stay.
const SECTOR: u64 = 100_000;

fn kept() -> Vec<u8> {
    vec![0x5a; 4096]
}

/// The device serves who comes next, and has what it had.
fn is_well(lab: &Lab) {
    wait_for("the end of the guest", || !lab.is_connected());
    let mut next = FrontEnd::start(&lab.path(), Memory::new(), 1);
    assert!(next.reads(SECTOR, 4096) == kept(), "other data");
    drop(next);
    wait_for("the end of the guest", || !lab.is_connected());
}

fn lab() -> Lab {
    let lab = Lab::new(4096);
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    assert_eq!(guest.writes(SECTOR, &kept()), 0);
    drop(guest);
    wait_for("the end of the guest", || !lab.is_connected());
    lab
}

/// Offers a malformed chain: the ring is broken, and the guest is told.
fn breaks_the_ring(lab: &Lab, chain: &[Descriptor], head: u16) {
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    for (at, descriptor) in chain.iter().enumerate() {
        guest.put_descriptor(descriptors_of(0), at as u16, *descriptor);
    }
    guest.offer(0, head);
    guest.kick(0);
    let error = &guest.queues[0].error;
    let mut count = [0; 8];
    wait_for("the device to say so", || {
        rustix::io::read(error, &mut count).is_ok()
    });
    assert_eq!(guest.load(used_of(0) + 2), 0, "{chain:?}");
    assert_eq!(guest.stop_queue(0), 1.min(u32::from(head < SIZE)));
    drop(guest);
    is_well(lab);
}

#[test]
fn chains_that_are_none_break_their_own_ring_alone() {
    let lab = lab();
    // A loop, of one and of two.
    breaks_the_ring(&lab, &[(DATA, 16, NEXT, 0)], 0);
    breaks_the_ring(&lab, &[(DATA, 16, NEXT, 1), (DATA, 16, NEXT, 0)], 0);
    // Indices beyond the table.
    breaks_the_ring(&lab, &[(DATA, 16, NEXT, SIZE)], 0);
    breaks_the_ring(&lab, &[(DATA, 16, NEXT, u16::MAX)], 0);
    breaks_the_ring(&lab, &[], SIZE);
    breaks_the_ring(&lab, &[], u16::MAX);
    // What is read behind what is written.
    breaks_the_ring(&lab, &[(DATA, 16, NEXT | WRITE, 1), (DATA, 16, 0, 0)], 0);
    // Indirect tables: of no whole descriptors, of none, too long, outside, with a next, within each other, looping.
    for (at, len, more) in [
        (DATA, 17, 0),
        (DATA, 0, 0),
        (DATA, 16 * 2000, 0),
        (DATA, u32::MAX, 0),
        (BASE + MEMORY_BYTES - 8, 16, 0),
        (u64::MAX - 7, 16, 0),
        (0, 16, 0),
        (DATA, 16, NEXT),
    ] {
        breaks_the_ring(&lab, &[(at, len, INDIRECT | more, 1)], 0);
    }
    let table = descriptors_of(0);
    let inner = (table + 16, 16, INDIRECT, 0);
    breaks_the_ring(&lab, &[(table + 16, 16, INDIRECT, 0), inner], 0);
    breaks_the_ring(
        &lab,
        &[(table + 16, 16, INDIRECT, 0), (DATA, 16, NEXT, 0)],
        0,
    );
}

#[test]
fn requests_that_cannot_be_done_fail_alone() {
    let lab = lab();
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    let outside = BASE + MEMORY_BYTES;
    for (request, data) in [
        // Data outside of memory, at its end, and where sums overflow.
        ((OUT, 0), vec![(outside, 4096)]),
        ((IN, 0), vec![(outside - 512, 4096)]),
        ((OUT, 0), vec![(u64::MAX - 511, 4096)]),
        ((IN, 0), vec![(0, 512)]),
        // No whole sectors, too much, and nothing there.
        ((OUT, 0), vec![(DATA, 513)]),
        ((IN, 0), vec![(DATA, 100)]),
        (
            (OUT, 0),
            vec![(DATA, u32::MAX), (DATA, u32::MAX), (DATA, u32::MAX)],
        ),
        ((IN, u64::MAX), vec![(DATA, 512)]),
        ((IN, u64::MAX / 512), vec![(DATA, 512)]),
        ((OUT, (64 << 20) / 512), vec![(DATA, 512)]),
        ((11, 0), vec![(DATA, 15)]),
        ((11, 0), vec![]),
        ((13, 0), vec![(DATA, 16 * 300)]),
        ((13, 0), vec![(outside, 16)]),
    ] {
        guest.memory.put(DATA, &[0xff; 8192]);
        assert_eq!(guest.does(request, &data), 1, "{request:?} {data:?}");
    }
    // Flags that are reserved.
    guest
        .memory
        .put(DATA, &[0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(guest.does((13, 0), &[(DATA, 16)]), 2);
    assert_eq!(guest.reads(0, 4096), [0; 4096]);
    // A header that is too short, and a status that nobody can write: an answer all the same.
    let table = descriptors_of(0);
    for (chain, written) in [
        (vec![(DATA, 15, NEXT, 1), (DATA + 64, 1, WRITE, 0)], 1),
        (vec![(DATA + 64, 1, WRITE, 0)], 1),
        (vec![(DATA, 16, 0, 0)], 0),
        (vec![(DATA, 16, NEXT, 1), (outside, 1, WRITE, 0)], 0),
        (vec![(DATA, 16, NEXT, 1), (DATA, 0, WRITE, 0)], 0),
    ] {
        for (at, descriptor) in chain.iter().enumerate() {
            guest.put_descriptor(table, at as u16, *descriptor);
        }
        guest.offer(0, 0);
        guest.kick(0);
        assert_eq!(guest.answered(0), (0, written), "{chain:?}");
    }
    assert_eq!(guest.reads(SECTOR, 4096), kept());
    drop(guest);
    is_well(&lab);
}

#[test]
fn more_requests_than_there_is_room_for_break_the_ring() {
    let lab = lab();
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    guest.store(SIZE + 1, available_of(0) + 2);
    guest.kick(0);
    let mut count = [0; 8];
    let error = &guest.queues[0].error;
    wait_for("the device to say so", || {
        rustix::io::read(error, &mut count).is_ok()
    });
    // Once it is set up again it is served.
    guest.stop_queue(0);
    guest.store(0, available_of(0) + 2);
    guest.queues.clear();
    guest.start_queue(0);
    assert_eq!(guest.reads(SECTOR, 4096), kept());
    drop(guest);
    is_well(&lab);
}

#[test]
fn rings_and_memory_that_are_nowhere_are_refused() {
    let lab = lab();
    let address = |queue: u32, at: u64| {
        let mut payload = [queue.to_le_bytes(), 0_u32.to_le_bytes()].concat();
        payload.extend([at, at, at, 0].iter().flat_map(|word| word.to_le_bytes()));
        payload
    };
    let region = |guest: u64, len: u64| {
        let mut payload = [1_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat();
        let words = [guest, len, 0, 0];
        payload.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        payload
    };
    let pair = |one: u32, other: u32| [one.to_le_bytes(), other.to_le_bytes()].concat();
    for (request, payload) in [
        (9, address(0, 1)),
        (9, address(0, u64::MAX)),
        (9, address(64, 0)),
        (8, pair(0, 0)),
        (8, pair(0, 3)),
        (8, pair(0, 1 << 20)),
        (8, pair(1000, 16)),
        (10, pair(0, 1 << 16)),
        (11, pair(64, 0)),
        (18, pair(64, 1)),
        (5, region(0, 4096)),
        (5, pair(40, 0)),
        (12, 0_u64.to_le_bytes().to_vec()),
        (12, 0x100_u64.to_le_bytes().to_vec()),
        (2, u64::MAX.to_le_bytes().to_vec()),
        (16, u64::MAX.to_le_bytes().to_vec()),
        (25, vec![0; 12 + 60]),
        (24, [pair(1000, 8), vec![0; 12]].concat()),
        (24, [pair(0, 4000), vec![0; 12]].concat()),
        (32, vec![0; 20]),
        (31, vec![0xff; 20]),
        (21, vec![]),
        (37, vec![0; 40]),
        (38, vec![0; 40]),
        (99, vec![]),
        (0, vec![]),
    ] {
        let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
        guest.tell(request, &payload);
        assert!(guest.is_sent_away(), "{request} {payload:?}");
        drop(guest);
        wait_for("the end of the guest", || !lab.is_connected());
    }
    // Memory that is longer than its file, and a length without an end.
    for (base, len) in [
        (BASE, MEMORY_BYTES + 4096),
        (BASE, 1 << 60),
        (u64::MAX - 4095, 8192),
        (BASE, 0),
    ] {
        let mut guest = FrontEnd::connect(&lab.path(), Memory::new());
        let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC);
        let file = file.expect("memory");
        rustix::fs::ftruncate(&file, MEMORY_BYTES).expect("its size");
        guest.send(5, &region(base, len), &[file.as_fd()]);
        assert!(guest.is_sent_away(), "{base} {len}");
        drop(guest);
        wait_for("the end of the guest", || !lab.is_connected());
    }
    is_well(&lab);
}

#[test]
fn a_guest_that_goes_in_the_middle_of_its_requests_harms_nobody() {
    let lab = lab();
    for _ in 0..20 {
        let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 2);
        for queue in 0..2 {
            for head in [0, 3, 6, 9] {
                guest.put_request(queue, head, (OUT, u64::from(head) * 8), &[(DATA, 1 << 20)]);
                guest.offer(queue, head);
            }
            guest.kick(queue);
        }
        drop(guest);
        is_well(&lab);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_rings_harm_their_own_guest_alone(
        table in prop::collection::vec(any_descriptor(), usize::from(SIZE)),
        heads in prop::collection::vec(0..SIZE + 1, 1..usize::from(SIZE)),
        headers in prop::collection::vec((prop::sample::select(vec![0_u32, 1, 4, 8, 11, 13, 77]), 0_u64..64), 4),
        used: u16,
    ) {
        let lab = LAB.with(|lab| lab.clone());
        let mut guest = FrontEnd::connect(&lab.path(), Memory::new());
        guest.store(used, used_of(0) + 2);
        guest.store(used, available_of(0) + 2);
        guest.set_up(1);
        for (at, (kind, sector)) in headers.iter().enumerate() {
            let mut header = kind.to_le_bytes().to_vec();
            header.extend([0; 4]);
            header.extend(sector.to_le_bytes());
            guest.memory.put(DATA + 4096 * at as u64, &header);
        }
        for (at, descriptor) in table.iter().enumerate() {
            guest.put_descriptor(descriptors_of(0), at as u16, *descriptor);
        }
        for head in heads {
            guest.offer(0, head);
        }
        guest.kick(0);
        guest.stop_queue(0);
        drop(guest);
        is_well(&lab);
    }

    #[test]
    fn any_messages_end_their_own_session_alone(
        messages in prop::collection::vec(
            (0_u32..42, prop::collection::vec(any::<u8>(), 0..64), 0_usize..3), 1..12,
        ),
    ) {
        let lab = LAB.with(|lab| lab.clone());
        let stream = UnixStream::connect(lab.path()).expect("it listens");
        wait_for("the connection", || lab.is_connected());
        let events = [event(), event()];
        for (request, payload, count) in messages {
            let with: Vec<_> = events.iter().take(count).map(AsFd::as_fd).collect();
            if send(&stream, request, &payload, &with).is_err() {
                break;
            }
        }
        drop(stream);
        is_well(&lab);
    }
}

thread_local! {
    /// One for all cases of a thread.
    static LAB: std::rc::Rc<Lab> = std::rc::Rc::new(lab());
}

/// A descriptor that is often nearly right.
fn any_descriptor() -> impl Strategy<Value = Descriptor> {
    let at = prop_oneof![
        8 => (0_u64..4).prop_map(|nth| DATA + 4096 * nth),
        1 => any::<u64>(),
        1 => (0_u64..8192).prop_map(|back| BASE + MEMORY_BYTES - back),
        1 => Just(descriptors_of(0)),
    ];
    let len = prop_oneof![Just(16_u32), Just(512), Just(1), Just(4096), any::<u32>()];
    (at, len, 0_u16..8, 0..SIZE + 2)
}
