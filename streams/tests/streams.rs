//! What goes into a stream comes out of it, and nothing else is taken for one.

use proptest::prelude::*;
use streams::{
    BLOCK_BYTES, Base, Contents, Decoder, Encoder, Frame, Head, Range, StreamError, VERSION,
};
use uuid::Uuid;

const BLOCK: usize = BLOCK_BYTES as usize;
const BLOCKS: usize = 64;

/// What a block of a volume is.
#[derive(Clone, Copy, Debug)]
enum Block {
    /// The receiver has it already.
    Kept,
    Zeros,
    /// One of few contents, so that many come again.
    Content(u8),
}

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    let block = prop_oneof![
        Just(Block::Kept),
        Just(Block::Zeros),
        (0u8..12).prop_map(Block::Content)
    ];
    let run = (block, 1usize..6).prop_map(|(block, count)| vec![block; count]);
    proptest::collection::vec(run, 1..30).prop_map(|runs| {
        let mut all = runs.concat();
        all.resize(BLOCKS, Block::Kept);
        all
    })
}

fn content(number: u8, at: usize) -> Vec<u8> {
    // Every third one is like no other.
    let salt = if number.is_multiple_of(3) {
        at as u8
    } else {
        0
    };
    (0..BLOCK)
        .map(|byte| number ^ salt.wrapping_mul(31) ^ byte as u8 | 1)
        .collect()
}

fn head() -> Head {
    Head {
        version: VERSION,
        volume: "vm1".to_owned(),
        snapshot: "monday".to_owned(),
        content: Uuid::from_u128(7),
        created: 1_700_000_000,
        size_bytes: (BLOCKS * BLOCK) as u64,
        lba_bytes: 4096,
        base: Some(Base {
            snapshot: "sunday".to_owned(),
            content: Uuid::from_u128(6),
        }),
        start_bytes: 0,
        exchange: None,
    }
}

/// A stream of these blocks, in pieces of as many blocks as `step`.
fn encoded(blocks: &[Block], step: usize, memory: usize) -> Vec<u8> {
    let mut encoder =
        Encoder::new(Vec::new(), &head(), Contents::new(memory)).expect("memory takes it");
    let mut at = 0;
    while at < blocks.len() {
        let offset = (at * BLOCK) as u64;
        let alike =
            |block: &&Block| std::mem::discriminant(*block) == std::mem::discriminant(&blocks[at]);
        let run = blocks[at..].iter().take_while(alike).count().min(step);
        let length = (run * BLOCK) as u64;
        match blocks[at] {
            Block::Kept => {}
            Block::Zeros => encoder
                .zeros(Range { offset, length })
                .expect("memory takes it"),
            Block::Content(_) => {
                let of = |(index, block): (usize, &Block)| match block {
                    Block::Content(number) => content(*number, at + index),
                    Block::Kept | Block::Zeros => Vec::new(),
                };
                let data: Vec<u8> = blocks[at..at + run]
                    .iter()
                    .enumerate()
                    .flat_map(of)
                    .collect();
                encoder.data(offset, &data).expect("memory takes it");
            }
        }
        at += run;
    }
    encoder.end().expect("memory takes it").1
}

