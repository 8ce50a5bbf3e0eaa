//! NVMe namespaces by their generic character device (`/dev/ng0n1`): reads, writes and flushes are NVMe commands that go past
//! the kernel's block layer.
//!
//! Guarantees, beside those of every drive: the namespace's block device (`/dev/nvme0n1`) is held exclusively as long as the drive is
//! open, so nobody mounts it, writes to it, or opens it as a drive; no command moves more than the controller and the kernel
//! take. What is rare goes by the block device: looking at what a namespace holds, and giving blocks back, of which the
//! kernel knows the limits.

use std::fs;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use nvme::admin::Identify;
use nvme::identify::{Cns, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace};
use nvme::io::{IoCommand, LbaRange};
use reactor::Buffer;
use reactor::device::read_by_admin_command;
use reactor::passthrough::{self, Command};

use crate::file::forget_cached;
use crate::pieces::{Part, pieces, runs_of_many, runs_of_one};
use crate::{
    BLOCK_BYTES, Content, Drive, DriveError, ErrorKind, Extent, FileDrive, GatherExtent,
    LocalBoxFuture, OpenOptions, SmartLog, Transferred, check_gather, check_transfer,
};

/// Bytes of one command: with pages anywhere in memory that is as much as every controller's lists of them take.
const COMMAND_BYTES_MAX: usize = 128 << 10;

/// A page of the controller, in which its largest transfer is counted: CAP.MPSMIN says more on no machine that Linux serves.
const CONTROLLER_PAGE_BYTES: usize = 4096;

/// VWC bit 0: the controller has a volatile write cache.
const CACHE_PRESENT: u8 = 1;

/// A namespace. Transfers need a reactor on the calling thread.
#[derive(Debug)]
pub struct PassthroughDrive {
    name: String,
    device: Arc<OwnedFd>,
    /// Its block device, which keeps others away.
    block: FileDrive,
    block_path: PathBuf,
    facts: Facts,
    /// Why a flush failed: what was written before it may be lost, and no later one brings it back.
    failed_flush: OnceLock<String>,
}

/// What of a namespace its commands need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Facts {
    nsid: u32,
    lba_bytes: u32,
    /// Bytes that one command may move: whole blocks.
    command_bytes: usize,
    has_cache: bool,
}

impl Facts {
    /// What the controller says of itself and of the namespace; `most` is what the kernel moves at once.
    ///
    /// # Errors
    /// Why no drive can be made of it, and the remedy.
    fn of(
        nsid: u32,
        controller: &IdentifyController,
        namespace: &IdentifyNamespace,
        most: usize,
    ) -> Result<Self, String> {
        let Some(format) = namespace.lba_format() else {
            return Err("the namespace does not tell the size of its blocks".to_owned());
        };
        if format.ms != 0 {
            return Err(format!(
                "the namespace has {} bytes of metadata with each block, which this program does not write: format it without",
                format.ms
            ));
        }
        let lba_bytes = 1_u64.checked_shl(format.lbads.into()).unwrap_or(0);
        if ![512, 4096].contains(&lba_bytes) {
            return Err(format!(
                "the namespace has blocks of {lba_bytes} bytes: format it with 512 or 4096"
            ));
        }
        let own = match controller.mdts {
            0 => usize::MAX,
            power => {
                let pages = 1_usize.checked_shl(power.into()).unwrap_or(usize::MAX);
                CONTROLLER_PAGE_BYTES.saturating_mul(pages)
            }
        };
        let command_bytes = own.min(most).min(COMMAND_BYTES_MAX);
        if command_bytes < BLOCK_BYTES {
            return Err("one command moves less than 4096 bytes there".to_owned());
        }
        Ok(Self {
            nsid,
            lba_bytes: lba_bytes as u32,
            command_bytes: command_bytes - command_bytes % BLOCK_BYTES,
            has_cache: controller.vwc & CACHE_PRESENT != 0,
        })
    }

    /// The blocks of the namespace that are these bytes, which are whole blocks of a drive.
    fn range(&self, at: u64, len: usize) -> LbaRange {
        LbaRange {
            slba: at / u64::from(self.lba_bytes),
            blocks: len as u32 / self.lba_bytes,
        }
    }

    /// The commands that move these runs.
    fn commands(
        &self,
        runs: impl Iterator<Item = (u64, Part)>,
        command: impl Fn(LbaRange) -> IoCommand,
    ) -> Vec<Command> {
        let pieces = pieces(runs, self.command_bytes).into_iter();
        let commands = pieces.map(|piece| Command {
            entry: command(self.range(piece.at, piece.len)).to_sqe().0,
            data: piece
                .parts
                .iter()
                .map(|part| passthrough::Piece {
                    buffer: part.buffer,
                    offset: part.offset,
                    len: part.len,
                })
                .collect(),
        });
        commands.collect()
    }
}

