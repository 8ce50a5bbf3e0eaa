//! Which pages of an arena are free: a buddy allocator over 4 KiB pages.
//!
//! Guarantees: ranges handed out are disjoint, and aligned to their own size; once everything has come
//! back, every range has its greatest size again. All memory it needs is allocated at the start.

/// Orders 0 (one page, 4 KiB) to 9 (512 pages, 2 MiB).
pub(crate) const ORDERS: usize = 10;
/// Pages of the largest range.
pub(crate) const MAX_PAGES: u32 = 1 << (ORDERS - 1);

const NONE: u32 = u32::MAX;
/// This page is not the first of any range.
const INSIDE: u8 = 0xff;
/// Added to the order of a range that is handed out.
const TAKEN: u8 = 0x80;

pub(crate) struct Buddy {
    /// Per order, the first of a doubly linked list of free ranges.
    heads: [u32; ORDERS],
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Per page: `INSIDE`, or the order of the range that begins here, with `TAKEN` or without.
    state: Vec<u8>,
    free_pages: u32,
}

impl Buddy {
    /// `pages` is a multiple of [`MAX_PAGES`]; all are free.
    pub(crate) fn new(pages: u32) -> Self {
        assert!(
            pages.is_multiple_of(MAX_PAGES) && pages < NONE,
            "the pool rounds up"
        );
        let count = pages as usize;
        let mut buddy = Self {
            heads: [NONE; ORDERS],
            next: vec![NONE; count],
            previous: vec![NONE; count],
            state: vec![INSIDE; count],
            free_pages: pages,
        };
        for first in (0..pages).step_by(MAX_PAGES as usize).rev() {
            buddy.link(first, ORDERS - 1);
        }
        buddy
    }

    /// Pages that nobody holds.
    pub(crate) fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// The first page of a range of `1 << order` pages; `None` when no such range is free.
    pub(crate) fn take(&mut self, order: usize) -> Option<u32> {
        let mut found = (order..ORDERS).find(|&larger| self.heads[larger] != NONE)?;
        let page = self.heads[found];
        self.unlink(page, found);
        while found > order {
            found -= 1;
            self.link(page + (1 << found), found);
        }
        self.state[page as usize] = TAKEN | order as u8;
        self.free_pages -= 1 << order;
        Some(page)
    }

    /// Gives a range back.
    ///
    /// # Panics
    /// If it was not handed out: that would be a double free.
    pub(crate) fn give(&mut self, page: u32, order: usize) {
        assert_eq!(
            self.state[page as usize],
            TAKEN | order as u8,
            "this range is not handed out"
        );
        self.free_pages += 1 << order;
        let (mut page, mut order) = (page, order);
        self.state[page as usize] = INSIDE;
        while order < ORDERS - 1 {
            let other = page ^ (1 << order);
            if self.state[other as usize] != order as u8 {
                break;
            }
            self.unlink(other, order);
            page = page.min(other);
            order += 1;
        }
        self.link(page, order);
    }

    /// Makes ranges of `1 << part` pages of one that is handed out: each can be given back for itself.
    ///
    /// # Panics
    /// If it was not handed out, or is smaller than a part.
    pub(crate) fn split(&mut self, page: u32, order: usize, part: usize) {
        assert!(part <= order, "a range has no larger parts");
        assert_eq!(
            self.state[page as usize],
            TAKEN | order as u8,
            "this range is not handed out"
        );
        for first in (page..page + (1 << order)).step_by(1 << part) {
            self.state[first as usize] = TAKEN | part as u8;
        }
    }

    /// Undoes [`split`](Self::split): all parts are handed out, and are one range again.
    ///
    /// # Panics
    /// If one of them is not.
    pub(crate) fn join(&mut self, page: u32, order: usize, part: usize) {
        for first in (page..page + (1 << order)).step_by(1 << part) {
            let state = std::mem::replace(&mut self.state[first as usize], INSIDE);
            assert_eq!(state, TAKEN | part as u8, "a part is not handed out");
        }
        self.state[page as usize] = TAKEN | order as u8;
    }

    fn link(&mut self, page: u32, order: usize) {
        let old = std::mem::replace(&mut self.heads[order], page);
        self.next[page as usize] = old;
        self.previous[page as usize] = NONE;
        if old != NONE {
            self.previous[old as usize] = page;
        }
        self.state[page as usize] = order as u8;
    }

    fn unlink(&mut self, page: u32, order: usize) {
        let (next, previous) = (self.next[page as usize], self.previous[page as usize]);
        if previous == NONE {
            self.heads[order] = next;
        } else {
            self.next[previous as usize] = next;
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
        self.state[page as usize] = INSIDE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_together_again(
            steps in proptest::collection::vec((0..ORDERS, any::<u16>(), any::<bool>()), 1..300),
        ) {
            let pages = 4 * MAX_PAGES;
            let mut buddy = Buddy::new(pages);
            let mut owner = vec![false; pages as usize];
            let mut held: Vec<(u32, usize)> = Vec::new();
            for (order, pick, take) in steps {
                if take || held.is_empty() {
                    let Some(page) = buddy.take(order) else { continue };
                    prop_assert_eq!(page % (1 << order), 0);
                    for taken in &mut owner[page as usize..page as usize + (1 << order)] {
                        prop_assert!(!std::mem::replace(taken, true));
                    }
                    held.push((page, order));
                } else {
                    let (page, order) = held.swap_remove(usize::from(pick) % held.len());
                    owner[page as usize..page as usize + (1 << order)].fill(false);
                    buddy.give(page, order);
                }
                let taken = owner.iter().filter(|&&taken| taken).count();
                prop_assert_eq!(buddy.free_pages() as usize, pages as usize - taken);
            }
            for (page, order) in held.drain(..) {
                buddy.give(page, order);
            }
            for _ in 0..4 {
                prop_assert!(buddy.take(ORDERS - 1).is_some());
            }
            prop_assert!(buddy.take(0).is_none());
        }
    }

    #[test]
    fn parts_of_a_range_come_back_one_by_one_or_as_the_range() {
        let mut buddy = Buddy::new(MAX_PAGES);
        for joined in [true, false] {
            let page = buddy.take(5).expect("free");
            buddy.split(page, 5, 2);
            assert_eq!(buddy.free_pages(), MAX_PAGES - 32);
            if joined {
                buddy.join(page, 5, 2);
                buddy.give(page, 5);
            } else {
                for (given, part) in (page..page + 32).step_by(4).enumerate() {
                    assert_eq!(buddy.free_pages(), MAX_PAGES - 32 + 4 * given as u32);
                    buddy.give(part, 2);
                }
            }
            let whole = buddy.take(ORDERS - 1).expect("all came together again");
            buddy.give(whole, ORDERS - 1);
        }
    }

    #[test]
    #[should_panic(expected = "a part is not handed out")]
    fn parts_of_which_one_came_back_are_not_joined() {
        let mut buddy = Buddy::new(MAX_PAGES);
        let page = buddy.take(5).expect("free");
        buddy.split(page, 5, 2);
        buddy.give(page + 4, 2);
        buddy.join(page, 5, 2);
    }

    #[test]
    #[should_panic(expected = "not handed out")]
    fn giving_back_twice_is_caught() {
        let mut buddy = Buddy::new(MAX_PAGES);
        let page = buddy.take(0).expect("free");
        buddy.give(page, 0);
        buddy.give(page, 0);
    }
}
