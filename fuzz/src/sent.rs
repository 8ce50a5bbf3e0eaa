//! Streams of snapshots: what another pool sends, or whoever stands between.
//!
//! Tags have no key, so a sender that lies makes right ones. A search does not find those by itself: scripts write streams
//! with the program's own encoder, which takes ranges in any order.

use streams::{
    BLOCK_BYTES, Contents, DATA_BYTES_MAX, Decoder, Encoder, Frame, Head, OFFERED_MAX, Offered,
    RANGES_MAX, Range, StreamError, VERSION,
};
use uuid::Uuid;

use crate::input::Input;

/// Blocks of the volume of a script.
const BLOCKS: u64 = 16;

/// Steps of a script at most.
const STEPS_MAX: usize = 6;

/// Bytes as they come, and as a script of a sender.
pub(crate) fn stream(bytes: &[u8]) {
    if let Ok(frames) = frames_of(bytes) {
        again(bytes, &frames);
    }
    script(&mut Input::new(bytes));
}

/// The frames of a stream that is whole. What it says of ranges is checked here once more.
fn frames_of(bytes: &[u8]) -> Result<Vec<Frame>, StreamError> {
    let mut decoder = Decoder::new(bytes)?;
    let (size, mut upto) = (decoder.head().size_bytes, decoder.head().start_bytes);
    let mut advance = |range: Range| {
        assert!(range.length > 0 && range.length.is_multiple_of(BLOCK_BYTES));
        assert!(range.offset >= upto && range.offset.is_multiple_of(BLOCK_BYTES));
        let end = range.offset.checked_add(range.length).expect("no wrap");
        assert!(end <= size);
        upto = end;
    };
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next_frame()? {
        match &frame {
            Frame::Head(_) => panic!("a second head"),
            Frame::Data(offset, data) => {
                assert!(data.len() <= DATA_BYTES_MAX);
                advance(Range {
                    offset: *offset,
                    length: data.len() as u64,
                });
            }
            Frame::Zeros(range) | Frame::Known(range) => advance(*range),
            Frame::Offer(blocks) => {
                assert!((1..=OFFERED_MAX).contains(&blocks.len()));
                let is_within = |block: &Offered| block.offset + BLOCK_BYTES <= size;
                assert!(blocks.iter().all(is_within));
            }
            Frame::Same(all) => {
                assert!(all.len() <= RANGES_MAX);
                for same in all {
                    assert!(same.from + same.range.length <= same.range.offset);
                    advance(same.range);
                }
            }
            Frame::End(_) => {}
        }
        frames.push(frame);
    }
    assert!(matches!(frames.last(), Some(Frame::End(_))));
    Ok(frames)
}

/// A stream without references, written again, has the same frames.
fn again(bytes: &[u8], frames: &[Frame]) {
    if frames.iter().any(|frame| matches!(frame, Frame::Same(_))) {
        return;
    }
    let decoder = Decoder::new(bytes).expect("it was one");
    let mut encoder =
        Encoder::new(Vec::new(), decoder.head(), Contents::new(0)).expect("memory takes it");
    for frame in frames {
        match frame {
            Frame::Data(offset, data) => encoder.data(*offset, data),
            Frame::Zeros(range) => encoder.zeros(*range),
            Frame::Offer(blocks) => encoder.offer(blocks.clone()),
            Frame::Known(range) => encoder.known(*range),
            _ => Ok(()),
        }
        .expect("memory takes it");
    }
    let (_, written) = encoder.end().expect("memory takes it");
    assert_eq!(frames_of(&written).expect("a stream"), frames);
}

/// What the script's sender sends is received, or refused if it breaks a rule.
fn script(input: &mut Input<'_>) {
    let head = Head {
        version: VERSION,
        volume: "v".to_owned(),
        snapshot: "s".to_owned(),
        content: Uuid::from_u128(1),
        created: 0,
        size_bytes: BLOCKS * BLOCK_BYTES,
        lba_bytes: 4096,
        base: None,
        start_bytes: 0,
        exchange: None,
    };
    let memory = usize::from(input.u8()) * 64;
    let mut encoder =
        Encoder::new(Vec::new(), &head, Contents::new(memory)).expect("memory takes it");
    // What each block is: 0 is zeros, 255 is what the receiver had.
    let mut wanted = [255_u8; BLOCKS as usize];
    let mut upto = 0;
    let mut keeps_rules = true;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let (step, what) = (input.u8(), input.u8() % 7);
        // Mostly behind what was sent, now and then before it.
        let first = match step >> 6 {
            3 => u64::from(step & 63),
            _ => upto + u64::from(step >> 5 & 1),
        };
        let count = u64::from(step & 31) % 3 + 1;
        let offset = first * BLOCK_BYTES;
        keeps_rules &= first >= upto && first + count <= BLOCKS;
        upto = first + count;
        if let Some(blocks) = wanted.get_mut(first as usize..upto as usize) {
            blocks.fill(what);
        }
        match what {
            0 => encoder.zeros(Range {
                offset,
                length: count * BLOCK_BYTES,
            }),
            _ => encoder.data(offset, &vec![what; (count * BLOCK_BYTES) as usize]),
        }
        .expect("memory takes it");
    }
    let (_, written) = encoder.end().expect("memory takes it");
    let frames = frames_of(&written);
    assert_eq!(frames.is_ok(), keeps_rules, "{frames:?}");
    let Ok(frames) = frames else {
        return;
    };
    let mut found = [255_u8; BLOCKS as usize];
    let span = |range: Range| {
        let first = (range.offset / BLOCK_BYTES) as usize;
        first..first + (range.length / BLOCK_BYTES) as usize
    };
    for frame in frames {
        match frame {
            Frame::Data(offset, data) => {
                let first = (offset / BLOCK_BYTES) as usize;
                for (at, block) in data.chunks(BLOCK_BYTES as usize).enumerate() {
                    assert!(block.iter().all(|byte| *byte == block[0]));
                    found[first + at] = block[0];
                }
            }
            Frame::Zeros(range) => found[span(range)].fill(0),
            Frame::Same(all) => {
                for same in all {
                    let from = Range {
                        offset: same.from,
                        ..same.range
                    };
                    found.copy_within(span(from), span(same.range).start);
                }
            }
            Frame::Head(_) | Frame::Offer(_) | Frame::Known(_) | Frame::End(_) => {}
        }
    }
    assert_eq!(found, wanted);
}
