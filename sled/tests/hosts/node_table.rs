//! Nodes that share a drive know of each other by its table, and of which of them lives.

use std::time::Duration;

use drives::BLOCK_BYTES;
use initiator::{Controller, Error, Host, Namespace};
use nvme::node_table::{
    DESCRIPTION_BYTES_MAX, DescriptionPiece, ENTRIES_BYTES_MAX, ENTRY_TEXT_BYTES_MAX, LEASE_MS_MAX,
    NodeEntries, NodeEntry, NodeTableCommand, SENT_HEADER_BYTES, SentText, TableReceive, TableSend,
};
use nvme::reservation::{AcquireAction, KeyPair, RegisterAction, ReservationType};
use nvme::{Sqe, Status};

use crate::harness::{Stage, memory, story, submit, submit_from, submit_to, write_blocks};

/// A lease that no story outlives.
const LONG: u32 = LEASE_MS_MAX;

/// A host that is attached, as a node of a pool.
struct Node {
    controller: Controller,
    namespace: Namespace,
    uuid: [u8; 16],
}

impl Node {
    async fn attach(stage: &Stage, uuid: u8) -> Self {
        let controller = stage.attach(&Host::generate()).await.unwrap();
        Self {
            namespace: controller.namespace(1).await.unwrap(),
            controller,
            uuid: [uuid; 16],
        }
    }

    async fn keep(&self, number: u16, lease_ms: u32, text: &[u8]) -> Result<(), Error> {
        let (what, uuid) = (TableSend::Entry { number, lease_ms }, self.uuid);
        let data = SentText { uuid, text }.encode();
        self.namespace.node_table_send(what, &data).await
    }

    async fn give_up(&self, number: u16) -> Result<(), Error> {
        self.keep(number, 0, b"").await
    }

    async fn look(&self) -> NodeEntries {
        let what = TableReceive::Entries;
        let data = self.namespace.node_table_receive(what, ENTRIES_BYTES_MAX);
        NodeEntries::decode(&data.await.unwrap()).unwrap()
    }

    async fn entry(&self, number: u16) -> Option<NodeEntry> {
        let mut entries = self.look().await.entries.into_iter();
        entries.find(|entry| entry.number == number)
    }

    /// Sends a description in pieces of so many bytes.
    async fn describe(
        &self,
        pool: u8,
        revision: u64,
        text: &[u8],
        piece_bytes: usize,
    ) -> Result<(), Error> {
        for (at, piece) in text.chunks(piece_bytes).enumerate() {
            let total = text.len();
            self.piece(pool, revision, total, at * piece_bytes, piece)
                .await?;
        }
        Ok(())
    }

    async fn piece(
        &self,
        pool: u8,
        revision: u64,
        total: usize,
        offset: usize,
        text: &[u8],
    ) -> Result<(), Error> {
        let what = TableSend::Description {
            offset: offset as u32,
            total: total as u32,
            revision,
        };
        let uuid = [pool; 16];
        let data = SentText { uuid, text }.encode();
        self.namespace.node_table_send(what, &data).await
    }

    /// Pool, revision and text.
    async fn description(&self, bytes: usize) -> Option<(u8, u64, Vec<u8>)> {
        let mut text = Vec::new();
        loop {
            let offset = text.len() as u32;
            let what = TableReceive::Description { offset };
            let data = self.namespace.node_table_receive(what, bytes);
            let data = data.await.unwrap();
            let piece = DescriptionPiece::decode(&data, offset).unwrap()?;
            text.extend(piece.text);
            if text.len() == piece.total as usize {
                return Some((piece.pool[0], piece.revision, text));
            }
        }
    }
}

#[track_caller]
fn refused_with(result: Result<(), Error>, status: Status) {
    let refused = result.unwrap_err().status().unwrap();
    assert_eq!(refused.code(), status);
    assert!(refused.is_dnr(), "no host repeats it by itself");
}

