//! The pool folder: made whole or not at all, locked, and clear about every kind of damage.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use meta::{
    DriveSpec, FingerprintFunction, JournalMedia, MetaError, MetaErrorKind, PoolDir, PoolSpec,
    RocksOptions, SpareSpec, Store,
};

fn spec() -> PoolSpec {
    PoolSpec {
        journal_bytes: 4 << 20,
        ..PoolSpec::new(vec![DriveSpec::new("drive0", 1 << 20)])
    }
}

/// Opens the pool and all of its parts.
fn open(dir: &Path) -> Result<PoolDir, MetaError> {
    let pool = PoolDir::open(dir)?;
    pool.open_journal()?;
    let store = pool.open_store(RocksOptions::default())?;
    assert!(store.size_bytes() > 0);
    Ok(pool)
}

fn refused(dir: &Path, kind: MetaErrorKind, named: &str) {
    let error = open(dir).expect_err("the pool opened");
    assert_eq!(error.kind(), kind, "{error}");
    let message = error.to_string();
    assert!(
        message.contains(dir.join(named).to_str().unwrap()),
        "{message}"
    );
    assert!(message.contains(';'), "no remedy: {message}");
}

#[test]
fn a_pool_opens_again_with_the_same_identity() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a/b/pool");
    let made = PoolDir::create(&dir, &spec()).unwrap();
    let identity = made.identity().clone();
    assert_eq!(made.open_journal().unwrap().capacity(), 4 << 20);
    drop(made);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.join("pool.toml")), 0o600);
    assert_eq!(mode(&dir), 0o700);

    let opened = open(&dir).unwrap();
    assert_eq!(opened.identity(), &identity);
    assert_eq!(opened.drive_path(0), Some(dir.join("drive0")));
    assert_eq!(opened.drive_path(1), None);
    let label = identity.label(0).unwrap();
    assert_eq!((label.pool, label.blocks), (identity.uuid, 1 << 20));
    assert!(
        !format!("{identity:?}").contains("HashKeys {"),
        "the key must not get into logs"
    );
}

#[test]
fn two_pools_have_two_identities_and_two_keys() {
    let root = tempfile::tempdir().unwrap();
    let one = PoolDir::create(&root.path().join("1"), &spec()).unwrap();
    let two = PoolDir::create(&root.path().join("2"), &spec()).unwrap();
    assert_ne!(one.identity().uuid, two.identity().uuid);
    assert_ne!(one.identity().hash_keys, two.identity().hash_keys);
}

#[test]
fn a_pool_in_use_is_locked_and_names_the_process() {
    let root = tempfile::tempdir().unwrap();
    let pool = PoolDir::create(root.path(), &spec()).unwrap();
    let error = PoolDir::open(root.path()).unwrap_err();
    let own = std::process::id();
    assert!(
        matches!(error, MetaError::Locked { pid: Some(pid), .. } if pid == own),
        "{error}"
    );
    assert!(error.to_string().contains(&own.to_string()), "{error}");
    assert_eq!(
        PoolDir::begin(root.path(), &spec()).unwrap_err().kind(),
        MetaErrorKind::Locked
    );
    drop(pool);
    open(root.path()).unwrap();
}

#[test]
fn a_pool_is_never_made_over_another() {
    let root = tempfile::tempdir().unwrap();
    drop(PoolDir::create(root.path(), &spec()).unwrap());
    let error = PoolDir::create(root.path(), &spec()).unwrap_err();
    assert_eq!(error.kind(), MetaErrorKind::Exists);
    open(root.path()).unwrap();

    // Nor over the rest of one that has lost its identity.
    fs::rename(root.path().join("pool.toml"), root.path().join("kept")).unwrap();
    let error = PoolDir::create(root.path(), &spec()).unwrap_err();
    assert_eq!(error.kind(), MetaErrorKind::Exists);
    assert!(error.to_string().contains("restore"), "{error}");
    refused(root.path(), MetaErrorKind::Missing, "pool.toml");
    fs::rename(root.path().join("kept"), root.path().join("pool.toml")).unwrap();
    open(root.path()).unwrap();
}

