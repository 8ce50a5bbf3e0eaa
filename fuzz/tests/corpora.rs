//! What CI does with the fuzz targets: every checked-in input, and mutations of them from fixed seeds.
//!
//! `ONEFOLD_FUZZ_ROUNDS=1000000 cargo test -p fuzz` mutates for longer; a failing input is printed and
//! written to the build folder.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fuzz::{TARGETS, Target};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Mutated inputs of each target, unless the environment says another number: some seconds in all.
const ROUNDS: u64 = 50_000;
/// Bytes of all corpora together: they are read by people and cloned by everybody.
const CORPUS_BYTES_MAX: u64 = 500_000;

fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name)
}

/// The corpus in the order of its names, so that a seed means the same everywhere.
fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = folder(target);
    let entries = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{} has no corpus: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder's entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
        .into_iter()
        .map(|path| {
            let bytes = std::fs::read(&path).expect("an input");
            (path, bytes)
        })
        .collect()
}

/// Runs a target; a failure keeps its input and says where.
fn run(target: &Target, bytes: &[u8], origin: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_ok() {
        return;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-failed", target.name));
    let kept = std::fs::write(&path, bytes).map(|()| path.display().to_string());
    panic!(
        "target {}: a property does not hold for {origin} ({} bytes, kept as {kept:?})",
        target.name,
        bytes.len()
    );
}

fn rounds() -> u64 {
    match std::env::var("ONEFOLD_FUZZ_ROUNDS") {
        Ok(rounds) => rounds.parse().expect("ONEFOLD_FUZZ_ROUNDS is a number"),
        Err(_) => ROUNDS,
    }
}

/// One input from others: pieces of two, with some bytes changed, removed, repeated or made extreme.
fn mutate(random: &mut ChaCha8Rng, inputs: &[(PathBuf, Vec<u8>)], len_max: usize) -> Vec<u8> {
    const EXTREMES: [u64; 10] = [
        0,
        1,
        0x7f,
        0xff,
        0x7fff,
        0xffff,
        0x7fff_ffff,
        0xffff_ffff,
        0xffff_ffff_ffff_f000,
        u64::MAX,
    ];
    let mut pick = || inputs.choose(random).expect("a corpus").1.clone();
    let (mut bytes, other) = (pick(), pick());
    for _ in 0..random.random_range(1..6) {
        if bytes.is_empty() {
            bytes.push(random.random());
        }
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..8) {
            0 => bytes[at] ^= 1 << random.random_range(0..8),
            1 => bytes[at] = random.random(),
            2 => {
                let value = EXTREMES.choose(random).expect("one").to_le_bytes();
                let width = 1 << random.random_range(0..4);
                let reverse = random.random::<bool>();
                for (index, slot) in bytes[at..].iter_mut().take(width).enumerate() {
                    *slot = value[if reverse { width - 1 - index } else { index }];
                }
            }
            3 => bytes.truncate(at),
            4 => {
                let end = (at + random.random_range(1..32)).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => {
                let len = random.random_range(1..64).min(bytes.len() - at);
                let piece = bytes[at..at + len].to_vec();
                let to = random.random_range(0..=bytes.len());
                bytes.splice(to..to, piece);
            }
            6 if !other.is_empty() => {
                let from = random.random_range(0..other.len());
                let end = (from + random.random_range(1..128)).min(other.len());
                bytes.splice(at..at, other[from..end].iter().copied());
            }
            _ => {
                bytes[at] = bytes[at]
                    .wrapping_add(random.random_range(0..9))
                    .wrapping_sub(4)
            }
        }
    }
    bytes.truncate(len_max);
    bytes
}

fn holds(name: &str) {
    let target = fuzz::target(name).expect("a target");
    let inputs = corpus(target);
    for (path, bytes) in &inputs {
        run(target, bytes, &path.display().to_string());
    }
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for round in 0..rounds() {
        let bytes = mutate(&mut random, &inputs, target.len_max);
        run(target, &bytes, &format!("round {round}"));
    }
}

macro_rules! targets {
    ($($test:ident => $name:literal,)*) => {
        $(#[test]
        fn $test() {
            holds($name);
        })*

        #[test]
        fn every_target_has_a_test_and_a_corpus_that_is_small() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$($name),*]);
            let inputs = TARGETS.iter().flat_map(corpus);
            let bytes: u64 = inputs.map(|(_, bytes)| bytes.len() as u64).sum();
            assert!(bytes < CORPUS_BYTES_MAX, "{bytes} bytes of corpora");
        }
    };
}

targets! {
    any_roce_packet_is_refused_or_written_again => "packet",
    any_management_datagram_is_refused_or_written_again => "mad",
    an_endpoint_survives_any_peer_and_gives_every_work_request_back => "endpoint",
    any_capsule_is_a_command_or_an_error => "command",
    any_connect_data_is_refused_at_its_field_or_written_again => "connect",
    any_authentication_message_or_secret_is_refused_or_written_again => "auth",
    any_identify_page_is_refused_or_written_again => "identify",
    any_log_page_is_refused_or_written_again => "log",
    any_stream_of_tcp_pdus_is_refused_or_written_again => "pdu",
    any_journal_record_has_one_encoding => "record",
    a_journal_of_any_frames_opens_or_says_why_not => "journal",
    any_row_of_the_store_has_one_encoding => "row",
    any_drive_label_or_journal_header_is_refused_or_the_same => "label",
    any_pool_file_is_refused_or_written_again => "pool",
    any_client_of_nbd_is_answered_within_bounds => "nbd",
    any_block_is_no_pack_or_unpacks_within_its_bounds => "pack",
    any_stream_of_a_snapshot_is_refused_or_what_was_sent => "stream",
    any_answer_and_offer_is_refused_or_fits_what_was_asked => "answers",
}
