//! `onefold volume export`: a volume's content goes into an image.
//!
//! Guarantees: a file has its name when it is whole and durable, never before; what a volume has no data for is a hole.
//! Memory is bounded.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::client::Client;
use api::images::ByteRange;
use api::tasks::TaskKind;
use api::volumes::VolumeView;
use clap::Args;
use futures_util::TryStreamExt;
use rustix::fs::OFlags;
use serde::Serialize;
use subsystem::errors::Failure;

use super::args::PoolArg;
use super::ask::{self, Attached};
use super::run::converse;
use super::transfer::{Lanes, PIECES, Reading, data_pieces, interrupted};
use super::{Outcome, print, print_json, progress};
use crate::exit::EXIT_INTERRUPTED;
use crate::size::format_human;

/// Zeros that are written at a time, where there can be no hole.
const ZEROS_BYTES: usize = 1 << 20;

/// `onefold volume export`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold volume export vm1 vm1.raw\n  onefold volume export vm1 - | zstd >vm1.raw.zst\n\n\
                  The image is raw and sparse: `qemu-img convert` makes other formats of it. While hosts write to the\n\
                  volume, the image has parts of several moments."
)]
pub struct ExportArgs {
    /// The volume's name
    name: String,
    /// Where the image goes: a new file, a block device, or - for standard output
    #[arg(value_name = "FILE")]
    image: PathBuf,
    /// Replace a file or the content of a device that exists
    #[arg(long)]
    overwrite: bool,
    /// The daemon's pool.
    #[command(flatten)]
    pool: PoolArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What came of an export.
#[derive(Debug, Serialize)]
struct Exported {
    volume: String,
    image_bytes: u64,
    /// What of it was written: no holes.
    data_bytes: u64,
}

pub(super) fn run(args: &ExportArgs) -> Outcome {
    let client = Client::new(&args.pool.pool);
    let exporting = async {
        let volume = client.volume(&args.name).await?;
        let attached = Attached::of(&client).await?;
        let hosts = attached.facts_of_volume(&args.name);
        if !hosts.is_empty() {
            ask::tell(hosts);
            ask::tell(["What hosts write meanwhile may be in the image, or not.".to_owned()]);
        }
        let mut sink = Sink::open(&args.image, args.overwrite, volume.size_bytes)?;
        let reading = Reading::begin(&client, TaskKind::Export, &volume.name).await?;
        // A signal ends an export to a device or a stream as it ends any program: there is nothing to remove, and a write
        // that waits for its reader must not hold it back.
        let is_file = matches!(sink, Sink::File { .. });
        let copied = tokio::select! {
            copied = copy(&client, &volume, &reading, &mut sink) => copied.map(Some),
            interrupted = interrupted(), if is_file => interrupted.map(|()| None),
        };
        let data_bytes = match copied {
            Ok(None) => {
                drop(sink);
                let told: Result<(), _> = Err(Failure::invalid("interrupted"));
                // It is told below.
                let _ = reading.ends(told).await;
                return Ok(None);
            }
            Ok(Some(bytes)) => reading.ends(sink.finish().map(|()| bytes)).await?,
            Err(failure) => reading.ends(Err(failure)).await?,
        };
        Ok(Some(Exported {
            volume: volume.name,
            image_bytes: volume.size_bytes,
            data_bytes,
        }))
    };
    let Some(exported) = converse(exporting)? else {
        ask::tell([format!(
            "Interrupted: there is no image '{}', and nothing is left of it.",
            args.image.display()
        )]);
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    };
    let text = format!(
        "exported {}: {}, of which {} are data\n",
        exported.volume,
        format_human(exported.image_bytes),
        format_human(exported.data_bytes)
    );
    match (args.image.as_os_str() == "-", args.json) {
        // Standard output has the image.
        (true, _) => ask::tell([text.trim_end().to_owned()]),
        (false, true) => print_json(&exported)?,
        (false, false) => print(&text),
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a volume's data in order; returns how many bytes they are.
async fn copy(
    client: &Client,
    volume: &VolumeView,
    reading: &Reading<'_>,
    sink: &mut Sink,
) -> Result<u64, Failure> {
    let lanes = Lanes::open(client).await?;
    let bar = progress::bar(Some(volume.size_bytes));
    let all = ByteRange {
        offset: 0,
        length: volume.size_bytes,
    };
    let pieces = data_pieces(client, &volume.name, all);
    let read = |range| lanes.read(reading, range);
    let data = pieces.map_ok(read).try_buffered(PIECES);
    let mut data = std::pin::pin!(data);
    let mut bytes = 0;
    while let Some((offset, piece)) = data.try_next().await? {
        sink.write(offset, &piece)?;
        bytes += piece.len() as u64;
        bar.set_position(offset + piece.len() as u64);
    }
    bar.finish_and_clear();
    Ok(bytes)
}

/// Where an image goes.
enum Sink {
    /// A file that gets its name at the end.
    File {
        file: File,
        partial: Partial,
        path: PathBuf,
    },
    /// A device or a stream: all bytes are written, in order.
    Whole {
        out: Box<dyn Write>,
        name: String,
        at: u64,
        bytes: u64,
        device: Option<File>,
    },
}

/// A file that is removed unless it is kept.
struct Partial(Option<PathBuf>);

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // There is nobody to tell; its name says what it is.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Sink {
    fn open(path: &Path, overwrite: bool, bytes: u64) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let failed = |error: io::Error| cannot_write(&name, &error);
        if path.as_os_str() == "-" {
            return Ok(Self::Whole {
                out: Box::new(io::stdout()),
                name: "standard output".to_owned(),
                at: 0,
                bytes,
                device: None,
            });
        }
        let kind = match std::fs::metadata(path) {
            Ok(metadata) => Some(metadata.file_type()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        let is_whole = kind.is_some_and(|kind| kind.is_block_device() || kind.is_fifo());
        if kind.is_some_and(|kind| !kind.is_fifo()) && !overwrite {
            return Err(Failure::invalid(format!(
                "'{name}' exists already: name another file, or replace it with --overwrite"
            )));
        }
        if is_whole {
            let mut options = File::options();
            options.write(true);
            if kind.is_some_and(|kind| kind.is_block_device()) {
                // One that is in use is refused.
                options.custom_flags(OFlags::EXCL.bits().cast_signed());
            }
            let device = options.open(path).map_err(failed)?;
            let out = Box::new(device.try_clone().map_err(failed)?);
            let device = kind
                .is_some_and(|kind| kind.is_block_device())
                .then_some(device);
            return Ok(Self::Whole {
                out,
                name,
                at: 0,
                bytes,
                device,
            });
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let made = File::options().write(true).create_new(true).open(&partial);
        let file = made.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::invalid(format!(
                "'{}' is there: another export writes it, or one was killed; then remove it",
                partial.display()
            )),
            _ => failed(error),
        })?;
        let partial = Partial(Some(partial));
        file.set_len(bytes).map_err(failed)?;
        Ok(Self::File {
            file,
            partial,
            path: path.to_owned(),
        })
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        match self {
            Self::File { file, path, .. } => {
                let written = file.write_all_at(data, offset);
                written.map_err(|error| cannot_write(&path.display().to_string(), &error))
            }
            Self::Whole { .. } => {
                self.fill_upto(offset)?;
                self.append(data)
            }
        }
    }

    /// Writes zeros up to there, where there can be no hole.
    fn fill_upto(&mut self, offset: u64) -> Result<(), Failure> {
        let zeros = vec![0; ZEROS_BYTES];
        while let Self::Whole { at, .. } = self
            && *at < offset
        {
            let len = (offset - *at).min(ZEROS_BYTES as u64) as usize;
            self.append(&zeros[..len])?;
        }
        Ok(())
    }

    fn append(&mut self, data: &[u8]) -> Result<(), Failure> {
        if let Self::Whole { out, name, at, .. } = self {
            out.write_all(data)
                .map_err(|error| cannot_write(name, &error))?;
            *at += data.len() as u64;
        }
        Ok(())
    }

    /// The image is whole: it becomes durable, and a file gets its name.
    fn finish(mut self) -> Result<(), Failure> {
        if let Self::Whole { bytes, .. } = self {
            self.fill_upto(bytes)?;
        }
        match self {
            Self::File {
                file,
                mut partial,
                path,
            } => {
                let name = path.display().to_string();
                let failed = |error: io::Error| cannot_write(&name, &error);
                file.sync_all().map_err(failed)?;
                if let Some(from) = &partial.0 {
                    std::fs::rename(from, &path).map_err(failed)?;
                }
                partial.0 = None;
                let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
                let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(failed)?;
                folder.sync_all().map_err(failed)
            }
            Self::Whole {
                mut out,
                name,
                device,
                ..
            } => {
                out.flush().map_err(|error| cannot_write(&name, &error))?;
                match device {
                    Some(device) => device
                        .sync_all()
                        .map_err(|error| cannot_write(&name, &error)),
                    None => Ok(()),
                }
            }
        }
    }
}

fn cannot_write(name: &str, error: &io::Error) -> Failure {
    let text = match error.kind() {
        io::ErrorKind::BrokenPipe => format!("{name} was closed before the image was whole"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
            "there is no room for the image '{name}': what was written of it is removed; free space, or pipe it elsewhere with -"
        ),
        io::ErrorKind::ResourceBusy => format!("the device '{name}' is in use: unmount it"),
        _ => format!("the image '{name}' cannot be written: {error}"),
    };
    Failure::invalid(text)
}