#[test]
fn a_creation_interrupted_anywhere_leaves_no_pool_and_does_not_stop_the_next() {
    for parts in 0..4 {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let mut creation = PoolDir::begin(dir, &spec()).unwrap();
        creation.will_label();
        let identity = creation.identity().clone();
        drop(creation);
        // What a crash leaves of the parts that are made next.
        if parts >= 1 {
            fs::write(dir.join("journal"), b"half a journal").unwrap();
        }
        if parts >= 2 {
            fs::create_dir(dir.join("metadata")).unwrap();
            fs::write(dir.join("metadata/CURRENT"), b"MANIFEST-000001").unwrap();
        }
        if parts >= 3 {
            fs::write(dir.join("pool.toml.new.tmp"), b"format_ver").unwrap();
        }
        assert!(!PoolDir::exists(dir));
        let error = PoolDir::open(dir).unwrap_err();
        assert_eq!(error.kind(), MetaErrorKind::Missing);
        assert!(error.to_string().contains("interrupted"), "{error}");

        let pool = PoolDir::create(dir, &spec()).unwrap();
        // Drives that the first attempt labelled fit the pool that the second one made.
        assert_eq!(pool.identity(), &identity);
        drop(pool);
        open(dir).unwrap();
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["ballast", "journal", "lock", "metadata", "pool.toml"]
        );
    }
}

#[test]
fn a_refused_creation_leaves_what_was_there_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let names = |dir: &Path| -> Vec<_> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    // Folders that were missing go, those that were there stay.
    drop(PoolDir::begin(&root.path().join("a/b"), &spec()).unwrap());
    assert!(names(root.path()).is_empty());
    fs::write(root.path().join("lock"), b"").unwrap();
    fs::write(root.path().join("notes"), b"").unwrap();
    drop(PoolDir::begin(root.path(), &spec()).unwrap());
    assert_eq!(names(root.path()), ["lock", "notes"]);

    // Refused at once.
    let rest = root.path().join("rest");
    fs::create_dir(&rest).unwrap();
    fs::write(rest.join("journal"), b"").unwrap();
    assert_eq!(
        PoolDir::begin(&rest, &spec()).unwrap_err().kind(),
        MetaErrorKind::Exists
    );
    assert_eq!(names(&rest), ["journal"]);

    // Drives may carry labels of an interrupted creation: its identity outlives a refused one.
    let interrupted = root.path().join("interrupted");
    let mut creation = PoolDir::begin(&interrupted, &spec()).unwrap();
    creation.will_label();
    let identity = creation.identity().clone();
    drop(creation);
    drop(PoolDir::begin(&interrupted, &spec()).unwrap());
    let pool = PoolDir::create(&interrupted, &spec()).unwrap();
    assert_eq!(pool.identity(), &identity);
}

#[test]
fn a_lock_that_was_removed_with_a_refused_creation_keeps_nobody_in() {
    let root = tempfile::tempdir().unwrap();
    let creation = PoolDir::begin(root.path(), &spec()).unwrap();
    let error = PoolDir::begin(root.path(), &spec()).unwrap_err();
    assert_eq!(error.kind(), MetaErrorKind::Locked);
    // Who was turned away has taken nothing from the one that holds it.
    assert!(root.path().join("lock").exists());
    drop(creation);
    PoolDir::create(root.path(), &spec()).unwrap();
}

#[test]
fn an_unreadable_unfinished_identity_does_not_stop_the_next_creation() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("pool.toml.new"), b"\xff").unwrap();
    PoolDir::create(root.path(), &spec()).unwrap();
}

#[test]
fn a_folder_without_a_pool_says_how_to_make_one() {
    let root = tempfile::tempdir().unwrap();
    refused(root.path(), MetaErrorKind::Missing, "pool.toml");
    let error = PoolDir::open(&root.path().join("nowhere")).unwrap_err();
    assert!(error.to_string().contains("--create"), "{error}");
    assert!(!root.path().join("nowhere").exists());
    assert!(
        !root.path().join("lock").exists(),
        "looking must not leave a lock file"
    );
}

#[test]
fn every_missing_part_is_named() {
    for part in ["journal", "metadata", "metadata/CURRENT"] {
        let root = tempfile::tempdir().unwrap();
        drop(PoolDir::create(root.path(), &spec()).unwrap());
        fs::rename(root.path().join(part), root.path().join("away")).unwrap();
        refused(root.path(), MetaErrorKind::Missing, part);
        fs::rename(root.path().join("away"), root.path().join(part)).unwrap();
        open(root.path()).unwrap();
    }
}

