//! The node table of a namespace: two vendor specific I/O commands of a sled, and their data.
//!
//! A namespace has [`ENTRIES_MAX`] numbered entries, each of which a node keeps for the time of a lease, one description: a
//! text that is published for all nodes, and one list of drained machines, which is replaced as a whole by who names the
//! revision that it replaces. What a command does to them is the target's to say.
//!
//! All numbers are little endian. Every parser takes any bytes, and refuses what no encoder here makes.

use crate::identify::layout::layout;
use crate::{Sqe, Status};

/// Node Table Send: vendor specific, with data from the host.
pub const OPCODE_NODE_TABLE_SEND: u8 = 0xc1;
/// Node Table Receive: vendor specific, with data to the host.
pub const OPCODE_NODE_TABLE_RECEIVE: u8 = 0xc2;

/// The model number (MN) of a target with node tables. Another model's commands of these opcodes may do anything.
pub const MODEL: &str = "Onefold sled";

/// Entries of a table, numbered from 0.
pub const ENTRIES_MAX: usize = 16;
/// Bytes of an entry's text at most.
pub const ENTRY_TEXT_BYTES_MAX: usize = 4080;
/// The longest lease, in milliseconds.
pub const LEASE_MS_MAX: u32 = 600_000;
/// Bytes of the description's text at most.
pub const DESCRIPTION_BYTES_MAX: usize = 4 << 20;
/// Bytes of the list of drained machines at most.
pub const DRAINED_BYTES_MAX: usize = 4000;
/// Bytes in front of a text that a host sends: the UUID of a node or of a pool.
pub const SENT_HEADER_BYTES: usize = 16;
/// Bytes in front of the text that a host receives of the description.
pub const DESCRIPTION_HEADER_BYTES: usize = 32;

const ENTRIES_HEADER_BYTES: usize = 40;
const ENTRY_HEADER_BYTES: usize = 28;
const ENTRIES_BYTES: usize = ENTRIES_HEADER_BYTES
    + ENTRIES_MAX * (ENTRY_HEADER_BYTES + ENTRY_TEXT_BYTES_MAX)
    + DRAINED_BYTES_MAX;

/// Bytes for all entries and the list at most, in whole blocks of 4096: the smallest buffer in which a host receives them.
pub const ENTRIES_BYTES_MAX: usize = ENTRIES_BYTES.next_multiple_of(4096);

/// What command dword 10 names, bits 7:0.
const WHAT_ENTRIES: u32 = 0;
const WHAT_DESCRIPTION: u32 = 1;
const WHAT_DRAINED: u32 = 2;

/// What Node Table Send changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableSend {
    /// An entry, with the node's UUID and its text as data ([`SentText`]).
    Entry {
        /// Which one: less than [`ENTRIES_MAX`].
        number: u16,
        /// For how long the node keeps it, in milliseconds; 0 gives it up.
        lease_ms: u32,
    },
    /// A piece of the description, with the pool's UUID and the piece as data ([`SentText`]).
    Description {
        /// Where the piece begins in the text.
        offset: u32,
        /// Bytes of the whole text.
        total: u32,
        /// The revision that the text is; not 0.
        revision: u64,
    },
    /// The list of drained machines, with a UUID of zeros and the list as data ([`SentText`]).
    Drained {
        /// The revision that is there: 0 if there is no list.
        replaces: u64,
        /// The revision that the list is: a later one.
        revision: u64,
    },
}

/// What Node Table Receive asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableReceive {
    /// Every entry that is not empty, and the list of drained machines ([`NodeEntries`]).
    Entries,
    /// The description's text from a place on ([`DescriptionPiece`]).
    Description {
        /// Where the piece begins in the text. Behind its end there is an empty piece.
        offset: u32,
    },
}

/// A command about the node table of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeTableCommand {
    /// Node Table Send.
    Send {
        /// Namespace.
        nsid: u32,
        /// What it changes.
        what: TableSend,
        /// Bytes of data: the UUID and the text.
        length: u32,
    },
    /// Node Table Receive.
    Receive {
        /// Namespace.
        nsid: u32,
        /// What it asks for.
        what: TableReceive,
        /// Bytes of the host's buffer: up to 2^32 - 1, so check it before use.
        length: u32,
    },
}

