//! Snapshots that come from another pool: the daemon ends at each step of receiving one, and what it leaves is the volume
//! as it was, one that waits for the rest, or a whole one with its snapshot.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use dedup::{ErrorKind, Volume};
use subsystem::errors::Failure;
use subsystem::limits::Limits;
use subsystem::target::Target;
use subsystem::target::imports::{Destination, Import};
use subsystem::target::received::{Part, Received};
use subsystem::target::volumes::Place;
use uuid::Uuid;

use crate::harness::{Lab, open_target, story};

const BLOCK: usize = 4096;
const BEFORE_BYTES: u64 = 64 << 10;
const AFTER_BYTES: u64 = 128 << 10;

/// The content id of the snapshot that is received.
const CONTENT: Uuid = Uuid::from_u128(77);

/// Where the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    Finish,
    RollBack,
    Resume,
}

/// Runs what a daemon does, and ends it after so many polls: `None`.
async fn cut<T>(polls: usize, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

fn import() -> Import {
    Import {
        image: "a stream".to_owned(),
        image_bytes: Some(AFTER_BYTES),
        done_bytes: 0,
        grows: false,
        snapshot: Some(Received {
            name: "b".to_owned(),
            content: CONTENT,
            created: 5,
        }),
        changes: None,
    }
}

fn before() -> Vec<u8> {
    let mut content = vec![0; BEFORE_BYTES as usize];
    content[..BLOCK].fill(1);
    content[BLOCK..2 * BLOCK].fill(2);
    content
}

fn after() -> Vec<u8> {
    let mut content = before();
    content.resize(AFTER_BYTES as usize, 0);
    content[..BLOCK].fill(3);
    content[BLOCK..2 * BLOCK].fill(0);
    content[20 * BLOCK..21 * BLOCK].fill(3);
    content
}

async fn content(lab: &Lab, volume: &Volume) -> Vec<u8> {
    let bytes = volume.info().size_bytes as usize;
    let (read, buffer) = volume.read(0, lab.buffers.alloc(bytes).await).await;
    read.expect("it can be read");
    buffer.to_vec()
}

/// A volume with its snapshot.
async fn volume(lab: &Lab) -> Arc<Volume> {
    lab.create_volume("r", BEFORE_BYTES, 4096).await;
    let volume = lab.engine.volume("r").expect("it is there");
    let mut buffer = lab.buffers.alloc(BEFORE_BYTES as usize).await;
    buffer.copy_from_slice(&before());
    volume.write(0, buffer, false).await.0.expect("a write");
    lab.engine
        .create_snapshots(&["r@a"], 1)
        .await
        .expect("a snapshot");
    volume
}

async fn begin(target: &Target, base: Uuid) -> Result<Uuid, Failure> {
    let onto = Destination::Onto {
        volume: "r".to_owned(),
        base,
        size_bytes: AFTER_BYTES,
    };
    let begun = target.begin_import(onto, import()).await?;
    Ok(begun.session)
}

/// Brings what lies behind a byte.
async fn bring(lab: &Lab, target: &Target, session: Uuid, from: u64) -> Result<(), Failure> {
    if from == 0 {
        let data = [3; BLOCK];
        target
            .write_image("r", session, 0, &data, &lab.buffers)
            .await?;
        target.keep_import("r", session, BLOCK as u64).await?;
    }
    let part = |block: usize, same_as| Part {
        offset: (block * BLOCK) as u64,
        length: BLOCK as u64,
        same_as,
    };
    let parts = [part(1, None), part(20, Some(0))];
    target.write_parts("r", session, &parts, &lab.buffers).await
}

/// Receives it all, but for the step that is cut. `None` if it was.
async fn receive(lab: &Lab, stage: Stage, polls: usize) -> Option<()> {
    let target = &lab.target;
    let base = lab.engine.snapshots()[0].uuid;
    let of = |asked| if stage == asked { polls } else { usize::MAX };
    let session = cut(of(Stage::Begin), begin(target, base)).await?;
    let mut session = session.expect("it begins");
    bring(lab, target, session, 0).await.expect("it is written");
    if stage == Stage::Resume {
        let resumed = cut(polls, target.resume_import("r", &import())).await?;
        session = resumed.expect("it goes on").1.session;
    }
    if stage == Stage::RollBack {
        return cut(polls, target.roll_back("r@a"))
            .await
            .map(|it| it.expect("a rollback"));
    }
    let finish = target.finish_import("r", session, AFTER_BYTES);
    cut(of(Stage::Finish), finish)
        .await
        .map(|it| it.expect("it is whole"))
}

/// What is there after the daemon has ended, and that it can go on, or back.
async fn check(lab: &Lab, volume: &Volume, goes_on: bool) {
    let target = &open_target(&lab.engine, Limits::default());
    let find = |name: &str| lab.engine.volume(name);
    let is_whole = async || {
        let Some(snapshot) = find("r@b") else {
            return false;
        };
        let uuid = snapshot.info().uuid;
        assert_eq!(target.content_of(uuid), CONTENT, "it never lacks that");
        assert!(content(lab, &snapshot).await == after());
        true
    };
    let has_snapshot = is_whole().await;
    let kept = content(lab, &find("r@a").expect("it stays")).await;
    assert!(kept == before());
    let stored = target.import_of(volume.info().uuid).expect("understood");
    if stored.is_none() {
        target.open_to_read("r").expect("hosts see it");
        let wanted = if has_snapshot { after() } else { before() };
        assert!(content(lab, volume).await == wanted);
        return;
    }
    let hidden = target.open_to_read("r").map(drop).expect_err("it waits");
    assert_eq!(hidden.kind, ErrorKind::Invalid);
    if !goes_on {
        target.roll_back("r@a").await.expect("it is given up");
        target.open_to_read("r").expect("hosts see it");
        assert!(content(lab, volume).await == before());
        return;
    }
    let resumed = target.resume_import("r", &import()).await;
    let (import, begun) = resumed.expect("it goes on");
    let session = begun.session;
    bring(lab, target, session, import.done_bytes)
        .await
        .expect("the rest");
    let finished = target.finish_import("r", session, AFTER_BYTES).await;
    finished.expect("it is whole");
    assert!(is_whole().await);
    assert!(content(lab, volume).await == after());
    target.open_to_read("r").expect("hosts see it");
}

#[test]
fn a_daemon_that_ends_at_any_step_of_receiving_changes_leaves_nothing_half_there() {
    for stage in [Stage::Begin, Stage::Finish, Stage::RollBack, Stage::Resume] {
        let mut cuts = 0;
        for polls in 0.. {
            let mut is_done = false;
            for goes_on in [true, false] {
                story(async |lab| {
                    let volume = volume(&lab).await;
                    is_done = receive(&lab, stage, polls).await.is_some();
                    check(&lab, &volume, goes_on).await;
                });
            }
            if is_done {
                break;
            }
            cuts += 1;
        }
        // Each has several changes that it waits for.
        let least = if stage == Stage::Resume { 1 } else { 3 };
        assert!(cuts >= least, "{stage:?} was cut {cuts} times only");
    }
}

#[test]
fn changes_onto_a_volume_that_is_not_what_its_snapshot_is_leave_it_to_its_hosts() {
    story(async |lab| {
        let volume = volume(&lab).await;
        let base = lab.engine.snapshots()[0].uuid;
        let target = &lab.target;
        let uuid = volume.info().uuid;
        let refused = |why: &'static str, base| async move {
            let failure = begin(target, base).await.expect_err(why);
            assert!(failure.message.contains(why), "{failure}");
            let stored = target.import_of(uuid).expect("understood");
            assert_eq!(stored, None);
            target.open_to_read("r").expect("hosts see it");
        };
        refused("no snapshot with the content", Uuid::from_u128(9)).await;
        let mut buffer = lab.buffers.alloc(BLOCK).await;
        buffer.fill(9);
        volume.write(0, buffer, false).await.0.expect("a write");
        refused("changed since its snapshot 'r@a'", base).await;
        target.roll_back("r@a").await.expect("a rollback");
        lab.engine
            .resize_volume("r", AFTER_BYTES)
            .await
            .expect("a size");
        refused("changed since its snapshot 'r@a'", base).await;
        target.roll_back("r@a").await.expect("a rollback");
        let made = lab.engine.create_snapshots(&["r@b"], 2).await;
        made.expect("a snapshot");
        refused("another snapshot 'r@b'", base).await;
        target.delete_volume("r@b").await.expect("it goes");

        // A daemon ends before it has looked, and a host has written before that: it is the hosts' again.
        let mut buffer = lab.buffers.alloc(BLOCK).await;
        buffer.fill(9);
        volume.write(0, buffer, false).await.0.expect("a write");
        let mut polls = 0;
        while target.import_of(uuid).expect("understood").is_none() {
            polls += 1;
            assert!(cut(polls, begin(target, base)).await.is_none());
        }
        let later = open_target(&lab.engine, Limits::default());
        let failure = later.resume_import("r", &import()).await;
        let failure = failure.expect_err("it was written to");
        assert!(failure.message.contains("changed since"), "{failure}");
        later.open_to_read("r").expect("hosts see it");
        let mut wanted = before();
        wanted[..BLOCK].fill(9);
        assert!(content(&lab, &volume).await == wanted);
    });
}

