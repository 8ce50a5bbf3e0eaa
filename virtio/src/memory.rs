//! The guest's memory, as the front-end shares it.
//!
//! Guarantee: nothing is mapped beyond the end of its file, and all accesses are checked against what is mapped.

use std::fs::File;
use std::io;

use vm_memory::mmap::MmapRegion;
use vm_memory::{Address, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, GuestUsize};

use crate::message::Region;

/// The guest's memory.
pub(crate) type Guest = GuestMemoryMmap<()>;

/// Regions that a guest's memory has at most.
pub(crate) const REGIONS_MAX: usize = 32;

/// A region, mapped.
struct Mapped {
    region: Region,
    mapping: std::sync::Arc<MmapRegion<()>>,
}

/// The regions that the front-end told.
#[derive(Default)]
pub(crate) struct Table(Vec<Mapped>);

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

/// Maps so many bytes of a file from an offset.
pub(crate) fn map(file: File, offset: u64, len: u64) -> io::Result<MmapRegion<()>> {
    let end = offset.checked_add(len).filter(|_| len > 0);
    let end = end.ok_or_else(|| invalid("a mapping without an end"))?;
    if end > file.metadata()?.len() {
        return Err(invalid("a mapping beyond the end of its file"));
    }
    let len = usize::try_from(len).map_err(|_| invalid("a mapping too long for this machine"))?;
    MmapRegion::from_file(FileOffset::new(file, offset), len).map_err(io::Error::other)
}

impl Table {
    /// Adds a region.
    pub(crate) fn add(&mut self, region: Region, file: File) -> io::Result<()> {
        if self.0.len() >= REGIONS_MAX {
            return Err(invalid("too many regions of memory"));
        }
        let mapping = map(file, region.file_offset, region.len)?;
        let mapping = std::sync::Arc::new(mapping);
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
        let regions = self.0.iter().map(|mapped| {
            let at = GuestAddress(mapped.region.guest);
            let region = GuestRegionMmap::with_arc(mapped.mapping.clone(), at);
            region.ok_or_else(|| invalid("a region beyond the end of all addresses"))
        });
        let mut regions = regions.collect::<io::Result<Vec<_>>>()?;
        regions.sort_by_key(|region| vm_memory::GuestMemoryRegion::start_addr(region).raw_value());
        Guest::from_regions(regions).map_err(io::Error::other)
    }

    /// The guest's address of what the front-end has at one of its own.
    pub(crate) fn guest_address(&self, user: u64) -> io::Result<GuestAddress> {
        let offset_in = |region: &Region| {
            let offset: GuestUsize = user.checked_sub(region.user)?;
            (offset < region.len).then_some(region.guest + offset)
        };
        let found = self.0.iter().find_map(|mapped| offset_in(&mapped.region));
        let found = found.ok_or_else(|| invalid("an address outside of the shared memory"))?;
        Ok(GuestAddress(found))
    }
}