impl NodeTableCommand {
    /// Parses an entry of an I/O queue; `None` if its opcode is not one of these commands.
    ///
    /// # Errors
    /// The status to answer with, Do Not Retry set.
    pub fn parse(sqe: &Sqe) -> Option<Result<Self, Status>> {
        let parse = match sqe.opcode() {
            OPCODE_NODE_TABLE_SEND => Self::parse_send,
            OPCODE_NODE_TABLE_RECEIVE => Self::parse_receive,
            _ => return None,
        };
        let parsed = sqe.check_flags().and_then(|()| {
            let invalid = Status::INVALID_FIELD.with_dnr();
            parse(sqe).ok_or(invalid)
        });
        Some(parsed)
    }

    fn parse_send(sqe: &Sqe) -> Option<Self> {
        let length = sqe.cdw(12);
        let text = usize::try_from(length)
            .ok()?
            .checked_sub(SENT_HEADER_BYTES)?;
        let what = match sqe.cdw(10) & 0xff {
            WHAT_ENTRIES => {
                let (number, lease_ms) = (number_of(sqe.cdw(11))?, sqe.cdw(13));
                let fits = text <= ENTRY_TEXT_BYTES_MAX && lease_ms <= LEASE_MS_MAX;
                fits.then_some(TableSend::Entry { number, lease_ms })?
            }
            WHAT_DESCRIPTION => {
                let (offset, total) = (sqe.cdw(11), sqe.cdw(13));
                let revision = joined(sqe.cdw(14), sqe.cdw(15));
                let end = usize::try_from(offset).ok()?.checked_add(text)?;
                let whole = usize::try_from(total).ok()?;
                let fits = whole <= DESCRIPTION_BYTES_MAX && text > 0 && end <= whole;
                (fits && revision != 0).then_some(TableSend::Description {
                    offset,
                    total,
                    revision,
                })?
            }
            WHAT_DRAINED => {
                let replaces = joined(sqe.cdw(11), sqe.cdw(13));
                let revision = joined(sqe.cdw(14), sqe.cdw(15));
                let fits = text <= DRAINED_BYTES_MAX && revision > replaces;
                fits.then_some(TableSend::Drained { replaces, revision })?
            }
            _ => return None,
        };
        let nsid = sqe.nsid();
        Some(Self::Send { nsid, what, length })
    }

    fn parse_receive(sqe: &Sqe) -> Option<Self> {
        let length = sqe.cdw(12);
        let bytes = usize::try_from(length).ok()?;
        let what = match sqe.cdw(10) & 0xff {
            WHAT_ENTRIES if bytes >= ENTRIES_BYTES_MAX => TableReceive::Entries,
            WHAT_DESCRIPTION if bytes > DESCRIPTION_HEADER_BYTES => {
                let offset = sqe.cdw(11);
                let is_possible = usize::try_from(offset).ok()? <= DESCRIPTION_BYTES_MAX;
                is_possible.then_some(TableReceive::Description { offset })?
            }
            _ => return None,
        };
        let nsid = sqe.nsid();
        Some(Self::Receive { nsid, what, length })
    }

