//! A sender asks, a receiver answers, and neither is believed for more than it can show.

use proptest::prelude::*;
use streams::{
    Answer, AnswerDecoder, AnswerEncoder, AnswerError, Asked, BLOCK_BYTES, Contents, Decoder,
    Digest, Encoder, Exchange, Frame, Head, OFFERED_MAX, OPEN_MAX, Offered, Range, Ready,
    StreamError, VERSION, VERSION_WITH_ANSWERS, bits_of, content_hash,
};
use uuid::Uuid;

const BLOCK: usize = BLOCK_BYTES as usize;
const BLOCKS: u64 = 64;
const KEY: Digest = Digest([9; 32]);

fn exchange() -> Exchange {
    Exchange {
        key: KEY,
        proof: None,
    }
}

fn head() -> Head {
    Head {
        version: VERSION_WITH_ANSWERS,
        volume: "vm1".to_owned(),
        snapshot: "monday".to_owned(),
        content: Uuid::from_u128(7),
        created: 1_700_000_000,
        size_bytes: BLOCKS * BLOCK_BYTES,
        lba_bytes: 4096,
        base: None,
        start_bytes: 0,
        exchange: Some(exchange()),
    }
}

fn content(number: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (number * 2) ^ at as u8 | 1).collect()
}

fn offered(at: u64, number: u8) -> Offered {
    Offered {
        offset: at * BLOCK_BYTES,
        hash: content_hash(&KEY, &content(number)),
        fingerprint: None,
    }
}

fn range(at: u64, count: u64) -> Range {
    Range {
        offset: at * BLOCK_BYTES,
        length: count * BLOCK_BYTES,
    }
}

/// The frames of a stream behind this head that a sender writes so.
fn frames_of(
    head: &Head,
    write: impl FnOnce(&mut Encoder<Vec<u8>>) -> std::io::Result<()>,
) -> Result<Vec<Frame>, StreamError> {
    let contents = Contents::new(0).with_key(KEY);
    let mut encoder = Encoder::new(Vec::new(), head, contents).expect("memory takes it");
    write(&mut encoder).expect("memory takes it");
    let (_, stream) = encoder.end().expect("memory takes it");
    let mut decoder = Decoder::new(&stream[..])?;
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next_frame()? {
        frames.push(frame);
    }
    Ok(frames)
}

#[track_caller]
fn refused(why: &str, write: impl FnOnce(&mut Encoder<Vec<u8>>) -> std::io::Result<()>) {
    let told = frames_of(&head(), write).map(|frames| frames.len());
    let told = told.expect_err("it breaks a rule");
    assert!(told.to_string().contains(why), "{told}");
}

fn answers() -> impl Strategy<Value = Vec<Answer>> {
    let ready = (any::<u64>(), any::<bool>(), any::<bool>());
    let ready = ready.prop_map(|(start_bytes, looks, fingerprints)| {
        Answer::Ready(Ready {
            start_bytes,
            looks,
            fingerprints,
        })
    });
    let later = prop_oneof![
        Just(Answer::Working),
        proptest::collection::vec(any::<u8>(), 1..=OFFERED_MAX / 8).prop_map(Answer::Has),
    ];
    let later = proptest::collection::vec(later, 0..6);
    (0usize..3, ready, later, any::<bool>()).prop_map(|(working, ready, later, is_whole)| {
        let mut all = vec![Answer::Working; working];
        all.push(ready);
        all.extend(later);
        all.extend(is_whole.then_some(Answer::Whole));
        all
    })
}

fn written(answers: &[Answer]) -> Vec<u8> {
    let mut encoder = AnswerEncoder::new(Vec::new(), &exchange()).expect("memory takes it");
    for answer in answers {
        encoder.answer(answer).expect("memory takes it");
    }
    encoder.into_output()
}

