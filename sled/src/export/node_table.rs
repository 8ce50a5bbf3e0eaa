//! The node table of a drive: the nodes that share the drive's pool know of each other by it, and of which of them lives.
//! Pure: the time is told by the caller.
//!
//! Guarantees:
//! - As long as the lease of an entry is not over, no other node gets the entry. The lease is measured by the sled's clock
//!   alone, from when the sled was told.
//! - An entry whose lease is over stays listed, with its age, until another node takes it or its own node gives it up.
//! - The description changes in one step, when all of its text is there. No revision of a pool is replaced by an earlier one.
//!   Pieces that different associations send are never put together.
//! - The list of drained machines is replaced by who names the revision that is there, and by a later one alone.
//! - It is in memory only, and bounded: sixteen entries, one description, one that is not complete, and one list.

use std::time::{Duration, Instant};

use nvme::Status;
use nvme::node_table::{
    DESCRIPTION_BYTES_MAX, DRAINED_BYTES_MAX, DescriptionPiece, DrainedList, ENTRIES_MAX,
    ENTRY_TEXT_BYTES_MAX, NodeEntries, NodeEntry, SentText,
};

/// An entry that a node keeps, or has kept.
#[derive(Debug)]
struct Entry {
    node: [u8; 16],
    text: Vec<u8>,
    kept_at: Instant,
    lease: Duration,
}

impl Entry {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.kept_at)
    }

    /// Whether another node may have it.
    fn is_over(&self, now: Instant) -> bool {
        self.age(now) >= self.lease
    }
}

/// What a description is, whichever piece of it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    /// The pool that it is about.
    pub pool: [u8; 16],
    /// Its revision.
    pub revision: u64,
    /// Bytes of its text.
    pub total: usize,
}

#[derive(Debug)]
struct Description {
    edition: Edition,
    text: Vec<u8>,
}

/// A description that is not complete.
#[derive(Debug)]
struct Unfinished {
    /// The association that sends it.
    sender: u16,
    edition: Edition,
    text: Vec<u8>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct NodeTable {
    entries: [Option<Entry>; ENTRIES_MAX],
    description: Option<Description>,
    unfinished: Option<Unfinished>,
    drained: DrainedList,
}

impl NodeTable {
    fn entry(&mut self, number: u16) -> Result<&mut Option<Entry>, Status> {
        let invalid = Status::INVALID_FIELD.with_dnr();
        self.entries.get_mut(usize::from(number)).ok_or(invalid)
    }

