//! Makes the corpora: `cargo run -p fuzz --example seeds`.
//!
//! From the captures in `roce/tests/captures` comes one file for each distinct kind of packet,
//! datagram, capsule and page; what no capture has (records, labels, rows, pool files, scripts) is
//! written by the program's own encoders. Files that are there already and are named otherwise, such as
//! regressions, stay.

mod disk;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use dedup::{Algorithm, Block, Pack, SUB_BLOCK_BYTES};
use roce::wire::cm::Message;
use roce::wire::{GSI_QPN, Opcode, Packet, UDP_PORT, icrc};
use uuid::Uuid;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Inputs by target and name.
#[derive(Default)]
struct Seeds(BTreeMap<(String, String), Vec<u8>>);

impl Seeds {
    /// The shortest input of that kind stays.
    fn add(&mut self, target: &str, kind: String, bytes: Vec<u8>) {
        let slot = self
            .0
            .entry((target.to_owned(), kind))
            .or_insert(bytes.clone());
        if bytes.len() < slot.len() {
            *slot = bytes;
        }
    }

    fn write(&self) {
        for ((target, kind), bytes) in &self.0 {
            let folder = root().join("fuzz/corpus").join(target);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join(kind), bytes).expect("a file");
        }
    }
}

/// The UDP payloads of a capture, with the address they come from.
fn payloads(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let file = fs::read(path).expect("a capture");
    let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4")) as usize;
    let mut found = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let frame = &file[at + 16..at + 16 + number(at + 8)];
        at += 16 + frame.len();
        let port = u16::from_be_bytes([frame[36], frame[37]]);
        if frame[12..14] == [8, 0] && frame[23] == 17 && port == UDP_PORT {
            let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
            found.push((frame[26..30].to_vec(), frame[42..end].to_vec()));
        }
    }
    found
}

/// Messages that are put together again, by sender and queue pair.
type Messages = HashMap<(Vec<u8>, u32), Vec<u8>>;

fn rdma(seeds: &mut Seeds, path: &Path) {
    let mut messages = Messages::new();
    for (source, payload) in payloads(path) {
        let body = &payload[..payload.len() - icrc::LEN];
        let packet = Packet::parse(body).expect("a captured packet parses");
        let opcode = packet.bth.opcode;
        let ack = packet
            .aeth
            .map(|aeth| format!("-{:02x}", aeth.syndrome.byte()));
        let mut input = vec![0];
        input.extend(&payload);
        seeds.add(
            "packet",
            format!("{opcode:?}{}", ack.unwrap_or_default()),
            input,
        );
        if packet.bth.dest_qpn == GSI_QPN {
            let (_, message) = Message::parse(packet.payload).expect("a known message");
            let debug = format!("{message:?}");
            let kind = debug.split('(').next().unwrap_or("other").to_owned();
            seeds.add("mad", kind, packet.payload.to_vec());
            continue;
        }
        let key = (source, packet.bth.dest_qpn);
        if opcode.is_first() {
            messages.insert(key.clone(), Vec::new());
        }
        let Some(message) = messages.get_mut(&key) else {
            continue;
        };
        message.extend(packet.payload);
        if opcode.is_last() {
            let message = messages.remove(&key).unwrap_or_default();
            whole(seeds, opcode, message);
        }
    }
}