/// The block device of the namespace whose generic character device this is; `None` for every other path.
#[must_use]
pub fn block_device_of(path: &Path) -> Option<PathBuf> {
    let found = fs::metadata(path).ok()?;
    if !found.file_type().is_char_device() {
        return None;
    }
    let number = found.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let folder = Path::new("/sys/dev/char").join(format!("{major}:{minor}"));
    let folder = folder.canonicalize().ok()?;
    let name = block_name(folder.file_name()?.to_str()?)?;
    Some(Path::new("/dev").join(name))
}

/// `nvme0n1` for `ng0n1`.
fn block_name(generic: &str) -> Option<String> {
    let numbers = generic.strip_prefix("ng")?;
    let (controller, namespace) = numbers.split_once('n')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    (is_number(controller) && is_number(namespace)).then(|| format!("nvme{numbers}"))
}

impl PassthroughDrive {
    /// Opens it, for this process alone, until it is dropped. Blocks the thread as long as the device takes to tell what it
    /// is. `block` is its block device ([`block_device_of`]).
    ///
    /// # Errors
    /// As of [`FileDrive::open`] for the block device; or the namespace has blocks or metadata that a drive cannot have, or this user
    /// may not send it commands.
    pub fn open(path: &Path, block: &Path, options: &OpenOptions) -> Result<Self, DriveError> {
        let name = path.display().to_string();
        let held = OpenOptions {
            create_bytes: None,
            ..options.clone()
        };
        let failed = |what: &str, error: std::io::Error| {
            let text = format!(
                "{what}: {error}; check owner and mode of the device, and the system's log"
            );
            DriveError::new(ErrorKind::Io, &name, text).with_source(error)
        };
        let opened = File::options().read(true).write(true).open(path);
        let device: OwnedFd = opened
            .map_err(|error| failed("cannot be opened", error))?
            .into();
        let held = FileDrive::open(block, &held)?;
        let read = |file: &str| {
            let told = fs::read_to_string(sysfs(block).join(file));
            told.ok()?.trim().parse::<u32>().ok()
        };
        let Some(nsid) = read("nsid") else {
            let text =
                "the system does not tell its namespace identifier; name its block device instead";
            return Err(DriveError::new(ErrorKind::Invalid, &name, text));
        };
        let most = read("queue/max_hw_sectors_kb").map_or(0, |kib| kib as usize * 1024);
        let identify = |cns: Cns, nsid| {
            let identify = Identify {
                cns: cns.as_u8(),
                cntid: 0,
                nsid,
                csi: 0,
                specific_id: 0,
            };
            let mut page = [0; IDENTIFY_BYTES];
            read_by_admin_command(&device, &identify.to_sqe().0, &mut page)
                .map_err(|error| failed("does not tell what it is", error))?;
            Ok::<_, DriveError>(page)
        };
        let controller = IdentifyController::decode(&identify(Cns::Controller, 0)?);
        let namespace = IdentifyNamespace::decode(&identify(Cns::Namespace, nsid)?);
        let (Some(controller), Some(namespace)) = (controller, namespace) else {
            let text = "tells what cannot be read of itself; name its block device instead";
            return Err(DriveError::new(ErrorKind::Io, &name, text));
        };
        let facts = Facts::of(nsid, &controller, &namespace, most);
        let facts = facts.map_err(|text| DriveError::new(ErrorKind::Invalid, &name, text))?;
        Ok(Self {
            name,
            device: Arc::new(device),
            block: held,
            block_path: block.to_owned(),
            facts,
            failed_flush: OnceLock::new(),
        })
    }

    /// As of [`FileDrive::check_unused`].
    ///
    /// # Errors
    /// Names who uses it.
    pub fn check_unused(&self) -> Result<(), DriveError> {
        self.block.check_unused(&self.block_path)
    }

    /// As of [`FileDrive::content`].
    ///
    /// # Errors
    /// As there.
    pub fn content(&self) -> Result<Option<Content>, DriveError> {
        self.forget_pages()?;
        self.block.content(&self.block_path)
    }

    /// As of [`FileDrive::wipe_signatures`].
    ///
    /// # Errors
    /// As there.
    pub fn wipe_signatures(&self) -> Result<(), DriveError> {
        self.forget_pages()?;
        self.block.wipe_signatures(&self.block_path)
    }

    /// What the kernel has in its page cache is older than what was written past it.
    fn forget_pages(&self) -> Result<(), DriveError> {
        let opened = File::open(&self.block_path);
        let forgotten = opened.and_then(|file| forget_cached(&file));
        forgotten.map_err(|error| self.failed("looking at what it holds", error))
    }

    fn failed(&self, what: &str, error: std::io::Error) -> DriveError {
        let text = format!("{what} failed: {error}; look into the system's log for the cause");
        DriveError::new(ErrorKind::Io, &self.name, text).with_source(error)
    }
}

/// The folder of a block device in sysfs.
fn sysfs(block: &Path) -> PathBuf {
    let name = block.file_name().unwrap_or_default();
    Path::new("/sys/class/block").join(name)
}