    /// The node keeps the entry for the time of the lease.
    ///
    /// # Errors
    /// There is no such entry, or the text is too long; or another node keeps it.
    pub fn keep(
        &mut self,
        number: u16,
        sent: SentText<'_>,
        lease: Duration,
        now: Instant,
    ) -> Result<(), Status> {
        if sent.text.len() > ENTRY_TEXT_BYTES_MAX {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let place = self.entry(number)?;
        let is_anothers = |entry: &Entry| entry.node != sent.uuid && !entry.is_over(now);
        if place.as_ref().is_some_and(is_anothers) {
            return Err(Status::NODE_ENTRY_KEPT.with_dnr());
        }
        *place = Some(Entry {
            node: sent.uuid,
            text: sent.text.to_vec(),
            kept_at: now,
            lease,
        });
        Ok(())
    }

    /// The node gives the entry up: it is empty afterwards.
    ///
    /// # Errors
    /// There is no such entry; or it is another node's, and stays that.
    pub fn give_up(&mut self, number: u16, node: [u8; 16]) -> Result<(), Status> {
        let place = self.entry(number)?;
        if place.as_ref().is_some_and(|entry| entry.node != node) {
            return Err(Status::NODE_ENTRY_KEPT.with_dnr());
        }
        *place = None;
        Ok(())
    }

    /// The list of drained machines becomes another one, of a later revision.
    ///
    /// # Errors
    /// Another revision is there than the one to replace; or the list is too long, is not later, or comes with a UUID.
    pub fn drain(
        &mut self,
        replaces: u64,
        revision: u64,
        sent: SentText<'_>,
    ) -> Result<(), Status> {
        let is_possible =
            revision > replaces && sent.text.len() <= DRAINED_BYTES_MAX && sent.uuid == [0; 16];
        if !is_possible {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if self.drained.revision != replaces {
            return Err(Status::DRAINED_REPLACED.with_dnr());
        }
        let text = sent.text.to_vec();
        self.drained = DrainedList { revision, text };
        Ok(())
    }

    /// Every entry that is not empty, and the list of drained machines.
    pub fn list(&self, now: Instant) -> NodeEntries {
        let milliseconds =
            |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        let entries = (0..).zip(&self.entries).filter_map(|(number, entry)| {
            let entry = entry.as_ref()?;
            Some(NodeEntry {
                number,
                age_ms: milliseconds(entry.age(now)),
                lease_ms: milliseconds(entry.lease),
                node: entry.node,
                text: entry.text.clone(),
            })
        });
        let description = self.description.as_ref();
        NodeEntries {
            revision: description.map_or(0, |description| description.edition.revision),
            pool: description.map_or([0; 16], |description| description.edition.pool),
            drained: self.drained.clone(),
            entries: entries.collect(),
        }
    }

    /// A piece of a description comes from an association. It begins at `offset` of the text.
    ///
    /// # Errors
    /// There is a later revision; or the piece does not follow the one that this association sent before, of the same
    /// description; or it does not fit its text.
    pub fn describe(
        &mut self,
        sender: u16,
        edition: Edition,
        offset: usize,
        piece: &[u8],
    ) -> Result<(), Status> {
        let end = offset.checked_add(piece.len());
        let fits = end.is_some_and(|end| end <= edition.total);
        if !fits || piece.is_empty() || edition.total > DESCRIPTION_BYTES_MAX {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let is_later = |present: &Description| {
            present.edition.pool == edition.pool && present.edition.revision > edition.revision
        };
        if self.description.as_ref().is_some_and(is_later) {
            return Err(Status::DESCRIPTION_OLDER.with_dnr());
        }
        let mut unfinished = if offset == 0 {
            Unfinished {
                sender,
                edition,
                text: Vec::with_capacity(edition.total),
            }
        } else {
            let follows = |before: &mut Unfinished| {
                before.sender == sender && before.edition == edition && before.text.len() == offset
            };
            let before = self.unfinished.take_if(follows);
            before.ok_or(Status::COMMAND_SEQUENCE.with_dnr())?
        };
        unfinished.text.extend(piece);
        if unfinished.text.len() < edition.total {
            self.unfinished = Some(unfinished);
        } else {
            self.unfinished = None;
            let text = unfinished.text;
            self.description = Some(Description { edition, text });
        }
        Ok(())
    }

    /// What a host receives of the description, from `offset` of its text on: no more than `room` bytes.
    pub fn description(&self, offset: usize, room: usize) -> Vec<u8> {
        let Some(Description { edition, text }) = &self.description else {
            return DescriptionPiece::encode_nothing().to_vec();
        };
        let text = text.get(offset..).unwrap_or_default();
        let room = room.saturating_sub(nvme::node_table::DESCRIPTION_HEADER_BYTES);
        let piece = DescriptionPiece {
            revision: edition.revision,
            // It fits: a description has 4 MiB at most.
            total: edition.total as u32,
            pool: edition.pool,
            text: &text[..text.len().min(room)],
        };
        piece.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn sent(node: u8) -> SentText<'static> {
        SentText {
            uuid: [node; 16],
            text: b"text",
        }
    }

    /// The code of a refusal; Do Not Retry is set.
    #[track_caller]
    fn refusal(result: Result<(), Status>) -> Status {
        let status = result.expect_err("it is refused");
        assert!(status.is_dnr());
        status.code()
    }

    #[test]
    fn an_entry_is_its_nodes_until_the_lease_is_over() {
        let (mut table, begin) = (NodeTable::default(), Instant::now());
        table.keep(3, sent(1), LEASE, begin).expect("it is empty");
        let almost = begin + LEASE - Duration::from_millis(1);
        let refused = refusal(table.keep(3, sent(2), LEASE, almost));
        assert_eq!(refused, Status::NODE_ENTRY_KEPT);
        table.keep(3, sent(1), LEASE, almost).expect("it is its");
        let over = almost + LEASE;
        let before = over - Duration::from_millis(1);
        refusal(table.keep(3, sent(2), LEASE, before));
        table.keep(3, sent(2), LEASE, over).expect("it is over");
        let refused = refusal(table.keep(3, sent(1), LEASE, over));
        assert_eq!(refused, Status::NODE_ENTRY_KEPT);
        let other = table.keep(4, sent(1), LEASE, over);
        other.expect("another one is empty");
    }

    #[test]
    fn an_entry_whose_lease_is_over_stays_listed_with_its_age() {
        let (mut table, begin) = (NodeTable::default(), Instant::now());
        assert_eq!(table.list(begin), NodeEntries::default());
        table.keep(15, sent(1), LEASE, begin).expect("it is empty");
        table.keep(0, sent(2), LEASE, begin).expect("it is empty");
        let listed = table.list(begin + LEASE * 3).entries;
        let told: Vec<_> = listed
            .iter()
            .map(|entry| (entry.number, entry.age_ms, entry.lease_ms, entry.node))
            .collect();
        let expected = [(0, 30_000, 10_000, [2; 16]), (15, 30_000, 10_000, [1; 16])];
        assert_eq!(told, expected);
        assert!(listed.iter().all(|entry| entry.text == b"text"));
        // A caller that read the clock before another one changed the entry.
        let at_once = table.list(begin - Duration::from_millis(1));
        assert_eq!(at_once.entries[0].age_ms, 0);
    }

    #[test]
    fn a_node_gives_up_its_own_entry_and_no_other() {
        let (mut table, now) = (NodeTable::default(), Instant::now());
        table.keep(3, sent(1), LEASE, now).expect("it is empty");
        let refused = refusal(table.give_up(3, [2; 16]));
        assert_eq!(refused, Status::NODE_ENTRY_KEPT);
        refusal(table.keep(3, sent(2), LEASE, now));
        table.give_up(3, [1; 16]).expect("it is its");
        table.give_up(3, [1; 16]).expect("nothing is left");
        assert_eq!(table.list(now).entries, []);
        table.keep(3, sent(2), LEASE, now).expect("it is empty");
    }

    #[test]
    fn an_entry_that_is_not_in_the_table_is_refused() {
        let (mut table, now) = (NodeTable::default(), Instant::now());
        let refused = refusal(table.keep(16, sent(1), LEASE, now));
        assert_eq!(refused, Status::INVALID_FIELD);
        assert_eq!(refusal(table.give_up(16, [1; 16])), Status::INVALID_FIELD);
        let text = &[0; ENTRY_TEXT_BYTES_MAX + 1];
        let long = SentText { text, ..sent(1) };
        assert_eq!(
            refusal(table.keep(0, long, LEASE, now)),
            Status::INVALID_FIELD
        );
        assert_eq!(table.list(now).entries, []);
    }

    fn edition(pool: u8, revision: u64, total: usize) -> Edition {
        Edition {
            pool: [pool; 16],
            revision,
            total,
        }
    }

    /// The pool and the text.
    fn text(table: &NodeTable) -> Option<(u8, Vec<u8>)> {
        let bytes = table.description(0, usize::MAX);
        let piece = DescriptionPiece::decode(&bytes, 0).expect("an answer");
        piece.map(|piece| (piece.pool[0], piece.text.to_vec()))
    }

    #[test]
    fn a_description_is_replaced_when_all_of_the_next_one_is_there() {
        let mut table = NodeTable::default();
        assert_eq!(text(&table), None);
        table
            .describe(1, edition(7, 1, 4), 0, b"first")
            .unwrap_err();
        table.describe(1, edition(7, 1, 5), 0, b"first").unwrap();
        table.describe(1, edition(7, 2, 6), 0, b"sec").unwrap();
        assert_eq!(text(&table), Some((7, b"first".to_vec())));
        table.describe(1, edition(7, 2, 6), 3, b"ond").unwrap();
        assert_eq!(text(&table), Some((7, b"second".to_vec())));
        assert_eq!(table.list(Instant::now()).revision, 2);
        let bytes = table.description(2, 32 + 3);
        let piece = DescriptionPiece::decode(&bytes, 2).flatten();
        let piece = piece.expect("a piece");
        assert_eq!((piece.text, piece.total), (&b"con"[..], 6));
        let behind = table.description(100, 4096);
        let behind = DescriptionPiece::decode(&behind, 100).flatten();
        assert_eq!(behind.expect("an empty piece").text, b"");
    }

    #[test]
    fn pieces_out_of_order_or_of_another_sender_or_revision_are_refused() {
        let mut table = NodeTable::default();
        let begun = edition(7, 5, 9);
        let sequence = Status::COMMAND_SEQUENCE;
        assert_eq!(refusal(table.describe(1, begun, 3, b"def")), sequence);
        table.describe(1, begun, 0, b"abc").unwrap();
        for (sender, edition, offset) in [
            (1, begun, 6),
            (1, begun, 2),
            (2, begun, 3),
            (1, edition(7, 6, 9), 3),
            (1, edition(8, 5, 9), 3),
            (1, edition(7, 5, 8), 3),
        ] {
            let refused = refusal(table.describe(sender, edition, offset, b"def"));
            assert_eq!(refused, sequence);
        }
        // What was refused changed nothing.
        table.describe(1, begun, 3, b"def").unwrap();
        // Another sender begins: the first one has to begin anew.
        table.describe(2, begun, 0, b"ABC").unwrap();
        assert_eq!(refusal(table.describe(1, begun, 6, b"ghi")), sequence);
        table.describe(2, begun, 3, b"DEFGHI").unwrap();
        assert_eq!(text(&table), Some((7, b"ABCDEFGHI".to_vec())));
    }

    #[test]
    fn an_older_revision_of_the_pool_is_refused_and_another_pools_is_taken() {
        let mut table = NodeTable::default();
        table.describe(1, edition(7, 5, 1), 0, b"a").unwrap();
        let refused = refusal(table.describe(1, edition(7, 4, 1), 0, b"b"));
        assert_eq!(refused, Status::DESCRIPTION_OLDER);
        table.describe(1, edition(7, 5, 1), 0, b"c").unwrap();
        assert_eq!(text(&table), Some((7, b"c".to_vec())));
        table.describe(1, edition(8, 1, 1), 0, b"d").unwrap();
        assert_eq!(text(&table), Some((8, b"d".to_vec())));
        // One that was begun before a later one came is older when it ends.
        table.describe(1, edition(8, 2, 2), 0, b"e").unwrap();
        table.describe(2, edition(8, 3, 1), 0, b"f").unwrap();
        refusal(table.describe(1, edition(8, 2, 2), 1, b"e"));
        assert_eq!(text(&table), Some((8, b"f".to_vec())));
    }

    #[test]
    fn a_list_of_drained_machines_is_replaced_by_who_knows_it_and_by_a_later_one_alone() {
        let mut table = NodeTable::default();
        let list = |text| SentText {
            uuid: [0; 16],
            text,
        };
        table.drain(0, 5, list(b"a")).expect("there is none");
        // Two that read the same list: the second one has to read again.
        let refused = refusal(table.drain(0, 6, list(b"b")));
        assert_eq!(refused, Status::DRAINED_REPLACED);
        table.drain(5, 6, list(b"a\nb")).expect("it is there");
        let refused = refusal(table.drain(5, 7, list(b"")));
        assert_eq!(refused, Status::DRAINED_REPLACED);
        for (replaces, revision) in [(6, 6), (6, 5)] {
            let refused = refusal(table.drain(replaces, revision, list(b"")));
            assert_eq!(refused, Status::INVALID_FIELD);
        }
        let long = [b'x'; DRAINED_BYTES_MAX + 1];
        refusal(table.drain(6, 7, list(&long)));
        refusal(table.drain(6, 7, sent(1)));
        let kept = table.list(Instant::now()).drained;
        assert_eq!((kept.revision, &kept.text[..]), (6, &b"a\nb"[..]));
    }

    #[test]
    fn a_text_longer_than_the_table_holds_is_refused() {
        let mut table = NodeTable::default();
        let long = edition(7, 1, DESCRIPTION_BYTES_MAX + 1);
        let invalid = Status::INVALID_FIELD;
        assert_eq!(refusal(table.describe(1, long, 0, b"a")), invalid);
        let short = edition(7, 1, 1);
        assert_eq!(refusal(table.describe(1, short, 0, b"")), invalid);
        let refused = refusal(table.describe(1, short, usize::MAX, b"a"));
        assert_eq!(refused, invalid);
    }
}
