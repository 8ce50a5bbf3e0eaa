//! The guest's memory, as the front-end shares it.
//!
//! Guarantee: an access is within the memory that is shared, or it fails.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vm_memory::GuestAddress;

use crate::mapping::{Mapping, Unusable};
use crate::message::Region;

/// Regions that a guest's memory has at most.
pub(crate) const REGIONS_MAX: usize = 32;

/// A region, mapped.
#[derive(Clone)]
struct Mapped {
    region: Region,
    mapping: Arc<Mapping>,
}

/// The regions that the front-end told.
#[derive(Default)]
pub(crate) struct Table(Vec<Mapped>);

/// The guest's memory: regions in the order of their addresses.
pub(crate) struct Guest(Vec<Mapped>);

/// A part of memory is not the guest's, or has gone away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outside;

impl From<Unusable> for Outside {
    fn from(_: Unusable) -> Self {
        Self
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

impl Table {
    /// Adds a region.
    pub(crate) fn add(&mut self, region: Region, file: File) -> io::Result<()> {
        if self.0.len() >= REGIONS_MAX {
            return Err(invalid("too many regions of memory"));
        }
        let mapping = Arc::new(Mapping::new(file, region.file_offset, region.len)?);
        self.0.push(Mapped { region, mapping });
        Ok(())
    }

    /// Removes the region that is at the same addresses.
    pub(crate) fn remove(&mut self, region: Region) -> io::Result<()> {
        let same = |mapped: &Mapped| {
            let it = mapped.region;
            (it.guest, it.len, it.user) == (region.guest, region.len, region.user)
        };
        let at = self.0.iter().position(same);
        let at = at.ok_or_else(|| invalid("no such region of memory"))?;
        self.0.swap_remove(at);
        Ok(())
    }

    /// The memory as a whole.
    pub(crate) fn guest(&self) -> io::Result<Guest> {
        let mut regions = self.0.clone();
        regions.sort_by_key(|mapped| mapped.region.guest);
        // A region's end is one of its addresses' (`Region::parse`).
        let overlap =
            |two: &[Mapped]| two[0].region.guest + two[0].region.len > two[1].region.guest;
        if regions.is_empty() || regions.windows(2).any(overlap) {
            return Err(invalid("no memory, or regions of it that overlap"));
        }
        Ok(Guest(regions))
    }

    /// The guest's address of what the front-end has at one of its own.
    pub(crate) fn guest_address(&self, user: u64) -> io::Result<GuestAddress> {
        let offset_in = |region: &Region| {
            let offset = user.checked_sub(region.user)?;
            (offset < region.len).then_some(region.guest + offset)
        };
        let found = self.0.iter().find_map(|mapped| offset_in(&mapped.region));
        let found = found.ok_or_else(|| invalid("an address outside of the shared memory"))?;
        Ok(GuestAddress(found))
    }
}

impl Guest {
    /// Whether a part of it has gone away.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.iter().any(|mapped| mapped.mapping.is_lost())
    }

    /// The region that has an address, where that is in it, and how many bytes it has from there on.
    #[inline]
    fn find(&self, at: u64) -> Result<(&Mapping, usize, usize), Outside> {
        let next = self.0.partition_point(|mapped| mapped.region.guest <= at);
        let mapped = next.checked_sub(1).and_then(|last| self.0.get(last));
        let mapped = mapped.ok_or(Outside)?;
        let offset = at - mapped.region.guest;
        let left = mapped
            .region
            .len
            .checked_sub(offset)
            .filter(|left| *left > 0);
        let left = left.ok_or(Outside)?;
        // It is mapped, so it is within what this machine can address.
        Ok((&mapped.mapping, offset as usize, left as usize))
    }

    /// Copies out of it.
    #[inline]
    pub(crate) fn read(&self, at: GuestAddress, mut to: &mut [u8]) -> Result<(), Outside> {
        let mut at = at.0;
        while !to.is_empty() {
            let (mapping, offset, left) = self.find(at)?;
            let (part, rest) = to.split_at_mut(left.min(to.len()));
            mapping.read(offset, part)?;
            at = at.checked_add(part.len() as u64).ok_or(Outside)?;
            to = rest;
        }
        Ok(())
    }

    /// Copies into it.
    #[inline]
    pub(crate) fn write(&self, at: GuestAddress, mut from: &[u8]) -> Result<(), Outside> {
        let mut at = at.0;
        while !from.is_empty() {
            let (mapping, offset, left) = self.find(at)?;
            let (part, rest) = from.split_at(left.min(from.len()));
            mapping.write(offset, part)?;
            at = at.checked_add(part.len() as u64).ok_or(Outside)?;
            from = rest;
        }
        Ok(())
    }

    /// A number of a ring, which the other side may write at the same time.
    #[inline]
    pub(crate) fn load(&self, at: GuestAddress) -> Result<u16, Outside> {
        let (mapping, offset, _) = self.find(at.0)?;
        Ok(u16::from_le(mapping.load(offset)?))
    }

    /// Writes such a number, after all that was written before.
    #[inline]
    pub(crate) fn store(&self, at: GuestAddress, value: u16) -> Result<(), Outside> {
        let (mapping, offset, _) = self.find(at.0)?;
        Ok(mapping.store(offset, value.to_le())?)
    }
}
