//! The table of the nodes that share a drive, as a node uses it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use drives::nodes::Process;
use drives::{DriveError, ErrorKind};
use fabric_drives::{
    Claim, Drained, KeyFolder, Node, NodeOptions, NodeState, NodeTable, NodeTableLimits,
    RemoteAddress, TableDescription,
};
use futures_util::future::join;
use nvme::Nqn;
use nvme::auth::{ConfiguredPsk, Hash};
use nvme::node_table::{
    DESCRIPTION_BYTES_MAX, DescriptionPiece, DrainedList, ENTRY_TEXT_BYTES_MAX, NodeEntry,
    OPCODE_NODE_TABLE_RECEIVE, OPCODE_NODE_TABLE_SEND,
};
use uuid::Uuid;

use crate::nodes::Description;
use crate::sled::{Key, SUBSYSTEM, Sled, options, story, write};

const LEASE: Duration = Duration::from_secs(60);

fn table_with(sled: &Sled, keys: KeyFolder) -> NodeTable {
    let host = Nqn::new("nqn.2026-11.dev.onefold:a-pool").expect("a name");
    let limits = NodeTableLimits {
        keep_alive: Duration::from_millis(400),
        command: Duration::from_millis(600),
        ..NodeTableLimits::default()
    };
    let address = sled.address().parse().expect("an address");
    NodeTable::new(address, host, keys, limits)
}

fn table(sled: &Sled) -> NodeTable {
    table_with(sled, KeyFolder::new("/no/keys"))
}

fn uuid(number: u8) -> Uuid {
    Uuid::from_bytes([number; 16])
}

#[track_caller]
fn kind_of<T: std::fmt::Debug>(result: Result<T, DriveError>) -> ErrorKind {
    result.expect_err("it fails").kind()
}

#[test]
fn nodes_keep_entries_see_each_other_and_get_no_entry_that_another_keeps() {
    let sled = Sled::start(4096).with_nodes();
    story(async || {
        let (one, two) = (table(&sled), table(&sled));
        assert_eq!(one.name(), sled.address());
        let seen = one.look().await.expect("an empty table");
        assert_eq!((seen.revision, seen.entries), (0, Vec::new()));
        let kept = one.keep(3, uuid(1), LEASE, b"one").await;
        assert!(kept.expect("an answer"));
        let kept = two.keep(3, uuid(2), LEASE, b"two").await;
        assert!(!kept.expect("an answer"), "another node keeps it");
        let long = [b'x'; ENTRY_TEXT_BYTES_MAX];
        let kept = two.keep(15, uuid(2), LEASE, &long).await;
        assert!(kept.expect("an answer"));
        let seen = one.look().await.expect("an answer").entries;
        let told: Vec<_> = seen
            .iter()
            .map(|entry| (entry.number, entry.node, entry.lease, &entry.text[..]))
            .collect();
        let expected = [
            (3, uuid(1), LEASE, &b"one"[..]),
            (15, uuid(2), LEASE, &long[..]),
        ];
        assert_eq!(told, expected);
        assert!(seen.iter().all(fabric_drives::TableEntry::is_kept));
        two.give_up(3, uuid(2)).await.expect("it is not its");
        assert_eq!(one.look().await.expect("an answer").entries.len(), 2);
        one.give_up(3, uuid(1)).await.expect("an answer");
        assert_eq!(two.look().await.expect("an answer").entries.len(), 1);
        assert_eq!(sled.media().connected.len(), 2, "one association each");
    });
}

#[test]
fn an_entry_is_kept_as_long_as_it_is_younger_than_its_lease() {
    let sled = Sled::start(4096).with_nodes();
    story(async || {
        let entry = |number, age_ms| NodeEntry {
            number,
            age_ms,
            lease_ms: 1000,
            node: [1; 16],
            text: Vec::new(),
        };
        let entries = [(0, entry(0, 999)), (1, entry(1, 1000))];
        sled.change_nodes(|nodes| nodes.entries = entries.into_iter().collect());
        let seen = table(&sled).look().await.expect("an answer").entries;
        assert_eq!(seen[0].age, Duration::from_millis(999));
        assert!(seen[0].is_kept() && !seen[1].is_kept());
    });
}

