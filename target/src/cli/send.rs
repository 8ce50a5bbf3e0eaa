//! `onefold send`: a snapshot goes out as a stream.
//!
//! Guarantees: a stream ends with its last frame only if all before was read and written, so one that failed is cut off,
//! and no receiver takes it for whole. Memory is bounded by `--memory`, and for `--through` by 64 MiB more.

mod through;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use api::client::Client;
use api::images::{ByteRange, Bytes, PIECE_BYTES_MAX};
use api::snapshots::SnapshotView;
use api::tasks::TaskKind;
use clap::Args;
use dedup::ErrorKind;
use futures_util::stream::{self, LocalBoxStream};
use futures_util::{Stream, StreamExt, TryStreamExt};
use serde::Serialize;
use streams::{
    BLOCK_BYTES, Base, Contents, Digest, Encoder, Exchange, Head, Range, Totals, VERSION,
    VERSION_WITH_ANSWERS,
};
use subsystem::errors::Failure;

use self::through::Peer;
use super::args::PoolArg;
use super::run::converse;
use super::transfer::{Lanes, PIECES, Reading, data_pieces, split};
use super::{Outcome, ask, print, progress};
use crate::images::is_zero;
use crate::size::{format_human, parse_size};

/// `onefold send`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold send db@monday | ssh other onefold receive db\n  \
                  onefold send db@tuesday --from monday | ssh other onefold receive db\n  \
                  onefold send db@monday | zstd >db-monday.zst\n  \
                  onefold send db@monday --through 'ssh other onefold receive db --like golden'\n\n\
                  The stream has what the volume held when the snapshot was taken, or with --from what changed since that \
                  one, which the receiver has to have. A content that comes again is sent once. `onefold receive` checks \
                  all of it, and says how to go on with one that was interrupted. What it did is told on standard error.\n\n\
                  With --through the receiver answers which contents it has already, and these are not sent. `sh -c` runs the \
                  command, with the stream as its standard input and the answers as its standard output: any command that \
                  ends in an `onefold receive`. What it did is told on standard output then."
)]
pub struct SendArgs {
    /// The snapshot
    #[arg(value_name = "VOLUME@NAME")]
    snapshot: String,
    /// Only what changed since this snapshot of the same volume
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    /// Leave out what lies before this byte, as `onefold receive` asks for after an interruption
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "0")]
    start_at: u64,
    /// Memory for finding contents that come again; 256M is enough for 14 GiB of different ones
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    memory: u64,
    /// Send it through this shell command, whose `onefold receive` answers which contents it has already
    #[arg(long, value_name = "COMMAND")]
    through: Option<String>,
    /// Give the command up when it answers nothing for so long
    #[arg(long, value_name = "SECONDS", default_value = "60", requires = "through", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    answer_timeout: u64,
    /// The daemon's pool.
    #[command(flatten)]
    pool: PoolArg,
    /// Print JSON, on standard error without --through
    #[arg(long)]
    json: bool,
}

/// What was sent.
#[derive(Debug, Serialize)]
struct Sent<'a> {
    snapshot: &'a str,
    from: Option<&'a str>,
    size_bytes: u64,
    #[serde(flatten)]
    totals: Totals,
    /// The stream's length, if it went through a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_bytes: Option<u64>,
}

pub(super) fn run(args: &SendArgs) -> Outcome {
    if args.through.is_none() && io::stdout().is_terminal() {
        return Err(Failure::invalid(format!(
            "a stream is no text for a terminal: `onefold send {name} >FILE`, or `onefold send {name} | ssh HOST onefold \
             receive NEW`",
            name = args.snapshot
        ))
        .into());
    }
    let client = Client::new(&args.pool.pool);
    let (head, totals, stream_bytes) = converse(async {
        match &args.through {
            None => {
                let (head, totals) = send(args, &client).await?;
                Ok((head, totals, None))
            }
            Some(command) => {
                let (head, totals, bytes) = send_through(args, &client, command).await?;
                Ok((head, totals, Some(bytes)))
            }
        }
    })?;
    let sent = Sent {
        snapshot: &args.snapshot,
        from: args.from.as_deref(),
        size_bytes: head.size_bytes,
        totals,
        stream_bytes,
    };
    let text = match args.json {
        true => serde_json::to_string(&sent)
            .map_err(|error| Failure::new(ErrorKind::Internal, format!("no JSON: {error}")))?,
        false => format!(
            "sent {} of {}{}: {} of data, {} that came again, {} of zeros{}",
            args.snapshot,
            format_human(head.size_bytes),
            match &args.from {
                None => String::new(),
                Some(from) => format!(" since {from}"),
            },
            format_human(totals.data_bytes),
            format_human(totals.same_bytes),
            format_human(totals.zero_bytes),
            match stream_bytes {
                None => String::new(),
                Some(bytes) => format!(
                    ", {} that the receiver had; the stream took {}",
                    format_human(totals.known_bytes),
                    format_human(bytes),
                ),
            },
        ),
    };
    match stream_bytes {
        // Standard output has the stream.
        None => ask::tell([text]),
        Some(_) => print(&format!("{text}\n")),
    }
    Ok(ExitCode::SUCCESS)
}

