//! What is known of some files is what the estimate says of them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use bench::estimate::{Estimate, EstimateError, Grain, Options, Progress, run};

const KIB: usize = 1024;

fn estimate(paths: &[&Path]) -> Estimate {
    try_estimate(paths).expect("all paths are there")
}

fn try_estimate(paths: &[&Path]) -> Result<Estimate, EstimateError> {
    let options = Options {
        paths: paths.iter().map(|path| path.to_path_buf()).collect(),
        memory_bytes: 16 << 20,
        sample_blocks: 0,
    };
    let mut last = None;
    let result = run(&options, &mut |progress| last = Some(progress));
    if let (
        Ok(estimate),
        Some(Progress {
            done_bytes,
            total_bytes,
        }),
    ) = (&result, last)
    {
        assert_eq!(total_bytes, Some(done_bytes), "the bar ends at its end");
        assert_eq!(done_bytes, estimate.logical_bytes);
    }
    result
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Bytes that no compression makes smaller; the same for the same seed.
fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut out);
    out
}

fn grain(estimate: &Estimate, kib: usize) -> &Grain {
    let bytes = (kib * KIB) as u64;
    let mut grains = estimate.grains.iter();
    grains
        .find(|grain| grain.block_bytes == bytes)
        .expect("a grain")
}

fn file(folder: &tempfile::TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).expect("written");
    path
}

#[test]
fn a_copy_costs_nothing_and_a_shifted_copy_only_helps_at_its_grain() {
    let folder = folder();
    let content = random(1, 256 * KIB);
    file(&folder, "original", &content);
    file(&folder, "copy", &content);
    // The same data 4 KiB further on: equal blocks of 4 KiB, none of 8 KiB and more.
    let shifted = [random(2, 4 * KIB), content].concat();
    file(&folder, "shifted", &shifted);
    let found = estimate(&[folder.path()]);
    assert_eq!((found.files, found.logical_bytes), (3, 772 * 1024));
    let small = grain(&found, 4);
    assert_eq!((small.blocks, small.zero_blocks), (193, 0));
    assert_eq!(
        (small.unique_blocks, small.deduplicated_error_bytes),
        (65, 0)
    );
    assert_eq!(small.compressed_bytes, 65 * 4096, "nothing compresses");
    // 32 of the original, and 33 of the shifted one, whose last is half zeros.
    let middle = grain(&found, 8);
    assert_eq!((middle.blocks, middle.unique_blocks), (97, 65));
    let large = grain(&found, 64);
    assert_eq!((large.blocks, large.unique_blocks), (13, 9));
}

#[test]
fn holes_and_zeros_are_counted_apart_and_a_sparse_terabyte_takes_no_time() {
    let folder = folder();
    let path = folder.path().join("sparse");
    let sparse = File::create(&path).expect("made");
    sparse.set_len(1 << 40).expect("sparse");
    let middle = 1 << 39;
    sparse
        .write_all_at(&random(3, 64 * KIB), middle)
        .expect("written");
    sparse
        .write_all_at(&vec![0; 64 * KIB], middle + 64 * 1024)
        .expect("written");
    let found = estimate(&[&path]);
    assert_eq!(found.logical_bytes, 1 << 40);
    assert!(found.hole_bytes >= (1 << 40) - (1 << 20));
    let small = grain(&found, 4);
    assert_eq!(small.blocks, 1 << 28);
    assert_eq!(
        (small.blocks - small.zero_blocks, small.unique_blocks),
        (16, 16)
    );
    assert_eq!(grain(&found, 64).unique_blocks, 1);
}

#[test]
fn text_compresses_and_the_end_of_a_file_is_filled_with_zeros() {
    let folder = folder();
    let text = "every block is stored once. ".repeat(10_000);
    let path = file(&folder, "text", &text.as_bytes()[..100_001]);
    let found = estimate(&[&path]);
    let small = grain(&found, 4);
    // The sentence has 28 bytes: after 7 blocks of 4096 it begins anew.
    assert_eq!((small.blocks, small.unique_blocks), (25, 8));
    assert!(small.compressed_bytes < small.deduplicated_bytes / 8);
    assert_eq!(grain(&found, 64).blocks, 2);
}

#[test]
fn every_file_is_read_once_and_links_and_special_files_are_left_out() {
    let folder = folder();
    let path = file(&folder, "data", &random(4, 8 * KIB));
    fs::hard_link(&path, folder.path().join("second-name")).expect("linked");
    symlink(&path, folder.path().join("symbolic")).expect("linked");
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket"));
    fs::create_dir(folder.path().join("deeper")).expect("made");
    file(&folder, "deeper/other", &random(5, 4 * KIB));
    let found = estimate(&[folder.path(), &path]);
    assert_eq!((found.files, found.logical_bytes), (2, 12 * 1024));
    assert_eq!(found.skipped.special_files, 2);
    assert_eq!(found.skipped.hard_links, 2);
    assert_eq!(found.skipped.unreadable, 0);
    assert_eq!(grain(&found, 4).unique_blocks, 3);
}

#[test]
fn nothing_to_read_is_no_error_and_what_is_missing_or_special_is_named() {
    let folder = folder();
    let found = estimate(&[folder.path()]);
    assert_eq!((found.files, grain(&found, 4).blocks), (0, 0));
    let missing = folder.path().join("missing");
    let error = try_estimate(&[&missing]).expect_err("it is not there");
    assert!(error.to_string().contains("missing"), "{error}");
    let error = try_estimate(&[Path::new("/dev/null")]).expect_err("no data in there");
    assert!(error.to_string().contains("special file"), "{error}");
}