impl Drive for PassthroughDrive {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.block.blocks()
    }

    fn read<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            if let Err(error) = check_transfer(self, &buffer, extents) {
                return (Err(error), buffer);
            }
            let nsid = self.facts.nsid;
            let read = |range| IoCommand::Read {
                nsid,
                range,
                fua: false,
            };
            let commands = self.facts.commands(runs_of_one(extents), read);
            let (result, buffer) = passthrough::send(&self.device, buffer, &commands).await;
            (result.map_err(|error| self.failed("a read", error)), buffer)
        })
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            if let Err(error) = check_transfer(self, &buffer, extents) {
                return (Err(error), buffer);
            }
            let commands = self.facts.commands(runs_of_one(extents), self.write_of());
            let (result, buffer) = passthrough::send(&self.device, buffer, &commands).await;
            let result = result.map_err(|error| self.failed("a write", error));
            (result, buffer)
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            check_gather(self, &buffers, extents)?;
            let commands = self.facts.commands(runs_of_many(extents), self.write_of());
            let written = passthrough::send_gathered(&self.device, buffers, &commands).await;
            written.map_err(|error| self.failed("a write", error))
        })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            if !self.facts.has_cache {
                return Ok(());
            }
            let flush = IoCommand::Flush {
                nsid: self.facts.nsid,
            };
            let command = Command {
                entry: flush.to_sqe().0,
                data: Vec::new(),
            };
            if let Some(why) = self.failed_flush.get() {
                let text = format!(
                    "an earlier flush failed ({why}), so what was written before it may be lost; replace the drive if it is \
                     failing, and start again: recovery proves what is there"
                );
                return Err(DriveError::new(ErrorKind::Io, &self.name, text));
            }
            let flushed = passthrough::send_gathered(&self.device, Rc::default(), &[command]).await;
            flushed.map_err(|error| {
                // The first one stays.
                let _ = self.failed_flush.set(error.to_string());
                self.failed("a flush", error)
            })
        })
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.block.discard(block, blocks)
    }

    fn smart_log<'a>(&'a self) -> LocalBoxFuture<'a, Result<Option<SmartLog>, DriveError>> {
        self.block.smart_log()
    }
}

impl PassthroughDrive {
    fn write_of(&self) -> impl Fn(LbaRange) -> IoCommand + use<> {
        let nsid = self.facts.nsid;
        move |range| IoCommand::Write {
            nsid,
            range,
            fua: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use nvme::identify::LbaFormat;

    use super::*;

    fn facts(mdts: u8, lbads: u8, ms: u16, most: usize) -> Result<Facts, String> {
        let controller = IdentifyController {
            mdts,
            vwc: 7,
            ..IdentifyController::default()
        };
        let namespace = IdentifyNamespace {
            lbaf: vec![LbaFormat {
                ms,
                lbads,
                ..LbaFormat::default()
            }],
            ..IdentifyNamespace::default()
        };
        Facts::of(7, &controller, &namespace, most)
    }

    #[test]
    fn no_command_is_larger_than_the_controller_or_the_kernel_takes() {
        let bytes = |mdts, most| facts(mdts, 12, 0, most).map(|it| it.command_bytes);
        assert_eq!(bytes(0, 1 << 20), Ok(128 << 10));
        assert_eq!(bytes(3, 1 << 20), Ok(32 << 10));
        assert_eq!(bytes(255, 1 << 20), Ok(128 << 10));
        assert_eq!(bytes(0, 10_000), Ok(8192));
        bytes(5, 512).expect_err("less than a block");
        let facts = facts(3, 9, 0, 1 << 20).expect("blocks of 512 bytes");
        let run = (
            8192,
            Part {
                buffer: 1,
                offset: 4096,
                len: 40960,
            },
        );
        let write = |range| IoCommand::Write {
            nsid: 7,
            range,
            fua: false,
        };
        let commands = facts.commands([run].into_iter(), write);
        let data: Vec<_> = commands.iter().map(|command| command.data[0]).collect();
        let piece = |offset, len| passthrough::Piece {
            buffer: 1,
            offset,
            len,
        };
        assert_eq!(data, [piece(4096, 32768), piece(36864, 8192)]);
        let second = IoCommand::Write {
            nsid: 7,
            range: LbaRange {
                slba: 80,
                blocks: 16,
            },
            fua: false,
        };
        assert_eq!(commands[1].entry, second.to_sqe().0);
    }

    #[test]
    fn a_namespace_with_other_blocks_or_with_metadata_is_refused_with_the_remedy() {
        for (lbads, ms) in [(9, 8), (12, 64), (10, 0), (13, 0), (0, 0), (64, 0)] {
            let why = facts(5, lbads, ms, 1 << 20).expect_err("no drive");
            assert!(why.contains("format it"), "{why}");
        }
    }

    #[test]
    fn the_block_device_of_a_generic_one_has_its_numbers() {
        assert_eq!(block_name("ng0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(block_name("ng12n34").as_deref(), Some("nvme12n34"));
        for name in ["nvme0n1", "ng0", "ng0n", "ngn1", "tty1", "ng0n1p1"] {
            assert_eq!(block_name(name), None, "{name}");
        }
        assert_eq!(block_device_of(Path::new("/dev/null")), None);
    }
}
