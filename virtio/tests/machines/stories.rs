//! Guests that behave.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use subsystem::catalog::WriteProtect;

use crate::front_end::{
    DATA, DISCARD, FLUSH, FrontEnd, GET_ID, IN, Memory, OUT, SIZE, WRITE_ZEROES, available_of,
    receive, used_of,
};
use crate::harness::{EXPORT, Lab, PATIENCE, VOLUME_BYTES, wait_for};

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(seed))
        .collect()
}

/// A range of Discard or Write Zeroes.
fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

#[test]
fn a_guest_reads_what_it_wrote_by_sectors_whatever_the_blocks_are() {
    for lba_bytes in [512, 4096] {
        let lab = Lab::new(lba_bytes);
        let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
        let config = guest.config();
        assert_eq!(config[..8], (VOLUME_BYTES / 512).to_le_bytes());
        assert_eq!(config[20..24], lba_bytes.to_le_bytes());
        assert_eq!(config[32], 1, "a write-back cache");
        let mut mirror = vec![0; 4 << 20];
        // Whole blocks, parts of blocks, both, and more than the engine takes at once.
        for (seed, sector, len) in [(3, 0, 8192), (5, 1, 512), (7, 3, 4096), (9, 13, 3 << 20)] {
            let bytes = pattern(seed, len);
            assert_eq!(guest.writes(sector, &bytes), 0);
            let at = sector as usize * 512;
            mirror[at..at + len].copy_from_slice(&bytes);
            let around = guest.reads(0, 2 << 20);
            assert!(around == mirror[..2 << 20], "{lba_bytes}: {sector} {len}");
        }
        assert_eq!(guest.does((FLUSH, 0), &[]), 0);
        // Hosts see the same.
        assert!(lab.stored(0, 1 << 20) == mirror[..1 << 20]);
        guest.memory.put(DATA, &range(1, 30, 1));
        assert_eq!(guest.does((WRITE_ZEROES, 0), &[(DATA, 16)]), 0);
        mirror[512..31 * 512].fill(0);
        guest
            .memory
            .put(DATA, &[range(64, 64, 0), range(1000, 9, 0)].concat());
        assert_eq!(guest.does((DISCARD, 0), &[(DATA, 32)]), 0);
        mirror[64 * 512..128 * 512].fill(0);
        // Of the second range, one whole block.
        mirror[1000 * 512..1008 * 512].fill(0);
        assert!(guest.reads(0, 2 << 20) == mirror[..2 << 20]);
        assert_eq!(guest.does((GET_ID, 0), &[(DATA, 20)]), 0);
        assert!(guest.memory.get(DATA, 20).starts_with(b"00000"));
        assert_eq!(guest.does((99, 0), &[]), 2, "not supported");
    }
}

#[test]
fn a_front_end_hears_the_outcome_of_the_very_message_that_agrees_on_outcomes() {
    let lab = Lab::new(4096);
    let front_end = FrontEnd::connect(&lab.path(), Memory::new());
    front_end.tell(16, &[0; 8]);
    // User-mode Linux asks this way, and waits for ever without an answer.
    assert_eq!(front_end.outcome(16, &(1_u64 << 3).to_le_bytes()), 0);
    let none = front_end.outcome(2, &front_end.features.to_le_bytes());
    assert_eq!(none, 0);
    let refused = front_end.outcome(2, &u64::MAX.to_le_bytes());
    assert_eq!(refused, 1, "features that were not offered");
}

#[test]
fn requests_of_several_queues_are_under_way_together_and_the_guest_is_told() {
    let lab = Lab::new(4096);
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 4);
    for round in 0..50_u64 {
        for queue in 0..4 {
            for (nth, head) in [0, 3, 6, 9, 12].into_iter().enumerate() {
                let at = DATA + (queue as u64 * 5 + nth as u64) * 4096;
                guest
                    .memory
                    .put(at, &pattern(queue as u8 * 16 + round as u8, 4096));
                let sector = (queue as u64 * 5 + nth as u64) * 8;
                guest.put_request(queue, head, (OUT, sector), &[(at, 4096)]);
                guest.offer(queue, head);
            }
            guest.kick(queue);
        }
        for queue in 0..4 {
            let mut heads: Vec<_> = (0..5).map(|_| guest.answered(queue).0).collect();
            heads.sort_unstable();
            assert_eq!(heads, [0, 3, 6, 9, 12]);
        }
    }
    for queue in 0..4 {
        let call = &guest.queues[queue].call;
        let mut count = [0; 8];
        wait_for("a call", || rustix::io::read(call, &mut count).is_ok());
        let first = queue as u64 * 5 * 4096;
        assert_eq!(
            lab.stored(first, 4096),
            pattern(queue as u8 * 16 + 49, 4096)
        );
    }
}

#[test]
fn a_queue_that_is_stopped_goes_on_where_it_was() {
    let lab = Lab::new(4096);
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    for at in 0..20 {
        assert_eq!(guest.writes(at * 8, &pattern(at as u8, 4096)), 0);
    }
    assert_eq!(guest.stop_queue(0), 20);
    // Nobody takes what comes now.
    guest.put_request(0, 0, (IN, 8), &[(DATA, 4096)]);
    guest.offer(0, 0);
    guest.kick(0);
    assert_eq!(guest.load(used_of(0) + 2), 20);
    let queue = guest.queues.remove(0);
    guest.start_queue(queue.index);
    guest.answered(0);
    assert_eq!(guest.memory.get(DATA, 4096), pattern(1, 4096));
}

