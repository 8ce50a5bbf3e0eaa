//! `onefold volume import`: an image comes into a volume.
//!
//! Guarantees: an image that is not whole is never taken for one: until it is, no host sees the volume. What an
//! interrupted import has made durable is not sent again. Memory is bounded whatever the image's length.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::client::Client;
use api::images::{BeginImport, Bytes, FinishImport, ImportInto, ImportSession};
use api::volumes::{CreateVolume, VolumeView};
use clap::Args;
use dedup::ErrorKind;
use futures_util::{StreamExt, stream};
use indicatif::ProgressBar;
use meta::{Compression, VerifyPolicy};
use serde::Serialize;
use subsystem::errors::Failure;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};

use super::args::PoolArg;
use super::run::converse;
use super::status::nsid_text;
use super::transfer::{KEEP_INTERVAL, Lanes, PIECES, interrupted, keep};
use super::{Outcome, ask, print, print_json, progress};
use crate::exit::EXIT_INTERRUPTED;
use crate::images::{self, Format, GRAIN, Opening, Part, Partitions, Source, data_ranges};
use crate::options::{parse_compression, parse_lba, parse_switch, parse_verify};
use crate::size::{format_human, parse_size};

/// `onefold volume import`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold volume import vm1 debian.qcow2\n  \
                  zstd -dc disk.raw.zst | onefold volume import vm1 - --size 20G\n\n\
                  Formats are told by their first bytes; others than raw need QEMU's tools (Debian: qemu-utils).\n\
                  Hosts see the volume when the image is whole. An import that was interrupted leaves a volume that\n\
                  nobody can use: --resume goes on with it, `onefold volume delete` gives it up.")]