#[test]
fn parts_lie_within_the_volume_and_repeat_what_is_there() {
    story(async |lab| {
        let target = &lab.target;
        let spec = dedup::VolumeSpec {
            name: "r".to_owned(),
            size_bytes: AFTER_BYTES,
            lba_bytes: 4096,
            nsid: None,
            uuid: None,
            dedup: true,
            compression: meta::Compression::Off,
            verify: meta::VerifyPolicy::Trust,
            domain: String::new(),
        };
        let new = Destination::New(spec, Place::Default);
        let begun = target.begin_import(new, import()).await.expect("it begins");
        let session = begun.session;
        let block = BLOCK as u64;
        for (offset, length, same_as) in [
            (AFTER_BYTES, block, None),
            (0, AFTER_BYTES + block, None),
            (u64::MAX - block + 1, block, None),
            (0, u64::MAX, None),
            (100, block, None),
            (4 * block, block, Some(AFTER_BYTES)),
            (4 * block, 2 * block, Some(3 * block)),
            (4 * block, block, Some(100)),
            (0, 2 << 30, Some(4 << 30)),
        ] {
            let part = Part {
                offset,
                length,
                same_as,
            };
            let refused = target
                .write_parts("r", session, &[part], &lab.buffers)
                .await;
            let refused = refused.expect_err("it cannot be");
            assert_eq!(refused.kind, ErrorKind::Invalid, "{part:?}: {refused}");
        }
        let other = Uuid::from_u128(3);
        let refused = target.write_parts("r", other, &[], &lab.buffers).await;
        refused.expect_err("another session");
        bring(&lab, target, session, 0)
            .await
            .expect("it is written");
        let finished = target.finish_import("r", session, AFTER_BYTES).await;
        finished.expect("it is whole");
        let snapshot = lab.engine.volume("r@b").expect("it is there");
        let mut wanted = vec![0; AFTER_BYTES as usize];
        wanted[..BLOCK].fill(3);
        wanted[20 * BLOCK..21 * BLOCK].fill(3);
        assert!(content(&lab, &snapshot).await == wanted);
        assert_eq!(snapshot.info().snapshot.map(|of| of.created), Some(5));

        // What names its content goes with it.
        let uuid = snapshot.info().uuid;
        assert_eq!(target.content_of(uuid), CONTENT);
        target.delete_volume("r@b").await.expect("it goes");
        assert_eq!(target.content_of(uuid), uuid);
    });
}