/// The streams of a capture of NVMe/TCP, cut into PDUs: one input for each type and length of data, and
/// the beginning of each stream.
fn tcp(seeds: &mut Seeds, path: &Path) {
    let file = fs::read(path).expect("a capture");
    let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4")) as usize;
    let mut streams: BTreeMap<(u16, u16), Vec<u8>> = BTreeMap::new();
    let mut seen: HashMap<(u16, u16), u32> = HashMap::new();
    let mut at = 24;
    while at < file.len() {
        let frame = &file[at + 16..at + 16 + number(at + 8)];
        at += 16 + frame.len();
        if frame[12..14] != [8, 0] || frame[23] != 6 {
            continue;
        }
        let be16 = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (end, head) = (
            14 + usize::from(be16(16)),
            34 + usize::from(frame[46] >> 4) * 4,
        );
        let sequence = u32::from_be_bytes(frame[38..42].try_into().expect("4"));
        let key = (be16(34), be16(36));
        let payload = &frame[head..end];
        // In order and once: what was sent again or out of order is left out, with what follows.
        let expected = *seen.get(&key).unwrap_or(&sequence);
        let begins = frame[47] & 2 != 0;
        if begins || sequence == expected {
            let next = sequence.wrapping_add(payload.len() as u32 + u32::from(begins));
            seen.insert(key, next);
            streams.entry(key).or_default().extend(payload);
        }
    }
    for stream in streams.into_values().filter(|stream| !stream.is_empty()) {
        // Who sends, in the first byte: a host begins with ICReq, type 0.
        let side = u8::from(stream[0] != 0);
        let mut begin = vec![side];
        begin.extend(&stream[..stream.len().min(1500)]);
        seeds.add("pdu", format!("stream-{side}"), begin);
        let mut rest = &stream[..];
        while let Some(common) = rest.first_chunk::<8>() {
            let plen = u32::from_le_bytes([common[4], common[5], common[6], common[7]]) as usize;
            let Some((pdu, next)) = rest.split_at_checked(plen.max(8)) else {
                break;
            };
            let mut input = vec![side];
            input.extend(&pdu[..pdu.len().min(1200)]);
            seeds.add(
                "pdu",
                format!("type-{:02x}-data-{}", common[0], common[3]),
                input,
            );
            rest = next;
        }
    }
}

fn whole(seeds: &mut Seeds, opcode: Opcode, message: Vec<u8>) {
    if opcode.is_send() && message.len() >= 64 {
        let (code, kind, cdw10) = (message[0], message[4], message[40]);
        let kind = match code {
            0x7f => format!("fabrics-{kind:02x}"),
            0x02 | 0x06 | 0x09 | 0x0a => format!("entry-{code:02x}-{cdw10:02x}"),
            _ => format!("entry-{code:02x}"),
        };
        seeds.add("command", kind, message[..message.len().min(576)].to_vec());
    } else if opcode.is_send() && message.len() == 16 {
        let status = message[14..16]
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect::<String>();
        seeds.add("command", format!("completion-{status}"), message);
    } else if opcode.is_read_response() && message.len() == 1024 {
        seeds.add("connect", "connect".into(), message);
    } else if opcode.is_write() {
        let used = message
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        match message.len() {
            // Zeros at the end are what the target fills up with; and identify pages are told apart by
            // how much of them is used.
            4096 => seeds.add("identify", format!("page-{used}"), message[..used].to_vec()),
            512 | 1024 | 2048 => {
                seeds.add("log", format!("page-{}-{used}", message.len()), message)
            }
            _ => {}
        }
    }
}

/// Packs as the engine makes them, without the zeros at their ends, and scripts for packs that the target
/// makes.
fn packs(seeds: &mut Seeds) {
    let text = b"the same words again and again, as files have them; ";
    let content = |step: usize| -> Block {
        std::array::from_fn(|at| text[at * step % text.len()].wrapping_add((at / 700) as u8))
    };
    for (name, algorithm) in [("lz4", Algorithm::Lz4), ("zstd", Algorithm::Zstd)] {
        let fragments: Vec<Vec<u8>> = (1..5)
            .filter_map(|step| algorithm.compress(&content(step)))
            .collect();
        let mut block = [0; SUB_BLOCK_BYTES];
        let found = fragments.iter().map(|bytes| (algorithm, &bytes[..]));
        Pack::build(&mut block, found);
        let used = block
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        seeds.add("pack", name.into(), block[..used].to_vec());
        // The same fragments, as the target makes a pack of them.
        let mut script = vec![1];
        for bytes in &fragments {
            let zstd = u16::from(algorithm == Algorithm::Zstd) << 11;
            script.extend((zstd | (bytes.len() - 1) as u16).to_le_bytes());
            script.extend(bytes);
        }
        seeds.add("pack", format!("script-{name}"), script);
    }
    let mut contents = vec![0];
    for (at, zstd) in [(0, 0), (10, 0x800), (20, 0), (5, 0x800u16)] {
        contents.extend((zstd | 30).to_le_bytes());
        contents.extend(&text[at..at + 31]);
    }
    seeds.add("pack", "contents".into(), contents);
}

