//! Counts that stay right, whatever leaves memory and comes back.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn set(blocks: &BlockTable, pba: Pba, references: u32) {
    let info = BlockInfo {
        references,
        ..UNUSED
    };
    blocks.set(pba, info);
}

#[test]
fn a_pack_is_in_use_as_long_as_one_of_its_fragments_is() {
    let blocks = BlockTable::new(&[100, 100]);
    let pack = Pba::new(1, 7);
    for slot in [0, 14] {
        set(&blocks, pack.fragment(slot), 1);
    }
    // Neither the whole block nor its neighbours count.
    set(&blocks, pack, 1);
    set(&blocks, Pba::new(1, 8).fragment(0), 1);
    let found: Vec<_> = blocks.iter().map(|(pba, _)| pba.to_string()).collect();
    assert_eq!(found, ["1:7", "1:7/0", "1:7/14", "1:8/0"]);
    for slot in [0, 14] {
        assert!(blocks.is_pack_in_use(pack.fragment(0)));
        set(&blocks, pack.fragment(slot), 0);
    }
    assert!(!blocks.is_pack_in_use(pack.fragment(14)));
}

#[test]
fn a_row_page_in_which_nothing_is_in_use_leaves_nothing_behind() {
    let mut blocks = BlockTable::new(&[10 * GROUP]);
    let pba = Pba::new(0, 3 * GROUP + 1);
    set(&blocks, pba, 1);
    assert_eq!(blocks.evict(pba, 0), Eviction::Stays); // it was just used
    assert_eq!(blocks.evict(pba, 0), Eviction::Gone);
    assert!(!blocks.is_resident(pba) && blocks.look(pba).is_none());
    let ticket = blocks.begin_load(pba);
    let info = BlockInfo {
        references: 1,
        ..UNUSED
    };
    blocks.load(ticket, &[(pba, info)]);
    blocks.end_load(ticket);
    assert_eq!(blocks.get(pba), info);
    blocks.changed(pba, 5);
    assert_eq!(blocks.lose(pba), Some(0));
    for stored in [4, 4, 5] {
        assert!(blocks.page(pba).is_some());
        blocks.evict(pba, stored);
    }
    assert!(blocks.is_whole() && blocks.page(pba).is_none());
    assert_eq!(blocks.evict(pba, 5), Eviction::Absent);
}

#[test]
fn what_is_noted_of_row_pages_counts_until_the_last_one_of_a_folder_leaves() {
    let mut blocks = BlockTable::new(&[10 * GROUP]);
    let [first, beside, far] = [0, ROW_PAGE, 3 * GROUP].map(|number| Pba::new(0, number));
    let fixed = blocks.fixed_bytes();
    assert_eq!(blocks.pages_bytes(), 0);
    set(&blocks, first, 1);
    let one = blocks.pages_bytes();
    assert!(one > 0 && blocks.fixed_bytes() > fixed);
    set(&blocks, beside, 1);
    assert_eq!(blocks.pages_bytes(), one, "both are of one folder");
    set(&blocks, far, 1);
    for (pba, left) in [(first, 2 * one), (far, one), (beside, 0)] {
        assert_eq!(blocks.evict(pba, 0), Eviction::Stays); // it was just used
        assert_eq!(blocks.evict(pba, 0), Eviction::Gone);
        assert_eq!(blocks.pages_bytes(), left);
    }
}

/// What a command or a checkpoint does.
#[derive(Clone, Debug)]
enum Step {
    Write(u64),
    Share(u64),
    GiveBack(u64),
    Record(u64),
    Unmap(u64),
    Checkpoint,
    Evict(u64),
    BeginLoad(u64),
    EndLoad(usize),
}

fn step() -> impl Strategy<Value = Step> {
    // Whole blocks of three row pages and fragments of two packs, which are in one row page each.
    let at = || 0u64..3 * ROW_PAGE + 2 * 15;
    prop_oneof![
        4 => at().prop_map(Step::Write),
        2 => at().prop_map(Step::Share),
        2 => at().prop_map(Step::GiveBack),
        4 => at().prop_map(Step::Record),
        3 => at().prop_map(Step::Unmap),
        2 => Just(Step::Checkpoint),
        6 => at().prop_map(Step::Evict),
        3 => at().prop_map(Step::BeginLoad),
        3 => (0usize..4).prop_map(Step::EndLoad),
    ]
}

