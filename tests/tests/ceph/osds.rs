//! OSDs that end and are replaced under a pool that is served.

use tests::daemon::{Daemon, assert_consistent};
use tests::own_address;
use tests::paths::{Writer, verify, with_namespace, write_rounds};

use crate::whole_cluster;

/// Blocks that the host writes once, before anything happens.
const BLOCKS: u64 = 997;

#[test]
fn osds_are_lost_and_replaced_and_a_host_sees_no_error_and_no_wrong_byte() {
    let Some((ceph, _alone)) = whole_cluster() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let pool = folder.path().join("pool");
    let listen = format!("tcp://{}:4420", own_address(68));
    let drive = format!("{}=2G", ceph.address("pool", "replaced", "onefold"));
    let volumes = [
        "--create", "0", "--volume", "vol0=64M", "--volume", "vol1=64M",
    ];
    let new = ["--drive", &drive, "--listen", &listen, "--reactors", "1"];
    let daemon = Daemon::start(&pool, None, &[&volumes[..], &new].concat());
    // Nobody writes this again: a new OSD has it from the others.
    let before = with_namespace(&listen, 2, async |paths| {
        write_rounds(&paths, BLOCKS, BLOCKS, 0, |_| ()).await
    });
    assert!(before.is_whole());
    let writer = Writer::start_by_one(&listen);
    ceph.kill("osd.2");
    writer.goes_on();
    ceph.replace_osd(2);
    writer.goes_on();
    // The pool needs two OSDs of three, so from here on it needs the new one.
    ceph.kill("osd.0");
    writer.goes_on();
    writer.end();
    with_namespace(&listen, 2, async move |paths| verify(&paths, before).await);
    ceph.replace_osd(0);
    assert!(daemon.stop().success());
    assert_consistent(&pool);
}
