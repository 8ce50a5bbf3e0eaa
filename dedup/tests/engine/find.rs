//! Contents are found by their fingerprints: in their domain, as long as they are right, and nothing changes by that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedup::{Engine, ErrorKind, KnownContents, Volume, VolumeSpec, domain_key};
use drives::BLOCK_BYTES;
use meta::{Fingerprint, FingerprintFunction};

use crate::support::{Pool, block_on, contents, expect_kind, space, spec};

fn volume(engine: &Engine, name: &str, domain: &str) -> Arc<Volume> {
    let spec = VolumeSpec {
        domain: domain.to_owned(),
        ..spec(name, 64, 4096)
    };
    block_on(engine.create_volume(spec)).unwrap()
}

fn fingerprints(pool: &Pool, volume: &Volume, contents: &[u64]) -> Vec<Fingerprint> {
    volume.fingerprints(&pool.buffer(contents))
}

/// What is found of these contents: each, or 7 where nothing was.
fn found(pool: &Pool, volume: &Volume, fingerprints: &[Fingerprint]) -> Vec<u64> {
    let buf = pool.buffer(&vec![7; fingerprints.len()]);
    let (has, buf) = block_on(volume.find(fingerprints, buf));
    let has = has.unwrap();
    let contents = contents(&buf);
    for (has, content) in has.iter().zip(&contents) {
        assert_eq!(*has, *content != 7);
    }
    contents
}

#[test]
fn a_content_is_found_wherever_its_domain_has_it_and_nowhere_else() {
    for index_bytes_max in [0, 1 << 20] {
        let mut pool = Pool::new(256);
        pool.config.index_bytes_max = index_bytes_max;
        let engine = pool.open();
        let a = volume(&engine, "a", "one");
        let b = volume(&engine, "b", "two");
        let first: Vec<u64> = (100..164).collect();
        pool.write(&a, 0, &first).unwrap();
        pool.write(&b, 0, &[200]).unwrap();
        let c = volume(&engine, "c", "one");
        let wanted = fingerprints(&pool, &c, &[101, 200, 300, 163, 101, 0]);
        assert_eq!(found(&pool, &c, &wanted), [101, 7, 7, 163, 101, 7]);
        // What leads to a block of another domain is no proof in this one.
        let theirs = fingerprints(&pool, &b, &[200, 101]);
        assert_eq!(found(&pool, &c, &theirs), [7, 7]);
        assert_eq!(found(&pool, &b, &theirs), [200, 7]);
        // By the store's index entries, and when nothing is in memory yet.
        block_on(engine.maintain()).unwrap();
        assert_eq!(found(&pool, &c, &wanted), [101, 7, 7, 163, 101, 7]);
        block_on(engine.shutdown()).unwrap();
        drop((engine, a, b, c));
        let engine = pool.open();
        let c = engine.volume("c").unwrap();
        let before = found(&pool, &c, &wanted);
        assert!([101, 7].contains(&before[0]) && before[1..3] == [7, 7]);
        block_on(engine.load()).unwrap();
        assert_eq!(found(&pool, &c, &wanted), [101, 7, 7, 163, 101, 7]);
        // It took no reference: what goes is free.
        let used = space(&engine).0;
        assert_eq!(used, 65);
        for name in ["a", "b", "c"] {
            block_on(engine.delete_volume(name)).unwrap();
        }
        block_on(engine.maintain()).unwrap();
        assert_eq!(space(&engine).0, 0);
    }
}

#[test]
fn a_content_that_is_damaged_or_cannot_be_read_is_not_found_and_is_listed() {
    let pool = Pool::new(256);
    let (engine, a) = pool.with_volume(64, 4096);
    pool.write(&a, 0, &[1, 2, 3]).unwrap();
    let wanted = fingerprints(&pool, &a, &[1, 2, 3]);
    pool.drive().corrupt_content(2);
    assert_eq!(found(&pool, &a, &wanted), [1, 7, 3]);
    assert_eq!(engine.status().damaged_blocks, 1);
    assert_eq!(found(&pool, &a, &wanted), [1, 7, 3]);
    pool.drive().fail_reads.store(true, Ordering::Relaxed);
    assert_eq!(found(&pool, &a, &wanted), [7, 7, 7]);
    assert_eq!(engine.status().damaged_blocks, 3);
    // Writing goes on as ever, and what is written again is found again.
    pool.drive().fail_reads.store(false, Ordering::Relaxed);
    pool.write(&a, 10, &[1, 2, 3]).unwrap();
    assert_eq!(found(&pool, &a, &wanted), [1, 2, 3]);
}