#[test]
fn two_nodes_keep_entries_and_see_each_other() {
    story(async {
        let stage = Stage::new(vec![memory(), memory()]);
        let one = Node::attach(&stage, 1).await;
        let two = Node::attach(&stage, 2).await;
        assert_eq!(one.look().await, NodeEntries::default());
        let long = vec![b'x'; ENTRY_TEXT_BYTES_MAX];
        one.keep(0, LONG, b"at 10.0.0.1").await.unwrap();
        two.keep(15, LONG, &long).await.unwrap();
        for node in [&one, &two] {
            let seen = node.look().await;
            assert_eq!(seen.revision, 0);
            let [first, second] = &seen.entries[..] else {
                panic!("{seen:?}");
            };
            assert_eq!((first.number, first.node), (0, one.uuid));
            assert_eq!(first.text, b"at 10.0.0.1");
            assert_eq!((second.number, second.node), (15, two.uuid));
            assert_eq!((second.lease_ms, &second.text), (LONG, &long));
            assert!(first.age_ms < LONG && second.age_ms < LONG);
        }
        // A node may say something else, and go.
        one.keep(0, LONG, b"").await.unwrap();
        assert_eq!(two.entry(0).await.unwrap().text, b"");
        one.give_up(0).await.unwrap();
        one.give_up(0).await.unwrap();
        assert_eq!(two.entry(0).await, None);
        // The other drive has a table of its own.
        let other = two.controller.namespace(2).await.unwrap();
        let what = TableReceive::Entries;
        let data = other.node_table_receive(what, ENTRIES_BYTES_MAX).await;
        let seen = NodeEntries::decode(&data.unwrap());
        assert_eq!(seen, Some(NodeEntries::default()));
    });
}

#[test]
fn an_entry_that_a_node_keeps_is_not_given_to_another() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let one = Node::attach(&stage, 1).await;
        let two = Node::attach(&stage, 2).await;
        one.keep(3, LONG, b"one").await.unwrap();
        refused_with(two.keep(3, LONG, b"two").await, Status::NODE_ENTRY_KEPT);
        refused_with(two.give_up(3).await, Status::NODE_ENTRY_KEPT);
        let entry = two.entry(3).await.unwrap();
        assert_eq!((entry.node, &entry.text[..]), (one.uuid, &b"one"[..]));
        // The same node by another association: it started again.
        let again = Node::attach(&stage, 1).await;
        again.keep(3, LONG, b"again").await.unwrap();
        assert_eq!(two.entry(3).await.unwrap().text, b"again");
        one.give_up(3).await.unwrap();
        two.keep(3, LONG, b"two").await.unwrap();
    });
}

#[test]
fn the_entry_of_a_node_that_stopped_ages_until_another_takes_it() {
    story(async {
        const LEASE_MS: u32 = 200;
        let stage = Stage::new(vec![memory()]);
        let one = Node::attach(&stage, 1).await;
        let two = Node::attach(&stage, 2).await;
        let begin = reactor::now();
        one.keep(3, LEASE_MS, b"one").await.unwrap();
        one.controller.disconnect().await;
        while two.entry(3).await.unwrap().age_ms < LEASE_MS {}
        let entry = two.entry(3).await.unwrap();
        assert_eq!((entry.node, entry.lease_ms), ([1; 16], LEASE_MS));
        two.keep(3, LONG, b"two").await.unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(LEASE_MS.into()));
        let entry = two.entry(3).await.unwrap();
        assert_eq!((entry.node, entry.lease_ms), ([2; 16], LONG));
        assert!(entry.age_ms < LONG, "it begins anew");
    });
}

/// A text that tells where a piece of it belongs.
fn long_text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 251 + at) as u8).collect()
}

#[test]
fn a_description_of_several_pieces_is_read_as_it_was_sent() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let one = Node::attach(&stage, 1).await;
        let two = Node::attach(&stage, 2).await;
        assert_eq!(two.description(4096).await, None);
        let most = one.controller.max_transfer_bytes();
        assert!(DESCRIPTION_BYTES_MAX > most, "one command cannot move it");
        let text = long_text(DESCRIPTION_BYTES_MAX);
        let sent = one.describe(7, 5, &text, most - SENT_HEADER_BYTES);
        sent.await.unwrap();
        assert_eq!(two.look().await.revision, 5);
        let read = two.description(most).await;
        assert_eq!(read, Some((7, 5, text)));
        // Pieces of an odd length, in both directions.
        let text = long_text(10_001);
        one.describe(7, 1 << 40, &text, 333).await.unwrap();
        let read = two.description(777).await;
        assert_eq!(read, Some((7, 1 << 40, text)));
    });
}

#[test]
fn a_description_is_the_one_before_until_the_next_one_is_whole() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let one = Node::attach(&stage, 1).await;
        let two = Node::attach(&stage, 2).await;
        one.describe(7, 1, b"first", 5).await.unwrap();
        one.piece(7, 2, 6, 0, b"sec").await.unwrap();
        let present = Some((7, 1, b"first".to_vec()));
        assert_eq!(two.description(4096).await, present);
        // What does not follow changes nothing, and no node ends what another one began.
        let sequence = Status::COMMAND_SEQUENCE;
        refused_with(one.piece(7, 2, 6, 4, b"nd").await, sequence);
        refused_with(one.piece(7, 3, 6, 3, b"ond").await, sequence);
        refused_with(two.piece(7, 2, 6, 3, b"ond").await, sequence);
        assert_eq!(two.description(4096).await, present);
        one.piece(7, 2, 6, 3, b"ond").await.unwrap();
        let present = Some((7, 2, b"second".to_vec()));
        assert_eq!(two.description(4096).await, present);
    });
}

