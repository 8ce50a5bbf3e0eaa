//! Blocks of an image that need not come, because the pool has them: what is written is what its hash says, and nothing else.

use dedup::{ErrorKind, MAX_COMMAND_BYTES, Volume};
use reactor::{BufferPool, MAX_BUFFER_BYTES};
use streams::{Digest, OFFERED_MAX, content_hash};
use subsystem::target::imports::{Destination, Import};
use subsystem::target::known::Sought;
use uuid::Uuid;

use crate::harness::{Lab, story};

const BLOCK: usize = 4096;
/// More than one command writes.
const BLOCKS: u64 = 300;
const SIZE: u64 = BLOCKS * BLOCK as u64;
const KEY: Digest = Digest([7; 32]);

/// A content of its own for each number.
fn content(number: u64) -> Vec<u8> {
    let words = (0..BLOCK as u64 / 8).map(|at| number << 32 | at | 1 << 63);
    words.flat_map(u64::to_le_bytes).collect()
}

async fn block_of(lab: &Lab, volume: &Volume, at: u64) -> Vec<u8> {
    let buffer = lab.buffers.alloc(BLOCK).await;
    let (read, buffer) = volume.read(at * BLOCK as u64, buffer).await;
    read.expect("it can be read");
    buffer.to_vec()
}

/// A volume whose blocks have the contents 0, 1, 2 and so on, and an import over one that is as large.
async fn begun(lab: &Lab) -> Uuid {
    lab.create_volume("like", SIZE, 4096).await;
    lab.create_volume("new", SIZE, 4096).await;
    let like = lab.engine.volume("like").expect("it is there");
    for at in 0..BLOCKS {
        let mut buffer = lab.buffers.alloc(BLOCK).await;
        buffer.copy_from_slice(&content(at));
        let written = like.write(at * BLOCK as u64, buffer, false).await.0;
        written.expect("a write");
    }
    let import = Import {
        image: "a stream".to_owned(),
        image_bytes: Some(SIZE),
        done_bytes: 0,
        grows: false,
        snapshot: None,
        changes: None,
    };
    let over = Destination::Over("new".to_owned());
    let begun = lab.target.begin_import(over, import).await;
    begun.expect("it begins").session
}

/// Block `at`, which has this content and may be at `like`.
fn sought(at: u64, number: u64, like: u64) -> Sought {
    Sought {
        offset: at * BLOCK as u64,
        hash: content_hash(&KEY, &content(number)),
        fingerprint: None,
        like: Some(("like".to_owned(), like * BLOCK as u64)),
    }
}

async fn known(lab: &Lab, session: Uuid, blocks: &[Sought]) -> Vec<bool> {
    let known = lab
        .target
        .write_known("new", session, KEY, blocks, &lab.buffers);
    known.await.expect("it is looked for")
}

#[test]
fn a_block_is_written_only_if_what_is_found_has_its_hash() {
    story(async |lab| {
        let session = begun(&lab).await;
        // Backwards, and every tenth is another content than is told.
        let blocks: Vec<Sought> = (0..BLOCKS)
            .map(|at| {
                let like = BLOCKS - 1 - at;
                sought(at, if at % 10 == 3 { at } else { like }, like)
            })
            .collect();
        let found = known(&lab, session, &blocks).await;
        let new = lab.engine.volume("new").expect("it is there");
        for at in 0..BLOCKS {
            let is_known = at % 10 != 3;
            assert_eq!(found[at as usize], is_known, "block {at}");
            let wanted = match is_known {
                true => content(BLOCKS - 1 - at),
                false => vec![0; BLOCK],
            };
            assert!(block_of(&lab, &new, at).await == wanted, "block {at}");
        }
        // By another key nothing is what it was said to be.
        let other = Digest([8; 32]);
        let found = lab
            .target
            .write_known("new", session, other, &blocks[..4], &lab.buffers);
        assert_eq!(found.await.expect("it is looked for"), [false; 4]);
    });
}

#[test]
fn a_request_holds_no_buffer_while_it_waits_for_another_so_many_at_once_do_not_wait_for_each_other()
{
    story(async |lab| {
        let session = begun(&lab).await;
        // Others hold all but what one command takes.
        let buffers = BufferPool::new(MAX_BUFFER_BYTES).expect("memory");
        let _others = buffers.alloc(MAX_BUFFER_BYTES - MAX_COMMAND_BYTES).await;
        let blocks: Vec<Sought> = (0..BLOCKS).map(|at| sought(at, at, at)).collect();
        let write = lab
            .target
            .write_known("new", session, KEY, &blocks, &buffers);
        let found = write.await.expect("it is looked for");
        assert_eq!(found, vec![true; BLOCKS as usize]);
    });
}

#[test]
fn a_block_is_found_by_its_fingerprint_in_its_domain_and_only_with_its_hash() {
    story(async |lab| {
        let session = begun(&lab).await;
        let new = lab.engine.volume("new").expect("it is there");
        let by_fingerprint = |at: u64, number: u64, other: u64| Sought {
            fingerprint: new.fingerprints(&content(other)).pop(),
            like: None,
            ..sought(at, number, 0)
        };
        // Every tenth is found, and is another content than is told; every tenth is nowhere.
        let blocks: Vec<Sought> = (0..BLOCKS)
            .map(|at| match at % 10 {
                3 => by_fingerprint(at, at, at + 1),
                7 => by_fingerprint(at, at + BLOCKS, at + BLOCKS),
                _ => by_fingerprint(at, BLOCKS - 1 - at, BLOCKS - 1 - at),
            })
            .collect();
        let found = known(&lab, session, &blocks).await;
        for at in 0..BLOCKS {
            let is_known = ![3, 7].contains(&(at % 10));
            assert_eq!(found[at as usize], is_known, "block {at}");
            let wanted = match is_known {
                true => content(BLOCKS - 1 - at),
                false => vec![0; BLOCK],
            };
            assert!(block_of(&lab, &new, at).await == wanted, "block {at}");
        }
    });
}

#[test]
fn what_cannot_be_found_or_read_is_not_there_and_what_cannot_be_asked_is_refused() {
    story(async |lab| {
        let session = begun(&lab).await;
        let gone = Sought {
            like: Some(("gone".to_owned(), 0)),
            ..sought(0, 0, 0)
        };
        let nowhere = Sought {
            like: None,
            ..sought(1, 1, 1)
        };
        let part = Sought {
            like: Some(("like".to_owned(), 100)),
            ..sought(2, 2, 2)
        };
        let all = [
            gone,
            nowhere,
            part,
            sought(3, 3, BLOCKS),
            sought(4, 4, u64::MAX / BLOCK as u64),
            sought(5, 5, 5),
        ];
        let found = known(&lab, session, &all).await;
        assert_eq!(found, [false, false, false, false, false, true]);
        let many: Vec<Sought> = (0..=OFFERED_MAX as u64).map(|_| sought(0, 0, 0)).collect();
        let odd = Sought {
            offset: 512,
            ..sought(0, 0, 0)
        };
        for (session, blocks) in [
            (session, &many[..]),
            (session, &[odd]),
            (session, &[sought(BLOCKS, 0, 0)]),
            (Uuid::new_v4(), &[sought(0, 0, 0)]),
        ] {
            let refused = lab
                .target
                .write_known("new", session, KEY, blocks, &lab.buffers);
            let refused = refused.await.expect_err("it is refused");
            assert_eq!(refused.kind, ErrorKind::Invalid, "{}", refused.message);
        }
    });
}
