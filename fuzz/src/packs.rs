//! Packs: blocks on a drive that several compressed contents share.
//!
//! A block has no checksum of its own: what protects a content is compared after it was unpacked. So a
//! decaying drive brings any bytes to the parser and to both decompressors.

use dedup::{Algorithm, Block, Pack, PackError, SUB_BLOCK_BYTES};

use crate::input::Input;

/// Fragments of a pack at most.
const FRAGMENTS_MAX: usize = 15;

/// A block as a drive may return it; then one whose header is right; now and then contents that are
/// really compressed.
pub(crate) fn pack(bytes: &[u8]) {
    let mut block = [0; SUB_BLOCK_BYTES];
    let len = bytes.len().min(SUB_BLOCK_BYTES);
    block[..len].copy_from_slice(&bytes[..len]);
    unpack(&block);
    let mut input = Input::new(bytes);
    match input.u8() & 3 {
        0 => contents(&mut input),
        _ => fragments(&mut input),
    }
}

/// What holds for every block: `Some` is how many fragments it has.
fn unpack(block: &Block) -> Option<usize> {
    let pack = match Pack::parse(block) {
        Ok(pack) => pack,
        Err(error) => {
            assert!(matches!(error, PackError::Format | PackError::Header));
            return None;
        }
    };
    assert!((1..=FRAGMENTS_MAX).contains(&pack.count()));
    let fragments: Vec<(Algorithm, &[u8])> = (0..pack.count())
        .map(|slot| pack.fragment(slot).expect("a slot that there is"))
        .collect();
    assert!(fragments.iter().all(|(_, bytes)| !bytes.is_empty()));
    // There is only one encoding of a pack, whatever the block held before.
    let mut again = [0xaa; SUB_BLOCK_BYTES];
    Pack::build(&mut again, fragments.into_iter());
    assert!(again == *block, "a pack that is not its own encoding");
    let mut content = [0; SUB_BLOCK_BYTES];
    for slot in 0..=usize::from(u8::MAX) {
        match pack.unpack(slot, &mut content) {
            Ok(()) | Err(PackError::Fragment) => assert!(slot < pack.count()),
            Err(error) => assert!(slot >= pack.count(), "slot {slot}: {error}"),
        }
    }
    Some(pack.count())
}

/// Any bytes as fragments of a right pack: the decompressors' input.
fn fragments(input: &mut Input<'_>) {
    let mut found: Vec<(Algorithm, &[u8])> = Vec::new();
    let mut used = 2;
    while !input.is_empty() && found.len() < FRAGMENTS_MAX {
        let head = input.u16();
        let bytes = input.bytes(usize::from(head & 0x7ff) + 1);
        used += 2 + bytes.len();
        if bytes.is_empty() || used > SUB_BLOCK_BYTES {
            break;
        }
        found.push((algorithm(head & 0x800 != 0), bytes));
    }
    if found.is_empty() {
        return;
    }
    let mut block = [0xaa; SUB_BLOCK_BYTES];
    let count = found.len();
    Pack::build(&mut block, found.into_iter());
    assert_eq!(unpack(&block), Some(count));
}

fn algorithm(is_zstd: bool) -> Algorithm {
    match is_zstd {
        true => Algorithm::Zstd,
        false => Algorithm::Lz4,
    }
}

/// Contents that repeat a piece of the input, compressed and packed, come back as they were.
fn contents(input: &mut Input<'_>) {
    let mut found: Vec<(Algorithm, Block, Vec<u8>)> = Vec::new();
    let mut used = 2;
    while !input.is_empty() && found.len() < 4 {
        let head = input.u16();
        let piece = input.bytes(usize::from(head & 0x3ff) + 1);
        let mut content = [0; SUB_BLOCK_BYTES];
        for (byte, repeated) in content.iter_mut().zip(piece.iter().cycle()) {
            *byte = *repeated;
        }
        let algorithm = algorithm(head & 0x800 != 0);
        let Some(bytes) = algorithm.compress(&content) else {
            continue;
        };
        assert!(bytes.len() <= SUB_BLOCK_BYTES * 3 / 4, "not worth it");
        used += 2 + bytes.len();
        if used > SUB_BLOCK_BYTES {
            break;
        }
        found.push((algorithm, content, bytes));
    }
    if found.is_empty() {
        return;
    }
    let mut block = [0xaa; SUB_BLOCK_BYTES];
    let fragments = found
        .iter()
        .map(|(algorithm, _, bytes)| (*algorithm, &bytes[..]));
    Pack::build(&mut block, fragments);
    assert_eq!(unpack(&block), Some(found.len()));
    let pack = Pack::parse(&block).expect("a pack");
    for (slot, (_, content, _)) in found.iter().enumerate() {
        let mut unpacked = [0; SUB_BLOCK_BYTES];
        pack.unpack(slot, &mut unpacked).expect("it was packed");
        assert!(unpacked == *content, "another content");
    }
}
