//! A stream through a command that answers: what the other side has does not travel.
//!
//! Guarantees: an answer is believed only if it fits what was asked. Blocks are offered ahead, so that a slow line costs
//! one wait and not one for each piece; memory for what is not answered yet is bounded. A command that says nothing for
//! too long, or ends early, is an error, and is not left behind.

use std::collections::VecDeque;
use std::io::{BufReader, Write};
use std::ops::Range as Span;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::images::Bytes;
use dedup::ErrorKind;
use futures_util::{Stream, TryStreamExt};
use reactor::lock_whole;
use streams::{
    Answer, AnswerDecoder, AnswerError, Asked, BLOCK_BYTES, Encoder, Exchange, Head, OPEN_MAX,
    Offered, Piece, Range, Ready, Same, Totals,
};
use subsystem::errors::Failure;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::runs;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Pieces that wait for answers at most.
const OPEN_PIECES: usize = 16;

/// Parts of the stream on their way to the command.
const PARTS: usize = 4;

/// Answers that were read and are not looked at yet.
const ANSWERS: usize = 64;

/// How long a command may take to end when the stream has ended.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is looked whether it has.
const END_INTERVAL: Duration = Duration::from_millis(20);

/// A command that takes a stream, and answers.
pub(super) struct Peer {
    command: String,
    child: Child,
    /// `None`: the stream has ended.
    to: Option<Sender<Vec<u8>>>,
    answers: Receiver<Result<Answer, AnswerError>>,
    heard: Arc<Mutex<Instant>>,
    silence_max: Duration,
    /// How long the command may take to end by itself.
    end_timeout: Duration,
    sent_bytes: u64,
}

