//! Domains: volumes share blocks within one, and learn nothing of others.
//!
//! A domain is a key for fingerprints, derived from the pool's secret and the domain's name, or one that it shares with a
//! domain of another pool. The same content so has another fingerprint in every domain: no look-up, and so neither mapping nor timing, ever
//! depends on what another domain holds. Nothing else tells domains apart: a block's fingerprint is proven
//! by the key of a volume that maps it, or, where only the block is known, by trying the keys of all
//! domains in use; that one fits by accident has the chance of a collision of 128 bits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use meta::{Fingerprint, FingerprintFunction, HashKeys, VolumeInfo};

use crate::content::fingerprint::{self, Block, Hasher};
use crate::sync::wait::lock;

/// What the derivation of keys is for: BLAKE3 wants it unique in the world, and never changed.
const CONTEXT: &str = "onefold 2026-11-21 key of a deduplication domain";

/// What a proof of a key is derived for.
const PROOF_CONTEXT: &str = "onefold 2026-11-25 proof of the key of a deduplication domain";

/// The key of a domain; an empty name is the pool's own.
#[must_use]
pub fn domain_key(keys: &HashKeys, name: &str) -> [u8; 32] {
    if let Some(shared) = keys.domains.get(name) {
        return *shared;
    }
    if name.is_empty() {
        return keys.pool;
    }
    let mut material = keys.pool.to_vec();
    material.extend_from_slice(name.as_bytes());
    blake3::derive_key(CONTEXT, &material)
}

/// The hasher of a domain.
pub(crate) fn hasher(function: FingerprintFunction, keys: &HashKeys, name: &str) -> Hasher {
    Hasher::new(function, &domain_key(keys, name))
}

/// The hashers of the domains in use in an open pool. A volume of a domain holds its hasher.
pub(crate) struct Domains {
    function: FingerprintFunction,
    keys: Mutex<HashKeys>,
    hashers: Mutex<BTreeMap<String, Weak<Hasher>>>,
}

impl Domains {
    pub(crate) fn new(function: FingerprintFunction, keys: HashKeys) -> Self {
        Self {
            function,
            keys: Mutex::new(keys),
            hashers: Mutex::default(),
        }
    }

    /// How all of them compute fingerprints.
    pub(crate) fn function(&self) -> FingerprintFunction {
        self.function
    }

    /// The hasher of a domain.
    pub(crate) fn hasher(&self, name: &str) -> Arc<Hasher> {
        let mut hashers = lock(&self.hashers);
        if let Some(known) = hashers.get(name).and_then(Weak::upgrade) {
            return known;
        }
        hashers.retain(|_, hasher| hasher.strong_count() > 0);
        let new = Arc::new(hasher(self.function, &lock(&self.keys), name));
        hashers.insert(name.to_owned(), Arc::downgrade(&new));
        new
    }

    /// A domain that nothing is stored of has this key from now on.
    pub(crate) fn share(&self, name: &str, key: [u8; 32]) {
        let mut hashers = lock(&self.hashers);
        lock(&self.keys).domains.insert(name.to_owned(), key);
        hashers.remove(name);
    }

    /// Proves the key of a domain, and the function, to who has both and the same nonce. Nobody else learns anything of the
    /// key.
    pub(crate) fn proof(&self, name: &str, nonce: &[u8; 32]) -> [u8; 32] {
        let key = domain_key(&lock(&self.keys), name);
        let mut material = [key, *nonce].concat();
        material.extend_from_slice(self.function.as_str().as_bytes());
        blake3::derive_key(PROOF_CONTEXT, &material)
    }

    /// All that are in use at this moment.
    pub(crate) fn in_use(&self) -> Hashers {
        let hashers = lock(&self.hashers);
        Hashers(hashers.values().filter_map(Weak::upgrade).collect())
    }
}

/// Hashers that a block may have been fingerprinted with.
pub(crate) struct Hashers(Vec<Arc<Hasher>>);

