//! Senders and receivers that lie, or answer out of their turn: each is told, and harms only itself.

use std::fs::{File, OpenOptions};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;

use serde_json::Value;
use streams::{
    Answer, AnswerDecoder, AnswerEncoder, Asked, BLOCK_BYTES, Contents, Decoder, Digest, Encoder,
    Frame, Head, OFFERED_MAX, OPEN_MAX, Offered, Range, Ready, bits_of, content_hash,
};
use tests::daemon::text_of;

use crate::harness::{LIMIT, json, onefold};
use crate::streams::{MIB, Side, noise};

const BLOCK: usize = BLOCK_BYTES as usize;

/// `onefold send --through`, which this story answers in place of a receiver.
struct Listening {
    sender: Child,
    stream: Decoder<BufReader<File>>,
    answers: AnswerEncoder<File>,
}

impl Listening {
    /// Starts to send, and reads the head of the stream.
    fn begin(side: &Side, snapshot: &str) -> Self {
        let pipes = tempfile::tempdir().expect("a folder");
        let [stream, answers] = ["stream", "answers"].map(|name| pipes.path().join(name));
        let made = Command::new("mkfifo").args([&stream, &answers]).status();
        assert!(made.expect("mkfifo starts").success());
        // Only the sender has the standard error that this story waits for.
        let through = format!(
            "cat {} 2>/dev/null & exec cat >{} 2>/dev/null",
            answers.display(),
            stream.display()
        );
        let mut sender = Command::new(onefold())
            .args(
                side.pool
                    .on(&["send", snapshot, "--json", "--through", &through]),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (opened, both) = channel();
        std::thread::spawn(move || {
            let stream = BufReader::new(File::open(stream).expect("a pipe"));
            let answers = OpenOptions::new().write(true).open(answers);
            let stream = Decoder::new(stream).expect("a stream");
            let both = (stream, answers.expect("a pipe"));
            // Nobody waits any more for what comes too late.
            drop(opened.send(both));
        });
        let Ok((stream, answers)) = both.recv_timeout(LIMIT) else {
            sender.kill().expect("it is there");
            panic!("nothing was sent: {}", ended(sender));
        };
        let exchange = stream.head().exchange.clone().expect("the sender listens");
        Self {
            sender,
            answers: AnswerEncoder::new(answers, &exchange).expect("it listens"),
            stream,
        }
    }

    fn says(&mut self, answer: &Answer) {
        self.answers.answer(answer).expect("it listens");
    }

    /// The blocks of the next offer.
    fn offered(&mut self) -> Vec<Offered> {
        loop {
            match self.next() {
                Frame::Offer(blocks) => return blocks,
                Frame::End(_) => panic!("nothing was offered"),
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Frame {
        let frame = self.stream.next_frame().expect("a stream");
        frame.expect("it does not end here")
    }

    /// Takes what else comes, so that the sender waits for nobody. Returns the sender, and where it listens.
    fn takes_all(self) -> (Child, AnswerEncoder<File>) {
        let Self {
            sender,
            mut stream,
            answers,
        } = self;
        std::thread::spawn(move || while stream.next_frame().is_ok_and(|frame| frame.is_some()) {});
        (sender, answers)
    }

    /// The sender refuses what was answered, and says why.
    #[track_caller]
    fn gives_up(self, why: &str) {
        let (sender, _answers) = self.takes_all();
        gives_up(sender, why);
    }

    /// Listens to no more of it.
    fn leaves(self) {
        let (sender, answers) = self.takes_all();
        drop(answers);
        ended(sender);
    }
}

#[track_caller]
fn gives_up(sender: Child, why: &str) {
    let output = sender.wait_with_output().expect("it ends");
    let errors = text_of(&output);
    assert_eq!(output.status.code(), Some(65), "{errors}");
    assert!(errors.contains(why), "'{why}' is not in: {errors}");
}

fn ended(sender: Child) -> String {
    text_of(&sender.wait_with_output().expect("it ends"))
}

/// A receiver that looks for what is offered, by its hash alone.
fn looks() -> Answer {
    Answer::Ready(Ready {
        looks: true,
        ..Ready::default()
    })
}

fn has(blocks: usize) -> Answer {
    Answer::Has(bits_of(&vec![true; blocks]))
}

#[test]
fn a_receiver_that_answers_what_nobody_asked_is_refused() {
    let from = Side::new();
    from.set("vm1", &noise(41, 8 * MIB));
    from.does(&["snapshot", "create", "vm1@s"]);
    let ready = Answer::Ready(Ready::default());
    let beyond = |start_bytes| {
        Answer::Ready(Ready {
            start_bytes,
            ..Ready::default()
        })
    };
    for (answers, why) in [
        (
            vec![beyond(9 * MIB as u64)],
            "where the stream has to begin",
        ),
        (vec![beyond(512)], "where the stream has to begin"),
        (vec![Answer::Whole], "does not come in its turn"),
        (vec![has(8)], "does not come in its turn"),
        (
            vec![ready.clone(), ready.clone()],
            "does not come in its turn",
        ),
        (vec![ready.clone(), has(8)], "what nobody asked"),
        (vec![looks(), Answer::Whole], "what nobody asked"),
    ] {
        let mut listening = Listening::begin(&from, "vm1@s");
        answers.iter().for_each(|answer| listening.says(answer));
        listening.gives_up(why);
    }
    let mut listening = Listening::begin(&from, "vm1@s");
    listening.says(&looks());
    let offered = listening.offered().len();
    listening.says(&has(offered - 8));
    listening.gives_up("not about as many blocks as were offered");

    // More and more of it. It ends where the sender does.
    let mut listening = Listening::begin(&from, "vm1@s");
    listening.says(&looks());
    let (sender, mut answers) = listening.takes_all();
    while answers.answer(&has(OFFERED_MAX)).is_ok() {}
    gives_up(sender, "answer");
    from.ends();
}

#[test]
fn a_receiver_that_claims_to_have_all_gets_no_data_and_no_fingerprint() {
    let from = Side::new();
    from.set("vm1", &noise(42, 8 * MIB));
    from.does(&["snapshot", "create", "vm1@s"]);
    let mut listening = Listening::begin(&from, "vm1@s");
    listening.says(&Answer::Working);
    listening.says(&looks());
    let mut known_bytes = 0;
    loop {
        match listening.next() {
            Frame::Offer(blocks) => {
                assert!(blocks.iter().all(|block| block.fingerprint.is_none()));
                listening.says(&has(blocks.len()));
            }
            Frame::Known(range) => known_bytes += range.length,
            Frame::End(_) => break,
            other => panic!("{other:?}"),
        }
    }
    listening.says(&Answer::Whole);
    let output = listening.sender.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text_of(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["data_bytes"], 0, "{report}");
    assert_eq!(known_bytes as usize, 8 * MIB);
    from.ends();
}

/// A stream of a sender that lies, in a file.
fn stream_of(
    side: &Side,
    head: &Head,
    write: impl FnOnce(&mut Encoder<Vec<u8>>) -> std::io::Result<()>,
) -> PathBuf {
    let path = side.file("stream");
    let encoder = Encoder::new(Vec::new(), head, Contents::new(0));
    let mut encoder = encoder.expect("memory takes it");
    write(&mut encoder).expect("memory takes it");
    let (_, stream) = encoder.end().expect("memory takes it");
    std::fs::write(&path, stream).expect("a file");
    path
}

/// The head of a stream that listens to answers.
fn head_of(side: &Side, snapshot: &str) -> Head {
    let listening = Listening::begin(side, snapshot);
    let head = listening.stream.head().clone();
    listening.leaves();
    head
}

fn key_of(head: &Head) -> Digest {
    head.exchange.as_ref().expect("it listens").key
}

/// The blocks of a volume as they are offered.
fn offered_of(head: &Head, content: &[u8]) -> Vec<Offered> {
    let block = |(at, block): (usize, &[u8])| Offered {
        offset: at as u64 * BLOCK_BYTES,
        hash: content_hash(&key_of(head), block),
        fingerprint: None,
    };
    content.chunks(BLOCK).enumerate().map(block).collect()
}

#[test]
fn a_sender_that_leaves_out_or_offers_what_it_must_not_is_refused_and_its_volume_is_hidden() {
    let (from, to) = (Side::new(), Side::new());
    let content = noise(43, MIB);
    let golden = noise(44, MIB);
    from.set("vm1", &content);
    from.does(&["snapshot", "create", "vm1@s"]);
    to.set("golden", &golden);
    let head = head_of(&from, "vm1@s");
    let whole = Range {
        offset: 0,
        length: MIB as u64,
    };
    let refused = |name: &str, stream: &Path, why: &str| {
        to.refuses_stream(&[name, "--like", "golden"], stream, &[why]);
    };
    let stream = stream_of(&to, &head, |encoder| {
        encoder.offer(offered_of(&head, &content))?;
        encoder.known(whole)
    });
    refused("left-out", &stream, "that were not said to be here");
    to.hides("left-out");
    let stream = stream_of(&to, &head, |encoder| {
        encoder.offer(offered_of(&head, &golden))?;
        encoder.new_data(0, &content)
    });
    refused(
        "other-data",
        &stream,
        "its data are not what it has offered",
    );
    // What was found of the lie is of no use to anybody.
    to.hides("other-data");
    let stream = stream_of(&to, &head, |encoder| {
        encoder.offer(offered_of(&head, &content))?;
        encoder.new_data(0, &content[..MIB / 2])
    });
    refused("half", &stream, "leaves out what it has offered");
    let large = Head {
        size_bytes: 1 << 30,
        ..head.clone()
    };
    let stream = stream_of(&to, &large, |encoder| {
        let blocks = offered_of(&large, &vec![1; (OPEN_MAX + 1) * BLOCK]);
        let mut parts = blocks.chunks(OFFERED_MAX);
        parts.try_for_each(|part| encoder.offer(part.to_vec()))
    });
    refused("flooded", &stream, "more than may be open at a time");
    for name in ["left-out", "other-data", "half", "flooded"] {
        to.does(&["volume", "delete", name, "--yes"]);
    }
    assert!(to.content("golden") == golden);
    from.ends();
    to.ends();
}

#[test]
fn a_receiver_looks_by_fingerprints_only_for_a_sender_that_proves_the_key_of_the_domain() {
    let (from, to) = (Side::new(), Side::new());
    let content = noise(45, 2 * MIB);
    let key = from.file("key");
    let key = key.to_str().expect("text");
    from.does(&["pool", "key", "share", "--domain", "vms", key]);
    to.does(&["pool", "key", "take", "--domain", "theirs", key]);
    for (side, name, domain) in [(&from, "vm1", "vms"), (&to, "golden", "theirs")] {
        let image = side.file("image");
        std::fs::write(&image, &content).expect("a file");
        let image = image.to_str().expect("text");
        side.does(&["volume", "import", name, image, "--domain", domain]);
    }
    from.does(&["snapshot", "create", "vm1@s"]);
    // The fingerprints are right, whoever sends them.
    let mut listening = Listening::begin(&from, "vm1@s");
    let head = listening.stream.head().clone();
    listening.says(&Answer::Ready(Ready {
        looks: true,
        fingerprints: true,
        ..Ready::default()
    }));
    let offered = listening.offered();
    assert!(offered.iter().all(|block| block.fingerprint.is_some()));
    listening.leaves();

    let answers_to = |name: &str, domain: &str, head: &Head| {
        let said = said_to(&to, &[name, "--domain", domain], head, &offered, &content);
        assert!(to.content(name) == content);
        said
    };
    let proven = answers_to("proven", "theirs", &head);
    assert_eq!(proven, (true, vec![true; offered.len()]));
    let proof = head.exchange.as_ref().and_then(|exchange| exchange.proof);
    let mut changed = proof.expect("a proof");
    changed.0[0] ^= 1;
    for (number, proof) in [None, Some(changed)].into_iter().enumerate() {
        let mut head = head.clone();
        head.exchange.as_mut().expect("it listens").proof = proof;
        let unproven = answers_to(&format!("unproven-{number}"), "theirs", &head);
        assert_eq!(unproven, (false, vec![false; offered.len()]));
    }
    // A proof is one for the domain.
    let other = answers_to("other", "others", &head);
    assert_eq!(other, (false, vec![false; offered.len()]));
    let volumes = json(&to.pool.on(&["volume", "list", "--json"]));
    assert!(volumes.as_array().is_some_and(|all| all.len() >= 5));
    from.ends();
    to.ends();
}

/// Whether a receiver looks by fingerprints, and which blocks of an offer it says to have. All of them come as data then.
fn said_to(
    side: &Side,
    words: &[&str],
    head: &Head,
    offered: &[Offered],
    content: &[u8],
) -> (bool, Vec<bool>) {
    let mut receiver = Command::new(onefold())
        .args(side.pool.on(&[&["receive"], words].concat()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let (Some(stdin), Some(stdout)) = (receiver.stdin.take(), receiver.stdout.take()) else {
        panic!("no pipes");
    };
    let mut encoder = Encoder::new(stdin, head, Contents::new(0)).expect("it reads");
    encoder.offer(offered.to_vec()).expect("it reads");
    let exchange = head.exchange.as_ref().expect("it listens");
    let mut answers = AnswerDecoder::new(stdout, exchange).expect("answers");
    let mut next = || loop {
        match answers.next_answer().expect("an answer") {
            Answer::Working => {}
            other => return other,
        }
    };
    let Answer::Ready(ready) = next() else {
        panic!("it is not ready");
    };
    let Answer::Has(bits) = next() else {
        panic!("it was asked");
    };
    let mut asked = Asked::default();
    asked.offered(offered.len());
    let has = asked.answered(&bits).expect("what was asked");
    encoder.new_data(0, content).expect("it reads");
    encoder.end().expect("it reads");
    assert_eq!(next(), Answer::Whole);
    assert!(receiver.wait().expect("it ends").success());
    (ready.fingerprints, has)
}