/// Scripts of the endpoint target: bytes as `endpoint.rs` takes them.
fn scripts(seeds: &mut Seeds) {
    let (host, target) = (0x00, 0x80);
    // A SEND, a READ and a WRITE of the host, delivered and acknowledged.
    let mut talk = Vec::new();
    for kind in [0, 1, 2] {
        talk.extend([host | 8, kind, 0x00, 0x08]);
        talk.extend([target, host, target, host]);
    }
    seeds.add("endpoint", "talk".into(), talk.clone());
    let mut lost = talk.clone();
    lost.splice(4..4, [target | 2, host | 15, 1, target | 3, target]);
    seeds.add("endpoint", "lost".into(), lost);
    let mut forged = vec![host | 8, 1, 0x00, 0x10];
    for opcode in 0..22 {
        forged.extend([
            target | 4,
            opcode,
            128,
            1,
            0,
            0,
            16,
            0,
            0x1f,
            1,
            8,
            0,
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            8,
        ]);
    }
    seeds.add("endpoint", "forged".into(), forged);
    let mut parting = talk;
    parting.extend([
        target | 12,
        host,
        target,
        host | 13,
        target,
        host | 14,
        target,
        host,
        target,
    ]);
    seeds.add("endpoint", "parting".into(), parting);
    seeds.add(
        "endpoint",
        "corrupt".into(),
        vec![
            host | 8,
            0,
            0,
            4,
            target | 1,
            0,
            9,
            0,
            1,
            target | 1,
            0,
            30,
            0,
            255,
            target,
        ],
    );
}

fn authentications(seeds: &mut Seeds) {
    use nvme::auth::{
        Challenge, ConfiguredPsk, Explanation, Failure, Group, Hash, Message, Negotiate, Reply,
        Secret, Success1,
    };
    let failure = Failure {
        transaction: 1,
        explanation: Explanation::Failed,
    };
    let messages = [
        Message::Negotiate(Negotiate {
            transaction: 1,
            secure_channel: 0,
            hashes: vec![1, 2, 3],
            groups: vec![0, 1, 2, 3, 4, 5],
        }),
        Message::Challenge(Challenge {
            transaction: 1,
            hash: Hash::Sha256,
            group: Group::Ffdhe2048,
            sequence: 7,
            value: vec![0xc1; 32],
            public: vec![0xd1; 256],
        }),
        Message::Reply(Reply {
            transaction: 1,
            answer: vec![0xa1; 48],
            challenge: Some((vec![0xc2; 48], 8)),
            public: vec![0xd2; 384],
        }),
        Message::Success1(Success1 {
            transaction: 1,
            hash_bytes: 64,
            answer: Some(vec![0xa2; 64]),
        }),
        Message::Success2(1),
        Message::Failure1(failure),
        Message::Failure2(failure),
    ];
    for (index, message) in messages.into_iter().enumerate() {
        seeds.add("auth", format!("message-{index}"), message.encode());
    }
    let random = std::array::from_fn(|index| index as u8);
    let texts = [
        Secret::from_random(Some(Hash::Sha512), &random).to_text(),
        Secret::from_random(None, &random).to_text(),
        ConfiguredPsk::from_random(Hash::Sha384, &random).to_text(),
        "NVMe0R01 nqn.2014-08.org.nvmexpress:uuid:1 nqn.2026-11.x:a"
            .to_owned()
            .into(),
        "NVMe1G02 nqn.2014-08.org.nvmexpress:uuid:1 nqn.2026-11.x:a ZGlnZXN0"
            .to_owned()
            .into(),
    ];
    for (index, text) in texts.into_iter().enumerate() {
        seeds.add("auth", format!("text-{index}"), text.as_bytes().to_vec());
    }
}

