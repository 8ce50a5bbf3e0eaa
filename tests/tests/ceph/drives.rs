//! Drives in a real cluster: what others understand by RADOS.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conformance::Races;
use drives::{BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent};
use rados_drives::{Claim, Limits, OpenOptions, RadosDrive};
use reactor::{Buffer, Config, PoolConfig};
use tests::ceph::Ceph;
use uuid::Uuid;

use crate::{cluster, whole_cluster};

/// No story takes that long; one that does hangs.
const STORY_MAX: Duration = Duration::from_secs(300);

const BYTES: u64 = 64 << 20;

const POOL: Uuid = Uuid::from_u128(7);

fn story(run: impl AsyncFnOnce()) {
    let config = Config {
        buffer_pool: PoolConfig { bytes: 16 << 20 },
        ..Config::default()
    };
    let ended = reactor::run(config, reactor::timeout(STORY_MAX, run()));
    ended
        .expect("this machine permits io_uring")
        .expect("the story hangs");
    rados_drives::before_exit();
}

fn options() -> OpenOptions {
    OpenOptions {
        create_bytes: Some(BYTES),
        limits: Limits {
            lease: Duration::from_secs(2),
            ..Limits::default()
        },
        ..OpenOptions::default()
    }
}

async fn open(ceph: &Ceph, name: &str, options: OpenOptions) -> Result<RadosDrive, DriveError> {
    let address = ceph.address("pool", name, "onefold");
    RadosDrive::open(address.parse().expect("an address"), options).await
}

#[test]
fn a_key_that_may_not_shut_others_out_is_refused_before_anything_depends_on_it() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let [conf, keyring] = ["conf", "keyring"].map(|name| folder.path().join(name));
    let usual = ceph.conf();
    let lines = usual.lines().filter(|line| !line.starts_with("keyring"));
    let lines: Vec<&str> = lines.collect();
    let text = format!(
        "{}\n[client]\nkeyring = {}\n",
        lines.join("\n"),
        keyring.display()
    );
    std::fs::write(&conf, text).expect("a configuration");
    let address = format!("rados:pool/poor?conf={}&user=poor", conf.display());
    ceph.ceph(&["auth", "get-or-create", "client.poor"]);
    let open = |caps: &str| {
        let caps = ["mon", caps, "osd", "allow rwx pool=pool"];
        ceph.ceph(&[&["auth", "caps", "client.poor"], &caps[..]].concat());
        let key = ceph.ceph(&["auth", "get", "client.poor"]);
        std::fs::write(&keyring, key).expect("a keyring");
        let address = address.parse().expect("an address");
        let mut opened = None;
        story(async || opened = Some(RadosDrive::open(address, options()).await));
        opened.expect("the story ended")
    };
    let error = open("allow r").expect_err("it could take nothing over");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("ceph osd blocklist"), "{error}");
    let shut_out = ceph.blocklist();
    open("profile rbd").expect("the guide's caps are enough");
    open("allow r, allow command \"osd blocklist\"").expect("and so are these");
    assert_eq!(ceph.blocklist(), shut_out, "asking shuts nobody out");
}

fn filled(blocks: usize, byte: u8) -> Buffer {
    let pool = reactor::current().expect("inside").buffers().clone();
    let mut buffer = pool.try_alloc(blocks * BLOCK_BYTES).expect("room");
    buffer.fill(byte);
    buffer
}

fn extent(block: u64) -> Extent {
    Extent {
        block,
        buffer_offset: 0,
        blocks: 1,
    }
}

async fn write(drive: &dyn Drive, block: u64, byte: u8) -> Result<(), DriveError> {
    drive.write(filled(1, byte), &[extent(block)]).await.0
}

async fn read(drive: &dyn Drive, block: u64) -> Result<u8, DriveError> {
    let (result, buffer) = drive.read(filled(1, 0xee), &[extent(block)]).await;
    result.map(|()| buffer[0])
}

