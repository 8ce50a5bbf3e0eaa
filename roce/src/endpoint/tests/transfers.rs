//! Random work over bad networks: contents arrive, completions come once and in order, and no
//! memory is left behind.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use rand::{Rng, RngCore};

use super::pair::{A, B, Joint, Network, Pair};
use crate::endpoint::{EndpointConfig, Event, PathMtu, QpId, SendWork, WcKind, WcStatus};
use crate::memory::Access;

/// What a posted work request must lead to.
enum Expected {
    Send,
    Read {
        offset: usize,
        content: Vec<u8>,
    },
    Write {
        rkey: u32,
        at: usize,
        content: Vec<u8>,
    },
}

/// What a message announces, so that the receiver can check what must have come before it.
struct Message {
    content: Vec<u8>,
    invalidate: Option<u32>,
    /// A WRITE that was posted before the SEND: its bytes must be there when the message is.
    written: Option<(u32, usize, Vec<u8>)>,
}

#[derive(Default)]
struct End {
    posted: VecDeque<(u64, Expected)>,
    /// Messages under way to the other end.
    messages: VecDeque<Message>,
    receives: VecDeque<u64>,
    /// Regions that the other end may reach, with their content.
    regions: HashMap<u32, u64>,
    to_post: usize,
    next_wr: u64,
}

const MESSAGE_MAX: usize = 20_000;

