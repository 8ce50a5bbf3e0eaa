//! The map of one volume: sub-block -> physical block, in pages that exist only where something is
//! mapped. An unmapped sub-block reads as zeros.

use std::collections::BTreeMap;

use meta::Pba;

/// Sub-blocks per page: 4 KiB of memory for 2 MiB of a volume.
const PAGE: u64 = 512;

/// No physical block has this number (the drive index would be 65535).
const NONE: u64 = u64::MAX;

struct Page {
    entries: [u64; PAGE as usize],
    mapped: u32,
}

/// The mapped sub-blocks of a volume.
#[derive(Default)]
pub(crate) struct PageMap {
    pages: BTreeMap<u64, Box<Page>>,
    mapped: u64,
}

impl PageMap {
    /// Where a sub-block is stored.
    pub(crate) fn lookup(&self, sub_block: u64) -> Option<Pba> {
        let page = self.pages.get(&(sub_block / PAGE))?;
        match page.entries[(sub_block % PAGE) as usize] {
            NONE => None,
            pba => Some(Pba(pba)),
        }
    }

    /// Maps or unmaps a sub-block; returns what it was mapped to.
    pub(crate) fn replace(&mut self, sub_block: u64, new: Option<Pba>) -> Option<Pba> {
        let key = sub_block / PAGE;
        let slot = (sub_block % PAGE) as usize;
        if new.is_none() && !self.pages.contains_key(&key) {
            return None;
        }
        let page = self.pages.entry(key).or_insert_with(|| {
            Box::new(Page {
                entries: [NONE; PAGE as usize],
                mapped: 0,
            })
        });
        let old = std::mem::replace(&mut page.entries[slot], new.map_or(NONE, |pba| pba.0));
        if old == NONE && new.is_some() {
            page.mapped += 1;
            self.mapped += 1;
        } else if old != NONE && new.is_none() {
            page.mapped -= 1;
            self.mapped -= 1;
        }
        if page.mapped == 0 {
            self.pages.remove(&key);
        }
        (old != NONE).then_some(Pba(old))
    }

    /// How many sub-blocks are mapped.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// The mapped sub-blocks in `start..end`, in order.
    pub(crate) fn range(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Pba)> + '_ {
        let first = start / PAGE;
        let last = end.div_ceil(PAGE);
        self.pages
            .range(first..last.max(first))
            .flat_map(move |(key, page)| {
                let base = key * PAGE;
                page.entries
                    .iter()
                    .enumerate()
                    .filter(|(_, pba)| **pba != NONE)
                    .map(move |(slot, pba)| (base + slot as u64, Pba(*pba)))
                    .filter(move |(sub_block, _)| (start..end).contains(sub_block))
            })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_map_agrees_with_a_plain_ordered_map(
            steps in proptest::collection::vec((0u64..3000, proptest::option::of(0u64..50)), 1..300),
            start in 0u64..3000,
            len in 0u64..3000,
        ) {
            let mut map = PageMap::default();
            let mut model = BTreeMap::new();
            for (sub_block, new) in steps {
                let old = match new {
                    Some(pba) => model.insert(sub_block, pba),
                    None => model.remove(&sub_block),
                };
                prop_assert_eq!(map.replace(sub_block, new.map(Pba)).map(|pba| pba.0), old);
                prop_assert_eq!(map.mapped(), model.len() as u64);
            }
            let found: Vec<_> = map.range(start, start + len).map(|(at, pba)| (at, pba.0)).collect();
            let wanted: Vec<_> = model.range(start..start + len).map(|(at, pba)| (*at, *pba)).collect();
            prop_assert_eq!(found, wanted);
            for (sub_block, pba) in &model {
                prop_assert_eq!(map.lookup(*sub_block).map(|pba| pba.0), Some(*pba));
            }
        }
    }

    #[test]
    fn pages_without_a_mapping_cost_no_memory() {
        let mut map = PageMap::default();
        map.replace(1 << 40, Some(Pba(1)));
        map.replace(1 << 40, None);
        assert!(map.pages.is_empty());
    }
}
