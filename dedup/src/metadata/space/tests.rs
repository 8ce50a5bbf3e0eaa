//! Blocks that are handed out once, and come back.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn allocate(space: &mut Space) -> Option<Pba> {
    space.allocate(0, false, |_| true).ok()
}

#[test]
fn a_block_whose_part_of_the_table_is_in_the_store_is_the_next_one_afterwards() {
    let mut space = Space::new(&[100], false);
    let first = Pba::new(0, 0);
    assert_eq!(
        space.allocate(0, false, |pba| pba != first),
        Err(NoBlock::NotResident(first))
    );
    assert_eq!(allocate(&mut space), Some(first));
}

#[test]
fn the_blocks_ahead_are_those_that_are_handed_out_next() {
    let mut space = Space::new(&[3 * GROUP, GROUP], false);
    let taken: Vec<Pba> = (0..GROUP).filter_map(|_| allocate(&mut space)).collect();
    for pba in taken.iter().step_by(3) {
        space.give_back(*pba);
    }
    // From the second group on, and again from the start when the drive is through.
    for _ in 0..3 * GROUP {
        let ahead: Vec<Pba> = space.ahead(0, 5).collect();
        assert!(
            ahead.len() == 5
                || ahead.is_empty()
                || ahead[ahead.len() - 1].number() % GROUP > GROUP - 4
        );
        let handed_out: Vec<Option<Pba>> = ahead.iter().map(|_| allocate(&mut space)).collect();
        assert!(ahead.iter().copied().map(Some).eq(handed_out));
    }
    assert_eq!((space.free(), space.ahead(0, 5).count()), (0, 0));
}

#[test]
fn what_was_taken_in_advance_and_not_used_is_handed_out_next() {
    let mut space = Space::new(&[3 * GROUP], false);
    let (first, count) = space.allocate_run(0, false, 7, |_| true).unwrap();
    assert_eq!((first, count), (Pba::new(0, 0), 7));
    space.put_back(Pba::new(0, 3), 4);
    assert_eq!(space.free(), 3 * GROUP - 3);
    assert_eq!(allocate(&mut space), Some(Pba::new(0, 3)));
    // A run ends at a block in use, at one of which the store knows, and with its group.
    space.put_back(Pba::new(0, 3), 1);
    let taken: Vec<Pba> = (0..GROUP - 3)
        .filter_map(|_| allocate(&mut space))
        .collect();
    assert_eq!(taken.len() as u64, GROUP - 3);
    let resident_end = Pba::new(0, GROUP + 2);
    let run = space.allocate_run(0, false, 7, |pba| pba < resident_end);
    assert_eq!(run, Ok((Pba::new(0, GROUP), 2)));
    for _ in GROUP + 2..2 * GROUP - 3 {
        allocate(&mut space);
    }
    let run = space.allocate_run(0, false, 7, |_| true);
    assert_eq!(run, Ok((Pba::new(0, 2 * GROUP - 3), 3)));
}

#[test]
fn little_is_taken_in_advance_where_little_is_free_and_nothing_that_was_promised() {
    let mut space = Space::new(&[3 * AHEAD_SHARE - 1], false);
    let run = |space: &mut Space, promised| space.allocate_run(0, promised, 32, |_| true);
    assert_eq!(run(&mut space, false).map(|(_, count)| count), Ok(3));
    assert!(space.promise(space.free() - 1));
    assert_eq!(run(&mut space, false).map(|(_, count)| count), Ok(1));
    assert_eq!(run(&mut space, false), Err(NoBlock::Full));
    assert_eq!(run(&mut space, true).map(|(_, count)| count), Ok(1));
}