    /// The command as a host sends it; the queue adds identifier and SGL.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        match *self {
            Self::Send { nsid, what, length } => {
                let sqe = Sqe::new(OPCODE_NODE_TABLE_SEND)
                    .with_nsid(nsid)
                    .with_cdw(12, length);
                match what {
                    TableSend::Entry { number, lease_ms } => sqe
                        .with_cdw(10, WHAT_ENTRIES)
                        .with_cdw(11, number.into())
                        .with_cdw(13, lease_ms),
                    TableSend::Description {
                        offset,
                        total,
                        revision,
                    } => sqe
                        .with_cdw(10, WHAT_DESCRIPTION)
                        .with_cdw(11, offset)
                        .with_cdw(13, total)
                        .with_cdw(14, revision as u32)
                        .with_cdw(15, (revision >> 32) as u32),
                    TableSend::Drained { replaces, revision } => sqe
                        .with_cdw(10, WHAT_DRAINED)
                        .with_cdw(11, replaces as u32)
                        .with_cdw(13, (replaces >> 32) as u32)
                        .with_cdw(14, revision as u32)
                        .with_cdw(15, (revision >> 32) as u32),
                }
            }
            Self::Receive { nsid, what, length } => {
                let sqe = Sqe::new(OPCODE_NODE_TABLE_RECEIVE)
                    .with_nsid(nsid)
                    .with_cdw(12, length);
                match what {
                    TableReceive::Entries => sqe.with_cdw(10, WHAT_ENTRIES),
                    TableReceive::Description { offset } => {
                        sqe.with_cdw(10, WHAT_DESCRIPTION).with_cdw(11, offset)
                    }
                }
            }
        }
    }

    /// The namespace.
    #[must_use]
    pub const fn nsid(&self) -> u32 {
        match self {
            Self::Send { nsid, .. } | Self::Receive { nsid, .. } => *nsid,
        }
    }
}

/// The number of an entry, if there is such an entry.
fn number_of(number: u32) -> Option<u16> {
    let number = u16::try_from(number).ok()?;
    (usize::from(number) < ENTRIES_MAX).then_some(number)
}

/// A number of 64 bits that lies in two dwords.
fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The data of Node Table Send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentText<'a> {
    /// The node's UUID, or the pool's; zeros for the list of drained machines.
    pub uuid: [u8; 16],
    /// The text of the entry, a piece of the description, or the list.
    pub text: &'a [u8],
}

impl<'a> SentText<'a> {
    /// The data.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&self.uuid, self.text].concat()
    }

    /// Reads the data; `None` if they are shorter than the UUID.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (uuid, text) = bytes.split_first_chunk()?;
        Some(Self { uuid: *uuid, text })
    }
}

layout! {
    struct EntriesHeader [ENTRIES_HEADER_BYTES] {
        0..8 => revision: u64,
        8..10 => count: u16,
        10..12 => drained_bytes: u16,
        12..16 => zeros: [u8; 4],
        16..24 => drained_revision: u64,
        24..40 => pool: [u8; 16],
    }
}

layout! {
    struct EntryHeader [ENTRY_HEADER_BYTES] {
        0..2 => number: u16,
        2..4 => text_bytes: u16,
        4..8 => age_ms: u32,
        8..12 => lease_ms: u32,
        12..28 => node: [u8; 16],
    }
}

/// An entry that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEntry {
    /// Which one: less than [`ENTRIES_MAX`].
    pub number: u16,
    /// How long ago its node kept it last, in milliseconds.
    pub age_ms: u32,
    /// For how long the node keeps it, in milliseconds: 1 to [`LEASE_MS_MAX`].
    pub lease_ms: u32,
    /// The node's UUID.
    pub node: [u8; 16],
    /// What the node says of itself.
    pub text: Vec<u8>,
}

/// The list of drained machines. Only the nodes know what its text means.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainedList {
    /// Its revision; 0 if there is no list.
    pub revision: u64,
    /// The list: [`DRAINED_BYTES_MAX`] at most, and nothing if there is none.
    pub text: Vec<u8>,
}

/// Data of Node Table Receive: every entry that is not empty, and what else nodes look for again and again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeEntries {
    /// The revision of the description; 0 if there is none.
    pub revision: u64,
    /// The pool that the description is about; zeros if there is none.
    pub pool: [u8; 16],
    /// The drained machines.
    pub drained: DrainedList,
    /// The entries, by ascending number.
    pub entries: Vec<NodeEntry>,
}