#[test]
fn an_older_description_is_refused_and_one_of_another_pool_is_taken() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let one = Node::attach(&stage, 1).await;
        let older = Status::DESCRIPTION_OLDER;
        one.describe(7, 5, b"five", 4).await.unwrap();
        refused_with(one.describe(7, 4, b"four", 4).await, older);
        let read = one.description(4096).await;
        assert_eq!(read, Some((7, 5, b"five".to_vec())));
        one.describe(7, 5, b"again", 5).await.unwrap();
        let read = one.description(4096).await;
        assert_eq!(read, Some((7, 5, b"again".to_vec())));
        one.describe(8, 1, b"other", 5).await.unwrap();
        let read = one.description(4096).await;
        assert_eq!(read, Some((8, 1, b"other".to_vec())));
    });
}

#[test]
fn a_list_of_drained_machines_is_replaced_by_who_has_read_the_one_that_is_there() {
    story(async {
        let stage = Stage::new(vec![memory(), memory()]);
        let one = Node::attach(&stage, 1).await;
        let send = async |nsid, replaces, revision, uuid, text| {
            let what = TableSend::Drained { replaces, revision };
            let data = SentText { uuid, text }.encode();
            let by = &one.namespace;
            by.node_table_send_to(nsid, what, &data).await
        };
        let zeros = [0; 16];
        send(1, 0, 4, zeros, b"node-a").await.unwrap();
        let replaced = Status::DRAINED_REPLACED;
        refused_with(send(1, 0, 5, zeros, b"node-b").await, replaced);
        refused_with(send(1, 3, 5, zeros, b"node-b").await, replaced);
        let field = Status::INVALID_FIELD;
        refused_with(send(1, 4, 5, [7; 16], b"").await, field);
        let invalid = Status::INVALID_NAMESPACE;
        refused_with(send(3, 0, 1, zeros, b"").await, invalid);
        let seen = one.look().await;
        assert_eq!(
            (seen.drained.revision, &seen.drained.text[..]),
            (4, &b"node-a"[..])
        );
        one.describe(7, 1, b"a pool", 6).await.unwrap();
        assert_eq!(one.look().await.pool, [7; 16]);
        // Each drive has a list of its own, and one queue reaches all.
        send(2, 0, 9, zeros, b"").await.unwrap();
        let what = TableReceive::Entries;
        let read = one
            .namespace
            .node_table_receive_of(2, what, ENTRIES_BYTES_MAX);
        let other = NodeEntries::decode(&read.await.unwrap()).unwrap();
        assert_eq!((other.drained.revision, other.pool), (9, zeros));
        send(1, 4, 5, zeros, b"").await.unwrap();
        assert_eq!(one.look().await.drained.revision, 5);
    });
}

/// Commands that are wrong, with as many bytes as the host has for them and what it is told.
fn wrong_sends() -> Vec<(Sqe, usize, Status)> {
    let send = |what, length| {
        let nsid = 1;
        NodeTableCommand::Send { nsid, what, length }.to_sqe()
    };
    let entry = |number, lease_ms| TableSend::Entry { number, lease_ms };
    let piece = |offset, total, revision| TableSend::Description {
        offset,
        total,
        revision,
    };
    let (field, len) = (Status::INVALID_FIELD, Status::SGL_LENGTH_INVALID);
    let right = send(entry(1, 1000), 20);
    let most = DESCRIPTION_BYTES_MAX as u32;
    vec![
        (send(entry(16, 1000), 20), 20, field),
        (send(entry(0, LEASE_MS_MAX + 1), 20), 20, field),
        (send(entry(1, 1000), 15), 15, field),
        (send(entry(1, 1000), 4097), 4097, field),
        (right, 16, len),
        (right, 4096, len),
        (right.with_cdw(10, 2), 20, field),
        (right.with_cdw(10, 255), 20, field),
        (right.with_nsid(0), 20, Status::INVALID_NAMESPACE),
        (right.with_nsid(2), 20, Status::INVALID_NAMESPACE),
        (right.with_nsid(u32::MAX), 20, Status::INVALID_NAMESPACE),
        (send(piece(0, 4, 0), 20), 20, field),
        (send(piece(0, 3, 9), 20), 20, field),
        (send(piece(0, 4, 9), 16), 16, field),
        (send(piece(u32::MAX, 4, 9), 20), 20, field),
        (send(piece(0, most + 1, 9), 20), 20, field),
        (send(piece(0, 4, 9), 20), 19, len),
        (send(piece(0, most, 9), most), 4096, field),
        (send(piece(2, 6, 9), 20), 20, Status::COMMAND_SEQUENCE),
    ]
}