fn pba_at(at: u64) -> Pba {
    match at.checked_sub(3 * ROW_PAGE) {
        None => Pba::new(0, at),
        Some(slot) => Pba::new(0, 40 + slot / 15).fragment((slot % 15) as u8),
    }
}

/// Counts of a block: mappings that records tell of, and references that commands hold.
#[derive(Clone, Copy, Default)]
struct Counts {
    mapped: u32,
    held: u32,
    content: u32,
}

proptest! {
    #[test]
    fn whatever_leaves_memory_and_comes_back_every_count_stays_right(
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let mut blocks = BlockTable::new(&[4 * GROUP]);
        let mut model: BTreeMap<Pba, Counts> = BTreeMap::new();
        let mut stored_rows: BTreeMap<Pba, Counts> = BTreeMap::new();
        let (mut sequence, mut stored) = (0, 0);
        let mut loads: Vec<(Ticket, Vec<(Pba, BlockInfo)>)> = Vec::new();
        let info = |counts: &Counts| BlockInfo {
            references: counts.mapped + counts.held,
            crc32c: counts.content,
            fingerprint: Fingerprint([counts.content as u8; 16]),
        };
        for (number, step) in (1u32..).zip(steps) {
            match step {
                Step::Write(at) | Step::Share(at) | Step::GiveBack(at) | Step::Record(at)
                | Step::Unmap(at) if !blocks.is_resident(pba_at(at)) => {}
                Step::Write(at) => {
                    let counts = model.entry(pba_at(at)).or_default();
                    if counts.mapped + counts.held == 0 {
                        *counts = Counts { mapped: 0, held: 1, content: number };
                        blocks.create(pba_at(at), info(counts));
                    }
                }
                Step::Share(at) => {
                    let counts = model.entry(pba_at(at)).or_default();
                    if counts.mapped + counts.held > 0 {
                        counts.held += 1;
                        blocks.take(pba_at(at));
                    }
                }
                Step::GiveBack(at) => {
                    let counts = model.entry(pba_at(at)).or_default();
                    if counts.held > 0 {
                        counts.held -= 1;
                        blocks.let_go(pba_at(at), 1);
                        blocks.lose(pba_at(at));
                    }
                }
                Step::Record(at) => {
                    let counts = model.entry(pba_at(at)).or_default();
                    if counts.held > 0 {
                        counts.held -= 1;
                        counts.mapped += 1;
                        sequence += 1;
                        blocks.pass_on(std::iter::once(pba_at(at)), sequence);
                    }
                }
                Step::Unmap(at) => {
                    let counts = model.entry(pba_at(at)).or_default();
                    if counts.mapped > 0 {
                        counts.mapped -= 1;
                        sequence += 1;
                        blocks.changed(pba_at(at), sequence);
                        blocks.lose(pba_at(at));
                    }
                }
                Step::Checkpoint => {
                    stored = sequence;
                    stored_rows = model.clone();
                    stored_rows.retain(|_, counts| counts.mapped > 0);
                }
                Step::Evict(at) => {
                    blocks.evict(pba_at(at), stored);
                }
                Step::BeginLoad(at) => {
                    let first = row_page_of(pba_at(at));
                    let rows = stored_rows.range(first..Pba(first.0 + ROW_PAGE));
                    let rows = rows.map(|(pba, counts)| (*pba, info(counts)));
                    loads.push((blocks.begin_load(first), rows.collect()));
                }
                Step::EndLoad(at) if at < loads.len() => {
                    // Rows that were read a while ago.
                    let (ticket, rows) = loads.remove(at);
                    blocks.load(ticket, &rows);
                    blocks.end_load(ticket);
                }
                Step::EndLoad(_) => {}
            }
            let held: u32 = model.values().map(|counts| counts.held).sum();
            prop_assert_eq!(blocks.held(), u64::from(held));
            for (pba, counts) in &model {
                let Some(found) = blocks.look(*pba) else {
                    prop_assert_eq!(counts.held, 0);
                    continue;
                };
                prop_assert_eq!(found.references, counts.mapped + counts.held);
                if found.references > 0 {
                    prop_assert_eq!(found.crc32c, counts.content);
                }
            }
        }
    }
}