fn read(bytes: &[u8], exchange: &Exchange) -> (Vec<Answer>, AnswerError) {
    let mut found = Vec::new();
    let mut decoder = match AnswerDecoder::new(bytes, exchange) {
        Ok(decoder) => decoder,
        Err(error) => return (found, error),
    };
    loop {
        match decoder.next_answer() {
            Ok(answer) => found.push(answer),
            Err(error) => return (found, error),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_answered_is_read_and_a_cut_is_told(answers in answers(), at: prop::sample::Index) {
        let bytes = written(&answers);
        let (found, end) = read(&bytes, &exchange());
        prop_assert_eq!(&found, &answers);
        prop_assert!(matches!(end, AnswerError::Cut));
        let cut = &bytes[..at.index(bytes.len())];
        let (found, end) = read(cut, &exchange());
        prop_assert!(found.len() < answers.len() && found[..] == answers[..found.len()]);
        prop_assert!(matches!(end, AnswerError::Cut | AnswerError::NoAnswers(_)));
    }

    #[test]
    fn a_changed_bit_is_no_answer(answers in answers(), at: prop::sample::Index, bit in 0u8..8) {
        let mut bytes = written(&answers);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let (found, _) = read(&bytes, &exchange());
        prop_assert!(found.len() < answers.len() && found[..] == answers[..found.len()]);
    }

    #[test]
    fn what_a_receiver_has_is_told_block_by_block(has in proptest::collection::vec(any::<bool>(), 1..=OFFERED_MAX)) {
        let mut asked = Asked::default();
        asked.offered(has.len());
        prop_assert_eq!(asked.answered(&bits_of(&has)), Ok(has));
        prop_assert!(asked.answered(&[0]).is_err(), "nothing else was asked");
    }

    #[test]
    fn bits_of_what_was_not_offered_are_refused(blocks in 1usize..=OFFERED_MAX, bits in proptest::collection::vec(any::<u8>(), 1..=OFFERED_MAX / 8)) {
        let mut asked = Asked::default();
        asked.offered(blocks);
        let fits = bits.len() == blocks.div_ceil(8)
            && (blocks..bits.len() * 8).all(|at| bits[at / 8] >> (at % 8) & 1 == 0);
        prop_assert_eq!(asked.answered(&bits).is_ok(), fits);
    }

    #[test]
    fn a_volume_is_the_same_whatever_the_receiver_has(
        numbers in proptest::collection::vec(0u8..20, BLOCKS as usize),
        has in proptest::collection::vec(any::<bool>(), BLOCKS as usize),
        fingerprint: Option<[u8; 16]>,
    ) {
        let frames = frames_of(&head(), |encoder| {
            let blocks = (0..BLOCKS).map(|at| Offered { fingerprint, ..offered(at, numbers[at as usize]) });
            encoder.offer(blocks.collect())?;
            for at in 0..BLOCKS {
                match has[at as usize] {
                    true => encoder.known(range(at, 1))?,
                    false => encoder.new_data(at * BLOCK_BYTES, &content(numbers[at as usize]))?,
                }
            }
            Ok(())
        }).expect("a stream");
        let mut offers = Vec::new();
        let mut volume = vec![None; BLOCKS as usize];
        for frame in frames {
            match frame {
                Frame::Offer(blocks) => offers.extend(blocks),
                Frame::Known(range) => {
                    let at = (range.offset / BLOCK_BYTES) as usize;
                    prop_assert!(has[at]);
                    volume[at] = Some(offers[at].hash);
                }
                Frame::Data(offset, data) => volume[(offset / BLOCK_BYTES) as usize] = Some(content_hash(&KEY, &data)),
                Frame::End(totals) => {
                    let known = has.iter().filter(|has| **has).count() as u64;
                    prop_assert_eq!(totals.known_bytes, known * BLOCK_BYTES);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert!(offers.iter().all(|block| block.fingerprint == fingerprint));
        let wanted: Vec<_> = numbers.iter().map(|number| Some(content_hash(&KEY, &content(*number)))).collect();
        prop_assert_eq!(volume, wanted);
    }
}

#[test]
fn data_that_are_not_what_was_offered_are_refused() {
    refused("not what it has offered", |encoder| {
        encoder.offer(vec![offered(1, 1), offered(2, 2)])?;
        encoder.new_data(BLOCK_BYTES, &content(1))?;
        encoder.new_data(2 * BLOCK_BYTES, &content(3))
    });
}

#[test]
fn what_was_offered_is_neither_left_out_nor_taken_back() {
    refused("leaves out what it has offered", |encoder| {
        encoder.offer(vec![offered(1, 1), offered(2, 2)])?;
        encoder.new_data(2 * BLOCK_BYTES, &content(2))
    });
    refused("leaves out what it has offered", |encoder| {
        encoder.offer(vec![offered(1, 1), offered(2, 2)])?;
        encoder.known(range(2, 1))
    });
    refused("leaves out what it has offered", |encoder| {
        encoder.offer(vec![offered(1, 1)])?;
        encoder.zeros(range(1, 1))
    });
    refused("leaves out what it has offered", |encoder| {
        encoder.offer(vec![offered(1, 1)])
    });
}

#[test]
fn what_was_not_offered_is_not_taken_for_known() {
    refused("refers to what it has not offered", |encoder| {
        encoder.offer(vec![offered(1, 1)])?;
        encoder.known(range(1, 2))
    });
    refused("refers to what it has not offered", |encoder| {
        encoder.known(range(5, 1))
    });
    refused("beyond the volume's end", |encoder| {
        encoder.offer(vec![offered(1, 1)])?;
        encoder.known(Range {
            offset: BLOCK_BYTES,
            length: u64::MAX - 2 * BLOCK_BYTES + 1,
        })
    });
}

#[test]
fn offers_out_of_order_beyond_the_end_and_without_end_are_refused() {
    refused("not in order", |encoder| {
        encoder.offer(vec![offered(2, 1), offered(1, 2)])
    });
    refused("not in order", |encoder| {
        encoder.zeros(range(0, 8))?;
        encoder.offer(vec![offered(7, 1)])
    });
    refused("beyond the volume's end", |encoder| {
        encoder.offer(vec![offered(BLOCKS, 1)])
    });
    refused("its length does not fit", |encoder| {
        encoder.offer(Vec::new())
    });
    let large = Head {
        size_bytes: 1 << 40,
        ..head()
    };
    let told = frames_of(&large, |encoder| {
        let blocks: Vec<_> = (0..=OPEN_MAX as u64).map(|at| offered(at, 1)).collect();
        blocks
            .chunks(OFFERED_MAX)
            .try_for_each(|some| encoder.offer(some.to_vec()))
    });
    let told = told.expect_err("it is more than a receiver remembers");
    assert!(told.to_string().contains("more than may be open"), "{told}");
}

#[test]
fn a_stream_that_goes_one_way_offers_nothing() {
    let one_way = Head {
        version: VERSION,
        exchange: None,
        ..head()
    };
    let told = frames_of(&one_way, |encoder| encoder.offer(vec![offered(1, 1)]));
    let told = told.expect_err("nobody listens").to_string();
    assert!(
        told.contains("does not say that the sender listens"),
        "{told}"
    );
    for head in [
        Head {
            version: VERSION,
            ..head()
        },
        Head {
            exchange: None,
            ..head()
        },
    ] {
        let told = frames_of(&head, |_| Ok(())).expect_err("it contradicts itself");
        assert!(
            told.to_string().contains("its version does not fit"),
            "{told}"
        );
    }
}

#[test]
fn what_is_no_answer_is_shown() {
    let (_, told) = read(b"Welcome to other!\nonefold: not found", &exchange());
    let told = told.to_string();
    assert!(told.contains("\"Welcome to other!\\nonefold"), "{told}");
    assert!(matches!(read(b"", &exchange()).1, AnswerError::Cut));
}

#[test]
fn answers_to_another_stream_are_refused() {
    let bytes = written(&[Answer::Ready(Ready::default())]);
    let other = Exchange {
        key: Digest([8; 32]),
        ..exchange()
    };
    let (found, told) = read(&bytes, &other);
    assert!(found.is_empty() && matches!(told, AnswerError::Damaged(0)));
}

#[test]
fn answers_out_of_their_turn_and_of_no_known_kind_are_refused() {
    for first in [Answer::Has(vec![1]), Answer::Whole] {
        let (found, told) = read(&written(&[first]), &exchange());
        assert!(
            found.is_empty() && told.to_string().contains("turn"),
            "{told}"
        );
    }
    let ready = Answer::Ready(Ready::default());
    let (found, told) = read(&written(&[ready.clone(), ready]), &exchange());
    assert!(
        found.len() == 1 && told.to_string().contains("turn"),
        "{told}"
    );
    for bits in [0, OFFERED_MAX / 8 + 1] {
        let bytes = written(&[Answer::Ready(Ready::default()), Answer::Has(vec![0; bits])]);
        let told = read(&bytes, &exchange()).1.to_string();
        assert!(told.contains("its length does not fit"), "{told}");
    }
    for kind in [0, 5, 255] {
        let mut bytes = written(&[]);
        bytes.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        let told = read(&bytes, &exchange()).1.to_string();
        assert!(told.contains("no such kind"), "{told}");
    }
}
