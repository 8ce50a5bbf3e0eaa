//! Machines that are to have no pool, as the node tables of sleds list them: one name a line.
//!
//! Guarantees: what is no name is dropped when a list is read; of two lists the later one counts, and of two of one revision both.

use std::collections::BTreeSet;

use drives::nodes::is_name;

/// A list, and its revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// 0: there is no list.
    revision: u64,
    machines: BTreeSet<String>,
}

impl Drained {
    /// The list of that revision, which others wrote.
    #[must_use]
    pub fn read(revision: u64, text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n');
        let names = lines.filter_map(|line| std::str::from_utf8(line).ok());
        let names = names.filter(|name| is_name(name)).map(str::to_owned);
        Self {
            revision,
            machines: names.collect(),
        }
    }

    /// The list of these machines that follows this one; `None` if there can be none after it.
    #[must_use]
    pub fn followed_by(&self, machines: BTreeSet<String>) -> Option<Self> {
        let revision = self.revision.checked_add(1)?;
        Some(Self { revision, machines })
    }

    /// Its revision; 0 if there is no list.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The machines.
    #[must_use]
    pub const fn machines(&self) -> &BTreeSet<String> {
        &self.machines
    }

    /// The list as tables have it.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let names: Vec<&str> = self.machines.iter().map(String::as_str).collect();
        names.join("\n").into_bytes()
    }

    /// Both lists, as what is known of the nodes: the later one, or all of two that were made at the same time.
    pub fn merge(&mut self, other: &Self) {
        if other.revision > self.revision {
            self.clone_from(other);
        } else if other.revision == self.revision {
            self.machines.extend(other.machines.iter().cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(revision: u64, text: &str) -> Drained {
        Drained::read(revision, text.as_bytes())
    }

    #[test]
    fn the_later_list_counts_and_of_two_of_one_revision_both() {
        let mut newest = Drained::default();
        newest.merge(&list(5, "a\nb"));
        newest.merge(&list(4, "old"));
        assert_eq!(newest, list(5, "a\nb"));
        newest.merge(&list(5, "c"));
        assert_eq!(newest, list(5, "a\nb\nc"));
        newest.merge(&list(6, ""));
        assert_eq!(newest, list(6, ""));
        let next = newest.followed_by(BTreeSet::from(["d".to_owned()]));
        assert_eq!(next, Some(list(7, "d")));
        assert_eq!(list(u64::MAX, "").followed_by(BTreeSet::new()), None);
    }

    #[test]
    fn what_is_no_name_is_dropped() {
        let read = Drained::read(1, b"a\n\x1b[2J\n\n\xff\nb c\nd");
        assert_eq!(read, list(1, "a\nd"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_that_is_read_again(
            revision: u64, bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let read = Drained::read(revision, &bytes);
            prop_assert!(read.text().len() <= bytes.len());
            prop_assert_eq!(Drained::read(revision, &read.text()), read);
        }
    }
}