impl NodeEntries {
    /// The data without the zeros behind them: at most [`ENTRIES_BYTES_MAX`] for what [`decode`](Self::decode) takes. What
    /// is more than [`ENTRIES_MAX`] entries, than [`ENTRY_TEXT_BYTES_MAX`] of a text, or than [`DRAINED_BYTES_MAX`] of the
    /// list, is left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let entries = &self.entries[..self.entries.len().min(ENTRIES_MAX)];
        let drained = &self.drained.text;
        let drained = &drained[..drained.len().min(DRAINED_BYTES_MAX)];
        let header = EntriesHeader {
            revision: self.revision,
            count: entries.len() as u16,
            drained_bytes: drained.len() as u16,
            zeros: [0; 4],
            drained_revision: self.drained.revision,
            pool: self.pool,
        };
        let mut bytes = vec![0; ENTRIES_HEADER_BYTES];
        header.put_fields(&mut bytes);
        for entry in entries {
            let text = &entry.text[..entry.text.len().min(ENTRY_TEXT_BYTES_MAX)];
            let header = EntryHeader {
                number: entry.number,
                text_bytes: text.len() as u16,
                age_ms: entry.age_ms,
                lease_ms: entry.lease_ms,
                node: entry.node,
            };
            let mut fields = [0; ENTRY_HEADER_BYTES];
            header.put_fields(&mut fields);
            bytes.extend(fields);
            bytes.extend(text);
        }
        bytes.extend(drained);
        bytes
    }

    /// Reads the data. `None` if they end too early, have too many entries, the same one twice, or one that cannot be, a list
    /// or a pool that cannot be, or go on with anything but zeros.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, mut bytes) = bytes.split_at_checked(ENTRIES_HEADER_BYTES)?;
        let header = EntriesHeader::take_fields(header)?;
        let drained_bytes = usize::from(header.drained_bytes);
        let is_possible = usize::from(header.count) <= ENTRIES_MAX
            && is_zero(&header.zeros)
            && drained_bytes <= DRAINED_BYTES_MAX
            && (header.drained_revision != 0 || drained_bytes == 0)
            && (header.revision != 0 || is_zero(&header.pool));
        if !is_possible {
            return None;
        }
        let mut entries: Vec<NodeEntry> = Vec::new();
        for _ in 0..header.count {
            let (fields, rest) = bytes.split_at_checked(ENTRY_HEADER_BYTES)?;
            let fields = EntryHeader::take_fields(fields)?;
            let (text, rest) = rest.split_at_checked(fields.text_bytes.into())?;
            let number = number_of(fields.number.into())?;
            let ascends = entries.last().is_none_or(|last| last.number < number);
            let is_lease = (1..=LEASE_MS_MAX).contains(&fields.lease_ms);
            if !ascends || !is_lease || text.len() > ENTRY_TEXT_BYTES_MAX {
                return None;
            }
            entries.push(NodeEntry {
                number,
                age_ms: fields.age_ms,
                lease_ms: fields.lease_ms,
                node: fields.node,
                text: text.to_vec(),
            });
            bytes = rest;
        }
        let (drained, bytes) = bytes.split_at_checked(drained_bytes)?;
        is_zero(bytes).then_some(Self {
            revision: header.revision,
            pool: header.pool,
            drained: DrainedList {
                revision: header.drained_revision,
                text: drained.to_vec(),
            },
            entries,
        })
    }
}

layout! {
    struct DescriptionHeader [DESCRIPTION_HEADER_BYTES] {
        0..8 => revision: u64,
        8..12 => total: u32,
        12..16 => zeros: u32,
        16..32 => pool: [u8; 16],
    }
}

/// Data of Node Table Receive: a piece of the description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptionPiece<'a> {
    /// The revision that the text is; not 0.
    pub revision: u64,
    /// Bytes of the whole text: 1 to [`DESCRIPTION_BYTES_MAX`].
    pub total: u32,
    /// The pool that the text is about.
    pub pool: [u8; 16],
    /// The text from the offset on that was asked for: as much as fits the buffer.
    pub text: &'a [u8],
}