#[test]
fn more_than_a_command_has_is_not_looked_for() {
    let pool = Pool::new(64);
    let (_engine, a) = pool.with_volume(64, 4096);
    for (count, room) in [(257, 257), (2, 1)] {
        let buf = pool.buffers.try_alloc(room * BLOCK_BYTES).unwrap();
        let (found, _) = block_on(a.find(&vec![Fingerprint([1; 16]); count], buf));
        expect_kind(found, ErrorKind::Invalid);
    }
}

#[test]
fn a_domain_without_volumes_takes_the_key_of_another_pool_and_then_knows_its_fingerprints() {
    let (one, two) = (Pool::new(64), Pool::new(64));
    let (one_engine, two_engine) = (one.open(), two.open());
    let theirs = volume(&one_engine, "v", "vms");
    let clnh = FingerprintFunction::Clnh;
    // Both test pools have the same secret, so their domains of one name have the same key.
    let key = domain_key(&[77; 32].into(), "vms");
    let take =
        |name, function| block_on(two_engine.take_domain_key(name, function, key, || Ok(())));
    let told = expect_kind(take("vms", FingerprintFunction::Blake3), ErrorKind::Invalid);
    assert!(told.contains("--fingerprint blake3"), "{told}");
    expect_kind(take("no such name!", clnh), ErrorKind::Invalid);
    let other = volume(&two_engine, "other", "busy");
    let told = expect_kind(take("busy", clnh), ErrorKind::Invalid);
    assert!(told.contains("'other'"), "{told}");
    // One that is deleted still has blocks.
    let gone = volume(&two_engine, "gone", "left");
    two.write(&gone, 0, &[5]).unwrap();
    drop(gone);
    block_on(two_engine.delete_volume("gone")).unwrap();
    let told = expect_kind(take("left", clnh), ErrorKind::Invalid);
    assert!(told.contains("not freed yet"), "{told}");
    block_on(two_engine.maintain()).unwrap();
    take("left", clnh).unwrap();
    let failed = || {
        Err(dedup::EngineError::from(meta::MetaError::Invalid(
            "full".to_owned(),
        )))
    };
    let refused = block_on(two_engine.take_domain_key("shared", clnh, key, failed));
    expect_kind(refused, ErrorKind::Invalid);

    take("shared", clnh).unwrap();
    let shared = volume(&two_engine, "shared", "shared");
    let nonce = [5; 32];
    assert_ne!(theirs.key_proof(&nonce), shared.key_proof(&nonce));
    let by_key = dedup::Hasher::new(clnh, &key);
    let block = two.buffer(&[9]);
    let block: &dedup::Block = block[..].try_into().unwrap();
    assert_eq!(fingerprints(&two, &shared, &[9]), [by_key.one(block)]);
    assert_ne!(fingerprints(&two, &other, &[9]), [by_key.one(block)]);
    two.write(&shared, 0, &[9]).unwrap();
    assert_eq!(found(&two, &shared, &[by_key.one(block)]), [9]);
    let told = expect_kind(take("shared", clnh), ErrorKind::Invalid);
    assert!(told.contains("'shared'"), "{told}");
}

#[test]
fn a_domain_says_how_much_of_some_data_it_has_and_of_another_domains_nothing() {
    let mut pool = Pool::new(256);
    pool.config.index_bytes_max = 0;
    let engine = pool.open();
    let (a, b) = (volume(&engine, "a", "one"), volume(&engine, "b", "two"));
    pool.write(&a, 0, &(100..164).collect::<Vec<_>>()).unwrap();
    pool.write(&b, 0, &[200]).unwrap();
    let count = |domain: &str, data: &[u64]| {
        let (counted, buf) = block_on(engine.count_known(domain, pool.buffer(data)));
        assert_eq!(contents(&buf), data, "what was asked for stays what it is");
        counted.map(|KnownContents { zeros, known }| (zeros, known))
    };
    let data = [101, 200, 0, 300, 163, 101, 0];
    assert_eq!(count("one", &data).unwrap(), (2, 3));
    assert_eq!(count("two", &data).unwrap(), (2, 1));
    assert_eq!(count("", &data).unwrap(), (2, 0));
    block_on(engine.maintain()).unwrap();
    assert_eq!(count("one", &data).unwrap(), (2, 3));
    assert_eq!(space(&engine).0, 65, "nothing was written");
    pool.drive().corrupt_content(101);
    assert_eq!(count("one", &data).unwrap(), (2, 1));
    expect_kind(count("no/name", &data), ErrorKind::Invalid);
    for bytes in [BLOCK_BYTES + 512, 257 * BLOCK_BYTES] {
        let buf = pool.buffers.try_alloc(bytes).unwrap();
        let (counted, _) = block_on(engine.count_known("one", buf));
        expect_kind(counted, ErrorKind::Invalid);
    }
}
