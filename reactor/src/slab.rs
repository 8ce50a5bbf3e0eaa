//! Numbered places for things that come and go.
//!
//! Guarantees: a key is never valid again once its entry was removed (unless a place is reused 2^32
//! times while the key lives); places are reused, so memory follows the greatest number of entries
//! at one time.

/// Where an entry is, and which of the entries that lived there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) index: u32,
    generation: u32,
}

impl Key {
    /// A key that no slab gives out.
    pub(crate) const NONE: Self = Self {
        index: u32::MAX,
        generation: u32::MAX,
    };
}

pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    first_free: u32,
    len: usize,
}

struct Place<T> {
    generation: u32,
    content: Content<T>,
}

enum Content<T> {
    Used(T),
    /// The next free place.
    Free(u32),
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            first_free: u32::MAX,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    /// Inserts a value that knows its own key.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        self.len += 1;
        let index = self.first_free;
        if let Some(place) = self.places.get_mut(index as usize) {
            let key = Key {
                index,
                generation: place.generation,
            };
            if let Content::Free(next) = place.content {
                self.first_free = next;
            }
            place.content = Content::Used(make(key));
            return key;
        }
        let index = self.places.len() as u32;
        assert!(
            index < u32::MAX - 1,
            "more entries than the slab can number"
        );
        let key = Key {
            index,
            generation: 0,
        };
        self.places.push(Place {
            generation: 0,
            content: Content::Used(make(key)),
        });
        key
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.places.get_mut(key.index as usize) {
            Some(Place {
                generation,
                content: Content::Used(value),
            }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// The key of whatever lives at `index` now.
    pub(crate) fn key_at(&self, index: u32) -> Option<Key> {
        match self.places.get(index as usize) {
            Some(Place {
                generation,
                content: Content::Used(_),
            }) => Some(Key {
                index,
                generation: *generation,
            }),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get_mut(key)?;
        let place = &mut self.places[key.index as usize];
        place.generation = place.generation.wrapping_add(1);
        let old = std::mem::replace(&mut place.content, Content::Free(self.first_free));
        self.first_free = key.index;
        self.len -= 1;
        match old {
            Content::Used(value) => Some(value),
            Content::Free(_) => None,
        }
    }

    /// All keys in use, in no promised order.
    pub(crate) fn keys(&self) -> Vec<Key> {
        (0..self.places.len() as u32)
            .filter_map(|index| self.key_at(index))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_place_does_not_answer_to_its_old_key() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert("a"), slab.insert("b"));
        assert_eq!(slab.remove(a), Some("a"));
        let c = slab.insert("c");
        assert_eq!(c.index, a.index);
        assert_eq!(slab.get_mut(a), None);
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.get_mut(b), Some(&mut "b"));
        assert_eq!(slab.get_mut(c), Some(&mut "c"));
        assert_eq!((slab.len(), slab.keys().len()), (2, 2));
    }
}
