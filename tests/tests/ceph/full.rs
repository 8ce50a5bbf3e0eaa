//! A cluster that has no room.

use std::time::Duration;

use tests::daemon::{Daemon, assert_consistent, onefold, text_of};
use tests::own_address;

use crate::whole_cluster;
use tests::paths::{verify, with_volume, write_rounds};

#[test]
fn a_cluster_without_room_refuses_writes_and_the_pool_goes_on_when_it_has_some() {
    let Some((ceph, _alone)) = whole_cluster() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let pool = folder.path().join("pool");
    let listen = format!("tcp://{}:4420", own_address(49));
    let drive = ceph.address("pool", "full", "onefold");
    let at = pool.to_str().expect("test folders are UTF-8");
    let file = format!("{}=2G", folder.path().join("file").display());
    let serve = [
        "serve", "--pool", at, "--create", "128M", "--listen", &listen, "--drive",
    ];
    let small = format!("{drive}=512M");
    let beside = format!("{drive}=2G");
    for (drives, words) in [
        (&[&small[..]][..], "needs 1 GiB"),
        (
            &[&beside[..], "--drive", &file],
            "all drives of a pool are in a cluster, or none",
        ),
    ] {
        let refused = onefold(&[&serve[..], drives].concat());
        let why = text_of(&refused);
        assert_eq!(refused.status.code(), Some(65), "{why}");
        assert!(why.contains(words), "{why}");
    }
    let sized = format!("{drive}=2G");
    let new = ["--create", "128M", "--drive", &sized, "--listen", &listen];
    let daemon = Daemon::start(&pool, None, &new);
    let mut written = with_volume(&listen, async |paths| {
        write_rounds(&paths, 97, 20, 0, |_| ()).await
    });
    ceph.set_full(true);
    // It is read as before.
    let before = written.clone();
    with_volume(&listen, async move |paths| verify(&paths, before).await);
    // What overwrites something in the cluster has room, such as the first small writes beside the journal.
    let refused = with_volume(&listen, async |paths| {
        write_rounds(&paths, 97, 10_000, 20, |_| ()).await
    });
    assert!(!refused.is_whole(), "all is taken");
    written.extend(refused);
    with_volume(&listen, async move |paths| verify(&paths, written).await);
    assert!(
        daemon.log().contains("the cluster is full"),
        "{}",
        daemon.log()
    );
    ceph.set_full(false);
    let after = tests::wait_for("room", Duration::from_secs(60), || {
        let written = with_volume(&listen, async |paths| {
            write_rounds(&paths, 97, 40, 0, |_| ()).await
        });
        (written.acknowledged() == 97).then_some(written)
    });
    with_volume(&listen, async move |paths| verify(&paths, after).await);
    assert!(daemon.stop().success());
    assert_consistent(&pool);
}