fn story(seed: u64) {
    let mut config = EndpointConfig {
        give_up_after: Duration::from_secs(3600),
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new(seed, EndpointConfig::default(), Network::perfect());
    let network = Network::random(&mut pair.random);
    config.max_unacked_packets = [1, 2, 16, 128][pair.random.random_range(0..4)];
    config.transmit_quantum_bytes = pair.random.random_range(1..40_000);
    config.rnr_retry_count = 10_000;
    config.sends_are_overtaken = pair.random.random_bool(0.5);
    let mut pair = Pair::new(seed, config, network);
    let joint = Joint {
        mtu: PathMtu::ALL[pair.random.random_range(0..5)],
        reads: pair.random.random_range(1..6),
        psn: [pair.random.random(), pair.random.random()],
    };
    let qps = pair.join(joint);
    let mut ends = [End::default(), End::default()];
    for end in &mut ends {
        end.to_post = pair.random.random_range(0..40);
    }
    let total: usize = ends.iter().map(|end| end.to_post).sum();
    let mut completed = 0;
    let what = format!("seed {seed} {joint:?} {network:?}");
    pair.run_until(Duration::from_secs(3600), &what, |pair| {
        for side in [A, B] {
            check(pair, &mut ends, side, &mut completed, qps);
            while ends[side].to_post > 0 && pair.random.random_range(0..3) > 0 {
                post(pair, &mut ends, side, qps);
            }
            // Receives are posted late at times: the peer hears "not ready".
            let wanted = ends[1 - side].messages.len();
            if ends[side].receives.len() < wanted && pair.random.random_range(0..4) > 0 {
                let wr_id = ends[side].next_wr;
                ends[side].next_wr += 1;
                ends[side].receives.push_back(wr_id);
                pair.post_receive(side, qps[side], wr_id, MESSAGE_MAX);
            }
        }
        completed == total && ends.iter().all(|end| end.messages.is_empty())
    });
    for (side, end) in ends.iter_mut().enumerate() {
        for (rkey, _) in end.regions.drain() {
            pair.sides[side]
                .endpoint
                .deregister(rkey)
                .expect("the region is there");
        }
        assert_eq!(pair.sides[side].endpoint.counters().qp_errors, 0, "{what}");
    }
    pair.finish(qps);
}

fn bytes(pair: &mut Pair, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pair.random.fill_bytes(&mut bytes);
    bytes
}

fn length(pair: &mut Pair) -> usize {
    match pair.random.random_range(0..4) {
        0 => pair.random.random_range(0..20),
        1 => 256 << pair.random.random_range(0..5),
        _ => pair.random.random_range(0..MESSAGE_MAX),
    }
}

/// Registers memory at the other end and gives its key, address and content.
fn remote_region(
    pair: &mut Pair,
    ends: &mut [End; 2],
    side: usize,
    len: usize,
) -> (u32, u64, Vec<u8>) {
    let content = bytes(pair, len);
    let block = pair.block(content.clone());
    let access = Access {
        remote_read: true,
        remote_write: true,
    };
    let endpoint = &mut pair.sides[1 - side].endpoint;
    let key = endpoint.register(block, access).expect("room for a region");
    ends[1 - side].regions.insert(key.rkey, key.va);
    (key.rkey, key.va, content)
}

fn submit(
    pair: &mut Pair,
    end: &mut End,
    side: usize,
    qps: [QpId; 2],
    work: SendWork<super::pair::Block>,
    expected: Expected,
) {
    let wr_id = end.next_wr;
    end.next_wr += 1;
    end.posted.push_back((wr_id, expected));
    pair.sides[side]
        .endpoint
        .post_send(pair.now, qps[side], wr_id, work)
        .expect("posted");
}

fn post(pair: &mut Pair, ends: &mut [End; 2], side: usize, qps: [QpId; 2]) {
    ends[side].to_post -= 1;
    let len = length(pair);
    let offset = pair.random.random_range(0..50);
    match pair.random.random_range(0..3) {
        0 => {
            let content = bytes(pair, len);
            let invalidate = (pair.random.random_range(0..3) == 0)
                .then(|| remote_region(pair, ends, side, 10).0);
            // The last WRITE that is still posted: the SEND must not overtake it.
            let written = ends[side]
                .posted
                .iter()
                .rev()
                .find_map(|(_, expected)| match expected {
                    Expected::Write { rkey, at, content } => Some((*rkey, *at, content.clone())),
                    _ => None,
                });
            let message = Message {
                content: content.clone(),
                invalidate,
                written,
            };
            ends[side].messages.push_back(message);
            let data = pair.block(content);
            let work = SendWork::Send {
                data,
                len,
                invalidate,
            };
            submit(pair, &mut ends[side], side, qps, work, Expected::Send);
        }
        1 => {
            let at = pair.random.random_range(0..100);
            let (rkey, va, content) = remote_region(pair, ends, side, at + len + 5);
            let into = pair.block(vec![0; offset + len]);
            let content = content[at..at + len].to_vec();
            let remote_va = va + at as u64;
            let work = SendWork::Read {
                into,
                offset,
                len,
                remote_va,
                rkey,
            };
            submit(
                pair,
                &mut ends[side],
                side,
                qps,
                work,
                Expected::Read { offset, content },
            );
        }
        _ => {
            let at = pair.random.random_range(0..100);
            let (rkey, va, _) = remote_region(pair, ends, side, at + len + 5);
            let data = bytes(pair, offset + len);
            let content = data[offset..].to_vec();
            let from = pair.block(data);
            let remote_va = va + at as u64;
            let work = SendWork::Write {
                from,
                offset,
                len,
                remote_va,
                rkey,
            };
            submit(
                pair,
                &mut ends[side],
                side,
                qps,
                work,
                Expected::Write { rkey, at, content },
            );
        }
    }
}

fn region_holds(pair: &Pair, ends: &[End; 2], side: usize, rkey: u32, at: usize, content: &[u8]) {
    let va = ends[side].regions[&rkey] + at as u64;
    let regions = &pair.sides[side].endpoint.regions;
    assert_eq!(regions.read(0, rkey, va, content.len()), Ok(content));
}

fn check(
    pair: &mut Pair,
    ends: &mut [End; 2],
    side: usize,
    completed: &mut usize,
    _qps: [QpId; 2],
) {
    for event in std::mem::take(&mut pair.sides[side].events) {
        let Event::Completion {
            wr_id,
            kind,
            status,
            len,
            invalidated,
            memory,
            ..
        } = event
        else {
            panic!("{event:?}")
        };
        assert_eq!(status, WcStatus::Success);
        if kind == WcKind::Receive {
            let expected = ends[side]
                .receives
                .pop_front()
                .expect("a receive was posted");
            assert_eq!(wr_id, expected, "receives complete in order");
            let message = ends[1 - side]
                .messages
                .pop_front()
                .expect("a message was sent");
            assert_eq!(memory.bytes[..len], message.content[..]);
            assert_eq!(invalidated, message.invalidate);
            if let Some((rkey, at, content)) = message.written {
                region_holds(pair, ends, side, rkey, at, &content);
            }
            continue;
        }
        *completed += 1;
        let posted = &mut ends[side].posted;
        let at = posted.iter().position(|(id, _)| *id == wr_id);
        let at = at.expect("work was posted");
        let overtakes = pair.sides[side].endpoint.config.sends_are_overtaken
            && matches!(kind, WcKind::Read | WcKind::Write)
            && posted.range(..at).all(|(_, w)| matches!(w, Expected::Send));
        assert!(at == 0 || overtakes, "work completes in order");
        let (_, expected) = posted.remove(at).expect("it was found");
        match (kind, expected) {
            (WcKind::Send, Expected::Send) => {}
            (WcKind::Read, Expected::Read { offset, content }) => {
                assert_eq!(len, content.len());
                assert_eq!(memory.bytes[offset..], content[..]);
            }
            (WcKind::Write, Expected::Write { rkey, at, content }) => {
                region_holds(pair, ends, 1 - side, rkey, at, &content);
            }
            (kind, _) => panic!("{kind:?} completed, something else was posted"),
        }
    }
}

#[test]
fn random_work_over_bad_networks_arrives_once_in_order_and_whole() {
    for seed in super::seeds(300) {
        story(seed);
    }
}