fn wrong_receives() -> Vec<(Sqe, usize, Status)> {
    let receive = |what, length: usize| {
        let command = NodeTableCommand::Receive {
            nsid: 1,
            what,
            length: length as u32,
        };
        command.to_sqe()
    };
    let (entries, bytes) = (TableReceive::Entries, ENTRIES_BYTES_MAX);
    let description = |offset: usize| TableReceive::Description {
        offset: offset as u32,
    };
    let (field, len) = (Status::INVALID_FIELD, Status::SGL_LENGTH_INVALID);
    let right = receive(entries, bytes);
    vec![
        (receive(entries, bytes - 1), bytes, field),
        (receive(entries, 2 << 20), bytes, field),
        (right, bytes - 4096, len),
        (right, 2 * bytes, len),
        (right.with_cdw(10, 2), bytes, field),
        (right.with_nsid(2), bytes, Status::INVALID_NAMESPACE),
        (receive(description(0), 32), 4096, field),
        (receive(description(0), 2 << 20), 4096, field),
        (receive(description(0), 4096), 64, len),
        (
            receive(description(DESCRIPTION_BYTES_MAX + 1), 4096),
            4096,
            field,
        ),
    ]
}

#[test]
fn wrong_commands_about_the_table_are_refused_and_change_nothing() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let node = Node::attach(&stage, 1).await;
        node.keep(1, LONG, b"one").await.unwrap();
        node.describe(7, 1, b"first", 5).await.unwrap();
        let liar = stage.associate(&Host::generate(), 0).await;
        for (sqe, bytes, status) in wrong_sends() {
            assert_eq!(submit_to(&liar.io, sqe, bytes).await, status, "{sqe:?}");
        }
        for (sqe, bytes, status) in wrong_receives() {
            assert_eq!(submit_from(&liar.io, sqe, bytes).await, status, "{sqe:?}");
        }
        for (sqe, _, _) in wrong_sends().into_iter().chain(wrong_receives()) {
            let misplaced = submit(&liar.admin, sqe).await;
            assert_eq!(misplaced, Status::INVALID_OPCODE, "on the admin queue");
        }
        let seen = node.look().await;
        assert_eq!(seen.entries.len(), 1);
        assert_eq!(seen.entries[0].text, b"one");
        let read = node.description(4096).await;
        assert_eq!(read, Some((7, 1, b"first".to_vec())));
    });
}

#[test]
fn a_node_that_a_reservation_keeps_from_the_drive_uses_the_table() {
    story(async {
        let stage = Stage::new(vec![memory()]);
        let one = Node::attach(&stage, 1).await;
        let two = Node::attach(&stage, 2).await;
        let keys = |current, other| KeyPair { current, other };
        let register = RegisterAction::Register;
        let registered = one.namespace.register(register, false, None, keys(0, 9));
        registered.await.unwrap();
        let kind = ReservationType::ExclusiveAccess;
        let acquired = one
            .namespace
            .acquire(AcquireAction::Acquire, kind, keys(9, 0));
        acquired.await.unwrap();
        let conflict = Status::RESERVATION_CONFLICT;
        refused_with(write_blocks(&two.namespace, 0, 1, 1, false).await, conflict);
        let buffer = initiator::buffer(BLOCK_BYTES).await;
        refused_with(two.namespace.read(0, buffer).await.0, conflict);
        two.keep(2, LONG, b"two").await.unwrap();
        assert_eq!(one.entry(2).await, two.entry(2).await);
        two.describe(7, 1, b"text", 4).await.unwrap();
        let read = two.description(4096).await;
        assert_eq!(read, Some((7, 1, b"text".to_vec())));
        two.give_up(2).await.unwrap();
    });
}

#[test]
fn a_sled_that_starts_again_has_forgotten_its_tables() {
    story(async {
        let drive = memory();
        let stage = Stage::new(vec![drive.clone()]);
        let one = Node::attach(&stage, 1).await;
        one.keep(1, LONG, b"one").await.unwrap();
        one.describe(7, 9, b"first", 5).await.unwrap();
        one.controller.disconnect().await;
        let stage = Stage::new(vec![drive]);
        let two = Node::attach(&stage, 2).await;
        assert_eq!(two.look().await, NodeEntries::default());
        two.keep(1, LONG, b"two").await.unwrap();
        two.describe(7, 1, b"older", 5).await.unwrap();
    });
}
