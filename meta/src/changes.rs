//! Changes by what they change, in order.

use std::ops::Range;

/// A list of changes that is sorted by what each changes, with each once. Batches are made whole and then
/// gone through in order: a list costs a fraction of what a tree does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes<K, V>(Vec<(K, V)>);

impl<K, V> Default for Changes<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> Changes<K, V> {
    /// Makes `change` the change of `key`, and returns what it was before. Keys that rise cost least: others
    /// move all that follow.
    pub fn insert(&mut self, key: K, change: V) -> Option<V> {
        if self.0.last().is_none_or(|(last, _)| *last < key) {
            self.0.push((key, change));
            return None;
        }
        match self.search(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, change)),
            Err(at) => {
                self.0.insert(at, (key, change));
                None
            }
        }
    }

    /// The change of `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.search(key).ok().map(|at| &self.0[at].1)
    }

    /// All of them.
    pub fn as_slice(&self) -> &[(K, V)] {
        &self.0
    }

    /// Those of a range of keys.
    pub fn range(&self, keys: Range<K>) -> &[(K, V)] {
        let first = self.0.partition_point(|(key, _)| *key < keys.start);
        let rest = &self.0[first..];
        &rest[..rest.partition_point(|(key, _)| *key < keys.end)]
    }

    /// Where `key` is, or where it would have to be.
    fn search(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.cmp(key))
    }

    /// All of them, to be looked at and changed in order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, change)| (&*key, change))
    }

    /// Those of a list whose keys rise.
    pub(crate) fn from_sorted(changes: Vec<(K, V)>) -> Self {
        debug_assert!(changes.is_sorted_by(|(a, _), (b, _)| a < b));
        Self(changes)
    }
}

impl<'a, K, V> IntoIterator for &'a Changes<K, V> {
    type Item = &'a (K, V);
    type IntoIter = std::slice::Iter<'a, (K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