pub struct ImportArgs {
    /// The volume's name
    name: String,
    /// The image: a file, a block device, or - for standard input
    #[arg(value_name = "FILE")]
    image: PathBuf,
    /// The volume's size [default: the image's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["overwrite", "resume"])]
    size: Option<u64>,
    /// Bytes of a logical block, 512 or 4096 [default: those that the image's partition table was made for, or 4096]
    #[arg(long, value_name = "BYTES", value_parser = parse_lba)]
    lba: Option<u32>,
    /// What the image is: raw, qcow2, vmdk, vdi or vhdx [default: what its first bytes say]
    #[arg(long)]
    format: Option<Format>,
    /// Read the backing files that a qcow2 image names too: any file that this user may read could be one
    #[arg(long)]
    backing: bool,
    /// Replace the content of a volume that exists; no host may be attached to it
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// Go on with an import that was interrupted
    #[arg(long)]
    resume: bool,
    /// Whether its blocks are deduplicated, with each other and with those of other volumes
    #[arg(long, value_name = "on|off", value_parser = parse_switch, default_value = "on", action = clap::ArgAction::Set)]
    dedup: bool,
    /// How new contents are stored
    #[arg(long, value_name = "off|lz4|zstd", value_parser = parse_compression, default_value = "off")]
    compression: Compression,
    /// What a write does about a block that has the fingerprint of new data
    #[arg(long, value_name = "trust|compare|background", value_parser = parse_verify, default_value = "trust")]
    verify: VerifyPolicy,
    /// Name of its domain: volumes share blocks only with others of the same domain
    #[arg(long, value_name = "NAME", default_value = "")]
    domain: String,
    /// The subsystem that shows it to hosts, or none [default: the default one]
    #[arg(long, value_name = "NQN|none")]
    subsystem: Option<String>,
    /// The daemon's pool.
    #[command(flatten)]
    pool: PoolArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What came of an import.
#[derive(Debug, Serialize)]
struct Imported {
    volume: VolumeView,
    /// The image's length.
    image_bytes: u64,
    /// What of it was sent: neither holes nor zeros.
    sent_bytes: u64,
    /// Where it was resumed.
    resumed_at_bytes: u64,
    partitions: String,
}

/// How far an import is.
#[derive(Debug, Default)]
struct Progress {
    /// All before this byte was answered.
    done_bytes: u64,
    sent_bytes: u64,
}

/// What the reader of an image has for who sends it.
enum Read {
    /// Bytes that belong at an offset.
    Piece(u64, Bytes),
    /// All before this byte was given.
    Upto(u64),
    /// The image has this length.
    End(u64),
    Failed(Failure),
}

pub(super) fn run(args: &ImportArgs) -> Outcome {
    let opening = Opening {
        format: args.format,
        backing: args.backing,
    };
    let mut source = images::open(&args.image, opening)?;
    let partitions = Partitions::of(&source.head()?);
    let client = Client::new(&args.pool.pool);
    let request = BeginImport {
        image: source.identity().to_owned(),
        image_bytes: source.bytes(),
        grow: args.size.is_none() && source.bytes().is_none(),
        snapshot: None,
        into: match (args.resume, args.overwrite) {
            (true, _) => ImportInto::Interrupted,
            (false, true) => ImportInto::Existing,
            (false, false) => ImportInto::New(new_volume(args, source.bytes(), partitions)?),
        },
    };
    let importing = async {
        if args.overwrite {
            check_lba(args, &client.volume(&args.name).await?, partitions)?;
        }
        let session = client.begin_import(&args.name, &request).await?;
        if let (Some(made_for), true) = (partitions.lba_bytes(), args.lba.is_some())
            && made_for != session.lba_bytes
        {
            ask::tell([format!(
                "The image has {partitions}, and the volume has blocks of {} bytes: nothing boots from it.",
                session.lba_bytes
            )]);
        }
        send(args, &client, source, &session).await
    };
    let Some((volume, image_bytes, sent_bytes, resumed_at_bytes)) = converse(importing)? else {
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    };
    let imported = Imported {
        volume,
        image_bytes,
        sent_bytes,
        resumed_at_bytes,
        partitions: partitions.to_string(),
    };
    if args.json {
        print_json(&imported)?;
    } else {
        let volume = &imported.volume;
        print(&format!(
            "imported {}: {}, NSID {}, {}-byte blocks ({partitions}); {} of {} were sent, the rest is zeros{}\n",
            volume.name,
            format_human(volume.size_bytes),
            nsid_text(&volume.namespaces),
            volume.lba_bytes,
            format_human(sent_bytes),
            format_human(image_bytes),
            match resumed_at_bytes {
                0 => String::new(),
                bytes => format!(" or was there already (resumed at {})", format_human(bytes)),
            }
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The volume that an image gets.
fn new_volume(
    args: &ImportArgs,
    image_bytes: Option<u64>,
    partitions: Partitions,
) -> Result<CreateVolume, Failure> {
    if let (Some(size), Some(image)) = (args.size, image_bytes)
        && size < image
    {
        return Err(Failure::invalid(format!(
            "the image '{}' has {image} bytes, which a volume of {size} bytes has no room for: give a larger --size, or none",
            args.image.display()
        )));
    }
    let bytes = args.size.or(image_bytes);
    Ok(CreateVolume {
        name: args.name.clone(),
        // One whose length nobody knows grows with its image.
        size_bytes: bytes.unwrap_or(1 << 30).next_multiple_of(GRAIN),
        lba_bytes: args.lba.or(partitions.lba_bytes()).unwrap_or(4096),
        dedup: args.dedup,
        compression: args.compression,
        verify: args.verify,
        domain: args.domain.clone(),
        subsystem: args.subsystem.clone(),
        uuid: None,
    })
}

/// Refuses an image that does not boot from a volume that exists, unless its owner says that this is meant.
fn check_lba(
    args: &ImportArgs,
    volume: &VolumeView,
    partitions: Partitions,
) -> Result<(), Failure> {
    match args.lba.or(partitions.lba_bytes()) {
        Some(lba) if lba != volume.lba_bytes => Err(Failure::invalid(format!(
            "volume '{}' has blocks of {} bytes, and the image has {partitions}: import it to a new volume, or say \
             --lba {} if that is meant",
            volume.name, volume.lba_bytes, volume.lba_bytes
        ))),
        _ => Ok(()),
    }
}

/// Sends an image to its end. `None`: it was interrupted, which was told.
async fn send(
    args: &ImportArgs,
    client: &Client,
    source: Box<dyn Source>,
    session: &ImportSession,
) -> Result<Option<(VolumeView, u64, u64, u64)>, Failure> {
    let name = args.name.as_str();
    let progress = RefCell::new(Progress {
        done_bytes: session.done_bytes,
        sent_bytes: 0,
    });
    let bar = progress::bar(source.bytes());
    let sent = tokio::select! {
        sent = send_parts(name, client, source, session, &progress, &bar) => sent.map(Some),
        interrupted = interrupted() => interrupted.map(|()| None),
    };
    bar.finish_and_clear();
    let Progress {
        done_bytes,
        sent_bytes,
    } = progress.into_inner();
    match sent {
        Ok(Some(image_bytes)) => {
            let finish = FinishImport {
                session: session.session,
                image_bytes,
            };
            let volume = client.finish_import(name, &finish).await;
            let volume = volume.map_err(|failure| incomplete(name, &args.image, &failure))?;
            Ok(Some((volume, image_bytes, sent_bytes, session.done_bytes)))
        }
        Ok(None) => {
            // What came after the last time is sent again if this fails.
            let kept = keep(client, name, session, done_bytes).await;
            let kept = kept.unwrap_or(session.done_bytes);
            ask::tell([format!(
                "Interrupted: volume '{name}' has the first {} of the image, and no host sees it. {}",
                format_human(kept),
                remedy(name, &args.image)
            )]);
            Ok(None)
        }
        Err(failure) => Err(incomplete(name, &args.image, &failure)),
    }
}

fn remedy(name: &str, image: &Path) -> String {
    format!(
        "`onefold volume import {name} {} --resume` goes on, `onefold volume delete {name}` gives it up.",
        image.display()
    )
}

fn incomplete(name: &str, image: &Path, failure: &Failure) -> Failure {
    Failure::new(
        failure.kind,
        format!(
            "{}. Volume '{name}' has only a part of the image, and no host sees it: {}",
            failure.message.trim_end_matches('.'),
            remedy(name, image)
        ),
    )
}

/// Sends all parts, and returns the image's length.
async fn send_parts(
    name: &str,
    client: &Client,
    source: Box<dyn Source>,
    session: &ImportSession,
    progress: &RefCell<Progress>,
    bar: &ProgressBar,
) -> Result<u64, Failure> {
    let lanes = Lanes::open(client).await?;
    let (sender, receiver) = channel(PIECES);
    let begin = session.done_bytes;
    // It ends with the image, or when nobody takes what it has read; one that waits for a pipe ends with the process.
    std::thread::spawn(move || read_all(source, begin, &sender));
    let parts = stream::unfold(receiver, |mut receiver: Receiver<Read>| async move {
        let part = receiver.recv().await?;
        Some((part, receiver))
    });
    // Answers are looked at in order, so all before the last one that was is there.
    let mut answers = std::pin::pin!(
        parts
            .map(|part| answer(part, name, session, &lanes))
            .buffered(PIECES)
    );
    // A source that is silent does not end the session.
    let mut keep_at = Instant::now() + KEEP_INTERVAL;
    loop {
        let answer = tokio::select! {
            answer = answers.next() => answer,
            () = sleep_until(keep_at) => {
                let done = progress.borrow().done_bytes;
                keep(client, name, session, done).await?;
                keep_at = Instant::now() + KEEP_INTERVAL;
                continue;
            }
        };
        let Some(answer) = answer else { break };
        match answer? {
            Answered::Piece(bytes) => progress.borrow_mut().sent_bytes += bytes,
            Answered::Upto(upto) => {
                progress.borrow_mut().done_bytes = upto;
                bar.set_position(upto);
            }
            Answered::End(bytes) => return Ok(bytes),
        }
    }
    Err(Failure::new(
        ErrorKind::Internal,
        "the reader of the image ended before the image",
    ))
}

/// What was made of what was read.
enum Answered {
    Piece(u64),
    Upto(u64),
    End(u64),
}

async fn answer(
    read: Read,
    name: &str,
    session: &ImportSession,
    lanes: &Lanes,
) -> Result<Answered, Failure> {
    match read {
        Read::Piece(offset, bytes) => {
            let len = bytes.len() as u64;
            lanes.write(name, session, offset, bytes).await?;
            Ok(Answered::Piece(len))
        }
        Read::Upto(upto) => Ok(Answered::Upto(upto)),
        Read::End(bytes) => Ok(Answered::End(bytes)),
        Read::Failed(failure) => Err(failure),
    }
}

/// Reads an image from a byte to its end.
fn read_all(mut source: Box<dyn Source>, begin: u64, to: &Sender<Read>) {
    let read = read_parts(source.as_mut(), begin, |read| {
        to.blocking_send(read).is_ok()
    });
    // Nobody takes it if the import has ended.
    let _ = match read {
        Ok(Some(bytes)) => to.blocking_send(Read::End(bytes)),
        Ok(None) => Ok(()),
        Err(failure) => to.blocking_send(Read::Failed(failure)),
    };
}

/// Gives an image's data from a byte on; returns its length, or `None` if nobody wants more.
fn read_parts(
    source: &mut dyn Source,
    begin: u64,
    mut give: impl FnMut(Read) -> bool,
) -> Result<Option<u64>, Failure> {
    source.skip_to(begin)?;
    let mut at = begin;
    while let Some(part) = source.next()? {
        match part {
            Part::Zeros(bytes) => at += bytes,
            Part::Data(mut data) => {
                let len = data.len();
                // The volume's last block is whole.
                data.resize(len.next_multiple_of(GRAIN as usize), 0);
                let ranges = data_ranges(&data);
                let data = Bytes::from(data);
                for range in ranges {
                    let offset = at + range.start as u64;
                    if !give(Read::Piece(offset, data.slice(range))) {
                        return Ok(None);
                    }
                }
                at += len as u64;
            }
        }
        if !give(Read::Upto(at)) {
            return Ok(None);
        }
    }
    Ok(Some(at))
}
