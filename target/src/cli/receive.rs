//! `onefold receive`: a stream becomes a volume with its snapshot, or the next snapshot of one.
//!
//! Guarantees: hosts see nothing of a stream before all of it has come and was checked. What an interrupted one has made
//! durable is not written again. Memory is bounded whatever the stream says.

mod answers;
mod likely;
mod looking;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal};
use std::os::fd::AsFd;
use std::process::ExitCode;

use api::client::Client;
use api::images::{
    BeginImport, Bytes, ChangesOf, FinishImport, ImportInto, ImportPart, ImportSession, PARTS_MAX,
    ReceivedSnapshot, SAME_BYTES_MAX, WriteParts,
};
use api::volumes::{CreateVolume, VolumeView};
use clap::Args;
use dedup::ErrorKind;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesOrdered;
use indicatif::ProgressBar;
use meta::{Compression, VerifyPolicy};
use serde::Serialize;
use streams::{Answer, Decoder, Exchange, Frame, Head, Range, Ready, Same, StreamError, Totals};
use subsystem::errors::Failure;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::{Instant, sleep_until};

use self::answers::Answers;
use self::likely::Likely;
use self::looking::{Looking, next_found};
use super::args::PoolArg;
use super::run::converse;
use super::status::nsid_text;
use super::transfer::{KEEP_INTERVAL, Lanes, PIECES, interrupted, keep};
use super::{Outcome, ask, print, print_json, progress};
use crate::exit::EXIT_INTERRUPTED;
use crate::options::{parse_compression, parse_switch, parse_verify};
use crate::size::{format_human, parse_size};

/// Data behind parts that wait: then these are written, so that an interruption loses no more.
const WAITING_BYTES_MAX: u64 = 64 << 20;

/// Bytes that are read from standard input at a time.
const READ_BYTES: usize = 1 << 20;

/// `onefold receive`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ssh other onefold send db@monday | onefold receive db\n  \
                  ssh other onefold send db@tuesday --from monday | onefold receive db\n  \
                  onefold receive db <db-monday.stream\n  \
                  onefold send db@monday --through 'ssh here onefold receive db --like golden'    (typed there)\n\n\
                  A whole stream makes the volume, and a snapshot of the name that it had there. One of changes brings the \
                  next snapshot to a volume that has, unchanged, what the earlier one has. No host sees the volume before \
                  all has come and was checked. A stream that was interrupted says how to go on with it, and how to give \
                  it up.\n\n\
                  To `onefold send --through` it answers on its standard output which contents it has already, in the volumes \
                  that --like names: these are read once before the stream. What it did is told on standard error then."
)]
pub struct ReceiveArgs {
    /// The volume's name here
    #[arg(value_name = "NEW")]
    name: String,
    /// Go on with a stream that was interrupted
    #[arg(long)]
    resume: bool,
    /// Whether the blocks of the new volume are deduplicated, with each other and with those of other volumes
    #[arg(long, value_name = "on|off", value_parser = parse_switch, default_value = "on", action = clap::ArgAction::Set)]
    dedup: bool,
    /// How the new volume stores new contents
    #[arg(long, value_name = "off|lz4|zstd", value_parser = parse_compression, default_value = "off")]
    compression: Compression,
    /// What a write to the new volume does about a block that has the fingerprint of new data
    #[arg(long, value_name = "trust|compare|background", value_parser = parse_verify, default_value = "trust")]
    verify: VerifyPolicy,
    /// Name of the new volume's domain: volumes share blocks only with others of the same domain
    #[arg(long, value_name = "NAME", default_value = "")]
    domain: String,
    /// The subsystem that shows the new volume to hosts, or none [default: the default one]
    #[arg(long, value_name = "NQN|none")]
    subsystem: Option<String>,
    /// A volume or snapshot that may have much of what is sent with `onefold send --through`; may be given several times
    #[arg(long, value_name = "VOLUME[@NAME]")]
    like: Vec<String>,
    /// Memory for the contents of these; 256M is enough for 28 GiB of different ones
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    memory: u64,
    /// The daemon's pool.
    #[command(flatten)]
    pool: PoolArg,
    /// Print JSON, on standard error if the sender listens to answers
    #[arg(long)]
    json: bool,
}

