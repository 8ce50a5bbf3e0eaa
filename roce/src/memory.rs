//! Memory that peers can reach: the table of registered regions.
//!
//! Guarantees: a remote access succeeds only with a key that this table gave out, inside of the
//! region's bounds, with the right that the region grants, and, where the region is bound to a queue
//! pair, through that queue pair. Keys and addresses are random, so that a peer cannot guess those
//! of another. A remote invalidation takes the rights away and nothing else: the memory stays with
//! the table until the owner takes it back.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use rand::Rng;
use rand_chacha::ChaCha12Rng;

/// Bytes that the endpoint may read and write while it holds the value.
///
/// The length must not change while the endpoint holds it; a shorter slice than at registration is
/// treated as an access violation, never as a panic.
pub trait Memory {
    /// All the bytes.
    fn bytes(&self) -> &[u8];
    /// All the bytes, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Memory for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// What a peer may do with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Peers may read it with RDMA READ.
    pub remote_read: bool,
    /// Peers may write it with RDMA WRITE.
    pub remote_write: bool,
}

/// How a peer names a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey {
    /// The remote key.
    pub rkey: u32,
    /// The remote address of the region's first byte.
    pub va: u64,
}

/// Why a region could not be registered. The caller has its memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The table is full.
    #[error("all {limit} memory regions are in use; deregister some or raise max_regions")]
    TooManyRegions {
        /// The configured maximum.
        limit: usize,
    },
}

/// A hasher for keys that this side drew at random: they are spread already, so one multiplication
/// moves the entropy to where the table looks for it.
#[derive(Default)]
pub struct RandomKeyHasher(u64);

impl Hasher for RandomKeyHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, key: u32) {
        // The odd constant is 2^64 divided by the golden ratio (Fibonacci hashing).
        self.0 = (self.0 ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A map from random 32-bit keys.
pub(crate) type RandomKeyMap<V> = HashMap<u32, V, BuildHasherDefault<RandomKeyHasher>>;

/// Which right an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Write,
}

struct Region<M> {
    memory: M,
    va: u64,
    access: Access,
    /// The only queue pair that may use it, if there is one.
    owner: Option<u32>,
}

/// A remote access was refused. The peer is told no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessViolation;

/// All registered regions of an endpoint.
pub(crate) struct RegionTable<M> {
    regions: RandomKeyMap<Region<M>>,
    limit: usize,
}

impl<M: Memory> RegionTable<M> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            regions: RandomKeyMap::default(),
            limit,
        }
    }

    pub(crate) fn register(
        &mut self,
        random: &mut ChaCha12Rng,
        memory: M,
        access: Access,
        owner: Option<u32>,
    ) -> Result<RegionKey, (RegisterError, M)> {
        if self.regions.len() >= self.limit {
            return Err((RegisterError::TooManyRegions { limit: self.limit }, memory));
        }
        let rkey = loop {
            // A field that nobody filled holds key 0, so 0 never names a region.
            let candidate: u32 = random.random();
            if candidate != 0 && !self.regions.contains_key(&candidate) {
                break candidate;
            }
        };
        // 47 bits, page aligned, never null: the shape of a user-space address, and room above it.
        let va = (random.random::<u64>() & 0x7fff_ffff_f000) | 0x1000;
        self.regions.insert(
            rkey,
            Region {
                memory,
                va,
                access,
                owner,
            },
        );
        Ok(RegionKey { rkey, va })
    }

    pub(crate) fn deregister(&mut self, rkey: u32) -> Option<M> {
        self.regions.remove(&rkey).map(|region| region.memory)
    }

    /// Takes all rights away from a region, for a peer that asks for it. False if the key does not
    /// name a region that this queue pair may use.
    pub(crate) fn invalidate(&mut self, qpn: u32, rkey: u32) -> bool {
        match self.regions.get_mut(&rkey) {
            Some(region) if region.owner.is_none_or(|owner| owner == qpn) => {
                region.access = Access::default();
                true
            }
            _ => false,
        }
    }

    /// The bytes of a remote read.
    #[inline]
    pub(crate) fn read(
        &self,
        qpn: u32,
        rkey: u32,
        va: u64,
        len: usize,
    ) -> Result<&[u8], AccessViolation> {
        let region = self.regions.get(&rkey).ok_or(AccessViolation)?;
        let range = region.check(qpn, Right::Read, va, len)?;
        region.memory.bytes().get(range).ok_or(AccessViolation)
    }

    /// The bytes of a remote write.
    #[inline]
    pub(crate) fn write(
        &mut self,
        qpn: u32,
        rkey: u32,
        va: u64,
        len: usize,
    ) -> Result<&mut [u8], AccessViolation> {
        let region = self.regions.get_mut(&rkey).ok_or(AccessViolation)?;
        let range = region.check(qpn, Right::Write, va, len)?;
        region
            .memory
            .bytes_mut()
            .get_mut(range)
            .ok_or(AccessViolation)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    /// All regions, in an order that depends on nothing but their keys.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> Vec<RegionKey> {
        let regions = self.regions.iter();
        let mut keys: Vec<_> = regions
            .map(|(rkey, region)| RegionKey {
                rkey: *rkey,
                va: region.va,
            })
            .collect();
        keys.sort_by_key(|key| key.rkey);
        keys
    }
}

