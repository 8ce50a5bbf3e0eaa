//! Where a segment lies: the row that stands between an address and the drives.
//!
//! Addresses name blocks of segments; a segment's row names the places that hold its blocks. Who moves data changes rows,
//! and no mapping. A row is known by the address of the segment's first block ([`crate::Store::segments`]).

use crate::codec::{CodecError, Reader};

/// Copies of a segment at most.
pub const COPIES_MAX: usize = 3;

/// A place on a drive that holds a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentCopy {
    /// Index of the drive in the pool's list of drives.
    pub drive: u16,
    /// Which of the drive's places, each as long as a segment, from the end of the label area on.
    pub slot: u32,
}

/// Whether a segment takes new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentState {
    /// Free blocks of it are handed out.
    Open,
    /// What is freed of it stays as it is.
    Sealed,
    /// It has addresses and no place, and none of its blocks is in use: its place was needed for something else.
    Unplaced,
}

/// Where a segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRow {
    /// Whether it takes new data.
    pub state: SegmentState,
    /// The pool's epoch in which the row was written.
    pub epoch: u32,
    copies: [SegmentCopy; COPIES_MAX],
    count: u8,
}

impl SegmentRow {
    /// An open segment with these copies; `None` if there are none, too many, or two on one drive.
    pub fn new(epoch: u32, copies: &[SegmentCopy]) -> Option<Self> {
        let first = *copies.first()?;
        let is_twice = |at: usize| copies[..at].iter().any(|c| c.drive == copies[at].drive);
        if copies.len() > COPIES_MAX || (1..copies.len()).any(is_twice) {
            return None;
        }
        let mut row = Self::of_one(epoch, first);
        row.copies[..copies.len()].copy_from_slice(copies);
        row.count = copies.len() as u8;
        Some(row)
    }

    /// An open segment with one copy.
    pub const fn of_one(epoch: u32, copy: SegmentCopy) -> Self {
        Self {
            state: SegmentState::Open,
            epoch,
            copies: [copy; COPIES_MAX],
            count: 1,
        }
    }

    /// A segment that lies nowhere.
    pub const fn unplaced(epoch: u32) -> Self {
        Self {
            state: SegmentState::Unplaced,
            epoch,
            copies: [SegmentCopy { drive: 0, slot: 0 }; COPIES_MAX],
            count: 0,
        }
    }

    /// Its copies, each on a drive of its own: one at least, unless it is unplaced.
    pub fn copies(&self) -> &[SegmentCopy] {
        self.copies
            .get(..usize::from(self.count))
            .unwrap_or(&self.copies)
    }

    /// As it is stored: state u8, count u8, epoch u32, and for each copy drive u16 and slot u32.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            SegmentState::Open => 0,
            SegmentState::Sealed => 1,
            SegmentState::Unplaced => 2,
        };
        let mut out = vec![state, self.count];
        out.extend_from_slice(&self.epoch.to_le_bytes());
        for copy in self.copies() {
            out.extend_from_slice(&copy.drive.to_le_bytes());
            out.extend_from_slice(&copy.slot.to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let state = match reader.u8()? {
            0 => SegmentState::Open,
            1 => SegmentState::Sealed,
            2 => SegmentState::Unplaced,
            _ => return Err(CodecError::Field("state")),
        };
        let count = usize::from(reader.u8()?);
        let epoch = reader.u32()?;
        let mut copies = Vec::with_capacity(COPIES_MAX);
        for _ in 0..count.min(COPIES_MAX + 1) {
            let drive = u16::from_le_bytes(reader.array()?);
            let slot = reader.u32()?;
            copies.push(SegmentCopy { drive, slot });
        }
        reader.end()?;
        if state == SegmentState::Unplaced && copies.is_empty() {
            return Ok(Self::unplaced(epoch));
        }
        let of_copies = Self::new(epoch, &copies).filter(|_| state != SegmentState::Unplaced);
        let row = of_copies.ok_or(CodecError::Field("copies"))?;
        Ok(Self { state, ..row })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(drive: u16, slot: u32) -> SegmentCopy {
        SegmentCopy { drive, slot }
    }

    #[test]
    fn a_segments_row_reads_back_with_all_of_its_copies() {
        for count in 1..=COPIES_MAX {
            let copies: Vec<_> = (0..count as u16).map(|at| copy(at, 7 << 20)).collect();
            let mut row = SegmentRow::new(9, &copies).unwrap();
            assert_eq!(row.copies(), copies);
            assert_eq!(SegmentRow::decode(&row.encode()), Ok(row));
            row.state = SegmentState::Sealed;
            assert_eq!(SegmentRow::decode(&row.encode()), Ok(row));
        }
    }

    #[test]
    fn the_row_of_a_segment_without_a_place_reads_back() {
        let row = SegmentRow::unplaced(7);
        assert!(row.copies().is_empty());
        assert_eq!(SegmentRow::decode(&row.encode()), Ok(row));
    }

    #[test]
    fn a_row_that_names_no_copy_too_many_or_one_drive_twice_is_refused() {
        let four = [copy(0, 1), copy(1, 1), copy(2, 1), copy(3, 1)];
        for copies in [&[][..], &four, &[copy(2, 1), copy(2, 5)]] {
            assert_eq!(SegmentRow::new(0, copies), None, "{copies:?}");
            let mut bytes = vec![0, copies.len() as u8, 0, 0, 0, 0];
            for copy in copies {
                bytes.extend_from_slice(&copy.drive.to_le_bytes());
                bytes.extend_from_slice(&copy.slot.to_le_bytes());
            }
            assert!(SegmentRow::decode(&bytes).is_err(), "{copies:?}");
        }
        let mut whole = SegmentRow::of_one(1, copy(0, 0)).encode();
        // Unplaced with a copy, and a state that there is not.
        for state in [2, 3] {
            whole[0] = state;
            assert!(SegmentRow::decode(&whole).is_err());
        }
        whole[0] = 0;
        whole.push(0);
        assert!(SegmentRow::decode(&whole).is_err());
    }
}
