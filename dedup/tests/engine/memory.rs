//! A volume whose map is larger than the memory for maps.

use crate::support::{Pool, block_on};
use dedup::{ErrorKind, METADATA_CACHE_BYTES_MIN};

const GRAIN: u64 = 4096;
/// One mapping in each page of a map: about 10 MB of pages.
const PAGES: u64 = 12_000;
const STRIDE: u64 = 64;

/// All pages, far from the order they were written in.
fn scattered() -> impl Iterator<Item = u64> {
    (0..PAGES).map(|at| at * 5003 % PAGES)
}

fn small() -> Pool {
    let mut pool = Pool::new(2 * PAGES);
    pool.config.metadata_cache_bytes = METADATA_CACHE_BYTES_MIN;
    pool
}

#[test]
fn what_left_memory_is_read_with_one_look_into_the_store() {
    let pool = small();
    let (engine, volume) = pool.with_volume(PAGES * STRIDE, 4096);
    // Writes wait from there on; one more had passed by then.
    let bound = METADATA_CACHE_BYTES_MIN + METADATA_CACHE_BYTES_MIN / 4 + (64 << 10);
    for page in 0..PAGES {
        pool.write(&volume, page * STRIDE, &[page + 1]).unwrap();
        assert!(engine.status().metadata_resident_bytes <= bound);
    }
    block_on(engine.checkpoint()).unwrap();
    let before = engine.status();
    assert!(before.metadata_resident_bytes <= METADATA_CACHE_BYTES_MIN);
    assert!(before.map_page_evictions > PAGES / 8);
    assert_eq!(before.logical_bytes, PAGES * GRAIN);
    for page in scattered() {
        let found = pool.read(&volume, page * STRIDE, 2).unwrap();
        assert_eq!(found, [page + 1, 0]);
    }
    let after = engine.status();
    assert!(after.metadata_resident_bytes <= METADATA_CACHE_BYTES_MIN);
    assert!(after.map_page_reads > before.map_page_reads);
    assert!(after.map_page_reads - before.map_page_reads <= PAGES);
    // Where nothing was ever written, nobody has to look.
    let before = engine.status().map_page_reads;
    let created =
        block_on(engine.create_volume(crate::support::spec("empty", 1 << 20, 4096))).unwrap();
    assert_eq!(pool.read(&created, 1 << 19, 8).unwrap(), [0; 8]);
    assert_eq!(engine.status().map_page_reads, before);
}

#[test]
fn a_map_larger_than_memory_is_overwritten_trimmed_resized_and_deleted() {
    let pool = small();
    let (engine, volume) = pool.with_volume(PAGES * STRIDE, 4096);
    for page in 0..PAGES {
        pool.write(&volume, page * STRIDE, &[page + 1]).unwrap();
    }
    block_on(engine.shutdown()).unwrap();
    drop((engine, volume));

    let engine = pool.open();
    let volume = engine.volume("v").unwrap();
    for page in scattered().take(1000) {
        pool.write(&volume, page * STRIDE, &[page + 100_001])
            .unwrap();
    }
    // Every other page of a part, one by one; then a quarter at once.
    for page in (0..1000).step_by(2) {
        let at = page * STRIDE * GRAIN;
        block_on(volume.trim(at, STRIDE * GRAIN)).unwrap();
    }
    let quarter = PAGES / 4 * STRIDE * GRAIN;
    block_on(volume.trim(2 * quarter, quarter)).unwrap();
    block_on(engine.resize_volume("v", 3 * quarter)).unwrap();
    let survey = block_on(engine.survey()).unwrap();
    assert_eq!(
        survey.volumes[0].logical_bytes,
        engine.status().logical_bytes
    );
    block_on(engine.maintain()).unwrap();
    let overwritten: std::collections::BTreeSet<u64> = scattered().take(1000).collect();
    let expected = |page: u64| match page {
        0..1000 if page.is_multiple_of(2) => 0,
        _ if page >= PAGES / 2 => 0,
        _ if overwritten.contains(&page) => page + 100_001,
        _ => page + 1,
    };
    for page in scattered().filter(|page| *page < 3 * PAGES / 4) {
        let found = pool.read(&volume, page * STRIDE, 1).unwrap();
        assert_eq!(found, [expected(page)], "page {page}");
    }
    let mapped = (0..PAGES).filter(|page| expected(*page) != 0).count() as u64;
    let survey = block_on(engine.survey()).unwrap();
    assert_eq!(survey.volumes[0].unique_bytes, mapped * GRAIN);
    assert_eq!(engine.status().logical_bytes, mapped * GRAIN);
    assert!(engine.status().metadata_resident_bytes <= METADATA_CACHE_BYTES_MIN);

    block_on(engine.delete_volume("v")).unwrap();
    block_on(engine.maintain()).unwrap();
    block_on(engine.maintain()).unwrap();
    let status = engine.status();
    assert_eq!((status.logical_bytes, status.used_bytes), (0, 0));
    assert!(status.metadata_resident_bytes <= METADATA_CACHE_BYTES_MIN);
}

#[test]
fn a_cache_that_is_too_small_is_refused_and_says_how_large_it_must_be() {
    let mut pool = Pool::new(100);
    pool.config.metadata_cache_bytes = METADATA_CACHE_BYTES_MIN - 1;
    let Err(error) = pool.try_open() else {
        panic!("it was opened");
    };
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(
        error
            .to_string()
            .contains("`metadata_cache_bytes` must be at least 8 MiB")
    );
}