/// Both phases of NBD: a byte as `nbd.rs` takes it, then what a client sends.
fn network_block_devices(seeds: &mut Seeds) {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let option = |number: u32, data: &[u8]| {
        let len = (data.len() as u32).to_be_bytes();
        [b"IHAVEOPT", &number.to_be_bytes()[..], &len, data].concat()
    };
    let export = |name: &str| [&string(name)[..], &[0, 2, 0, 1, 0, 3]].concat();
    let contexts = |names: &[&str]| {
        let count = (names.len() as u32).to_be_bytes();
        let queries = names.iter().flat_map(|name| string(name));
        [&string("disk")[..], &count, &queries.collect::<Vec<_>>()].concat()
    };
    let all = [
        option(5, &[]),
        option(8, &[]),
        option(3, &[]),
        option(9, &contexts(&[])),
        option(9, &contexts(&["base:", "qemu:dirty-bitmap:"])),
        option(10, &contexts(&["base:allocation", "qemu:dirty-bitmap:a"])),
        option(6, &export("disk")),
        option(7, &export("")),
    ];
    let fixed = 0b110;
    seeds.add(
        "nbd",
        "handshake".into(),
        [&[fixed], &*all.concat()].concat(),
    );
    let others = [
        ("name", option(1, b"disk")),
        ("abort", option(2, &[])),
        ("unknown", option(11, &[1])),
    ];
    for (name, option) in others {
        seeds.add(
            "nbd",
            format!("option-{name}"),
            [&[fixed], &*option].concat(),
        );
    }
    let gone = [option(7, &export("disk")), option(1, &[])].concat();
    seeds.add(
        "nbd",
        "gone".into(),
        [&[fixed | 0b10_0000], &*gone].concat(),
    );
    let mut talk = vec![0b11];
    for (number, flags) in [
        (0, 4),
        (1, 1),
        (3, 0),
        (4, 0),
        (6, 18),
        (7, 8),
        (9, 0),
        (2, 0),
    ] {
        let request = nbd::wire::Request {
            command: number.into(),
            flags,
            cookie: number.into(),
            offset: if number == 3 { 0 } else { 4096 },
            len: if number == 3 { 0 } else { 512 },
        };
        talk.extend(request.encode());
        talk.extend(vec![7; request.payload() as usize]);
    }
    seeds.add("nbd", "requests".into(), talk);
}