/// What a stream of this snapshot begins with, and the name of what it is compared with.
async fn head_of(args: &SendArgs, client: &Client) -> Result<(Head, Option<String>), Failure> {
    let Some((volume, snapshot)) = args.snapshot.split_once('@') else {
        return Err(Failure::invalid(format!(
            "'{name}' is no snapshot, and hosts write to volumes while they are sent: `onefold snapshot create \
             {name}@NAME` takes one, and `onefold send {name}@NAME` sends it",
            name = args.snapshot
        )));
    };
    let all = client.snapshots().await?;
    let find = |name: &str| -> Result<SnapshotView, Failure> {
        let found = all.iter().find(|view| view.name == name);
        found.cloned().ok_or_else(|| {
            Failure::new(
                ErrorKind::NotFound,
                format!("there is no snapshot '{name}': `onefold snapshot list {volume}` shows those there are"),
            )
        })
    };
    let view = find(&args.snapshot)?;
    let base = match &args.from {
        None => None,
        Some(from) => {
            // Its whole name is understood too.
            let from = from.strip_prefix(&format!("{volume}@")).unwrap_or(from);
            if from == snapshot {
                return Err(Failure::invalid(format!(
                    "nothing changed from '{from}' to itself: name another snapshot with --from, or leave it out to send all"
                )));
            }
            Some(find(&format!("{volume}@{from}"))?)
        }
    };
    if args.start_at > view.size_bytes || !args.start_at.is_multiple_of(BLOCK_BYTES) {
        return Err(Failure::invalid(format!(
            "--start-at {}: name a multiple of {BLOCK_BYTES} up to the snapshot's size, which is {} bytes",
            args.start_at, view.size_bytes
        )));
    }
    let name = |full: &str| full.split('@').next_back().unwrap_or_default().to_owned();
    let head = Head {
        version: VERSION,
        volume: volume.to_owned(),
        snapshot: snapshot.to_owned(),
        content: view.content,
        created: view.created_at,
        size_bytes: view.size_bytes,
        lba_bytes: view.lba_bytes,
        base: base.as_ref().map(|base| Base {
            snapshot: name(&base.name),
            content: base.content,
        }),
        start_bytes: args.start_at,
        exchange: None,
    };
    Ok((head, base.map(|base| base.name)))
}

async fn send(args: &SendArgs, client: &Client) -> Result<(Head, Totals), Failure> {
    let (head, base) = head_of(args, client).await?;
    let memory = usize::try_from(args.memory).unwrap_or(usize::MAX);
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let output = File::from(stdout.map_err(|error| cannot_write(&error))?);
    let output = BufWriter::with_capacity(PIECE_BYTES_MAX, output);
    let encoder = Encoder::new(output, &head, Contents::new(memory));
    let encoder = encoder.map_err(|error| cannot_write(&error))?;
    let name = args.snapshot.as_str();
    let reading = Reading::begin(client, TaskKind::Send, name).await?;
    let sent = send_all(client, &head, base.as_deref(), &reading, encoder).await;
    let totals = reading.ends(sent).await?;
    Ok((head, totals))
}

/// Sends what a stream has behind its head; returns what that was.
async fn send_all<W: io::Write>(
    client: &Client,
    head: &Head,
    base: Option<&str>,
    reading: &Reading<'_>,
    mut encoder: Encoder<W>,
) -> Result<Totals, Failure> {
    let bar = progress::bar(Some(head.size_bytes));
    let lanes = Lanes::open(client).await?;
    let wanted = wanted(
        client,
        reading.name(),
        base,
        head.start_bytes,
        head.size_bytes,
    );
    let read = |wanted| read(&lanes, reading, wanted);
    let mut pieces = wanted.map_ok(read).try_buffered(PIECES);
    while let Some((range, data)) = pieces.try_next().await? {
        let written = match data {
            None => encoder.zeros(range),
            Some(data) => write(&mut encoder, range.offset, &data, base.is_some()),
        };
        written.map_err(|error| cannot_write(&error))?;
        bar.set_position(range.offset + range.length);
    }
    let ended = encoder.end();
    let (totals, _) = ended.map_err(|error| cannot_write(&error))?;
    bar.finish_and_clear();
    Ok(totals)
}