/// What a volume has that had `0xee` everywhere, and how many bytes came as data.
fn received(stream: &[u8]) -> Result<(Vec<u8>, usize), StreamError> {
    let mut decoder = Decoder::new(stream)?;
    let mut volume = vec![0xee; decoder.head().size_bytes as usize];
    let mut data_bytes = 0;
    let span = |range: Range| range.offset as usize..(range.offset + range.length) as usize;
    while let Some(frame) = decoder.next_frame()? {
        match frame {
            Frame::Data(offset, data) => {
                data_bytes += data.len();
                volume[offset as usize..][..data.len()].copy_from_slice(&data);
            }
            Frame::Zeros(range) => volume[span(range)].fill(0),
            Frame::Same(all) => {
                for same in all {
                    let from = Range {
                        offset: same.from,
                        ..same.range
                    };
                    volume.copy_within(span(from), same.range.offset as usize);
                }
            }
            Frame::Head(_) | Frame::Offer(_) | Frame::Known(_) | Frame::End(_) => {}
        }
    }
    Ok((volume, data_bytes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_sent_is_received_and_each_content_travels_once(blocks in blocks(), step in 1usize..40) {
        let (volume, data_bytes) = received(&encoded(&blocks, step, 1 << 20)).expect("a stream");
        let mut contents = std::collections::BTreeSet::new();
        for (at, block) in blocks.iter().enumerate() {
            let found = &volume[at * BLOCK..(at + 1) * BLOCK];
            let wanted = match block {
                Block::Kept => vec![0xee; BLOCK],
                Block::Zeros => vec![0; BLOCK],
                Block::Content(number) => content(*number, at),
            };
            prop_assert!(found == wanted, "block {} is wrong", at);
            if matches!(block, Block::Content(_)) {
                contents.insert(wanted);
            }
        }
        prop_assert_eq!(data_bytes, contents.len() * BLOCK);
    }

    #[test]
    fn a_sender_with_no_memory_sends_contents_again(blocks in blocks()) {
        let with = received(&encoded(&blocks, 8, 1 << 20)).expect("a stream").0;
        let without = received(&encoded(&blocks, 8, 0)).expect("a stream");
        prop_assert!(with == without.0);
        let all = blocks.iter().filter(|block| matches!(block, Block::Content(_))).count();
        prop_assert_eq!(without.1, all * BLOCK);
    }

    #[test]
    fn a_stream_that_was_cut_off_is_not_taken_for_whole(blocks in blocks(), at: prop::sample::Index) {
        let stream = encoded(&blocks, 8, 1 << 20);
        let cut = &stream[..at.index(stream.len())];
        prop_assert!(matches!(received(cut), Err(StreamError::Cut(_) | StreamError::NotAStream | StreamError::Empty)));
    }

    #[test]
    fn a_stream_with_a_changed_bit_is_refused(blocks in blocks(), at: prop::sample::Index, bit in 0u8..8) {
        let mut stream = encoded(&blocks, 8, 1 << 20);
        let at = at.index(stream.len());
        stream[at] ^= 1 << bit;
        prop_assert!(received(&stream).is_err());
    }

    #[test]
    fn any_bytes_behind_the_head_are_refused_or_a_stream(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut stream = encoded(&[], 1, 0);
        stream.truncate(stream.len() - 48);
        stream.extend(tail);
        prop_assert!(received(&stream).is_err());
    }
}

#[test]
fn what_follows_the_end_is_refused() {
    let mut stream = encoded(&[Block::Content(1)], 1, 0);
    stream.push(0);
    assert!(matches!(received(&stream), Err(StreamError::Wrong(3, _))));
}

#[test]
fn frames_of_two_streams_are_not_taken_for_one() {
    let one = encoded(&[Block::Content(1), Block::Kept, Block::Content(2)], 1, 0);
    let other = encoded(&[Block::Content(4), Block::Kept, Block::Content(5)], 1, 0);
    // The last frame of data and the end, which are as long in both.
    let tail = 2 * (8 + 16) + 8 + BLOCK + 24;
    let mixed = [&one[..one.len() - tail], &other[other.len() - tail..]].concat();
    assert!(matches!(received(&mixed), Err(StreamError::Damaged(2))));
}

#[test]
fn a_file_that_is_no_stream_is_told_as_such() {
    for bytes in [&b"QFI\xfb"[..], &[0; 4096]] {
        assert!(matches!(received(bytes), Err(StreamError::NotAStream)));
    }
}

#[test]
fn a_sender_that_said_nothing_is_told_apart() {
    assert!(matches!(received(&[]), Err(StreamError::Empty)));
}

#[test]
fn a_stream_of_a_newer_version_says_which_program_reads_it() {
    let newer = Head {
        version: streams::VERSION_WITH_ANSWERS + 1,
        ..head()
    };
    let encoder = Encoder::new(Vec::new(), &newer, Contents::new(0)).expect("memory takes it");
    let stream = encoder.end().expect("memory takes it").1;
    let refused = received(&stream).expect_err("it is newer").to_string();
    assert!(refused.contains("use a newer one"), "{refused}");
}

/// A sender that lies: its tags are right, and its frames break a rule.
#[test]
fn a_stream_whose_ranges_break_the_rules_is_refused() {
    let refused = |write: &dyn Fn(&mut Encoder<Vec<u8>>)| {
        let mut encoder =
            Encoder::new(Vec::new(), &head(), Contents::new(1 << 20)).expect("memory takes it");
        write(&mut encoder);
        let stream = encoder.end().expect("memory takes it").1;
        received(&stream).expect_err("it breaks a rule").to_string()
    };
    let zeros = |offset, length| Range { offset, length };
    let data = vec![7; BLOCK];
    let order = refused(&|encoder| {
        encoder.data(8192, &data).expect("memory takes it");
        encoder.zeros(zeros(4096, 4096)).expect("memory takes it");
    });
    assert!(order.contains("not in order"), "{order}");
    let beyond = refused(&|encoder| encoder.zeros(zeros(0, 1 << 40)).expect("memory takes it"));
    assert!(beyond.contains("beyond the volume's end"), "{beyond}");
    let wraps = refused(&|encoder| {
        encoder
            .zeros(zeros(4096, u64::MAX - 4095))
            .expect("memory takes it")
    });
    assert!(wraps.contains("beyond the volume's end"), "{wraps}");
    let part = refused(&|encoder| encoder.zeros(zeros(512, 4096)).expect("memory takes it"));
    assert!(part.contains("no whole blocks"), "{part}");
    let later = refused(&|encoder| {
        encoder.data(8 * 4096, &data).expect("memory takes it");
        encoder.data(4096, &data).expect("memory takes it");
    });
    assert!(
        later.contains("not in order") || later.contains("does not come before"),
        "{later}"
    );
}

/// A stream of these frames behind the head, with the tags that belong there: a sender can write what it likes.
fn forged(frames: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut stream = encoded(&[], 1, 0);
    // Without the end.
    stream.truncate(stream.len() - 48);
    for (kind, payload) in frames {
        let mut header = [0; 8];
        header[0] = *kind;
        header[4..].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let mut hasher = blake3::Hasher::new();
        hasher.update(&stream[stream.len() - 16..]);
        hasher.update(&header).update(payload);
        let tag = hasher.finalize();
        stream.extend(header);
        stream.extend(payload);
        stream.extend(&tag.as_bytes()[..16]);
    }
    stream
}

#[test]
fn a_sender_that_lies_in_frames_of_its_own_is_refused() {
    let numbers = |numbers: &[u64]| -> Vec<u8> {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        bytes.collect()
    };
    let refused = |frames: &[(u8, Vec<u8>)]| {
        let refused = received(&forged(frames)).expect_err("it lies");
        refused.to_string()
    };
    // Tags as these are what the encoder writes.
    let end = (5, numbers(&[0, 4096, 0]));
    received(&forged(&[(3, numbers(&[0, 4096])), end.clone()])).expect("a stream");
    // References to itself, to what comes later, across a wrap, and to a part of a block.
    for from in [8192, 4096, 1 << 16, u64::MAX - 4095, 512] {
        let told = refused(&[(4, numbers(&[8192, from, 8192]))]);
        assert!(
            told.contains("what does not come before it"),
            "{from}: {told}"
        );
    }
    let told = refused(&[(4, numbers(&[8192, 0]))]);
    assert!(told.contains("its length does not fit"), "{told}");
    let told = refused(&[(2, numbers(&[8192]))]);
    assert!(told.contains("no whole blocks"), "{told}");
    let told = refused(&[(2, numbers(&[8192, 1]))]);
    assert!(told.contains("no whole blocks"), "{told}");
    let told = refused(&[(3, numbers(&[0, 8192])), end]);
    assert!(told.contains("as much as its end says"), "{told}");
    let told = refused(&[(9, Vec::new())]);
    assert!(told.contains("no such kind"), "{told}");
    let told = refused(&[(1, b"{}".to_vec())]);
    assert!(told.contains("cannot be understood"), "{told}");
}