#[test]
fn a_damaged_identity_is_refused_and_left_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    drop(PoolDir::create(root.path(), &spec()).unwrap());
    let path = root.path().join("pool.toml");
    let whole = fs::read_to_string(&path).unwrap();
    let digit = whole.find("hash_key = \"").unwrap() + 12;
    let mut flipped = whole.clone().into_bytes();
    flipped[digit] = if flipped[digit] == b'0' { b'1' } else { b'0' };
    let damaged: [Vec<u8>; 6] = [
        flipped,
        whole[..whole.len() / 2].into(),
        Vec::new(),
        b"\xff\xfe".to_vec(),
        whole
            .replace("sub_block_bytes = 4096", "sub_block_bytes = 8192")
            .into(),
        whole.replace("blocks = ", "blocks = 1").into(),
    ];
    for bytes in damaged {
        fs::write(&path, &bytes).unwrap();
        refused(root.path(), MetaErrorKind::Corrupt, "pool.toml");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    fs::write(&path, whole).unwrap();
    open(root.path()).unwrap();
}

#[test]
fn a_moved_drive_may_be_given_its_new_path() {
    let root = tempfile::tempdir().unwrap();
    drop(PoolDir::create(root.path(), &spec()).unwrap());
    let path = root.path().join("pool.toml");
    let text = fs::read_to_string(&path)
        .unwrap()
        .replace("\"drive0\"", "\"/mnt/disk\"");
    fs::write(&path, text).unwrap();
    assert_eq!(
        open(root.path()).unwrap().drive_path(0),
        Some("/mnt/disk".into())
    );
}

#[test]
fn a_pool_of_another_version_is_refused_whatever_else_it_holds() {
    let root = tempfile::tempdir().unwrap();
    drop(PoolDir::create(root.path(), &spec()).unwrap());
    let path = root.path().join("pool.toml");
    fs::write(&path, "format_version = 7\nsomething = \"new\"\n").unwrap();
    refused(root.path(), MetaErrorKind::WrongVersion, "pool.toml");
}

#[test]
fn a_pool_keeps_the_function_of_its_fingerprints() {
    let root = tempfile::tempdir().unwrap();
    let made = |name: &str, fingerprint| {
        let dir = root.path().join(name);
        let spec = PoolSpec {
            fingerprint,
            ..spec()
        };
        drop(PoolDir::create(&dir, &spec).unwrap());
        assert_eq!(open(&dir).unwrap().identity().fingerprint, fingerprint);
        let text = fs::read_to_string(dir.join("pool.toml")).unwrap();
        (dir, text)
    };
    // What older programs know is written as they wrote it; what they do not know they refuse by its version.
    let (blake3, text) = made("blake3", FingerprintFunction::Blake3);
    assert!(text.contains("format_version = 1\n") && !text.contains("fingerprint"));
    let (clnh, text) = made("clnh", FingerprintFunction::Clnh);
    assert!(text.contains("format_version = 2\n"));
    assert!(text.contains("fingerprint = \"clnh\"\n"));
    // Nobody gets another function by editing the file.
    for (dir, from, to) in [
        (&blake3, "hash_key", "fingerprint = \"clnh\"\nhash_key"),
        (&blake3, "format_version = 1", "format_version = 2"),
        (&clnh, "format_version = 2", "format_version = 1"),
        (&clnh, "fingerprint = \"clnh\"\n", ""),
        (&clnh, "clnh", "blake3"),
    ] {
        let path = dir.join("pool.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(from, to)).unwrap();
        refused(dir, MetaErrorKind::Corrupt, "pool.toml");
        fs::write(&path, text).unwrap();
    }
}

#[test]
fn a_key_that_a_domain_has_from_another_pool_is_remembered_and_older_programs_refuse_the_pool() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pool");
    let mut pool = PoolDir::create(&dir, &spec()).unwrap();
    let own = pool.identity().hash_keys.pool;
    pool.set_domain_key("from-one", [7; 32]).unwrap();
    pool.set_domain_key("", [8; 32]).unwrap();
    drop(pool);
    let keys = open(&dir).unwrap().identity().hash_keys.clone();
    assert_eq!(keys.pool, own);
    assert_eq!(keys.domains["from-one"], [7; 32]);
    assert_eq!(keys.domains[""], [8; 32]);
    let path = dir.join("pool.toml");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("format_version = 3\n"), "{text}");
    for (from, to) in [
        ("from-one", "from-two"),
        ("0707", "0708"),
        ("format_version = 3", "format_version = 1"),
        ("domain = \"\"", "domain = \"from-one\""),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        fs::write(&path, changed).unwrap();
        refused(&dir, MetaErrorKind::Corrupt, "pool.toml");
    }
    fs::write(&path, text).unwrap();
    open(&dir).unwrap();
}

