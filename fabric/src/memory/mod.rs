//! The memory that work requests own while they are in progress, and the bounds on what is held.
//!
//! Guarantees: a piece of memory has one owner at a time, a work request or its user; what waits for a [`Budget`] is
//! served in order; a queue holds no more data than its [`Share`] of what is free.

mod budget;
mod share;

use reactor::Buffer;

pub use budget::{Budget, Permit};
pub(crate) use share::{HOST_SHARE, Held, QUEUE_SHARE, Share};

/// How many bytes [`FabricMemory::inline`] holds: one submission queue entry.
pub(crate) const INLINE_BYTES: usize = 64;

/// Memory of a work request or of a registered region. It moves into the device with the work
/// request and comes back with its completion, so neither side can touch what the other uses.
pub enum FabricMemory {
    /// A data buffer of a pool.
    Buffer(Buffer),
    /// A command capsule: a submission queue entry and the data behind it.
    Capsule(Box<[u8]>),
    /// A submission or completion queue entry alone, without an allocation.
    Inline {
        /// The bytes; those from `len` on are unused.
        bytes: [u8; INLINE_BYTES],
        /// How many bytes are used.
        len: u8,
    },
}

impl FabricMemory {
    /// Up to 64 bytes, copied.
    ///
    /// # Panics
    /// If there are more than 64 bytes: callers pass queue entries, whose sizes are constants.
    #[inline]
    pub fn inline(data: &[u8]) -> Self {
        let mut bytes = [0; INLINE_BYTES];
        bytes[..data.len()].copy_from_slice(data);
        Self::Inline {
            bytes,
            len: data.len() as u8,
        }
    }

    /// Zeroed memory for a capsule of `len` bytes.
    pub fn capsule(len: usize) -> Self {
        Self::Capsule(vec![0; len].into_boxed_slice())
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Capsule(bytes) => bytes,
            Self::Inline { bytes, len } => &bytes[..usize::from(*len).min(INLINE_BYTES)],
        }
    }

    /// The bytes, to be written.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Capsule(bytes) => bytes,
            Self::Inline { bytes, len } => &mut bytes[..usize::from(*len).min(INLINE_BYTES)],
        }
    }

    /// The data buffer, if it is one.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Capsule(_) | Self::Inline { .. } => None,
        }
    }
}

impl std::fmt::Debug for FabricMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Self::Buffer(_) => "Buffer",
            Self::Capsule(_) => "Capsule",
            Self::Inline { .. } => "Inline",
        };
        write!(f, "{kind}({} bytes)", self.bytes().len())
    }
}

impl roce::memory::Memory for FabricMemory {
    #[inline]
    fn bytes(&self) -> &[u8] {
        FabricMemory::bytes(self)
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        FabricMemory::bytes_mut(self)
    }
}
