//! What blocks hold, and nothing else: their fingerprints and checksums, compression, and packs.
//!
//! Pure: bytes come in and results go out. Nothing in this room waits, takes a lock, or knows the state of an
//! engine, and it uses no other room of this crate. `unsafe` is confined to `clnh/kernels.rs`.

mod clnh;
pub(crate) mod compress;
pub(crate) mod fingerprint;
pub(crate) mod pack;
pub(crate) mod packing;
mod side_by_side;