impl<M: Memory> Region<M> {
    #[inline]
    fn check(
        &self,
        qpn: u32,
        right: Right,
        va: u64,
        len: usize,
    ) -> Result<Range<usize>, AccessViolation> {
        let granted = match right {
            Right::Read => self.access.remote_read,
            Right::Write => self.access.remote_write,
        };
        if !granted || self.owner.is_some_and(|owner| owner != qpn) {
            return Err(AccessViolation);
        }
        let start = va.checked_sub(self.va).ok_or(AccessViolation)?;
        let start = usize::try_from(start).map_err(|_| AccessViolation)?;
        let end = start.checked_add(len).ok_or(AccessViolation)?;
        if end > self.memory.bytes().len() {
            return Err(AccessViolation);
        }
        Ok(start..end)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const BOTH: Access = Access {
        remote_read: true,
        remote_write: true,
    };

    fn table(limit: usize) -> (RegionTable<Vec<u8>>, ChaCha12Rng) {
        (RegionTable::new(limit), ChaCha12Rng::from_seed([7; 32]))
    }

    #[test]
    fn a_region_is_reached_inside_of_its_bounds_only() {
        let (mut table, mut random) = table(4);
        let key = table
            .register(&mut random, vec![1, 2, 3, 4], BOTH, None)
            .unwrap();
        assert_eq!(table.read(9, key.rkey, key.va + 1, 3), Ok(&[2u8, 3, 4][..]));
        assert_eq!(table.read(9, key.rkey, key.va + 4, 0), Ok(&[][..]));
        assert_eq!(table.read(9, key.rkey, key.va + 1, 4), Err(AccessViolation));
        assert_eq!(table.read(9, key.rkey, key.va - 1, 2), Err(AccessViolation));
        assert_eq!(table.read(9, key.rkey, u64::MAX, 2), Err(AccessViolation));
        assert_eq!(
            table.read(9, key.rkey, key.va, usize::MAX),
            Err(AccessViolation)
        );
        assert!(table.write(9, key.rkey ^ 1, key.va, 1).is_err());
    }

    #[test]
    fn rights_are_separate() {
        let (mut table, mut random) = table(4);
        let read = Access {
            remote_read: true,
            remote_write: false,
        };
        let write = Access {
            remote_read: false,
            remote_write: true,
        };
        let readable = table.register(&mut random, vec![0; 8], read, None).unwrap();
        let writable = table
            .register(&mut random, vec![0; 8], write, None)
            .unwrap();
        assert!(table.read(1, readable.rkey, readable.va, 8).is_ok());
        assert!(table.write(1, readable.rkey, readable.va, 8).is_err());
        assert!(table.read(1, writable.rkey, writable.va, 8).is_err());
        assert!(table.write(1, writable.rkey, writable.va, 8).is_ok());
    }

    #[test]
    fn a_bound_region_serves_its_queue_pair_alone() {
        let (mut table, mut random) = table(4);
        let key = table
            .register(&mut random, vec![0; 8], BOTH, Some(5))
            .unwrap();
        assert!(table.read(5, key.rkey, key.va, 8).is_ok());
        assert!(table.read(6, key.rkey, key.va, 8).is_err());
        assert!(!table.invalidate(6, key.rkey));
        assert!(table.invalidate(5, key.rkey));
        assert!(table.read(5, key.rkey, key.va, 8).is_err());
    }

    #[test]
    fn invalidation_revokes_rights_and_the_owner_still_gets_its_memory() {
        let (mut table, mut random) = table(1);
        let key = table.register(&mut random, vec![3; 8], BOTH, None).unwrap();
        assert!(table.invalidate(1, key.rkey));
        assert!(table.write(1, key.rkey, key.va, 1).is_err());
        assert_eq!(table.deregister(key.rkey), Some(vec![3; 8]));
        assert_eq!(table.deregister(key.rkey), None);
        assert!(!table.invalidate(1, key.rkey));
    }

    #[test]
    fn a_full_table_gives_the_memory_back() {
        let (mut table, mut random) = table(1);
        table.register(&mut random, vec![1], BOTH, None).unwrap();
        let (error, memory) = table
            .register(&mut random, vec![2], BOTH, None)
            .unwrap_err();
        assert_eq!(error, RegisterError::TooManyRegions { limit: 1 });
        assert_eq!(memory, vec![2]);
        assert_eq!(table.len(), 1);
    }
}