/// What was received.
#[derive(Debug, Serialize)]
struct Received {
    volume: VolumeView,
    /// `VOLUME@NAME`.
    snapshot: String,
    /// Where it was resumed.
    resumed_at_bytes: u64,
    /// What the stream had.
    #[serde(flatten)]
    totals: Totals,
}

/// How far a stream is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// All before this byte was answered.
    done_bytes: u64,
    /// All before this byte is durable.
    kept_bytes: u64,
}

/// What the reader of a stream has for who writes it to the volume.
enum Read {
    Frame(Frame),
    /// It was whole, and nothing follows.
    End,
    Failed(StreamError),
}

pub(super) fn run(args: &ReceiveArgs) -> Outcome {
    if io::stdin().is_terminal() {
        return Err(Failure::invalid(format!(
            "standard input is a terminal, and takes a stream: `onefold receive {name} <FILE`, or `ssh HOST onefold send \
             VOLUME@NAME | onefold receive {name}`",
            name = args.name
        ))
        .into());
    }
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let stdin = stdin.map_err(|error| of_stream(&error.into()))?;
    let input = BufReader::with_capacity(READ_BYTES, File::from(stdin));
    let decoder = Decoder::new(input).map_err(|error| of_stream(&error))?;
    let client = Client::new(&args.pool.pool);
    let answers = match &decoder.head().exchange {
        None if !args.like.is_empty() => {
            return Err(Failure::invalid(
                "--like is for a sender that listens to answers, and this one does not: `onefold send VOLUME@NAME --through \
                 COMMAND` does",
            )
            .into());
        }
        None => None,
        Some(_) if io::stdout().is_terminal() => {
            return Err(Failure::invalid(
                "the sender listens to answers on standard output, and that is a terminal: let `onefold send --through` run \
                 this command, or send without --through",
            )
            .into());
        }
        Some(exchange) => {
            let stdout = io::stdout().as_fd().try_clone_to_owned();
            let stdout = stdout.map_err(|error| of_stream(&error.into()))?;
            Some(Answers::begin(File::from(stdout), exchange))
        }
    };
    let is_answering = answers.is_some();
    let Some(received) = converse(receive(args, &client, decoder, answers))? else {
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    };
    if args.json {
        match is_answering {
            false => print_json(&received)?,
            true => ask::tell([serde_json::to_string(&received).map_err(|error| {
                Failure::new(ErrorKind::Internal, format!("no JSON: {error}"))
            })?]),
        }
    } else {
        let Received {
            volume,
            snapshot,
            resumed_at_bytes,
            totals,
        } = &received;
        let text = format!(
            "received {snapshot}: {}, NSID {}, {}-byte blocks; {} of data, {} that came again, {} of zeros{}{}",
            format_human(volume.size_bytes),
            nsid_text(&volume.namespaces),
            volume.lba_bytes,
            format_human(totals.data_bytes),
            format_human(totals.same_bytes),
            format_human(totals.zero_bytes),
            match is_answering {
                false => String::new(),
                true => format!(", {} that were here", format_human(totals.known_bytes)),
            },
            match resumed_at_bytes {
                0 => String::new(),
                bytes => format!(" (resumed at {})", format_human(*bytes)),
            }
        );
        match is_answering {
            false => print(&format!("{text}\n")),
            // Standard output has the answers.
            true => ask::tell([text]),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A stream that cannot be read or believed.
fn of_stream(error: &StreamError) -> Failure {
    Failure::invalid(format!("the stream is refused: {error}"))
}

/// What the daemon is asked for before the stream's data.
fn request_of(args: &ReceiveArgs, head: &Head) -> BeginImport {
    let since = match &head.base {
        None => String::new(),
        Some(base) => format!(" since {}", base.content),
    };
    let into = match (&head.base, args.resume) {
        (_, true) => ImportInto::Interrupted,
        (Some(base), false) => ImportInto::Onto(ChangesOf {
            base: base.content,
            size_bytes: head.size_bytes,
        }),
        (None, false) => ImportInto::New(CreateVolume {
            name: args.name.clone(),
            size_bytes: head.size_bytes,
            lba_bytes: head.lba_bytes,
            dedup: args.dedup,
            compression: args.compression,
            verify: args.verify,
            domain: args.domain.clone(),
            subsystem: args.subsystem.clone(),
            uuid: None,
        }),
    };
    BeginImport {
        image: format!("stream of {} ({}){since}", head.snapshot, head.content),
        image_bytes: Some(head.size_bytes),
        grow: false,
        snapshot: Some(ReceivedSnapshot {
            name: head.snapshot.clone(),
            content: head.content,
            created_at: head.created,
        }),
        into,
    }
}

/// Receives a stream to its end. `None`: it was interrupted, which was told.
async fn receive<R: io::Read + Send + 'static>(
    args: &ReceiveArgs,
    client: &Client,
    decoder: Decoder<R>,
    answers: Option<Answers>,
) -> Result<Option<Received>, Failure> {
    let head = decoder.head().clone();
    if head.start_bytes > 0 && !args.resume {
        return Err(Failure::invalid(format!(
            "the stream goes on with one that was interrupted, and leaves out the first {} bytes: --resume goes on with \
             what is there of it; for all, send without --start-at",
            head.start_bytes
        )));
    }
    let name = args.name.as_str();
    // Before anything is begun that had to be ended.
    let likely = match &head.exchange {
        None => None,
        Some(exchange) => Some(Likely::of(client, &args.like, &exchange.key, args.memory).await?),
    };
    let session = client.begin_import(name, &request_of(args, &head)).await?;
    let ways = Ways::of(client, name, &head).await;
    let progress = RefCell::new(Progress {
        done_bytes: session.done_bytes,
        kept_bytes: session.done_bytes,
    });
    let writing = async {
        if head.start_bytes > session.done_bytes {
            return Err(Failure::invalid(format!(
                "the stream begins at byte {}, and what lies before {} is there",
                head.start_bytes, session.done_bytes
            )));
        }
        let looking = match (&head.exchange, &answers, likely) {
            (Some(exchange), Some(answers), Some(likely)) => {
                let fingerprints = shares_key(client, name, exchange).await?;
                let ready = Ready {
                    start_bytes: session.done_bytes,
                    looks: fingerprints || !args.like.is_empty(),
                    fingerprints,
                };
                answers.say(Answer::Ready(ready)).await?;
                Some(Looking::new(answers, exchange.key, likely, fingerprints))
            }
            _ => None,
        };
        let bar = progress::bar(Some(head.size_bytes));
        let lanes = Lanes::open(client).await?;
        let mut written = Writing::new(client, name, &session, &progress, &lanes, looking);
        let totals = written.all(decoder, &bar).await;
        bar.finish_and_clear();
        totals
    };
    let written = tokio::select! {
        written = writing => written.map(Some),
        interrupted = interrupted() => interrupted.map(|()| None),
    };
    let finished = match written {
        Ok(None) => None,
        Ok(Some(totals)) => {
            let finish = FinishImport {
                session: session.session,
                image_bytes: head.size_bytes,
            };
            let volume = client.finish_import(name, &finish).await;
            Some(volume.map(|volume| (volume, totals)))
        }
        Err(failure) => Some(Err(failure)),
    };
    if let Some(Ok((volume, totals))) = finished {
        if let Some(answers) = answers {
            // It is here, whoever hears of it.
            let said = answers
                .say(Answer::Whole)
                .await
                .and_then(|()| answers.end());
            if let Err(failure) = said {
                ask::tell([failure.message]);
            }
        }
        return Ok(Some(Received {
            volume,
            snapshot: format!("{name}@{}", head.snapshot),
            resumed_at_bytes: session.done_bytes,
            totals,
        }));
    }
    let Progress {
        done_bytes,
        kept_bytes,
    } = *progress.borrow();
    // What came after the last time is sent again if this fails.
    let kept = keep(client, name, &session, done_bytes).await;
    let ways = ways.text(kept.unwrap_or(kept_bytes));
    match finished {
        Some(Err(failure)) => Err(Failure::new(
            failure.kind,
            format!("{}. {ways}", failure.message.trim_end_matches('.')),
        )),
        _ => {
            ask::tell([format!("Interrupted. {ways}")]);
            Ok(None)
        }
    }
}

/// Whether the sender's domain and that of the volume here have the same key.
async fn shares_key(client: &Client, name: &str, exchange: &Exchange) -> Result<bool, Failure> {
    let Some(theirs) = exchange.proof else {
        return Ok(false);
    };
    Ok(client.key_proof(name, &exchange.key).await? == theirs)
}

/// What to do about a stream that did not come to its end.
struct Ways<'a> {
    name: &'a str,
    head: &'a Head,
    /// The snapshot here that the stream has changes of.
    base: Option<String>,
}

impl<'a> Ways<'a> {
    async fn of(client: &Client, name: &'a str, head: &'a Head) -> Self {
        let base = match &head.base {
            None => None,
            Some(base) => {
                // It may have another name here.
                let all = client.snapshots().await.unwrap_or_default();
                let is_it = |it: &&api::snapshots::SnapshotView| {
                    it.volume == name && it.content == base.content
                };
                let found = all.iter().find(is_it).map(|view| view.name.clone());
                Some(found.unwrap_or_else(|| format!("{name}@{}", base.snapshot)))
            }
        };
        Self { name, head, base }
    }

    fn text(&self, kept_bytes: u64) -> String {
        let Self { name, head, base } = self;
        let from = match &head.base {
            None => String::new(),
            Some(base) => format!(" --from {}", base.snapshot),
        };
        let again = match &head.exchange {
            None => format!(
                "`onefold send {}@{}{from} --start-at {kept_bytes}` there and `onefold receive {name} --resume` here go on, \
                 the whole stream again works too",
                head.volume, head.snapshot
            ),
            Some(_) => format!(
                "`onefold send {}@{}{from} --through COMMAND` there, where COMMAND runs `onefold receive {name} --resume` \
                 here, goes on",
                head.volume, head.snapshot
            ),
        };
        let (part, give_up) = match base {
            None => (
                "a part of the stream",
                format!("onefold volume delete {name}"),
            ),
            Some(base) => (
                "a part of the changes",
                format!("onefold snapshot rollback {base}"),
            ),
        };
        format!(
            "Volume '{name}' has only {part}, and no host sees it: {again}; `{give_up}` gives it up."
        )
    }
}

/// A stream on its way into a volume.
struct Writing<'a> {
    client: &'a Client,
    name: &'a str,
    session: &'a ImportSession,
    progress: &'a RefCell<Progress>,
    lanes: &'a Lanes,
    /// Data that are being written, in the stream's order.
    data: FuturesOrdered<LocalBoxFuture<'a, Result<(), Failure>>>,
    /// Where each of them begins.
    begins: VecDeque<u64>,
    /// Parts without data, which are written when all data before them are.
    parts: Vec<ImportPart>,
    /// Bytes that these repeat.
    same_bytes: u64,
    /// Bytes of data that came behind the first of them.
    waiting_bytes: u64,
    /// All before this byte has come.
    upto: u64,
    /// The sender asks.
    looking: Option<Looking<'a>>,
}