impl Hashers {
    /// The pool's own, and those of these volumes' domains. A volume whose row is lost is most likely of
    /// one of them.
    pub(crate) fn of<'a>(
        function: FingerprintFunction,
        keys: &HashKeys,
        volumes: impl Iterator<Item = &'a VolumeInfo>,
    ) -> Self {
        let mut names: BTreeSet<&str> = volumes.map(|info| info.domain.as_str()).collect();
        names.insert("");
        let hashers = names
            .into_iter()
            .map(|name| Arc::new(hasher(function, keys, name)));
        Self(hashers.collect())
    }

    /// Whether a block has this checksum and, in one of the domains, this fingerprint. Content that was
    /// not hashed is known by its checksum alone.
    pub(crate) fn prove(&self, block: &Block, fingerprint: Fingerprint, crc32c: u32) -> bool {
        crc32c == fingerprint::crc32c(block)
            && (!fingerprint.is_some()
                || self.0.iter().any(|hasher| hasher.one(block) == fingerprint))
    }

    /// Which of some blocks are what they should be: many at a time, as most have the domain of the one
    /// before.
    pub(crate) fn prove_all(&self, blocks: &[Block], wanted: &[(Fingerprint, u32)]) -> Vec<bool> {
        let mut proven: Vec<bool> = blocks
            .iter()
            .zip(wanted)
            .map(|(block, (_, crc32c))| fingerprint::crc32c(block) == *crc32c)
            .collect();
        let is_hashed = |index: &usize| proven[*index] && wanted[*index].0.is_some();
        let mut open: Vec<usize> = (0..proven.len()).filter(is_hashed).collect();
        for hasher in &self.0 {
            let mut digests = Vec::with_capacity(open.len());
            let blocks = open.iter().map(|index| &blocks[*index]);
            hasher.batch(blocks, |digest| digests.push(digest));
            let mut digests = digests.into_iter();
            open.retain(|index| digests.next() != Some(wanted[*index].0));
        }
        for index in open {
            proven[index] = false;
        }
        proven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_has_a_key_of_its_own_and_the_same_one_again() {
        let block = Box::new([5; drives::BLOCK_BYTES]);
        let clnh = FingerprintFunction::Clnh;
        let of = |key: u8, name: &str| hasher(clnh, &[key; 32].into(), name).one(&block);
        assert_eq!(of(1, ""), Hasher::new(clnh, &[1; 32]).one(&block));
        assert_eq!(of(1, "a"), of(1, "a"));
        let all = [of(1, ""), of(1, "a"), of(1, "b"), of(2, ""), of(2, "a")];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn a_shared_key_gives_the_same_fingerprints_in_both_pools_and_changes_no_other_domain() {
        let block = Box::new([5; drives::BLOCK_BYTES]);
        for function in [FingerprintFunction::Clnh, FingerprintFunction::Blake3] {
            let one = Domains::new(function, [1; 32].into());
            let two = Domains::new(function, [2; 32].into());
            let before = ["", "b"].map(|name| two.hasher(name).one(&block));
            assert_ne!(
                one.hasher("a").one(&block),
                two.hasher("from one").one(&block)
            );
            two.share("from one", domain_key(&[1; 32].into(), "a"));
            assert_eq!(
                one.hasher("a").one(&block),
                two.hasher("from one").one(&block)
            );
            assert_eq!(before, ["", "b"].map(|name| two.hasher(name).one(&block)));
            // A proof says whether it is the same, for one stream.
            let nonce = [3; 32];
            assert_eq!(one.proof("a", &nonce), two.proof("from one", &nonce));
            assert_ne!(one.proof("a", &nonce), two.proof("a", &nonce));
            assert_ne!(one.proof("a", &nonce), two.proof("from one", &[4; 32]));
        }
        let proof = |function| Domains::new(function, [1; 32].into()).proof("a", &[3; 32]);
        assert_ne!(
            proof(FingerprintFunction::Clnh),
            proof(FingerprintFunction::Blake3)
        );
    }

    #[test]
    fn a_domain_that_nobody_uses_is_forgotten() {
        let domains = Domains::new(FingerprintFunction::Blake3, [1; 32].into());
        let used = domains.hasher("used");
        drop(domains.hasher("gone"));
        drop(domains.hasher("gone too"));
        assert!(Arc::ptr_eq(&used, &domains.hasher("used")));
        assert_eq!(domains.in_use().0.len(), 1);
        assert!(lock(&domains.hashers).len() <= 2);
    }
}