#[test]
fn parts_of_another_pool_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let (one, two) = (root.path().join("1"), root.path().join("2"));
    drop(PoolDir::create(&one, &spec()).unwrap());
    drop(PoolDir::create(&two, &spec()).unwrap());
    for part in ["journal", "metadata"] {
        fs::rename(one.join(part), root.path().join("away")).unwrap();
        fs::rename(two.join(part), one.join(part)).unwrap();
        refused(&one, MetaErrorKind::WrongPool, part);
        fs::rename(one.join(part), two.join(part)).unwrap();
        fs::rename(root.path().join("away"), one.join(part)).unwrap();
    }
    open(&one).unwrap();
}

#[test]
fn senseless_pools_are_not_made() {
    let root = tempfile::tempdir().unwrap();
    let drive = DriveSpec::new("drive0", 1 << 20);
    let bad = [
        PoolSpec {
            sub_block_bytes: 5000,
            ..spec()
        },
        PoolSpec {
            sub_block_bytes: 512,
            ..spec()
        },
        PoolSpec {
            journal_bytes: 100,
            ..spec()
        },
        PoolSpec {
            drives: vec![],
            ..spec()
        },
        PoolSpec {
            drives: vec![drive.clone(), drive.clone()],
            ..spec()
        },
        PoolSpec {
            drives: vec![DriveSpec {
                blocks: u64::MAX,
                ..drive
            }],
            ..spec()
        },
    ];
    for spec in bad {
        let error = PoolDir::create(&root.path().join("pool"), &spec).unwrap_err();
        assert_eq!(error.kind(), MetaErrorKind::Invalid, "{error}");
    }
    assert!(!root.path().join("pool").exists());
}

#[test]
fn spares_and_failure_domains_are_remembered_and_a_spare_that_became_a_drive_is_none_any_more() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("pool");
    let in_shelf = |path: &str, domain: &str| DriveSpec {
        domain: Some(domain.to_owned()),
        ..DriveSpec::new(path, 1 << 20)
    };
    let spare = |path: &str, domain: Option<&str>| SpareSpec {
        path: path.into(),
        domain: domain.map(str::to_owned),
    };
    let drives = vec![
        DriveSpec::new("drive0", 1 << 20),
        in_shelf("drive1", "psu-a"),
    ];
    let spec = PoolSpec { drives, ..spec() };
    let mut dir = PoolDir::create(&path, &spec).unwrap();
    dir.add_spare(spare("/dev/x", Some("psu-a"))).unwrap();
    dir.add_spare(spare("/dev/y", None)).unwrap();
    for wrong in [
        spare("/dev/x", None),
        spare("drive0", None),
        spare("/dev/z", Some("no good")),
        spare("/dev/z", Some("")),
        spare("/dev/z", Some(&"x".repeat(65))),
    ] {
        let error = dir.add_spare(wrong).unwrap_err();
        assert_eq!(error.kind(), MetaErrorKind::Invalid, "{error}");
    }
    drop(dir);
    let mut dir = PoolDir::open(&path).unwrap();
    assert_eq!(dir.identity().drives[1].domain.as_deref(), Some("psu-a"));
    assert_eq!(
        dir.identity().spares,
        [spare("/dev/x", Some("psu-a")), spare("/dev/y", None)]
    );
    dir.replace_drive(1, in_shelf("/dev/x", "psu-a")).unwrap();
    dir.forget_spare("/dev/y".as_ref()).unwrap();
    assert!(dir.identity().spares.is_empty());
    let text = dir.identity().to_text().unwrap();
    assert!(text.contains("format_version = 4\n"), "{text}");
    drop(dir);
    assert_eq!(
        PoolDir::open(&path).unwrap().identity().to_text().unwrap(),
        text
    );
    // Its domain decides where copies lie: it is no more to be edited than an identity is.
    let edited = text.replace("psu-a", "psu-b");
    fs::write(path.join("pool.toml"), edited).unwrap();
    let error = PoolDir::open(&path).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
}
