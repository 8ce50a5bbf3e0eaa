//! The split virtqueue as the device uses it (virtio 1.2, section 2.7).
//!
//! Guarantees: what is made used is written before the guest can see that it is; a ring whose driver contradicts itself is
//! broken, and is not used again before it is set up anew.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use vm_memory::{Address, GuestAddress};

use crate::chain::{Chain, Malformed};
use crate::memory::Guest;

/// Entries of a ring, at most.
pub(crate) const SIZE_MAX: u16 = 1024;

/// Of `flags` in both rings: the other side wants no notification.
const NO_NOTIFICATION: u16 = 1;

/// Where a ring is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) size: u16,
    pub(crate) descriptors: GuestAddress,
    pub(crate) available: GuestAddress,
    pub(crate) used: GuestAddress,
    /// Both sides say up to where they want no notification.
    pub(crate) event_idx: bool,
}

/// A ring in use.
pub(crate) struct Ring {
    guest: Arc<Guest>,
    layout: Layout,
    /// The next entry of the available ring.
    next_available: u16,
    /// The next entry of the used ring.
    next_used: u16,
    /// Up to where the guest was last told, or did not want to be.
    told: u16,
}

type Result<T> = std::result::Result<T, Malformed>;

const OUTSIDE: Malformed = Malformed("a ring outside of memory");

impl Ring {
    pub(crate) fn new(guest: Arc<Guest>, layout: Layout, next_available: u16) -> Result<Self> {
        let mut ring = Self {
            guest,
            layout,
            next_available,
            next_used: 0,
            told: 0,
        };
        ring.next_used = ring.load(ring.field(layout.used, 2)?)?;
        ring.told = ring.next_used;
        Ok(ring)
    }

    pub(crate) fn size(&self) -> u16 {
        self.layout.size
    }

    pub(crate) fn next_available(&self) -> u16 {
        self.next_available
    }

    pub(crate) fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Goes on there: requests before it are known from elsewhere.
    pub(crate) fn skip_to(&mut self, next_available: u16) {
        self.next_available = next_available;
    }

    fn field(&self, base: GuestAddress, offset: u64) -> Result<GuestAddress> {
        base.checked_add(offset).ok_or(OUTSIDE)
    }

    fn load(&self, at: GuestAddress) -> Result<u16> {
        self.guest.load(at).map_err(|_| OUTSIDE)
    }

    fn store(&self, value: u16, at: GuestAddress) -> Result<()> {
        self.guest.store(at, value).map_err(|_| OUTSIDE)
    }

    /// Requests that wait to be taken.
    pub(crate) fn waiting(&self) -> Result<u16> {
        let index = self.load(self.field(self.layout.available, 2)?)?;
        let count = index.wrapping_sub(self.next_available);
        match count > self.layout.size {
            true => Err(Malformed("more requests than the ring has entries")),
            false => Ok(count),
        }
    }

    /// Takes the next request, of which there is one: the head of its chain.
    pub(crate) fn take(&mut self) -> Result<u16> {
        let entry = u64::from(self.next_available % self.layout.size);
        let at = self.field(self.layout.available, 4 + 2 * entry)?;
        let head = self.load(at)?;
        if head >= self.layout.size {
            return Err(Malformed("a request beyond the table of descriptors"));
        }
        self.next_available = self.next_available.wrapping_add(1);
        Ok(head)
    }

    /// What a request is made of.
    pub(crate) fn chain(&self, head: u16) -> Result<Chain> {
        Chain::read(&self.guest, self.layout.descriptors, self.layout.size, head)
    }

    /// Writes that a request was done, with so many bytes written to its memory; the guest sees it by [`Self::publish`].
    pub(crate) fn put_used(&mut self, head: u16, written: u32) -> Result<()> {
        let entry = u64::from(self.next_used % self.layout.size);
        let at = self.field(self.layout.used, 4 + 8 * entry)?;
        let mut element = [0; 8];
        element[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        element[4..].copy_from_slice(&written.to_le_bytes());
        self.guest.write(at, &element).map_err(|_| OUTSIDE)?;
        self.next_used = self.next_used.wrapping_add(1);
        Ok(())
    }

    /// Lets the guest see what was done.
    pub(crate) fn publish(&self) -> Result<()> {
        self.store(self.next_used, self.field(self.layout.used, 2)?)
    }

    /// Whether the guest wants to be told of what was published since this was last asked.
    pub(crate) fn has_to_tell(&mut self) -> Result<bool> {
        // What was published must be seen before the guest's wish is looked at.
        fence(Ordering::SeqCst);
        let told = std::mem::replace(&mut self.told, self.next_used);
        if !self.layout.event_idx {
            let flags = self.load(self.layout.available)?;
            return Ok(told != self.next_used && flags & NO_NOTIFICATION == 0);
        }
        let at = 4 + 2 * u64::from(self.layout.size);
        let event = self.load(self.field(self.layout.available, at)?)?;
        let since_event = self.next_used.wrapping_sub(event).wrapping_sub(1);
        Ok(since_event < self.next_used.wrapping_sub(told))
    }

    /// Whether the guest has to say when it has more. True is answered if it has more already.
    pub(crate) fn want_kicks(&mut self, want: bool) -> Result<bool> {
        if self.layout.event_idx {
            // With `want == false` the old index stays; it lies in the past, so the guest sends no kick.
            if want {
                let at = 4 + 8 * u64::from(self.layout.size);
                self.store(self.next_available, self.field(self.layout.used, at)?)?;
            }
        } else {
            let flags = if want { 0 } else { NO_NOTIFICATION };
            self.store(flags, self.layout.used)?;
        }
        // The wish must be seen before it is looked whether it came too late.
        fence(Ordering::SeqCst);
        Ok(want && self.waiting()? > 0)
    }
}
