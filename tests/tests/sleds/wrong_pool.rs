//! A node whose folder has one pool, and whose drives are those of another one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tests::daemon::{Daemon, assert_consistent};
use tests::paths::{Writer, verify, with_volume, write_rounds};

use crate::offered::{Offered, text};

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Blocks that a host writes.
const BLOCKS: u64 = 97;

/// All that a folder has, but for sockets.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                let bytes = std::fs::read(&path).expect("it is read");
                all.insert(path, bytes);
            }
        }
    }
    all
}

/// Who has the drives of a pool's sleds, as these keep it.
fn reservations(offered: &Offered<2>) -> Vec<BTreeMap<PathBuf, Vec<u8>>> {
    let sleds = offered.sleds.iter();
    sleds.map(|sled| files(&sled.reservations)).collect()
}

/// The pool in a folder.
fn pool_of(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("pool.toml")).expect("a pool");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("pool_uuid = "));
    line.expect("a name").trim_matches('"').to_owned()
}

/// A host writes to a node with the pool.
fn write(offered: &Offered<2>, at: usize) -> tests::paths::Written {
    let written = with_volume(&offered.listen[at], async |paths| {
        write_rounds(&paths, BLOCKS, 20, 0, |_| ()).await
    });
    assert!(written.is_whole());
    written
}

#[test]
fn a_node_with_the_folder_of_one_pool_and_the_drives_of_another_is_refused_and_changes_neither() {
    let [one, other] = [220, 230].map(|number| Offered::<2>::new(2, number));
    let folder = &one.pools[0];
    let node = one.start(0);
    let of_one = write(&one, 0);
    assert!(node.stop().success());
    let before = (files(folder), reservations(&one));
    let owner = other.start(1);
    let [known, found] = [folder, &other.pools[1]].map(|folder| pool_of(folder));
    let arguments = other.arguments(0);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_refused = || {
        let said = Daemon::try_start(folder, None, &arguments);
        let said = said.expect_err("its folder has another pool");
        assert!(said.contains("exit status: 65"), "{said}");
        let mut errors = said.lines().filter(|line| line.starts_with("onefold: "));
        let error = errors.next_back().unwrap_or_default();
        for words in [
            &format!("the folder has the pool {known}"),
            &format!("'{}' is a drive of the pool {found}", other.sleds[0].drive),
            "--drive",
            "--pool",
        ] {
            assert!(error.contains(words), "'{words}' is not in: {said}");
        }
        for beside in ["ahead", "older"] {
            let beside = format!("{}.{beside}", text(folder));
            assert!(!Path::new(&beside).exists(), "{beside} was made");
        }
        assert!(
            (files(folder), reservations(&one)) == before,
            "it was changed"
        );
    };

    // Another node serves the pool of the drives: that one goes on.
    let writer = Writer::start(&other.listen[1..]);
    let had = reservations(&other);
    is_refused();
    assert!(reservations(&other) == had, "the drives are the owner's");
    writer.goes_on();
    writer.end();
    let of_other = write(&other, 1);
    assert!(owner.stop().success());

    // None does, so a node that starts would take it.
    let had = (files(&other.pools[1]), reservations(&other));
    is_refused();
    assert!((files(&other.pools[1]), reservations(&other)) == had);

    for (offered, at, written) in [(&one, 0, of_one), (&other, 1, of_other)] {
        let node = offered.start(at);
        if node.ready_line().starts_with("standby") {
            node.prints("ready", PATIENCE);
        }
        with_volume(&offered.listen[at], async move |paths| {
            verify(&paths, written).await
        });
        assert!(node.stop().success());
        assert_consistent(&offered.pools[at]);
    }
}