/// Sends a snapshot through a command that answers. Returns the length of the stream, too.
async fn send_through(
    args: &SendArgs,
    client: &Client,
    command: &str,
) -> Result<(Head, Totals, u64), Failure> {
    let (mut head, base) = head_of(args, client).await?;
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| {
        let text = format!("the system gives no random numbers for the stream's key: {error}");
        Failure::new(ErrorKind::Internal, text)
    })?;
    let key = Digest(key);
    let exchange = Exchange {
        key,
        proof: Some(client.key_proof(&args.snapshot, &key).await?),
    };
    head.version = VERSION_WITH_ANSWERS;
    head.exchange = Some(exchange.clone());
    let memory = usize::try_from(args.memory).unwrap_or(usize::MAX);
    let name = args.snapshot.as_str();
    let reading = Reading::begin(client, TaskKind::Send, name).await?;
    let sent = async {
        let contents = Contents::new(memory).with_key(exchange.key);
        let encoder = Encoder::new(Vec::new(), &head, contents);
        let mut encoder = encoder.map_err(|error| cannot_write(&error))?;
        let silence_max = Duration::from_secs(args.answer_timeout);
        let mut peer = Peer::start(command, &exchange, silence_max)?;
        let sent = async {
            let ready = through::begin(&mut peer, &mut encoder, &head).await?;
            let start = head.start_bytes.max(ready.start_bytes);
            let bar = progress::bar(Some(head.size_bytes));
            let lanes = Lanes::open(client).await?;
            let wanted = wanted(client, name, base.as_deref(), start, head.size_bytes);
            let read = |wanted| read_to_offer(&lanes, &reading, wanted, ready.fingerprints);
            let pieces = wanted.map_ok(read).try_buffered(PIECES);
            let done = |upto| bar.set_position(upto);
            let totals =
                through::send_pieces(&mut peer, encoder, ready, base.is_some(), pieces, done);
            let totals = totals.await?;
            bar.finish_and_clear();
            Ok(totals)
        }
        .await;
        // It says how to go on, if it has to.
        peer.end().await;
        sent.map(|totals| (totals, peer.sent_bytes()))
    }
    .await;
    let (totals, bytes) = reading.ends(sent).await?;
    Ok((head, totals, bytes))
}

/// What of a snapshot goes into a stream from a byte on.
fn wanted<'a>(
    client: &'a Client,
    name: &'a str,
    base: Option<&'a str>,
    start: u64,
    size: u64,
) -> LocalBoxStream<'a, Result<Wanted, Failure>> {
    match base {
        None => {
            let rest = ByteRange {
                offset: start,
                length: size - start,
            };
            data_pieces(client, name, rest)
                .map_ok(Wanted::Data)
                .boxed_local()
        }
        Some(base) => changed(client, name, base, start, size)
            .map_ok(|range| in_pieces(client, name, range))
            .try_flatten()
            .boxed_local(),
    }
}

/// A range that goes into a stream.
#[derive(Clone, Copy)]
enum Wanted {
    /// It has data, and is at most a piece.
    Data(ByteRange),
    /// It has none.
    Zeros(ByteRange),
}

/// A range, and what it holds unless that is zeros.
async fn read(
    lanes: &Lanes,
    reading: &Reading<'_>,
    wanted: Wanted,
) -> Result<(Range, Option<Bytes>), Failure> {
    let (range, data) = match wanted {
        Wanted::Data(range) => (range, Some(lanes.read(reading, range).await?.1)),
        Wanted::Zeros(range) => (range, None),
    };
    let range = Range {
        offset: range.offset,
        length: range.length,
    };
    Ok((range, data))
}