#[test]
fn a_guest_hears_of_a_new_size_and_uses_it() {
    let lab = Lab::new(4096);
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    let (back, ours) = UnixStream::pair().expect("sockets");
    back.set_read_timeout(Some(PATIENCE)).expect("a patience");
    guest.send(21, &[], &[ours.as_fd()]);
    let before = guest.config();
    let beyond = VOLUME_BYTES / 512;
    assert_eq!(guest.writes(beyond, &[1; 4096]), 1, "beyond the end");
    let engine = lab.engine.clone();
    lab.on(move || async move {
        let resized = engine.resize_volume("disk", VOLUME_BYTES * 2).await;
        resized.expect("a larger volume");
    });
    let (message, ..) = receive(&back).expect("a message");
    assert_eq!(message, 2, "the configuration changed");
    let after = guest.config();
    assert_ne!(before, after);
    assert_eq!(after[..8], (VOLUME_BYTES * 2 / 512).to_le_bytes());
    assert_eq!(guest.writes(beyond, &[1; 4096]), 0);
}

#[test]
fn what_hosts_may_not_do_guests_may_not_do() {
    let lab = Lab::new(4096);
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    assert_eq!(guest.features & 1 << 5, 0, "it may be written");
    assert_eq!(guest.writes(0, &[1; 4096]), 0);
    lab.change(|catalog| {
        let export = catalog.exports.get_mut(&EXPORT).expect("the export");
        Arc::make_mut(export).read_only = true;
    });
    assert_eq!(guest.writes(0, &[2; 4096]), 1);
    guest.memory.put(DATA, &range(0, 8, 0));
    assert_eq!(guest.does((DISCARD, 0), &[(DATA, 16)]), 1);
    assert_eq!(guest.does((WRITE_ZEROES, 0), &[(DATA, 16)]), 1);
    assert_eq!(guest.reads(0, 4096), [1; 4096]);
    drop(guest);
    wait_for("the end of the guest", || !lab.is_connected());
    let mut guest = FrontEnd::start(&lab.path(), Memory::new(), 1);
    assert_ne!(guest.features & 1 << 5, 0, "it is read-only");
    // A namespace of the volume that is write protected protects the volume.
    lab.change(|catalog| {
        let export = catalog.exports.get_mut(&EXPORT).expect("the export");
        Arc::make_mut(export).read_only = false;
        let (nqn, nsid) = {
            let mut places = catalog.places_of(uuid::Uuid::from_u128(0xabc));
            let (nqn, nsid) = places.next().expect("a namespace");
            (nqn.clone(), nsid)
        };
        let namespace = catalog.namespace_mut(&nqn, nsid).expect("a namespace");
        namespace.write_protect = WriteProtect::On;
    });
    assert_eq!(guest.writes(0, &[2; 4096]), 1);
    lab.change(|catalog| {
        catalog.exports.remove(&EXPORT);
    });
    assert_eq!(guest.does((IN, 0), &[(DATA, 4096)]), 1, "it is gone");
}

#[test]
fn requests_that_were_under_way_when_the_device_died_are_done_again_once() {
    let lab = Lab::new(4096);
    let guest = FrontEnd::connect(&lab.path(), Memory::new());
    let ask = [
        [1, 0].map(u64::to_le_bytes).concat(),
        vec![1, 0, SIZE as u8, 0],
    ]
    .concat();
    guest.tell(31, &ask);
    let (_, answer, file) = receive(&guest.stream).expect("an answer");
    let file = file.expect("memory");
    let area = crate::front_end::map(&file);
    // Four requests were taken: one was answered, and of the last answer only the guest had been told.
    let FrontEnd { memory, stream, .. } = guest;
    drop(stream);
    wait_for("the end", || !lab.is_connected());
    let mut guest = FrontEnd::connect(&lab.path(), memory);
    guest.queues.push(crate::front_end::unused_queue());
    for (nth, head) in [0_u16, 3, 6, 9].into_iter().enumerate() {
        let at = DATA + nth as u64 * 4096;
        guest.memory.put(at, &pattern(nth as u8 + 1, 4096));
        guest.put_request(0, head, (OUT, nth as u64 * 8), &[(at, 4096)]);
        guest.offer(0, head);
    }
    assert_eq!(guest.load(available_of(0) + 2), 4);
    guest.store(2, used_of(0) + 2);
    let note = |head: u16, taken: u8, order: u64| {
        let at = 16 + 16 * usize::from(head);
        area.put(at, &[taken]);
        area.put(at + 8, &order.to_le_bytes());
    };
    area.put(8, &1_u16.to_le_bytes());
    area.put(10, &SIZE.to_le_bytes());
    area.put(12, &3_u16.to_le_bytes());
    area.put(14, &1_u16.to_le_bytes());
    note(0, 0, 1);
    note(3, 1, 2);
    note(6, 1, 4);
    note(9, 1, 3);
    guest.queues.clear();
    guest.send(32, &answer, &[file.as_fd()]);
    guest.set_up(1);
    assert_eq!(guest.answered(0).0, 9);
    assert_eq!(guest.answered(0).0, 6);
    // The first two were answered: they are not done again.
    assert_eq!(lab.stored(0, 8192), vec![0; 8192]);
    assert_eq!(lab.stored(8192, 4096), pattern(3, 4096));
    assert_eq!(lab.stored(12288, 4096), pattern(4, 4096));
    assert_eq!(guest.writes(0, &pattern(9, 4096)), 0);
    assert_eq!(guest.stop_queue(0), 5);
    assert_eq!(area.get(14, 2), 5_u16.to_le_bytes());
}
