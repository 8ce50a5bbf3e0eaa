//! What a receiver answers, and what a sender offers: who lies makes right tags, so scripts write with the program's own
//! encoders, in any order.

use streams::{
    Answer, AnswerDecoder, AnswerEncoder, AnswerError, Asked, BLOCK_BYTES, Contents, Decoder,
    Digest, Encoder, Exchange, Frame, Head, OFFERED_MAX, Offered, Range, Ready, StreamError,
    VERSION_WITH_ANSWERS, content_hash,
};
use uuid::Uuid;

use crate::input::Input;

const KEY: Digest = Digest([1; 32]);

/// Steps of a script at most.
const STEPS_MAX: usize = 8;

/// Blocks of the volume of a script.
const BLOCKS: u64 = 16;

fn exchange() -> Exchange {
    Exchange {
        key: KEY,
        proof: None,
    }
}

/// Bytes as they come, as a script of a receiver, and as one of a sender that offers.
pub(crate) fn answers(bytes: &[u8]) {
    let (read, _) = read(bytes);
    assert!(bytes.starts_with(&written(&read)) || read.is_empty());
    receiver(&mut Input::new(bytes));
    sender(&mut Input::new(bytes));
}

fn written(answers: &[Answer]) -> Vec<u8> {
    let mut encoder = AnswerEncoder::new(Vec::new(), &exchange()).expect("memory takes it");
    for answer in answers {
        encoder.answer(answer).expect("memory takes it");
    }
    encoder.into_output()
}

/// All answers up to the first that is refused. What they say of their order is checked here once more.
fn read(bytes: &[u8]) -> (Vec<Answer>, AnswerError) {
    let mut read = Vec::new();
    let mut decoder = match AnswerDecoder::new(bytes, &exchange()) {
        Ok(decoder) => decoder,
        Err(error) => return (read, error),
    };
    let mut is_ready = false;
    loop {
        let answer = match decoder.next_answer() {
            Ok(answer) => answer,
            Err(error) => return (read, error),
        };
        match &answer {
            Answer::Working => {}
            Answer::Ready(_) => {
                assert!(!is_ready);
                is_ready = true;
            }
            Answer::Has(bits) => assert!(is_ready && (1..=OFFERED_MAX / 8).contains(&bits.len())),
            Answer::Whole => assert!(is_ready),
        }
        read.push(answer);
    }
}

/// What a receiver says is read up to where it breaks a rule, and believed only of what was asked.
fn receiver(input: &mut Input<'_>) {
    let mut said = Vec::new();
    let mut keeps_rules = true;
    let mut is_ready = false;
    while !input.is_empty() && said.len() < STEPS_MAX {
        let (kind, what) = (input.u8() % 4, input.u8());
        let (answer, is_right) = match kind {
            0 => (Answer::Working, true),
            1 => {
                let ready = Ready {
                    start_bytes: input.u64(),
                    looks: what & 1 == 1,
                    fingerprints: what & 2 == 2,
                };
                let is_first = !is_ready;
                is_ready = true;
                (Answer::Ready(ready), is_first)
            }
            2 => {
                let bits = input.bytes(usize::from(what % 5)).to_vec();
                let is_some = !bits.is_empty();
                (Answer::Has(bits), is_ready && is_some)
            }
            _ => (Answer::Whole, is_ready),
        };
        keeps_rules &= is_right;
        said.push((answer, keeps_rules));
    }
    let all: Vec<Answer> = said.iter().map(|(answer, _)| answer.clone()).collect();
    let (read, _) = read(&written(&all));
    let right = said.iter().take_while(|(_, is_right)| *is_right).count();
    assert_eq!(read, all[..right]);
    for answer in read {
        let Answer::Has(bits) = answer else { continue };
        let blocks = usize::from(input.u8()) % 40 + 1;
        let mut asked = Asked::default();
        asked.offered(blocks);
        if let Ok(has) = asked.answered(&bits) {
            assert_eq!(has.len(), blocks);
            assert_eq!(streams::bits_of(&has), bits);
        }
        assert!(asked.answered(&bits).is_err());
    }
}

fn block(content: u8) -> Vec<u8> {
    vec![content; BLOCK_BYTES as usize]
}

fn frames_of(stream: &[u8]) -> Result<Vec<Frame>, StreamError> {
    let mut decoder = Decoder::new(stream)?;
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next_frame()? {
        frames.push(frame);
    }
    Ok(frames)
}

/// What a sender offers and sends is received, or refused if it breaks a rule.
fn sender(input: &mut Input<'_>) {
    let head = Head {
        version: VERSION_WITH_ANSWERS,
        volume: "v".to_owned(),
        snapshot: "s".to_owned(),
        content: Uuid::from_u128(1),
        created: 0,
        size_bytes: BLOCKS * BLOCK_BYTES,
        lba_bytes: 4096,
        base: None,
        start_bytes: 0,
        exchange: Some(exchange()),
    };
    let contents = Contents::new(0).with_key(KEY);
    let mut encoder = Encoder::new(Vec::new(), &head, contents).expect("memory takes it");
    let mut open: Vec<(u64, u8)> = Vec::new();
    let (mut upto, mut offered_upto) = (0, 0);
    let mut keeps_rules = true;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let (step, what) = (input.u8(), input.u8() % 3 + 1);
        // Mostly the next block, now and then one before or behind it.
        let from = if step & 3 == 0 { offered_upto } else { upto };
        let at = match step >> 5 {
            7 => u64::from(step & 31),
            6 => from + 1,
            _ => from,
        };
        let range = Range {
            offset: at * BLOCK_BYTES,
            length: BLOCK_BYTES,
        };
        keeps_rules &= at < BLOCKS;
        match step & 3 {
            0 => {
                let offer = Offered {
                    offset: range.offset,
                    hash: content_hash(&KEY, &block(what)),
                    fingerprint: (what == 3).then_some([what; 16]),
                };
                keeps_rules &= at >= offered_upto.max(upto);
                open.push((at, what));
                offered_upto = offered_upto.max(at + 1);
                encoder.offer(vec![offer])
            }
            kind => {
                keeps_rules &= at >= upto && open.iter().all(|(offered, _)| *offered >= at);
                let offered = open.iter().position(|(offered, _)| *offered == at);
                let offered = offered.map(|place| open.remove(place).1);
                upto = upto.max(at + 1);
                offered_upto = offered_upto.max(upto);
                match kind {
                    1 => {
                        keeps_rules &= offered.is_none_or(|offered| offered == what);
                        encoder.new_data(range.offset, &block(what))
                    }
                    2 => {
                        keeps_rules &= offered.is_some();
                        encoder.known(range)
                    }
                    _ => {
                        keeps_rules &= offered.is_none();
                        encoder.zeros(range)
                    }
                }
            }
        }
        .expect("memory takes it");
    }
    keeps_rules &= open.is_empty();
    let (totals, written) = encoder.end().expect("memory takes it");
    let frames = frames_of(&written);
    assert_eq!(frames.is_ok(), keeps_rules, "{frames:?}");
    if let Ok(frames) = frames {
        assert!(matches!(frames.last(), Some(Frame::End(end)) if *end == totals));
    }
}