/// The same, and the fingerprints of its blocks if both pools know what these are.
async fn read_to_offer(
    lanes: &Lanes,
    reading: &Reading<'_>,
    wanted: Wanted,
    fingerprints: bool,
) -> Result<(Range, Option<(Bytes, Bytes)>), Failure> {
    match wanted {
        Wanted::Data(range) if fingerprints => {
            let both = lanes.read_with_fingerprints(reading, range).await?;
            let range = Range {
                offset: range.offset,
                length: range.length,
            };
            Ok((range, Some(both)))
        }
        _ => {
            let (range, data) = read(lanes, reading, wanted).await?;
            Ok((range, data.map(|data| (data, Bytes::new()))))
        }
    }
}

/// The ranges that differ between two snapshots, within the first one.
fn changed<'a>(
    client: &'a Client,
    name: &'a str,
    base: &'a str,
    start: u64,
    size: u64,
) -> impl Stream<Item = Result<ByteRange, Failure>> + use<'a> {
    let looks = stream::try_unfold(start, move |at| async move {
        if at >= size {
            return Ok::<_, Failure>(None);
        }
        let found = client.diff(name, base, at).await?;
        let within = found.ranges.into_iter().filter_map(move |range| {
            let end = (range.offset + range.length).min(size);
            let length = end.checked_sub(range.offset).filter(|length| *length > 0)?;
            Some(Ok(ByteRange {
                offset: range.offset,
                length,
            }))
        });
        Ok(Some((stream::iter(within), found.upto)))
    });
    looks.try_flatten()
}

/// A range that differs, in pieces. Where it is large, what it has no data for is not read.
fn in_pieces<'a>(
    client: &'a Client,
    name: &'a str,
    range: ByteRange,
) -> LocalBoxStream<'a, Result<Wanted, Failure>> {
    if range.length <= PIECE_BYTES_MAX as u64 {
        return stream::iter([Ok(Wanted::Data(range))]).boxed_local();
    }
    let end = range.offset + range.length;
    let looks = stream::try_unfold(range.offset, move |at| async move {
        if at >= end {
            return Ok::<_, Failure>(None);
        }
        let rest = ByteRange {
            offset: at,
            length: end - at,
        };
        let found = client.extents(name, rest).await?;
        let mut wanted = Vec::new();
        let mut done = at;
        for stored in found.ranges {
            wanted.extend(zeros(done, stored.offset));
            done = stored.offset + stored.length;
            wanted.extend(split(stored).map(Wanted::Data));
        }
        wanted.extend(zeros(done, found.upto));
        let wanted = wanted.into_iter().map(Ok::<_, Failure>);
        Ok(Some((stream::iter(wanted), found.upto)))
    });
    looks.try_flatten().boxed_local()
}

fn zeros(offset: u64, end: u64) -> Option<Wanted> {
    let length = end.checked_sub(offset).filter(|length| *length > 0)?;
    Some(Wanted::Zeros(ByteRange { offset, length }))
}

/// Writes data. Blocks of zeros are told as such if the receiver may have something else there.
fn write<W: io::Write>(
    encoder: &mut Encoder<W>,
    offset: u64,
    data: &[u8],
    tells_zeros: bool,
) -> io::Result<()> {
    for (at, run, is_zero) in runs(data) {
        let here = offset + at as u64;
        match (is_zero, tells_zeros) {
            (false, _) => encoder.data(here, run)?,
            (true, false) => {}
            (true, true) => encoder.zeros(Range {
                offset: here,
                length: run.len() as u64,
            })?,
        }
    }
    Ok(())
}

/// Runs of blocks that are all zeros, or none: where each begins in the data, the run, and whether it is zeros.
fn runs(data: &[u8]) -> Vec<(usize, &[u8], bool)> {
    let same = |a: &&[u8], b: &&[u8]| is_zero(a) == is_zero(b);
    let blocks: Vec<&[u8]> = data.chunks(BLOCK_BYTES as usize).collect();
    let mut at = 0;
    let run = |run: &[&[u8]]| {
        let len: usize = run.iter().map(|block| block.len()).sum();
        let first = at;
        at += len;
        let is_zero = run.first().is_some_and(|block| is_zero(block));
        (first, &data[first..at], is_zero)
    };
    blocks.chunk_by(same).map(run).collect()
}

fn cannot_write(error: &io::Error) -> Failure {
    Failure::invalid(match error.kind() {
        io::ErrorKind::BrokenPipe => {
            "standard output was closed before the stream was whole: who takes it says why"
                .to_owned()
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "there is no room for the stream: free space, or pipe it elsewhere".to_owned()
        }
        _ => format!("the stream cannot be written: {error}"),
    })
}