impl Peer {
    /// Starts the command with `sh -c`.
    pub(super) fn start(
        command: &str,
        exchange: &Exchange,
        silence_max: Duration,
    ) -> Result<Self, Failure> {
        let cannot_start = |error: &dyn std::fmt::Display| {
            Failure::invalid(format!("`{command}` cannot be started: {error}"))
        };
        let started = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = started.map_err(|error| cannot_start(&error))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(cannot_start(&"it has no pipes"));
        };
        let (to, parts) = channel(PARTS);
        let (said, answers) = channel(ANSWERS);
        let heard = Arc::new(Mutex::new(Instant::now()));
        let (hears, exchange) = (heard.clone(), exchange.clone());
        // They end with the command's pipes.
        std::thread::spawn(move || write_all(stdin, parts));
        std::thread::spawn(move || listen(stdout, &exchange, &hears, &said));
        Ok(Self {
            command: command.to_owned(),
            child,
            to: Some(to),
            answers,
            heard,
            silence_max,
            end_timeout: END_TIMEOUT,
            sent_bytes: 0,
        })
    }

    /// Bytes that went to the command.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Sends a part of the stream.
    async fn put(&mut self, part: Vec<u8>) -> Result<(), Failure> {
        if part.is_empty() {
            return Ok(());
        }
        self.sent_bytes += part.len() as u64;
        let Some(to) = self.to.clone() else {
            return Err(self.failed("the stream has ended"));
        };
        tokio::select! {
            sent = to.send(part) => if sent.is_ok() {
                return Ok(());
            },
            () = silence(&self.heard, self.silence_max) => return Err(self.is_silent()),
        }
        drop(to);
        Err(self.ended_early().await)
    }

    /// The next answer that is more than a sign of life.
    async fn answer(&mut self) -> Result<Answer, Failure> {
        let said = tokio::select! {
            said = self.answers.recv() => said,
            () = silence(&self.heard, self.silence_max) => return Err(self.is_silent()),
        };
        match said {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(AnswerError::Cut)) | None => Err(self.ended_early().await),
            Some(Err(error)) => Err(self.failed(&error.to_string())),
        }
    }

    /// An answer that has come already.
    fn answer_now(&mut self) -> Option<Result<Answer, AnswerError>> {
        self.answers.try_recv().ok()
    }

    /// Ends the stream, and waits for the command, which may have more to say to people.
    pub(super) async fn end(&mut self) -> Option<ExitStatus> {
        self.to = None;
        let until = Instant::now() + self.end_timeout;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            tokio::time::sleep(END_INTERVAL).await;
        }
        None
    }

    async fn ended_early(&mut self) -> Failure {
        let status = self.end().await;
        while let Some(said) = self.answer_now() {
            if let Err(error) = said
                && !matches!(error, AnswerError::Cut)
            {
                return self.failed(&error.to_string());
            }
        }
        let why = match status {
            Some(status) => format!("it ended too early, with {status}: what it wrote says why"),
            None => "it takes no more of the stream, and does not end".to_owned(),
        };
        Failure::unavailable(format!("`{}`: {why}", self.command))
    }

    fn is_silent(&mut self) -> Failure {
        self.end_timeout = Duration::ZERO;
        Failure::unavailable(format!(
            "`{}` answered nothing for {} s: if it needs longer, say so with --answer-timeout",
            self.command,
            self.silence_max.as_secs()
        ))
    }

    fn failed(&self, why: &str) -> Failure {
        Failure::invalid(format!("`{}`: {why}", self.command))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // It had its time to end by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Waits until nothing was heard for so long.
async fn silence(heard: &Mutex<Instant>, silence_max: Duration) {
    loop {
        let until = *lock_whole(heard) + silence_max;
        if Instant::now() >= until {
            return;
        }
        tokio::time::sleep_until(until.into()).await;
    }
}

/// Writes what comes until the stream or the command ends.
fn write_all(mut to: ChildStdin, mut parts: Receiver<Vec<u8>>) {
    while let Some(part) = parts.blocking_recv() {
        // What the command answers, or how it ends, says why.
        if to.write_all(&part).is_err() {
            return;
        }
    }
}

/// Passes answers on, and notes each sign of life.
fn listen(
    from: ChildStdout,
    exchange: &Exchange,
    heard: &Mutex<Instant>,
    to: &Sender<Result<Answer, AnswerError>>,
) {
    let mut decoder = match AnswerDecoder::new(BufReader::new(from), exchange) {
        Ok(decoder) => decoder,
        Err(error) => {
            let _ = to.blocking_send(Err(error));
            return;
        }
    };
    loop {
        let answer = decoder.next_answer();
        *lock_whole(heard) = Instant::now();
        let is_last = matches!(answer, Ok(Answer::Whole) | Err(_));
        if !matches!(answer, Ok(Answer::Working)) && to.blocking_send(answer).is_err() || is_last {
            return;
        }
    }
}

/// A piece of the volume that goes into the stream when it is known what the receiver has of it.
struct Waiting {
    data: Bytes,
    parts: Vec<Part>,
    offered: usize,
    upto: u64,
}

enum Part {
    Zeros(Range),
    Same(Same),
    /// What did not come before: its offset, and where it is in the data.
    New(u64, Span<usize>),
}

impl Waiting {
    /// Looks at a piece. Returns the blocks of it that are to be offered, too.
    fn new(
        encoder: &mut Encoder<Vec<u8>>,
        range: Range,
        data: Option<(Bytes, Bytes)>,
        tells_zeros: bool,
    ) -> (Self, Vec<Offered>) {
        let mut offered = Vec::new();
        let mut parts = Vec::new();
        let (data, fingerprints) = data.unwrap_or_else(|| {
            parts.push(Part::Zeros(range));
            (Bytes::new(), Bytes::new())
        });
        let (fingerprints, _) = fingerprints.as_chunks();
        let fingerprint = |offset: u64| {
            let at = (offset - range.offset) / BLOCK_BYTES;
            fingerprints.get(at as usize).copied()
        };
        for (at, run, is_zero) in runs(&data) {
            let here = range.offset + at as u64;
            if is_zero {
                if tells_zeros {
                    parts.push(Part::Zeros(Range {
                        offset: here,
                        length: run.len() as u64,
                    }));
                }
                continue;
            }
            let pieces = encoder
                .contents()
                .split_and_tell(here, run, |offset, hash| {
                    offered.push(Offered {
                        offset,
                        hash,
                        fingerprint: fingerprint(offset),
                    });
                });
            parts.extend(pieces.into_iter().map(|piece| match piece {
                Piece::Same(same) => Part::Same(same),
                Piece::New(offset, new) => {
                    let start = (offset - range.offset) as usize;
                    Part::New(offset, start..start + new.len())
                }
            }));
        }
        let waiting = Self {
            data,
            parts,
            offered: offered.len(),
            upto: range.offset + range.length,
        };
        (waiting, offered)
    }

    /// Writes it. `has` says of each new block whether the receiver has it.
    fn write(&self, encoder: &mut Encoder<Vec<u8>>, has: &[bool]) -> std::io::Result<()> {
        let mut has = has.iter();
        for part in &self.parts {
            match part {
                Part::Zeros(range) => encoder.zeros(*range)?,
                Part::Same(same) => encoder.same(*same)?,
                Part::New(offset, span) => {
                    let data = &self.data[span.clone()];
                    let blocks = data.len() / BLOCK;
                    let mut has: Vec<bool> = has.by_ref().take(blocks).copied().collect();
                    // What was not offered is not there.
                    has.resize(blocks, false);
                    let mut at = 0;
                    for run in has.chunk_by(|a, b| a == b) {
                        let length = run.len() * BLOCK;
                        let here = offset + at as u64;
                        match run.first() {
                            Some(true) => encoder.known(Range {
                                offset: here,
                                length: length as u64,
                            })?,
                            _ => encoder.new_data(here, &data[at..at + length])?,
                        }
                        at += length;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Sends the head; returns how the receiver takes the stream.
pub(super) async fn begin(
    peer: &mut Peer,
    encoder: &mut Encoder<Vec<u8>>,
    head: &Head,
) -> Result<Ready, Failure> {
    peer.put(std::mem::take(encoder.output())).await?;
    match peer.answer().await? {
        Answer::Ready(ready)
            if ready.start_bytes <= head.size_bytes
                && ready.start_bytes.is_multiple_of(BLOCK_BYTES) =>
        {
            Ok(ready)
        }
        _ => Err(peer.failed("it does not say where the stream has to begin")),
    }
}

/// Sends all behind the head, and waits until the receiver has it.
pub(super) async fn send_pieces(
    peer: &mut Peer,
    mut encoder: Encoder<Vec<u8>>,
    ready: Ready,
    tells_zeros: bool,
    pieces: impl Stream<Item = Result<(Range, Option<(Bytes, Bytes)>), Failure>>,
    mut done: impl FnMut(u64),
) -> Result<Totals, Failure> {
    let mut pieces = std::pin::pin!(pieces);
    let mut asking = Asking::default();
    while let Some((range, data)) = pieces.try_next().await? {
        let (mut waiting, offered) = Waiting::new(&mut encoder, range, data, tells_zeros);
        if !ready.looks {
            waiting.offered = 0;
        }
        while asking.pieces.len() >= OPEN_PIECES || asking.blocks + waiting.offered > OPEN_MAX {
            let answer = peer.answer().await?;
            asking.answered(peer, answer)?;
            asking.write(&mut encoder, &mut done)?;
        }
        if waiting.offered > 0 {
            asking.asked.offered(offered.len());
            asking.blocks += offered.len();
            encoder.offer(offered).map_err(|error| no_memory(&error))?;
        }
        asking.pieces.push_back(waiting);
        while let Some(answer) = peer.answer_now() {
            let answer = answer.map_err(|error| peer.failed(&error.to_string()))?;
            asking.answered(peer, answer)?;
        }
        asking.write(&mut encoder, &mut done)?;
        peer.put(std::mem::take(encoder.output())).await?;
    }
    while !asking.pieces.is_empty() {
        peer.put(std::mem::take(encoder.output())).await?;
        let answer = peer.answer().await?;
        asking.answered(peer, answer)?;
        asking.write(&mut encoder, &mut done)?;
    }
    let (totals, rest) = encoder.end().map_err(|error| no_memory(&error))?;
    peer.put(rest).await?;
    // The receiver makes sure that nothing follows.
    peer.to = None;
    match peer.answer().await? {
        Answer::Whole => Ok(totals),
        _ => Err(peer.failed("it answers what nobody asked")),
    }
}

/// What was offered and is not in the stream yet.
#[derive(Default)]
struct Asking {
    pieces: VecDeque<Waiting>,
    /// Blocks that were offered of these.
    blocks: usize,
    asked: Asked,
    /// Answers for the first of them that offered anything.
    answers: VecDeque<Vec<bool>>,
}

impl Asking {
    fn answered(&mut self, peer: &Peer, answer: Answer) -> Result<(), Failure> {
        let has = match answer {
            Answer::Has(bits) => self.asked.answered(&bits),
            _ => Err("it answers what nobody asked"),
        };
        self.answers.push_back(has.map_err(|why| peer.failed(why))?);
        Ok(())
    }

    /// Writes what waits for nothing any more.
    fn write(
        &mut self,
        encoder: &mut Encoder<Vec<u8>>,
        done: &mut impl FnMut(u64),
    ) -> Result<(), Failure> {
        while let Some(first) = self.pieces.front() {
            let has = match first.offered {
                0 => Vec::new(),
                _ => match self.answers.pop_front() {
                    Some(has) => has,
                    None => break,
                },
            };
            first
                .write(encoder, &has)
                .map_err(|error| no_memory(&error))?;
            done(first.upto);
            self.blocks -= first.offered;
            self.pieces.pop_front();
        }
        Ok(())
    }
}

fn no_memory(error: &std::io::Error) -> Failure {
    Failure::new(
        ErrorKind::Internal,
        format!("memory takes no more: {error}"),
    )
}