fn description(pool: u8, revision: u64, text: &[u8]) -> TableDescription {
    TableDescription {
        pool: uuid(pool),
        revision,
        text: text.to_vec(),
    }
}

/// A text that tells where a piece of it belongs.
fn long_text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 251 + at) as u8).collect()
}

#[test]
fn a_description_of_many_pieces_is_read_as_it_was_published() {
    let sled = Sled::start(4096).with_nodes();
    story(async || {
        let (one, two) = (table(&sled), table(&sled));
        assert_eq!(two.description().await.expect("an answer"), None);
        for text in [long_text(DESCRIPTION_BYTES_MAX), long_text(1)] {
            let taken = one.describe(uuid(7), 1 << 40, &text).await;
            assert!(taken.expect("an answer"));
            let read = two.description().await.expect("an answer");
            assert_eq!(read, Some(description(7, 1 << 40, &text)));
        }
        assert!(sled.media().count(OPCODE_NODE_TABLE_SEND) > 2);
        let taken = two.describe(uuid(7), 5, b"older").await;
        assert!(!taken.expect("an answer"), "a later one is there");
        let taken = two.describe(uuid(8), 5, b"another pool's").await;
        assert!(taken.expect("an answer"));
        let seen = one.look().await.expect("an answer");
        assert_eq!(seen.revision, 5);
    });
}

#[test]
fn a_description_that_changes_while_it_is_read_is_read_anew() {
    let sled = Sled::start(4096).with_nodes();
    let one = |revision, bytes| Description {
        pool: [7; 16],
        revision,
        text: long_text(bytes),
    };
    let set = |first: Description, next: Vec<Option<Description>>| {
        sled.change_nodes(|nodes| {
            nodes.description = Some(first);
            nodes.next = next.into();
        });
    };
    story(async || {
        let table = table(&sled);
        set(one(1, 300_000), vec![None, Some(one(2, 200_000))]);
        let read = table.description().await.expect("an answer");
        assert_eq!(read, Some(description(7, 2, &long_text(200_000))));
        set(one(1, 300_000), vec![Some(one(2, 10))]);
        let read = table.description().await.expect("an answer");
        assert_eq!(read, Some(description(7, 2, &long_text(10))));
        // One that changes again and again is an error, and no end of commands.
        let changes = (2..100).map(|revision| Some(one(revision, 300_000)));
        set(one(1, 300_000), changes.collect());
        let error = table.description().await.expect_err("it changes always");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("at the same time"), "{error}");
        assert!(sled.media().count(OPCODE_NODE_TABLE_RECEIVE) < 20);
    });
}

#[test]
fn a_description_is_sent_anew_when_another_node_began_one_meanwhile() {
    let sled = Sled::start(4096).with_nodes();
    let interfere = |times| sled.change_nodes(|nodes| nodes.out_of_order = times);
    story(async || {
        let table = table(&sled);
        let text = long_text(300_000);
        interfere(2);
        let taken = table.describe(uuid(7), 1, &text).await;
        assert!(taken.expect("an answer"));
        let read = table.description().await.expect("an answer");
        assert_eq!(read, Some(description(7, 1, &text)));
        interfere(1000);
        let error = table.describe(uuid(7), 2, &text).await;
        assert_eq!(kind_of(error), ErrorKind::Io);
        assert!(sled.media().count(OPCODE_NODE_TABLE_SEND) < 20);
        assert_eq!(sled.media().connected.len(), 1, "it is an answer");
    });
}

#[test]
fn a_target_without_node_tables_is_told_with_the_remedy() {
    let sled = Sled::start(4096);
    story(async || {
        let table = table(&sled);
        for mdts in [3, 8] {
            sled.media().controller.mdts = mdts;
            let error = table.look().await.expect_err("it has none");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let told = error.to_string();
            assert!(told.contains(&sled.address()), "{told}");
            assert!(told.contains("`onefold sled` of this version"), "{told}");
        }
        let kept = table.keep(0, uuid(1), LEASE, b"").await;
        assert_eq!(kind_of(kept), ErrorKind::Invalid);
        let taken = table.describe(uuid(7), 1, b"text").await;
        assert_eq!(kind_of(taken), ErrorKind::Invalid);
    });
}