#[test]
fn a_drive_in_a_real_cluster_does_what_every_drive_must() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    story(async || {
        let drive = open(ceph, "conforms", options()).await.expect("it opens");
        drive.claim(POOL, Claim::First).await.expect("claimed");
        let drive = Arc::new(drive);
        for seed in 0..2 {
            conformance::check(drive.clone(), Races::ReadsAreWhole, seed).await;
        }
    });
}

#[test]
fn a_drive_has_one_owner_and_the_cluster_refuses_all_others() {
    let Some((ceph, _beside)) = whole_cluster() else {
        return;
    };
    // Other stories have shut clients out.
    let before = ceph.blocklist();
    story(async || {
        let told = Arc::new(AtomicU32::new(0));
        let counted = told.clone();
        let with_hook = OpenOptions {
            on_taken_over: Some(Arc::new(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
            })),
            ..options()
        };
        let first = open(ceph, "owned", with_hook).await.expect("it opens");
        first.claim(POOL, Claim::First).await.expect("claimed");
        write(&first, 1, 1).await.expect("written");
        let second = open(ceph, "owned", options()).await.expect("it opens");
        let error = second
            .claim(POOL, Claim::Again)
            .await
            .expect_err("it has an owner");
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        write(&first, 1, 2).await.expect("its lease is renewed");
        second.claim(POOL, Claim::Forced).await.expect("by force");
        let error = write(&first, 1, 3)
            .await
            .expect_err("the cluster refuses it");
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        assert_eq!(told.load(Ordering::Relaxed), 1);
        assert_eq!(read(&second, 1).await.expect("read"), 2);
        write(&second, 1, 4).await.expect("written");
        assert_eq!(ceph.blocklist(), before + 1);
        drop((first, second));
        let third = open(ceph, "owned", options()).await.expect("it opens");
        assert!(!third.is_new());
        third
            .claim(POOL, Claim::Again)
            .await
            .expect("the second one left");
        assert_eq!(read(&third, 1).await.expect("read"), 4);
        assert_eq!(
            ceph.blocklist(),
            before + 1,
            "who left with nothing under way is not shut out"
        );
        // No clock lets them in again: this is the last time that Ceph knows.
        let until = ceph.shut_out_until();
        let is_for_good = |until: &String| until.starts_with("2106-02-07");
        assert!(until.iter().all(is_for_good), "{until:?}");
    });
}

#[test]
fn a_drive_goes_on_when_an_osd_ends() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    story(async || {
        let drive = open(ceph, "outlives", options()).await.expect("it opens");
        drive.claim(POOL, Claim::First).await.expect("claimed");
        for block in 0..64 {
            write(&drive, block * 256, block as u8)
                .await
                .expect("written");
        }
        ceph.kill("osd.1");
        for block in 0..64 {
            write(&drive, block * 256 + 1, !(block as u8))
                .await
                .expect("written without it");
        }
        for block in 0..64 {
            assert_eq!(read(&drive, block * 256).await.expect("read"), block as u8);
            assert_eq!(
                read(&drive, block * 256 + 1).await.expect("read"),
                !(block as u8)
            );
        }
    });
    // Other stories lose one too, and it takes two of three to go on.
    ceph.replace_osd(1);
}

#[test]
fn what_is_not_there_is_told_with_the_remedy() {
    let Some((ceph, _beside)) = cluster() else {
        return;
    };
    story(async || {
        for (pool, user, kind, words) in [
            (
                "pond",
                "onefold",
                ErrorKind::NotFound,
                "ceph osd pool create pond",
            ),
            (
                "pool",
                "nobody",
                ErrorKind::Io,
                "ceph auth get client.nobody",
            ),
        ] {
            let address = ceph.address(pool, "d", user);
            let opened = RadosDrive::open(address.parse().expect("an address"), options()).await;
            let error = opened.expect_err("it is not there");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        let address = "rados:pool?conf=/nowhere/ceph.conf"
            .parse()
            .expect("an address");
        let error = RadosDrive::open(address, options())
            .await
            .expect_err("no configuration");
        assert!(error.to_string().contains("/nowhere/ceph.conf"), "{error}");
    });
}
