//! What clients are told of what is stored and what changed.

use nbd::wire::{Command, command_flag};

use crate::client::{ACK, Client, INVALID, LIST_META_CONTEXT, STRUCTURED_REPLY};
use crate::harness::{Lab, VOLUME_BYTES};
use crate::stories::noise;

const ALL: (u64, u32) = (0, VOLUME_BYTES as u32);
const ALLOCATION: &str = "base:allocation";

#[test]
fn what_is_stored_and_what_reads_as_zeros_is_told() {
    let lab = Lab::new(4096);
    let mut client = Client::with_contexts(&lab.path(), &[ALLOCATION]);
    let rest = VOLUME_BYTES as u32;
    assert_eq!(client.status(0, ALL), Ok(vec![vec![(rest, 3)]]));
    client.write(8192, &noise(8192, 1)).expect("a write");
    client.write(1 << 20, &noise(4096, 2)).expect("a write");
    client
        .write(2 << 20, &[0; 65536])
        .expect("zeros are not stored");
    let told = vec![
        (8192, 3),
        (8192, 0),
        ((1 << 20) - 16384, 3),
        (4096, 0),
        (rest - (1 << 20) - 4096, 3),
    ];
    assert_eq!(client.status(0, ALL), Ok(vec![told]));
    assert_eq!(
        client.status(0, (8704, 512)),
        Ok(vec![vec![(512, 0)]]),
        "a part of a block"
    );
    let one = command_flag::REQ_ONE;
    assert_eq!(client.status(one, ALL), Ok(vec![vec![(8192, 3)]]));
    assert_eq!(client.status(one, (12288, 4096)), Ok(vec![vec![(4096, 0)]]));
    client
        .run((Command::Trim, 0), (8192, 8192))
        .expect("a trim");
    assert_eq!(client.status(0, (0, 65536)), Ok(vec![vec![(65536, 3)]]));
    assert_eq!(client.status(0, (0, 0)), Err(INVALID));
    assert_eq!(client.status(0, (VOLUME_BYTES, 4096)), Err(INVALID));
}

#[test]
fn what_changed_since_a_snapshot_is_told_and_nothing_else() {
    let lab = Lab::new(4096);
    let mut first = Client::simple(&lab.path());
    first.write(0, &noise(1 << 20, 1)).expect("a write");
    lab.snapshot("one");
    first.write(4096, &noise(4096, 2)).expect("a write");
    lab.snapshot("two");
    first.write(40960, &noise(4096, 3)).expect("a write");
    first.write(0, &noise(4096, 1)).expect("the same again");
    let names = [ALLOCATION, "qemu:dirty-bitmap:one", "qemu:dirty-bitmap:two"];
    let mut client = Client::with_contexts(&lab.path(), &names);
    let rest = VOLUME_BYTES as u32;
    let told = client.status(0, ALL).expect("an answer");
    assert_eq!(told[0], [(1 << 20, 0), (rest - (1 << 20), 3)]);
    let since_one = [
        (4096, 0),
        (4096, 1),
        (32768, 0),
        (4096, 1),
        (rest - 45056, 0),
    ];
    assert_eq!(told[1], since_one);
    assert_eq!(told[2], [(40960, 0), (4096, 1), (rest - 45056, 0)]);
    let told = client.status(0, (40960, 8192)).expect("an answer");
    assert_eq!(told[1], [(4096, 1), (4096, 0)]);

    // A snapshot that goes is told of, and the rest goes on.
    let engine = lab.engine.clone();
    lab.on(move || async move {
        let gone = engine.delete_volume("disk@one").await;
        gone.expect("no snapshot any more");
    });
    assert!(client.status(0, ALL).is_err());
    assert_eq!(client.read(1 << 20, 512), Ok(vec![0; 512]));
    let mut later = Client::with_contexts(&lab.path(), &names[2..]);
    assert_eq!(later.status(0, (0, 4096)), Ok(vec![vec![(4096, 0)]]));
}

#[test]
fn snapshots_of_other_volumes_are_no_bitmaps_of_this_one() {
    let lab = Lab::new(4096);
    lab.snapshot("one");
    let engine = lab.engine.clone();
    lab.on(move || async move {
        let cloned = engine.clone_volume("disk@one", "copy", None).await;
        cloned.expect("a clone");
        let taken = engine.create_snapshots(&["copy@two"], 1).await;
        taken.expect("a snapshot");
    });
    let mut client = Client::greet(&lab.path());
    let queries = [
        &[0; 4],
        &1u32.to_be_bytes()[..],
        &5u32.to_be_bytes(),
        b"qemu:",
    ]
    .concat();
    assert_eq!(client.option(STRUCTURED_REPLY, &[]).0, ACK);
    let (kind, told) = client.option(LIST_META_CONTEXT, &queries);
    assert_eq!((kind, told.len()), (ACK, 1));
    assert_eq!(told[0].1[4..], *b"qemu:dirty-bitmap:one");
}

#[test]
fn a_map_of_many_pieces_is_told_in_several_answers() {
    let lab = Lab::new(4096);
    let mut client = Client::with_contexts(&lab.path(), &[ALLOCATION]);
    let blocks = VOLUME_BYTES / 4096;
    for at in (0..blocks).step_by(2) {
        client
            .write(at * 4096, &noise(512, at + 1))
            .expect("a write");
    }
    let (mut at, mut answers) = (0, 0);
    while at < VOLUME_BYTES {
        let told = client.status(0, (at, (VOLUME_BYTES - at) as u32));
        for (len, flags) in told.expect("an answer").remove(0) {
            assert_eq!((len, flags), (4096, if at / 4096 % 2 == 0 { 0 } else { 3 }));
            at += u64::from(len);
        }
        answers += 1;
    }
    assert_eq!((at, answers), (VOLUME_BYTES, 2));
}

#[test]
fn contexts_that_were_never_chosen_tell_nothing() {
    let lab = Lab::new(4096);
    let mut client = Client::structured(&lab.path());
    assert_eq!(client.status(0, ALL), Err(INVALID));
    let mut simple = Client::simple(&lab.path());
    assert_eq!(simple.run((Command::BlockStatus, 0), ALL), Err(INVALID));
    assert_eq!(simple.read(0, 512), Ok(vec![0; 512]));
}
