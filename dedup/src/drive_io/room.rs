//! Room on the drives in which no segment lies, and which of it the next segment takes.
//!
//! Guarantee: copies of a segment lie in different failure domains.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use meta::{SegmentCopy, SegmentRow};

/// Drives that are likely to fail together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Domain<'a> {
    /// One that fails alone.
    Alone(u16),
    Named(&'a str),
}

/// See the module.
pub(super) struct Room<'a> {
    domains: &'a [Option<String>],
    /// Free places of each drive, the next one last.
    pub(super) free: Vec<Vec<u32>>,
}

impl<'a> Room<'a> {
    /// These places, on drives of these domains. A drive without one, or that is missing there, fails alone.
    pub(super) fn new(domains: &'a [Option<String>], free: Vec<Vec<u32>>) -> Self {
        Self { domains, free }
    }

    pub(super) fn domain(&self, drive: u16) -> Domain<'a> {
        let named = self.domains.get(usize::from(drive));
        match named.and_then(Option::as_deref) {
            Some(name) => Domain::Named(name),
            None => Domain::Alone(drive),
        }
    }

    /// The domains that have room, with how much, and the drive with the most of it; the roomiest first.
    pub(super) fn by_domain(&self) -> Vec<(Domain<'a>, usize, u16)> {
        let mut domains: BTreeMap<Domain<'_>, (usize, u16)> = BTreeMap::new();
        for (drive, free) in (0u16..).zip(&self.free) {
            if free.is_empty() {
                continue;
            }
            let (room, roomiest) = domains.entry(self.domain(drive)).or_insert((0, drive));
            *room += free.len();
            if self.free[usize::from(*roomiest)].len() < free.len() {
                *roomiest = drive;
            }
        }
        let domains = domains.into_iter();
        let mut domains: Vec<_> = domains
            .map(|(domain, (room, drive))| (domain, room, drive))
            .collect();
        domains.sort_by_key(|(_, room, drive)| (Reverse(*room), *drive));
        domains
    }

    /// The domains with the most room have the next segment, there the drive with the most; so drives of unequal size are
    /// used as far as can be.
    pub(super) fn next_row(&mut self, copies: usize, epoch: u32) -> Option<SegmentRow> {
        let domains = self.by_domain();
        let mut next = Vec::with_capacity(copies);
        for (_, _, drive) in domains.get(..copies)? {
            let slot = self.free[usize::from(*drive)].pop()?;
            next.push(SegmentCopy {
                drive: *drive,
                slot,
            });
        }
        SegmentRow::new(epoch, &next)
    }
}