#[test]
fn blocks_without_a_place_are_neither_handed_out_nor_counted_and_come_back_free() {
    let mut space = Space::new(&[3 * GROUP + 5], false);
    let second = Pba::new(0, GROUP);
    assert!(space.withdraw(second, GROUP));
    assert_eq!(
        (space.capacity(), space.free()),
        (2 * GROUP + 5, 2 * GROUP + 5)
    );
    let taken: Vec<u64> = std::iter::from_fn(|| allocate(&mut space))
        .map(Pba::block)
        .collect();
    assert!(taken.iter().all(|block| block / GROUP != 1));
    assert_eq!(taken.len() as u64, 2 * GROUP + 5);
    // One that is in use stays, and the last segment may be short.
    assert!(!space.withdraw(Pba::new(0, 0), GROUP));
    let last = Pba::new(0, 3 * GROUP);
    (0..5).for_each(|at| space.give_back(Pba::new(0, 3 * GROUP + at)));
    assert!(space.promise(1) && !space.withdraw(last, GROUP));
    space.take_promise_back(1);
    assert!(space.withdraw(last, GROUP) && space.free() == 0);
    space.place(second, GROUP);
    space.place(last, GROUP);
    assert_eq!((space.used(), space.free()), (2 * GROUP, GROUP + 5));
    let again = std::iter::from_fn(|| allocate(&mut space)).map(|pba| pba.block() / GROUP);
    assert!(again.eq(std::iter::repeat_n(1, GROUP as usize).chain([3; 5])));
}

#[test]
fn a_segment_keeps_its_place_as_long_as_one_block_of_it_is_in_use() {
    let mut space = Space::new(&[3 * GROUP], false);
    let used = allocate(&mut space).unwrap();
    assert!(!space.withdraw(Pba::new(0, 0), GROUP));
    space.give_back(used);
    assert!(space.withdraw(Pba::new(0, 0), GROUP));
}

#[test]
fn what_has_no_place_stays_so_when_more_is_learned() {
    let mut space = Space::new(&[2 * GROUP], false);
    assert!(space.withdraw(Pba::new(0, 0), GROUP));
    space.forget(0, 2 * GROUP, 1);
    assert_eq!((space.used(), space.free()), (1, GROUP - 1));
    space.learn(Pba::new(0, 0), std::iter::empty());
    space.learn(Pba::new(0, GROUP), [Pba::new(0, GROUP)].into_iter());
    assert_eq!((space.used(), space.free()), (1, GROUP - 1));
    assert_eq!(allocate(&mut space), Some(Pba::new(0, GROUP + 1)));
}

#[test]
fn nothing_is_handed_out_before_it_is_known_to_be_free() {
    let mut space = Space::new(&[3 * GROUP], false);
    space.forget(0, 2 * GROUP + 1, GROUP + 2);
    assert_eq!((space.used(), space.free()), (GROUP + 2, 2 * GROUP - 2));
    assert!(allocate(&mut space).is_none() && !space.has_free_group());
    // The second group has two used blocks, the last one is full.
    let first = Pba::new(0, GROUP);
    space.learn(first, [first, Pba::new(0, GROUP + 5)].into_iter());
    let taken: Vec<u64> = std::iter::from_fn(|| allocate(&mut space))
        .map(Pba::block)
        .collect();
    let wanted = (GROUP..2 * GROUP).filter(|at| ![GROUP, GROUP + 5].contains(at));
    assert_eq!(taken, wanted.collect::<Vec<_>>());
    space.learn(
        Pba::new(0, 2 * GROUP),
        (2 * GROUP..3 * GROUP).map(|at| Pba::new(0, at)),
    );
    assert!(!space.has_free_group());
    space.learn(Pba::new(0, 0), std::iter::empty());
    assert_eq!(space.free(), GROUP);
    assert_eq!(allocate(&mut space), Some(Pba::new(0, 0)));
}

#[test]
fn new_blocks_come_one_after_the_other() {
    let mut space = Space::new(&[10_000], false);
    let taken: Vec<u64> = (0..5000)
        .map(|_| allocate(&mut space).unwrap().block())
        .collect();
    assert_eq!(taken, (0..5000).collect::<Vec<_>>());
}

#[test]
fn a_freed_block_waits_until_its_record_is_durable() {
    let mut space = Space::new(&[2], false);
    let a = allocate(&mut space).unwrap();
    let b = allocate(&mut space).unwrap();
    assert!(allocate(&mut space).is_none());
    space.quarantine(a, 7);
    space.quarantine(b, 9);
    space.release(6);
    assert!(allocate(&mut space).is_none());
    space.release(8);
    assert_eq!(allocate(&mut space).unwrap().0, a.0);
    assert!(allocate(&mut space).is_none());
    assert_eq!((space.used(), space.reclaiming(), space.free()), (1, 1, 0));
}