impl<'a> Writing<'a> {
    fn new(
        client: &'a Client,
        name: &'a str,
        session: &'a ImportSession,
        progress: &'a RefCell<Progress>,
        lanes: &'a Lanes,
        looking: Option<Looking<'a>>,
    ) -> Self {
        Self {
            client,
            name,
            session,
            progress,
            lanes,
            data: FuturesOrdered::new(),
            begins: VecDeque::new(),
            parts: Vec::new(),
            same_bytes: 0,
            waiting_bytes: 0,
            upto: session.done_bytes,
            looking,
        }
    }

    /// Writes a stream to its end; returns what it had.
    async fn all<R: io::Read + Send + 'static>(
        &mut self,
        decoder: Decoder<R>,
        bar: &ProgressBar,
    ) -> Result<Totals, Failure> {
        let (sender, mut frames) = channel(PIECES);
        // It ends with the stream, or when nobody takes what it has read; one that waits for a pipe ends with the process.
        std::thread::spawn(move || read_all(decoder, &sender));
        let mut totals = Totals::default();
        let mut keep_at = Instant::now() + KEEP_INTERVAL;
        loop {
            tokio::select! {
                answer = self.data.next(), if !self.data.is_empty() => self.answered(answer)?,
                found = next_found(&mut self.looking) => {
                    if let Some(looking) = &mut self.looking {
                        looking.found(found).await?;
                    }
                }
                () = sleep_until(keep_at) => {
                    self.flush().await?;
                    let done = self.progress.borrow().done_bytes;
                    let kept = keep(self.client, self.name, self.session, done).await?;
                    self.progress.borrow_mut().kept_bytes = kept;
                    keep_at = Instant::now() + KEEP_INTERVAL;
                }
                read = frames.recv() => match read {
                    Some(Read::Frame(Frame::End(had))) => totals = had,
                    Some(Read::Frame(frame)) => self.frame(frame).await?,
                    Some(Read::End) => {
                        self.flush().await?;
                        return Ok(totals);
                    }
                    Some(Read::Failed(error)) => {
                        // All before it was checked, and need not come again.
                        self.flush().await?;
                        return Err(of_stream(&error));
                    }
                    None => return Err(Failure::new(
                        ErrorKind::Internal,
                        "the reader of the stream ended before the stream",
                    )),
                },
            }
            bar.set_position(self.progress.borrow().done_bytes);
        }
    }

    /// Begins to write what a frame has, unless it is there already.
    async fn frame(&mut self, frame: Frame) -> Result<(), Failure> {
        match frame {
            Frame::Data(offset, data) => {
                let length = data.len() as u64;
                let range = Range { offset, length };
                if self.comes(range) {
                    while self.data.len() >= PIECES {
                        let answer = self.data.next().await;
                        self.answered(answer)?;
                    }
                    let lanes = self.lanes;
                    let written = lanes.write(self.name, self.session, offset, Bytes::from(data));
                    self.data.push_back(Box::pin(written));
                    self.begins.push_back(offset);
                    self.came(range);
                    if !self.parts.is_empty() {
                        self.waiting_bytes += length;
                    }
                }
            }
            Frame::Zeros(range) => {
                if self.comes(range) {
                    self.part(range, None).await?;
                }
            }
            Frame::Same(all) => {
                for same in all {
                    if self.comes(same.range) {
                        for Same { range, from } in split(same) {
                            self.part(range, Some(from)).await?;
                        }
                    }
                }
            }
            Frame::Offer(blocks) => {
                if let Some(looking) = &mut self.looking {
                    looking
                        .look(self.client, self.name, self.session, &blocks)
                        .await?;
                }
            }
            Frame::Known(range) => {
                let looking = self.looking.as_mut();
                if !looking.is_some_and(|looking| looking.had(range)) {
                    return Err(Failure::invalid(format!(
                        "the stream is refused: it leaves out {} bytes at {} that were not said to be here",
                        range.length, range.offset
                    )));
                }
                self.came(range);
            }
            // The decoder gives none behind the first frame, and the end is looked at elsewhere.
            Frame::Head(_) | Frame::End(_) => {}
        }
        if self.waiting_bytes >= WAITING_BYTES_MAX {
            self.flush().await?;
        }
        self.done();
        Ok(())
    }

    /// Whether a range is to be written: not all of it was when the stream was interrupted.
    fn comes(&self, range: Range) -> bool {
        range.offset + range.length > self.session.done_bytes
    }

    /// A range came, and whatever of it is not there is among what is not answered.
    fn came(&mut self, range: Range) {
        self.upto = self.upto.max(range.offset + range.length);
    }

    /// Keeps a part until it is written with others.
    async fn part(&mut self, range: Range, same_as: Option<u64>) -> Result<(), Failure> {
        let same_bytes = same_as.map_or(0, |_| range.length);
        if self.parts.len() >= PARTS_MAX || self.same_bytes + same_bytes > SAME_BYTES_MAX {
            self.flush().await?;
        }
        self.same_bytes += same_bytes;
        self.parts.push(ImportPart {
            offset: range.offset,
            length: range.length,
            same_as,
        });
        self.came(range);
        Ok(())
    }

    /// Writes the parts that wait, behind all data that came before them: they may repeat those.
    async fn flush(&mut self) -> Result<(), Failure> {
        while let Some(answer) = self.data.next().await {
            self.answered(Some(answer))?;
        }
        if !self.parts.is_empty() {
            let request = WriteParts {
                session: self.session.session,
                parts: std::mem::take(&mut self.parts),
            };
            self.client.write_parts(self.name, &request).await?;
        }
        (self.same_bytes, self.waiting_bytes) = (0, 0);
        self.done();
        Ok(())
    }

    /// The oldest data were written.
    fn answered(&mut self, answer: Option<Result<(), Failure>>) -> Result<(), Failure> {
        answer.transpose()?;
        self.begins.pop_front();
        self.done();
        Ok(())
    }

    /// All before what is not answered yet is there.
    fn done(&self) {
        let data = self.begins.front().copied();
        let parts = self.parts.first().map(|part| part.offset);
        let begins = [data, parts].into_iter().flatten();
        self.progress.borrow_mut().done_bytes = begins.fold(self.upto, u64::min);
    }
}

