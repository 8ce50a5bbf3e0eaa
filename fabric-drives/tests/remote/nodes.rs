//! The node table of the target, which tells what it is told to. Leases do not end: that is tested where the real table is.

use std::collections::{BTreeMap, VecDeque};

use nvme::Status;
use nvme::node_table::{
    DESCRIPTION_HEADER_BYTES, DescriptionPiece, DrainedList, NodeEntries, NodeEntry,
    NodeTableCommand, SentText, TableReceive, TableSend,
};

#[derive(Clone)]
pub(crate) struct Description {
    pub(crate) pool: [u8; 16],
    pub(crate) revision: u64,
    pub(crate) text: Vec<u8>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) entries: BTreeMap<u16, NodeEntry>,
    pub(crate) description: Option<Description>,
    pub(crate) drained: DrainedList,
    unfinished: Vec<u8>,
    /// Commands get no answer.
    pub(crate) is_silent: bool,
    /// So many pieces that are not the first one are said to be out of order.
    pub(crate) out_of_order: usize,
    /// What another node enters just before the next entry comes.
    pub(crate) at_entry: Option<NodeEntry>,
    /// What the next commands that receive are answered with.
    pub(crate) answers: VecDeque<Vec<u8>>,
    /// What the description becomes when a piece of it was received.
    pub(crate) next: VecDeque<Option<Description>>,
}

impl Nodes {
    /// The data; a status; or success, for a command that gets no answer.
    pub(crate) fn run(
        &mut self,
        command: NodeTableCommand,
        data: &[u8],
    ) -> Result<Vec<u8>, Status> {
        if self.is_silent {
            return Err(Status::SUCCESS);
        }
        match command {
            NodeTableCommand::Send { what, .. } => {
                let sent = SentText::decode(data).expect("a UUID");
                self.send(what, sent).map(|()| Vec::new())
            }
            NodeTableCommand::Receive { what, length, .. } => {
                let mut bytes = match self.answers.pop_front() {
                    Some(answer) => answer,
                    None => self.receive(what, length as usize),
                };
                bytes.resize(length as usize, 0);
                Ok(bytes)
            }
        }
    }

    fn send(&mut self, what: TableSend, sent: SentText<'_>) -> Result<(), Status> {
        match what {
            TableSend::Entry { number, lease_ms } => {
                if let Some(entry) = self.at_entry.take() {
                    self.entries.insert(entry.number, entry);
                }
                let present = self.entries.get(&number);
                if present.is_some_and(|entry| entry.node != sent.uuid) {
                    return Err(Status::NODE_ENTRY_KEPT.with_dnr());
                }
                let entry = NodeEntry {
                    number,
                    age_ms: 0,
                    lease_ms,
                    node: sent.uuid,
                    text: sent.text.to_vec(),
                };
                match lease_ms {
                    0 => self.entries.remove(&number),
                    _ => self.entries.insert(number, entry),
                };
            }
            TableSend::Description {
                offset,
                total,
                revision,
            } => {
                let present = self.description.as_ref();
                if present.is_some_and(|one| one.pool == sent.uuid && one.revision > revision) {
                    return Err(Status::DESCRIPTION_OLDER.with_dnr());
                }
                if offset > 0 && self.out_of_order > 0 {
                    self.out_of_order -= 1;
                    return Err(Status::COMMAND_SEQUENCE.with_dnr());
                }
                if offset == 0 {
                    self.unfinished.clear();
                }
                assert_eq!(offset as usize, self.unfinished.len(), "pieces in order");
                self.unfinished.extend(sent.text);
                if self.unfinished.len() == total as usize {
                    self.description = Some(Description {
                        pool: sent.uuid,
                        revision,
                        text: std::mem::take(&mut self.unfinished),
                    });
                }
            }
            TableSend::Drained { replaces, revision } => {
                if self.drained.revision != replaces {
                    return Err(Status::DRAINED_REPLACED.with_dnr());
                }
                assert_eq!(sent.uuid, [0; 16], "a list has no UUID");
                let text = sent.text.to_vec();
                self.drained = DrainedList { revision, text };
            }
        }
        Ok(())
    }

    fn receive(&mut self, what: TableReceive, length: usize) -> Vec<u8> {
        let description = self.description.clone();
        match (what, description) {
            (TableReceive::Entries, description) => {
                let entries = NodeEntries {
                    revision: description.as_ref().map_or(0, |one| one.revision),
                    pool: description.map_or([0; 16], |one| one.pool),
                    drained: self.drained.clone(),
                    entries: self.entries.values().cloned().collect(),
                };
                entries.encode()
            }
            (TableReceive::Description { offset }, description) => {
                if let Some(next) = self.next.pop_front() {
                    self.description = next;
                }
                let Some(Description {
                    pool,
                    revision,
                    text,
                }) = description
                else {
                    return DescriptionPiece::encode_nothing().to_vec();
                };
                let left = text.get(offset as usize..).unwrap_or_default();
                let piece = DescriptionPiece {
                    revision,
                    total: text.len() as u32,
                    pool,
                    text: &left[..left.len().min(length - DESCRIPTION_HEADER_BYTES)],
                };
                piece.encode()
            }
        }
    }
}
