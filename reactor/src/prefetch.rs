//! Telling the processor what is going to be read. The `unsafe` here is that one instruction.

/// Asks for the cache line that `place` begins in, and does not wait for it: many lines that do not depend on
/// each other so come at the same time. Only speed depends on it; where the instruction is not known it does nothing.
#[inline]
pub fn prefetch<T>(place: &T) {
    prefetch_at(std::ptr::from_ref(place).addr());
}

/// The same for an address: of something that may have moved since, or that a lock guards.
#[inline]
pub fn prefetch_at(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, whatever the address is, and changes nothing that a program can see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address)) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