#[test]
fn a_target_that_is_no_sled_gets_no_vendor_specific_command() {
    let sled = Sled::start(4096);
    story(async || {
        sled.media().controller.mn = "Another".to_owned();
        let error = table(&sled).look().await.expect_err("it has none");
        assert!(error.to_string().contains("no sled"), "{error}");
        assert_eq!(sled.media().count(OPCODE_NODE_TABLE_RECEIVE), 0);
    });
}

#[test]
fn a_target_that_is_gone_is_unreachable_and_used_again_when_it_is_back() {
    let mut sled = Sled::start(4096).with_nodes();
    story(async || {
        let table = table(&sled);
        let kept = table.keep(3, uuid(1), LEASE, b"one").await;
        assert!(kept.expect("an answer"));
        sled.die();
        for _ in 0..3 {
            assert_eq!(kind_of(table.look().await), ErrorKind::Unreachable);
        }
        let kept = table.keep(3, uuid(1), LEASE, b"one").await;
        let error = kept.expect_err("it is gone");
        assert!(error.to_string().contains(table.name()), "{error}");
        sled.come_back();
        let seen = table.look().await.expect("it is back");
        assert_eq!(seen.entries.len(), 1);
        assert_eq!(sled.media().connected.len(), 2);
    });
}

#[test]
fn a_target_that_does_not_answer_is_unreachable_within_the_limit() {
    let sled = Sled::start(4096).with_nodes();
    let be_silent = |is_silent| sled.change_nodes(|nodes| nodes.is_silent = is_silent);
    story(async || {
        let table = table(&sled);
        be_silent(true);
        assert_eq!(kind_of(table.look().await), ErrorKind::Unreachable);
        let kept = table.keep(3, uuid(1), LEASE, b"one").await;
        assert_eq!(kind_of(kept), ErrorKind::Unreachable);
        be_silent(false);
        table.look().await.expect("by another connection");
        assert_eq!(sled.media().connected.len(), 3);
        // A port where nobody speaks NVMe.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = silent.local_addr().expect("it is bound");
        let address = format!("nvme+tcp://{at}/{SUBSYSTEM}#1");
        let limits = NodeTableLimits {
            connect: Duration::from_millis(200),
            ..NodeTableLimits::default()
        };
        let keys = KeyFolder::new("/no/keys");
        let address = address.parse().expect("an address");
        let table = NodeTable::new(address, options().host, keys, limits);
        assert_eq!(kind_of(table.look().await), ErrorKind::Unreachable);
    });
}

#[test]
fn answers_that_cannot_be_are_errors_and_end_the_connection() {
    let sled = Sled::start(4096).with_nodes();
    let answer = |bytes: Vec<u8>| sled.change_nodes(|nodes| nodes.answers.push_back(bytes));
    let piece = |total, text| {
        let piece = DescriptionPiece {
            revision: 1,
            total,
            pool: [7; 16],
            text,
        };
        piece.encode()
    };
    story(async || {
        let table = table(&sled);
        for wrong in [vec![0xff; 4096], vec![0, 0, 0, 0, 0, 0, 0, 0, 1]] {
            answer(wrong);
            assert_eq!(kind_of(table.look().await), ErrorKind::Io);
        }
        let more = piece(4, b"text and more");
        for wrong in [vec![0xff; 4096], piece(u32::MAX, b""), more] {
            answer(wrong);
            assert_eq!(kind_of(table.description().await), ErrorKind::Io);
        }
        table.look().await.expect("a right answer");
        assert_eq!(sled.media().connected.len(), 6, "each wrong one ended it");
    });
}

#[test]
fn a_request_that_cannot_be_is_not_sent() {
    let sled = Sled::start(4096).with_nodes();
    story(async || {
        let table = table(&sled);
        let (node, long) = (uuid(1), vec![0; DESCRIPTION_BYTES_MAX + 1]);
        let minute = Duration::from_secs(60);
        let too_long = &long[..ENTRY_TEXT_BYTES_MAX + 1];
        for (number, lease, text) in [
            (16, LEASE, &b""[..]),
            (0, Duration::ZERO, b""),
            (0, Duration::from_micros(999), b""),
            (0, minute * 10 + Duration::from_millis(1), b""),
            (0, Duration::MAX, b""),
            (0, LEASE, too_long),
        ] {
            let kept = table.keep(number, node, lease, text).await;
            assert_eq!(kind_of(kept), ErrorKind::Invalid);
        }
        assert_eq!(kind_of(table.give_up(16, node).await), ErrorKind::Invalid);
        for (revision, text) in [(0, &b"text"[..]), (1, b""), (1, &long)] {
            let taken = table.describe(node, revision, text).await;
            assert_eq!(kind_of(taken), ErrorKind::Invalid);
        }
        assert!(sled.media().connected.is_empty());
    });
}