#[test]
fn a_freed_block_is_discarded_before_it_is_reused_unless_space_is_short() {
    let mut space = Space::new(&[2], true);
    let a = allocate(&mut space).unwrap();
    let b = allocate(&mut space).unwrap();
    space.quarantine(a, 1);
    space.quarantine(b, 1);
    space.release(1);
    assert!(allocate(&mut space).is_none());
    let taken = space.take_discards(1);
    assert_eq!(space.reclaiming(), 2);
    space.finish_discards(&taken);
    assert_eq!(allocate(&mut space).unwrap().0, a.0);
    assert_eq!(space.skip_discards(), 1);
    assert_eq!(allocate(&mut space).unwrap().0, b.0);
}

#[test]
fn a_block_whose_write_has_an_unknown_outcome_is_used_again_only_when_its_drive_is_fenced() {
    let mut space = Space::new(&[3], false);
    let [a, b, c] = [(); 3].map(|()| allocate(&mut space).unwrap());
    space.doubt(a, 0);
    space.doubt(b, 1);
    space.give_back(a);
    space.give_back(b);
    assert_eq!((space.reclaiming(), space.free()), (2, 0));
    assert_eq!(allocate(&mut space), None);
    let (drives, number) = space.doubtful_drives();
    assert!(drives.into_iter().eq([0, 1]));
    // While the drive is being fenced, one more comes in doubt.
    space.doubt(c, 0);
    assert_eq!(space.fenced(0, number), 1);
    assert_eq!(allocate(&mut space), Some(a));
    space.give_back(c);
    assert_eq!(allocate(&mut space), None);
    let (_, number) = space.doubtful_drives();
    assert_eq!((space.fenced(0, number), space.fenced(1, number)), (1, 1));
    assert_eq!((space.reclaiming(), space.free()), (0, 2));
    // One that is in use is not freed by it.
    space.doubt(a, 0);
    let (_, number) = space.doubtful_drives();
    assert_eq!((space.fenced(0, number), space.free()), (0, 2));
    space.give_back(a);
    assert_eq!((space.reclaiming(), space.free()), (0, 3));
}

#[test]
fn many_freed_blocks_become_usable_some_at_a_time() {
    let mut space = Space::new(&[10], false);
    let taken: Vec<Pba> = (0..9).map(|_| allocate(&mut space).unwrap()).collect();
    for (pba, sequence) in taken.iter().zip(1..) {
        space.quarantine(*pba, sequence);
    }
    let mut free = vec![space.free()];
    loop {
        let is_more = space.release(8);
        free.push(space.free());
        if !is_more {
            break;
        }
    }
    // The last one is not durable.
    assert_eq!(free, [1, 4, 7, 9]);
    assert!(!space.release(8));
    assert_eq!(space.free(), 9);
}

proptest! {
    #[test]
    fn no_block_is_handed_out_twice_and_the_figures_add_up(
        steps in proptest::collection::vec((any::<u8>(), any::<u8>()), 1..600)
    ) {
        let mut space = Space::new(&[44, 9000], true);
        let capacity = space.capacity();
        let mut held: Vec<Pba> = Vec::new();
        let mut seen = HashSet::new();
        let mut sequence = 0;
        for (what, which) in steps {
            match what % 8 {
                0..=3 => {
                    if let Ok(pba) = space.allocate(usize::from(which % 2), false, |_| true) {
                        prop_assert!(seen.insert(pba.0));
                        prop_assert!(space.contains(pba));
                        held.push(pba);
                    }
                }
                4 if !held.is_empty() => {
                    let pba = held.swap_remove(usize::from(which) % held.len());
                    seen.remove(&pba.0);
                    space.give_back(pba);
                }
                5 if !held.is_empty() => {
                    let pba = held.swap_remove(usize::from(which) % held.len());
                    seen.remove(&pba.0);
                    sequence += 1;
                    space.quarantine(pba, sequence);
                }
                6 => {
                    space.release(sequence);
                }
                _ => {
                    let taken = space.take_discards(usize::from(which));
                    space.finish_discards(&taken);
                }
            }
            prop_assert_eq!(space.used(), held.len() as u64);
            prop_assert_eq!(space.used() + space.reclaiming() + space.free(), capacity);
        }
    }
}