impl<'a> DescriptionPiece<'a> {
    /// The data without the zeros behind them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let header = DescriptionHeader {
            revision: self.revision,
            total: self.total,
            zeros: 0,
            pool: self.pool,
        };
        let mut bytes = vec![0; DESCRIPTION_HEADER_BYTES];
        header.put_fields(&mut bytes);
        bytes.extend(self.text);
        bytes
    }

    /// The data where there is no description, without the zeros behind them.
    #[must_use]
    pub const fn encode_nothing() -> [u8; DESCRIPTION_HEADER_BYTES] {
        [0; DESCRIPTION_HEADER_BYTES]
    }

    /// Reads the answer to a command that asked for the text from `offset` on: `Some(None)` if there is no description.
    /// `None` if the data are shorter than their header, say what cannot be, or go on with anything but zeros.
    #[must_use]
    pub fn decode(bytes: &'a [u8], offset: u32) -> Option<Option<Self>> {
        let (header, rest) = bytes.split_at_checked(DESCRIPTION_HEADER_BYTES)?;
        if is_zero(header) {
            return is_zero(rest).then_some(None);
        }
        let header = DescriptionHeader::take_fields(header)?;
        let total = usize::try_from(header.total).ok()?;
        let is_possible = header.revision != 0
            && header.zeros == 0
            && (1..=DESCRIPTION_BYTES_MAX).contains(&total);
        if !is_possible {
            return None;
        }
        let left = total.saturating_sub(usize::try_from(offset).ok()?);
        let (text, rest) = rest.split_at_checked(left.min(rest.len()))?;
        is_zero(rest).then_some(Some(Self {
            revision: header.revision,
            total: header.total,
            pool: header.pool,
            text,
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INVALID: Option<Result<NodeTableCommand, Status>> =
        Some(Err(Status::INVALID_FIELD.with_dnr()));

    fn entry(number: u16, lease_ms: u32, length: u32) -> NodeTableCommand {
        NodeTableCommand::Send {
            nsid: 1,
            what: TableSend::Entry { number, lease_ms },
            length,
        }
    }

    fn piece(offset: u32, total: u32, revision: u64, length: u32) -> NodeTableCommand {
        NodeTableCommand::Send {
            nsid: 1,
            what: TableSend::Description {
                offset,
                total,
                revision,
            },
            length,
        }
    }

    fn receive(what: TableReceive, length: u32) -> NodeTableCommand {
        let nsid = 1;
        NodeTableCommand::Receive { nsid, what, length }
    }

    #[track_caller]
    fn taken(command: NodeTableCommand) {
        assert_eq!(
            NodeTableCommand::parse(&command.to_sqe()),
            Some(Ok(command))
        );
    }

    #[track_caller]
    fn refused(command: NodeTableCommand) {
        assert_eq!(NodeTableCommand::parse(&command.to_sqe()), INVALID);
    }

    #[test]
    fn the_opcodes_are_vendor_specific_and_say_which_way_the_data_go() {
        for (opcode, direction) in [(OPCODE_NODE_TABLE_SEND, 1), (OPCODE_NODE_TABLE_RECEIVE, 2)] {
            assert!(opcode >= 0x80);
            assert_eq!(opcode & 3, direction);
        }
        assert_eq!(NodeTableCommand::parse(&Sqe::new(0xc0)), None);
    }

    #[test]
    fn an_entry_has_a_number_below_sixteen_a_bounded_text_and_a_bounded_lease() {
        taken(entry(0, 0, 16));
        taken(entry(15, LEASE_MS_MAX, 16 + 4080));
        refused(entry(16, 1000, 16));
        refused(entry(0, LEASE_MS_MAX + 1, 16));
        refused(entry(0, 1000, 15));
        refused(entry(0, 1000, 16 + 4081));
        let sqe = entry(0, 1000, 16).to_sqe();
        assert_eq!(NodeTableCommand::parse(&sqe.with_cdw(11, 1 << 16)), INVALID);
        assert_eq!(NodeTableCommand::parse(&sqe.with_cdw(10, 3)), INVALID);
        let other_bits = NodeTableCommand::parse(&sqe.with_cdw(10, 0x100));
        assert_eq!(other_bits, Some(Ok(entry(0, 1000, 16))));
    }

    #[test]
    fn a_piece_of_a_description_lies_in_its_text_and_has_a_revision() {
        let most = DESCRIPTION_BYTES_MAX as u32;
        taken(piece(0, 1, 1, 17));
        taken(piece(most - 1, most, u64::MAX, 17));
        refused(piece(0, 1, 0, 17));
        refused(piece(0, 1, 1, 16));
        refused(piece(0, 1, 1, 18));
        refused(piece(1, 1, 1, 17));
        refused(piece(0, 0, 1, 16));
        refused(piece(0, most + 1, 1, 17));
        refused(piece(u32::MAX, most, 1, 17));
        let sqe = piece(1, 9, 0x0102_0304_0506_0708, 18).to_sqe();
        assert_eq!((sqe.cdw(14), sqe.cdw(15)), (0x0506_0708, 0x0102_0304));
    }

    #[test]
    fn a_list_of_drained_machines_is_bounded_and_follows_an_earlier_one() {
        let drained = |replaces, revision, length| NodeTableCommand::Send {
            nsid: 1,
            what: TableSend::Drained { replaces, revision },
            length,
        };
        taken(drained(0, 1, 16));
        taken(drained(u64::MAX - 1, u64::MAX, 16 + 4000));
        refused(drained(0, 0, 16));
        refused(drained(7, 7, 16));
        refused(drained(8, 7, 16));
        refused(drained(0, 1, 16 + 4001));
        refused(drained(0, 1, 15));
        let sqe = drained(0x0102_0304_0506_0708, 0x1112_1314_1516_1718, 16).to_sqe();
        assert_eq!((sqe.cdw(11), sqe.cdw(13)), (0x0506_0708, 0x0102_0304));
        assert_eq!((sqe.cdw(14), sqe.cdw(15)), (0x1516_1718, 0x1112_1314));
    }

    #[test]
    fn a_host_that_receives_has_room_for_the_longest_answer() {
        let description = |offset| TableReceive::Description { offset };
        assert_eq!(ENTRIES_BYTES_MAX % 4096, 0);
        taken(receive(TableReceive::Entries, ENTRIES_BYTES_MAX as u32));
        refused(receive(TableReceive::Entries, ENTRIES_BYTES_MAX as u32 - 1));
        taken(receive(description(0), 33));
        refused(receive(description(0), 32));
        taken(receive(description(DESCRIPTION_BYTES_MAX as u32), 4096));
        refused(receive(description(DESCRIPTION_BYTES_MAX as u32 + 1), 4096));
        let sqe = receive(description(0), 4096).to_sqe();
        assert_eq!(NodeTableCommand::parse(&sqe.with_cdw(10, 2)), INVALID);
    }

    fn full() -> NodeEntries {
        let entry = |number| NodeEntry {
            number,
            age_ms: 7,
            lease_ms: LEASE_MS_MAX,
            node: [number as u8; 16],
            text: vec![b'x'; ENTRY_TEXT_BYTES_MAX],
        };
        NodeEntries {
            revision: 9,
            pool: [5; 16],
            drained: DrainedList {
                revision: 3,
                text: vec![b'd'; DRAINED_BYTES_MAX],
            },
            entries: (0..16).map(entry).collect(),
        }
    }

    #[test]
    fn all_entries_with_the_longest_texts_fit_the_smallest_buffer() {
        let mut bytes = full().encode();
        assert!(bytes.len() <= ENTRIES_BYTES_MAX);
        bytes.resize(ENTRIES_BYTES_MAX, 0);
        assert_eq!(NodeEntries::decode(&bytes), Some(full()));
        assert_eq!(
            bytes[..16],
            [9, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0xa0, 0x0f, 0, 0, 0, 0]
        );
        assert_eq!(bytes[16..24], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..40], [5; 16]);
        assert_eq!(bytes[40..44], [0, 0, 0xf0, 0x0f]);
        assert_eq!(bytes[44..52], [7, 0, 0, 0, 0xc0, 0x27, 9, 0]);
        assert_eq!(&bytes[68..70], b"xx");
        assert_eq!(
            &bytes[40 + 16 * 4108..][..4001],
            [&[b'd'; 4000][..], &[0]].concat()
        );
    }

    #[test]
    fn entries_that_cannot_be_are_refused() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = full().encode();
            change(&mut bytes);
            assert_eq!(NodeEntries::decode(&bytes), None);
        };
        refused(&|bytes| bytes[8] = 17);
        refused(&|bytes| bytes[10..12].fill(0xff));
        refused(&|bytes| bytes[12] = 1);
        refused(&|bytes| bytes[40] = 1);
        refused(&|bytes| bytes[43] = 0x10);
        refused(&|bytes| bytes[48..52].fill(0));
        refused(&|bytes| bytes[51] = 1);
        refused(&|bytes| bytes.truncate(100));
        refused(&|bytes| bytes.truncate(bytes.len() - 1));
        refused(&|bytes| bytes.push(1));
        // A list, or a pool, of no revision.
        refused(&|bytes| bytes[16] = 0);
        refused(&|bytes| bytes[0] = 0);
    }

    #[test]
    fn a_description_is_read_from_the_offset_that_was_asked_for() {
        let piece = DescriptionPiece {
            revision: 3,
            total: 10,
            pool: [4; 16],
            text: b"456789",
        };
        let mut bytes = piece.encode();
        bytes.resize(64, 0);
        assert_eq!(DescriptionPiece::decode(&bytes, 4), Some(Some(piece)));
        let refused = DescriptionPiece::decode(&bytes, 5);
        assert_eq!(refused, None, "there is more than its end");
        let cut = DescriptionPiece::decode(&bytes[..34], 4);
        assert_eq!(cut.flatten().map(|piece| piece.text), Some(&b"45"[..]));
        let nothing = DescriptionPiece::encode_nothing();
        assert_eq!(DescriptionPiece::decode(&nothing, 0), Some(None));
        for (at, value) in [(0, 0), (8, 0), (11, 1), (12, 1), (63, 1)] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert_eq!(DescriptionPiece::decode(&wrong, 4), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_entry_and_any_bytes_read_back_or_are_refused(
            opcode in prop::sample::select(vec![0xc1_u8, 0xc2]),
            nsid: u32,
            what in 0_u32..4,
            dwords: [u32; 5],
            small in 0_u32..9000,
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            offset in 0_u32..20,
        ) {
            let mut sqe = Sqe::new(opcode).with_nsid(nsid).with_cdw(10, what);
            for (at, dword) in (11..).zip(dwords) {
                sqe = sqe.with_cdw(at, dword);
            }
            for sqe in [sqe, sqe.with_cdw(11, small % 17).with_cdw(12, small).with_cdw(13, small * 70)] {
                if let Some(Ok(command)) = NodeTableCommand::parse(&sqe) {
                    prop_assert_eq!(NodeTableCommand::parse(&command.to_sqe()), Some(Ok(command)));
                }
            }
            if let Some(sent) = SentText::decode(&bytes) {
                prop_assert_eq!(sent.encode(), &bytes[..]);
            }
            if let Some(entries) = NodeEntries::decode(&bytes) {
                prop_assert_eq!(NodeEntries::decode(&entries.encode()), Some(entries));
            }
            if let Some(Some(piece)) = DescriptionPiece::decode(&bytes, offset) {
                let again = piece.encode();
                prop_assert_eq!(DescriptionPiece::decode(&again, offset), Some(Some(piece)));
            }
        }

        #[test]
        fn what_a_table_holds_is_read_back(
            revision in 1..=u64::MAX,
            pool: [u8; 16],
            drained in (1..=u64::MAX, prop::collection::vec(any::<u8>(), 0..50)),
            kept in prop::collection::btree_map(
                0_u16..16,
                (any::<u32>(), 1..=LEASE_MS_MAX, any::<[u8; 16]>(), prop::collection::vec(any::<u8>(), 0..50)),
                0..16,
            ),
        ) {
            let entry = |(number, (age_ms, lease_ms, node, text))| NodeEntry { number, age_ms, lease_ms, node, text };
            let (drained_revision, text) = drained;
            let drained = DrainedList { revision: drained_revision, text };
            let entries = NodeEntries { revision, pool, drained, entries: kept.into_iter().map(entry).collect() };
            let mut bytes = entries.encode();
            prop_assert_eq!(NodeEntries::decode(&bytes), Some(entries.clone()));
            bytes.resize(ENTRIES_BYTES_MAX, 0);
            prop_assert_eq!(NodeEntries::decode(&bytes), Some(entries));
        }
    }
}