#[test]
fn a_process_opens_the_drive_beside_its_table() {
    let sled = Sled::start(4096).with_nodes();
    story(async || {
        let before = table(&sled);
        let kept = before.keep(3, uuid(1), LEASE, b"one").await;
        assert!(kept.expect("an answer"));
        let drive = sled.open().await.expect("it is not open");
        drive.claim(uuid(7), Claim::First).await.expect("claimed");
        write(&drive, 5, 1).await.expect("written");
        let after = table(&sled);
        assert_eq!(after.look().await.expect("an answer").entries.len(), 1);
        drop(before);
        let again = sled.open().await.expect_err("it is open still");
        assert_eq!(again.kind(), ErrorKind::InUse);
        write(&drive, 5, 2).await.expect("written");
        let mut connected = sled.media().connected.clone();
        connected.sort_unstable();
        let all = connected.len();
        connected.dedup();
        assert_eq!(connected.len(), all, "each has an identifier of its own");
    });
}

#[test]
fn calls_at_the_same_time_are_served_one_after_the_other() {
    let sled = Sled::start(4096).with_nodes();
    story(async || {
        let table = table(&sled);
        let text = long_text(300_000);
        let publishing = join(
            table.describe(uuid(7), 1, &text),
            table.describe(uuid(7), 2, &text),
        );
        let keeping = join(table.keep(0, uuid(1), LEASE, b""), table.look());
        let ((first, second), (kept, seen)) = join(publishing, keeping).await;
        assert!(first.expect("taken") && second.expect("taken"));
        assert!(kept.expect("kept"));
        assert_eq!(seen.expect("an answer").revision, 2);
        assert_eq!(sled.media().connected.len(), 1);
    });
}

#[test]
fn a_call_that_nobody_awaits_any_more_does_not_disturb_the_next_one() {
    let sled = Sled::start(4096).with_nodes();
    let be_silent = |is_silent| sled.change_nodes(|nodes| nodes.is_silent = is_silent);
    story(async || {
        let table = table(&sled);
        table.look().await.expect("an answer");
        be_silent(true);
        let given_up = reactor::timeout(Duration::from_millis(20), table.look()).await;
        assert!(given_up.is_err());
        be_silent(false);
        let seen = table.look().await.expect("by another connection");
        assert_eq!(seen.revision, 0);
        assert_eq!(sled.media().connected.len(), 2);
    });
}

#[test]
fn the_table_of_a_target_with_tls_is_used_by_the_key_of_the_file_alone() {
    let psk = |number| ConfiguredPsk::from_random(Hash::Sha256, &[number; 64]);
    let sled = Sled::start_with(4096, Some(Key::new(psk(1)))).with_nodes();
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join(format!("{SUBSYSTEM}.tls-key"));
    let put = |key: &ConfiguredPsk| {
        fs::write(&path, key.to_text().as_bytes()).expect("a file");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&path, mode).expect("its mode");
    };
    story(async || {
        put(&psk(2));
        let table = table_with(&sled, KeyFolder::new(dir.path()));
        let error = table.look().await.expect_err("another key");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let file = path.to_str().expect("text");
        assert!(error.to_string().contains(file), "{error}");
        put(&psk(1));
        table.look().await.expect("the right key");
    });
}

#[test]
fn a_list_of_drained_machines_is_replaced_by_who_has_read_it_and_a_look_has_it() {
    let sled = Sled::start(4096).with_nodes();
    story(async || {
        let (one, two) = (table(&sled), table(&sled));
        assert_eq!(one.namespaces().await.expect("an answer"), [1]);
        let first = Drained::read(b"node-a 5 +");
        assert!(one.drain(1, 0, &first).await.expect("an answer"));
        let other = Drained::read(b"node-b 6 +");
        let drained = two.drain(1, 0, &other).await;
        assert!(!drained.expect("an answer"), "it has another revision");
        assert_eq!(two.look().await.expect("an answer").drained, first);
        assert!(two.drain(1, 1, &other).await.expect("an answer"));
        let seen = one.look_at(&[1]).await.expect("an answer");
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].0, &seen[0].1.drained), (1, &other));
        assert_eq!(seen[0].1.drained_revision, 2);
        let behind_the_last = two.drain(1, u64::MAX, &first).await;
        assert_eq!(kind_of(behind_the_last), ErrorKind::Invalid);
    });
}

