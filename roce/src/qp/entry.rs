//! A posted work request of a send queue, and the sequence numbers that it uses.

use crate::endpoint::WcKind;
use crate::wire::Psn;

/// One posted work request.
pub(super) struct Entry<M> {
    pub(super) wr_id: u64,
    pub(super) kind: WcKind,
    pub(super) memory: M,
    /// Where in `memory` the message lies.
    pub(super) offset: usize,
    pub(super) len: usize,
    /// Of READ and WRITE.
    pub(super) remote_va: u64,
    pub(super) rkey: u32,
    /// Of SEND.
    pub(super) invalidate: Option<u32>,
    pub(super) first: Psn,
    /// Sequence numbers used: packets sent, or for a READ packets expected.
    pub(super) count: u32,
    /// Of READ: response packets received, in order.
    pub(super) received: u32,
}

impl<M> Entry<M> {
    #[inline]
    pub(super) fn end(&self) -> Psn {
        self.first + self.count
    }

    /// The first sequence number that is not done.
    #[inline]
    pub(super) fn expected(&self) -> Psn {
        self.first + self.received
    }

    #[inline]
    pub(super) fn is_read(&self) -> bool {
        self.kind == WcKind::Read
    }

    /// Of READ: response packets that are missing.
    #[inline]
    pub(super) fn missing(&self) -> u32 {
        self.count - self.received
    }
}

/// Sequence numbers that a message of `len` bytes uses: at least one.
#[inline]
pub(super) fn packets(len: usize, mtu: usize) -> u32 {
    u32::try_from(len.div_ceil(mtu)).unwrap_or(u32::MAX).max(1)
}