/// A range that repeats another one, in pieces that one request may have.
fn split(same: Same) -> impl Iterator<Item = Same> {
    let Same { range, from } = same;
    let starts = (0..range.length).step_by(SAME_BYTES_MAX as usize);
    starts.map(move |at| Same {
        range: Range {
            offset: range.offset + at,
            length: (range.length - at).min(SAME_BYTES_MAX),
        },
        from: from + at,
    })
}

/// Reads a stream to its end.
fn read_all<R: io::Read>(mut decoder: Decoder<R>, to: &Sender<Read>) {
    loop {
        let read = match decoder.next_frame() {
            Ok(Some(frame)) => Read::Frame(frame),
            Ok(None) => Read::End,
            Err(error) => Read::Failed(error),
        };
        let is_last = !matches!(read, Read::Frame(_));
        // Nobody takes it if the command has ended.
        if to.blocking_send(read).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_request_cannot_repeat_comes_in_several() {
        let same = Same {
            range: Range {
                offset: 8 * SAME_BYTES_MAX,
                length: 2 * SAME_BYTES_MAX + 4096,
            },
            from: 4096,
        };
        let parts: Vec<Same> = split(same).collect();
        let lengths: Vec<u64> = parts.iter().map(|part| part.range.length).collect();
        assert_eq!(lengths, [SAME_BYTES_MAX, SAME_BYTES_MAX, 4096]);
        for part in parts {
            assert_eq!(part.range.offset - part.from, 8 * SAME_BYTES_MAX - 4096);
        }
    }
}