/// Waits until the sled's table has that list; its text and revision.
fn wait_for_drained(sled: &Sled, machines: &[&str]) -> DrainedList {
    let machines: BTreeSet<String> = machines.iter().map(|&name| name.to_owned()).collect();
    let began = std::time::Instant::now();
    loop {
        let media = sled.media();
        let there = media.nodes.as_ref().expect("a table").drained.clone();
        drop(media);
        if Drained::read(&there.text).machines() == machines {
            return there;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{there:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_node_writes_what_it_knows_of_drained_machines_back_to_a_table_that_lacks_it() {
    let sled = Sled::start(4096).with_nodes();
    let drives = || vec![sled.address().parse().expect("an address")];
    let host = Nqn::new("nqn.2026-11.dev.onefold:a-pool").expect("a name");
    let options = NodeOptions::new(host, KeyFolder::new("/no/keys"));
    let person = Node::visit(drives(), options.clone()).expect("a thread");
    let nobody = person.set_drained("node-a", true);
    assert_eq!(kind_of(nobody), ErrorKind::Invalid, "there is no pool");
    let node = Node::join(drives(), None, options).expect("it is the first one");
    let set = |name: &str, drains| person.set_drained(name, drains).expect("there is a pool");
    set("node-a", true);
    wait_for_drained(&sled, &["node-a"]);
    set("node-a", true);
    set("node-b", true);
    let both = wait_for_drained(&sled, &["node-a", "node-b"]);
    let survey = person.survey_all().expect("an answer");
    assert_eq!((survey.pools.len(), survey.silent.len()), (1, 0));
    assert!(node.reaches(), "and it has seen the list");
    sled.change_nodes(|nodes| nodes.drained = DrainedList::default());
    assert!(node.reaches(), "and it has seen that the list is gone");
    let again = wait_for_drained(&sled, &["node-a", "node-b"]);
    assert_eq!(again.text, both.text);
    // By another sled somebody else gave other commands, and that one's table has been changed as often.
    sled.change_nodes(|nodes| {
        let text = b"node-c 3 +".to_vec();
        let revision = nodes.drained.revision;
        nodes.drained = DrainedList { revision, text };
    });
    assert!(node.reaches(), "and it has seen the other list");
    wait_for_drained(&sled, &["node-a", "node-b", "node-c"]);
    set("node-b", false);
    wait_for_drained(&sled, &["node-a", "node-c"]);
    // A list that cannot be longer.
    let full = (0..40).find_map(|number| {
        let drained = person.set_drained(&format!("{number:0>100}"), true);
        drained.err().map(|error| (number, error.kind()))
    });
    let (number, kind) = full.expect("no room for all");
    assert!(
        kind == ErrorKind::NoSpace && number > 30,
        "{number} {kind:?}"
    );
    drop(node);
}

#[test]
fn a_node_has_an_entry_with_drives_that_its_pool_got_since_it_was_started() {
    let sleds = [1, 2, 3].map(|_| Sled::start(4096).with_nodes());
    let address = |sled: &Sled| -> RemoteAddress { sled.address().parse().expect("an address") };
    let drives: Vec<RemoteAddress> = sleds.iter().map(address).collect();
    let host = Nqn::new("nqn.2026-11.dev.onefold:a-pool").expect("a name");
    let options = NodeOptions::new(host, KeyFolder::new("/no/keys"));
    let node = Node::join(drives[..1].to_vec(), None, options).expect("it is the first one");
    node.set_state(NodeState::Serves(7)).expect("it is told");
    let wait_for_entries = |sleds: &[Sled]| {
        let began = std::time::Instant::now();
        let has_entry = |sled: &Sled| {
            let mut has_entry = false;
            sled.change_nodes(|nodes| has_entry = !nodes.entries.is_empty());
            has_entry
        };
        while !sleds.iter().all(has_entry) {
            assert!(began.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for_entries(&sleds[..1]);
    node.enter_also(&drives);
    wait_for_entries(&sleds);
    // A sled that starts again has forgotten it.
    sleds[2].change_nodes(|nodes| nodes.entries.clear());
    wait_for_entries(&sleds);
    drop(node);
}

/// Milliseconds of the leases of the nodes below.
const SHORT_MS: u32 = 600;

/// The entry of a node.
fn entry_of(number: u16, process: &Process) -> NodeEntry {
    NodeEntry {
        number,
        age_ms: 0,
        lease_ms: SHORT_MS,
        node: [7; 16],
        text: format!("{process}\nserves 7\n").into_bytes(),
    }
}

/// That of a node on another machine with the name of this one.
fn namesakes_entry(number: u16) -> NodeEntry {
    entry_of(number, &Process::elsewhere(&Process::own().node))
}

fn join_at(sled: &Sled) -> Result<Node, DriveError> {
    let host = Nqn::new("nqn.2026-11.dev.onefold:a-pool").expect("a name");
    let options = NodeOptions {
        lease: Duration::from_millis(SHORT_MS.into()),
        ..NodeOptions::new(host, KeyFolder::new("/no/keys"))
    };
    let drive = sled.address().parse().expect("an address");
    Node::join(vec![drive], None, options)
}

/// The numbers that are kept.
fn numbers(sled: &Sled) -> Vec<u16> {
    let mut numbers = Vec::new();
    sled.change_nodes(|nodes| numbers = nodes.entries.keys().copied().collect());
    numbers
}

#[track_caller]
fn assert_refused(sled: &Sled, joined: Result<Node, DriveError>) {
    let error = joined.expect_err("another machine has its name");
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    let name = Process::own().node;
    for word in [sled.address(), name, "hostnamectl hostname NAME".to_owned()] {
        assert!(error.to_string().contains(&word), "{error}");
    }
}

#[test]
fn a_machine_with_the_name_of_one_that_lives_is_refused_before_it_has_an_entry() {
    let sled = Sled::start(4096).with_nodes();
    sled.change_nodes(|nodes| {
        nodes.entries.insert(3, namesakes_entry(3));
    });
    assert_refused(&sled, join_at(&sled));
    assert_eq!(
        sled.media().count(OPCODE_NODE_TABLE_SEND),
        0,
        "it said nothing"
    );
    assert_eq!(numbers(&sled), [3]);
    // Another daemon of this machine, and another machine with another name, keep nobody out.
    for other in [Process::own(), Process::elsewhere("another name")] {
        sled.change_nodes(|nodes| {
            nodes.entries.insert(3, entry_of(3, &other));
        });
        drop(join_at(&sled).expect("it has a name of its own"));
    }
}

#[test]
fn of_two_machines_with_one_name_that_start_at_the_same_moment_one_sees_the_other_and_leaves() {
    let sled = Sled::start(4096).with_nodes();
    sled.change_nodes(|nodes| nodes.at_entry = Some(namesakes_entry(9)));
    assert_refused(&sled, join_at(&sled));
    assert_eq!(
        numbers(&sled),
        [9],
        "nothing is left of the one that was refused"
    );
}

#[test]
fn a_machine_that_started_again_after_a_crash_joins_when_the_lease_of_before_is_over() {
    let sled = Sled::start(4096).with_nodes();
    const LONG_MS: u32 = 4000;
    let left = NodeEntry {
        lease_ms: LONG_MS,
        ..namesakes_entry(3)
    };
    sled.change_nodes(|nodes| {
        nodes.entries.insert(3, left);
    });
    let looks = || sled.media().count(OPCODE_NODE_TABLE_RECEIVE);
    let joined = std::thread::scope(|scope| {
        let joining = scope.spawn(|| join_at(&sled));
        while looks() < 5 {
            std::thread::yield_now();
        }
        assert!(!joining.is_finished(), "it waits");
        sled.change_nodes(|nodes| {
            let entry = nodes.entries.get_mut(&3).expect("it is there");
            entry.age_ms = LONG_MS;
        });
        joining.join().expect("it ends")
    });
    let node = joined.expect("nobody else has its name");
    assert_eq!(numbers(&sled), [0, 3]);
    drop(node);
}