/// Streams of snapshots, and scripts of who sends them.
fn streams_of(seeds: &mut Seeds) {
    let head = streams::Head {
        version: streams::VERSION,
        volume: "vm1".to_owned(),
        snapshot: "monday".to_owned(),
        content: Uuid::from_u128(7),
        created: 1_700_000_000,
        size_bytes: 1 << 20,
        lba_bytes: 4096,
        base: None,
        start_bytes: 0,
        exchange: None,
    };
    let changes = streams::Head {
        base: Some(streams::Base {
            snapshot: "sunday".to_owned(),
            content: Uuid::from_u128(6),
        }),
        start_bytes: 8192,
        ..head.clone()
    };
    for (kind, head, memory) in [
        ("whole", &head, 0),
        ("references", &head, 1 << 16),
        ("changes", &changes, 1 << 16),
    ] {
        let contents = streams::Contents::new(memory);
        let mut encoder =
            streams::Encoder::new(Vec::new(), head, contents).expect("memory takes it");
        encoder.data(8192, &[5; 4096]).expect("memory takes it");
        let zeros = streams::Range {
            offset: 16384,
            length: 8192,
        };
        encoder.zeros(zeros).expect("memory takes it");
        if memory > 0 {
            encoder.data(65536, &[5; 8192]).expect("memory takes it");
        }
        let (_, bytes) = encoder.end().expect("memory takes it");
        seeds.add("stream", kind.into(), bytes);
    }
    let key = streams::Digest([1; 32]);
    let exchange = streams::Exchange {
        key,
        proof: Some(key),
    };
    let asking = streams::Head {
        version: streams::VERSION_WITH_ANSWERS,
        exchange: Some(exchange.clone()),
        ..head.clone()
    };
    for (name, fingerprint) in [("offers", None), ("fingerprints", Some([2; 16]))] {
        let contents = streams::Contents::new(0).with_key(key);
        let mut encoder =
            streams::Encoder::new(Vec::new(), &asking, contents).expect("memory takes it");
        let block = |offset| streams::Offered {
            offset,
            hash: streams::content_hash(&key, &[5; 4096]),
            fingerprint,
        };
        let blocks = vec![block(8192), block(12288)];
        encoder.offer(blocks).expect("memory takes it");
        let (offset, length) = (8192, 4096);
        let known = encoder.known(streams::Range { offset, length });
        let sent = known.and_then(|()| encoder.new_data(12288, &[5; 4096]));
        sent.expect("memory takes it");
        let (_, bytes) = encoder.end().expect("memory takes it");
        seeds.add("stream", name.into(), bytes);
    }
    let mut encoder = streams::AnswerEncoder::new(Vec::new(), &exchange).expect("memory takes it");
    let ready = streams::Ready {
        start_bytes: 8192,
        looks: true,
        fingerprints: true,
    };
    for answer in [
        streams::Answer::Working,
        streams::Answer::Ready(ready),
        streams::Answer::Has(vec![5, 1]),
        streams::Answer::Whole,
    ] {
        encoder.answer(&answer).expect("memory takes it");
    }
    seeds.add("answers", "all".into(), encoder.into_output());
    // Steps: what is done with the next block, and its content.
    let offers = [0, 0, 0, 1, 1, 0, 2, 0, 3, 0];
    let answered = [1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 9, 3, 0];
    seeds.add("answers", "offers".into(), offers.to_vec());
    seeds.add("answers", "lies".into(), [0, 0, 1, 1].to_vec());
    seeds.add("answers", "answered".into(), answered.to_vec());
    let mut none = Vec::new();
    none.extend(streams::MAGIC);
    seeds.add("stream", "cut".into(), none);
    // Steps: how many blocks and how far on, and what they hold.
    let in_order = [200, 3, 1, 33, 0, 7, 1, 34, 2, 3, 6];
    let back = [200, 3, 1, 3, 2, 0xc1, 1];
    let beyond = [0, 7, 1, 0xef, 2, 7, 0];
    seeds.add("stream", "script".into(), in_order.to_vec());
    seeds.add("stream", "script-back".into(), back.to_vec());
    seeds.add("stream", "script-beyond".into(), beyond.to_vec());
}

fn main() {
    let mut seeds = Seeds::default();
    network_block_devices(&mut seeds);
    let captures = root().join("roce/tests/captures");
    for name in [
        "rdma-mtu1500.pcap",
        "rdma-mtu1500-loss4pct.pcap",
        "rdma-discover-mtu1500.pcap",
        "rdma-unanswered-connect.pcap",
    ] {
        rdma(&mut seeds, &captures.join(name));
    }
    tcp(&mut seeds, &captures.join("tcp-mtu1500.pcap"));
    let request = nvme::rdma_cm::RdmaCmRequest {
        qid: 1,
        hrqsize: 128,
        hsqsize: 127,
        cntlid: 1,
    };
    seeds.add("connect", "rdma-request".into(), request.encode().to_vec());
    seeds.add(
        "connect",
        "name".into(),
        b"nqn.2026-11.dev.onefold:default".to_vec(),
    );
    authentications(&mut seeds);
    disk::add(&mut seeds);
    packs(&mut seeds);
    scripts(&mut seeds);
    streams_of(&mut seeds);
    seeds.write();
}
