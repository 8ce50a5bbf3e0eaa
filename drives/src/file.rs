//! Files and block devices as drives, through io_uring and past the page cache.
//!
//! Guarantees: one process at a time uses the drive (a lock on the file, exclusive opening of a
//! device); a file is never shortened or extended once it has been made; a flush that failed is not
//! forgotten, because the kernel reports lost writes only once; what was lost before a drive was opened is
//! not read from the page cache, where the kernel may still have it.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reactor::file::{self, FileExtent, GatherPiece};
use reactor::{Buffer, BufferPool};
use rustix::fs::{Advice, FlockOperation, OFlags, fadvise, flock, ioctl_blksszget};
use rustix::io::Errno;

use crate::ahead::Ahead;
use crate::content::{self, Content};
use crate::flusher::{FlushFailure, Flusher};
use crate::health;
use crate::users;
use crate::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, SmartLog,
    Transferred, check_gather, check_range, check_transfer,
};

/// How a [`FileDrive`] is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Make the file if it is missing: sparse, of this many bytes, a multiple of [`BLOCK_BYTES`]. A
    /// file that is there must be as large at least, and stays as it is.
    pub create_bytes: Option<u64>,
    /// Refuse a file or device with fewer blocks: it was truncated, or is another one.
    pub expected_blocks: Option<u64>,
}

/// A regular file or a block device. Transfers need a reactor on the calling thread.
#[derive(Debug)]
pub struct FileDrive {
    name: String,
    file: Arc<OwnedFd>,
    blocks: u64,
    direct: bool,
    ahead: Ahead,
    discards: AtomicBool,
    flusher: Flusher,
    made: bool,
}

impl FileDrive {
    /// Opens it, for this process alone, until it is dropped. Blocks the thread for some milliseconds
    /// when it makes a file.
    ///
    /// # Errors
    /// If it is missing and not to be made, is not a file or block device, is used by another process,
    /// is too small, has sectors larger than a block, or cannot be read.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, DriveError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let opened = open_locked(path, &name, options)?;
        let blocks = opened.bytes / BLOCK_BYTES as u64;
        check_size(&name, opened.bytes, options)?;
        if !opened.direct {
            tracing::warn!(
                drive = name,
                "this file system has no O_DIRECT: the drive's data also fills the page cache; put \
                 the drive on ext4, XFS or a block device"
            );
        }
        let file: Arc<OwnedFd> = Arc::new(opened.file.into());
        if !opened.direct {
            forget_cached(&*file).map_err(|error| open_error(&name, error))?;
        }
        let synced = file.clone();
        Ok(Self {
            name,
            file,
            blocks,
            direct: opened.direct,
            ahead: Ahead::new((!opened.device).then_some(blocks * BLOCK_BYTES as u64)),
            discards: AtomicBool::new(true),
            flusher: Flusher::new(move || Ok(rustix::fs::fdatasync(&*synced)?)),
            made: opened.made,
        })
    }

    /// What the drive holds, before it is taken for a pool; `None` if it is blank. `path` is what it was opened
    /// by. Blocks, for some seconds on a slow drive.
    ///
    /// # Errors
    /// It is in use by something that does not hold it exclusively (a loop device), or cannot be read.
    pub fn content(&self, path: &Path) -> Result<Option<Content>, DriveError> {
        self.check_unused(path)?;
        let (file, bytes) = self.again(File::options().read(true))?;
        let found = content::look(&file, bytes).and_then(|found| {
            // Nobody reads these bytes again.
            forget_cached(&file)?;
            Ok(found)
        });
        found.map_err(|error| self.transfer_error("looking at what it holds", error))
    }

    /// Overwrites with zeros all places where programs recognise what a drive holds, so that none of them takes
    /// it for what it was. Data stay elsewhere. `path` is what it was opened by. Blocks.
    ///
    /// # Errors
    /// It is in use, as for [`content`](Self::content), or cannot be written.
    pub fn wipe_signatures(&self, path: &Path) -> Result<(), DriveError> {
        self.check_unused(path)?;
        let (file, bytes) = self.again(File::options().read(true).write(true))?;
        content::wipe(&file, bytes)
            .map_err(|error| self.transfer_error("overwriting what it holds", error))
    }

    /// Refuses a drive that something uses without holding it exclusively: a file behind a loop device, or one
    /// that is swap space. Those that are held exclusively cannot be opened.
    ///
    /// # Errors
    /// Names who uses it.
    pub fn check_unused(&self, path: &Path) -> Result<(), DriveError> {
        let users = users::of(path);
        match users.is_empty() {
            true => Ok(()),
            false => Err(used_by(&self.name, &users)),
        }
    }

    /// The same file once more, through the page cache and without alignment, and its size in bytes.
    fn again(&self, options: &fs::OpenOptions) -> Result<(File, u64), DriveError> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let opened = options.open(path).and_then(|mut file| {
            let bytes = file.seek(SeekFrom::End(0))?;
            Ok((file, bytes))
        });
        opened.map_err(|error| open_error(&self.name, error))
    }

    /// Whether transfers go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether opening it made the file.
    pub fn is_made(&self) -> bool {
        self.made
    }

    fn flush_error(&self, cause: &str) -> DriveError {
        let text = format!(
            "an earlier flush failed ({cause}), so what was written before it may be lost; look into the \
             kernel's log, replace the drive if it is failing, and start again: recovery proves what is there"
        );
        DriveError::new(ErrorKind::Io, &self.name, text)
    }

    fn transfer_error(&self, what: &str, error: io::Error) -> DriveError {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            let text = format!(
                "{error}: it was truncated while in use; stop, and put the whole file back"
            );
            return DriveError::new(ErrorKind::Truncated, &self.name, text).with_source(error);
        }
        if is_no_space(&error) {
            let text = "the file system it is on is full (the drive is a sparse file); free space \
                        there, or make its volume larger";
            return DriveError::new(ErrorKind::NoSpace, &self.name, text).with_source(error);
        }
        let text = format!("{what} failed: {error}; look into the kernel's log for its cause");
        let is_in_doubt = !self.ahead.is_of_a_file() && is_unknown(&error);
        let failed = DriveError::new(ErrorKind::Io, &self.name, text).with_source(error);
        match is_in_doubt {
            true => failed.in_doubt(),
            false => failed,
        }
    }
}

/// Whether the kernel gave a request to a device up without an answer of it: a time-out, or a transport or device that is
/// gone (`blk_errors` in Linux `block/blk-core.c`). Behind a network the device may still carry it out.
fn is_unknown(error: &io::Error) -> bool {
    const UNKNOWN: [Errno; 9] = [
        Errno::TIMEDOUT,
        Errno::TIME,
        Errno::NOLINK,
        Errno::NODEV,
        Errno::NXIO,
        Errno::CONNRESET,
        Errno::CONNABORTED,
        Errno::NOTCONN,
        Errno::PIPE,
    ];
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| UNKNOWN.contains(&errno))
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// In bytes of the file; neighbours in both file and buffer become one.
fn file_extents(extents: &[Extent]) -> Vec<FileExtent> {
    let mut merged: Vec<FileExtent> = Vec::with_capacity(extents.len());
    for extent in extents {
        let next = FileExtent {
            file_offset: extent.block * BLOCK_BYTES as u64,
            buffer_offset: extent.buffer_offset,
            len: extent.blocks as usize * BLOCK_BYTES,
        };
        match merged.last_mut() {
            Some(last)
                if last.file_offset + last.len as u64 == next.file_offset
                    && last.buffer_offset + last.len == next.buffer_offset =>
            {
                last.len += next.len;
            }
            _ => merged.push(next),
        }
    }
    merged
}

fn gather_piece(extent: &GatherExtent) -> GatherPiece {
    GatherPiece {
        file_offset: extent.block * BLOCK_BYTES as u64,
        buffer: extent.buffer as usize,
        buffer_offset: extent.buffer_offset as usize,
        len: extent.blocks as usize * BLOCK_BYTES,
    }
}

impl Drive for FileDrive {
    fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn room_bytes(&self) -> Option<u64> {
        if !self.ahead.is_of_a_file() {
            return None;
        }
        let system = rustix::fs::fstatvfs(&*self.file).ok()?;
        Some(system.f_bavail.saturating_mul(system.f_frsize))
    }

    fn smart_log<'a>(&'a self) -> LocalBoxFuture<'a, Result<Option<SmartLog>, DriveError>> {
        let asked = health::ask(self.file.clone());
        Box::pin(async move {
            asked
                .await
                .map_err(|error| DriveError::new(ErrorKind::Io, &self.name, error.to_string()))
        })
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
            let (result, buffer) = file::read(&self.file, buffer, &file_extents(extents)).await;
            (
                result.map_err(|error| self.transfer_error("a read", error)),
                buffer,
            )
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
            let extents = file_extents(extents);
            let offsets = extents.iter().map(|extent| extent.file_offset);
            self.ahead.prepare(&self.file, offsets).await;
            let (result, buffer) = file::write(&self.file, buffer, &extents).await;
            (
                result.map_err(|error| self.transfer_error("a write", error)),
                buffer,
            )
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            check_gather(self, &buffers, extents)?;
            let pieces: Vec<GatherPiece> = extents.iter().map(gather_piece).collect();
            let offsets = pieces.iter().map(|piece| piece.file_offset);
            self.ahead.prepare(&self.file, offsets).await;
            let written = file::write_gathered(&self.file, buffers, &pieces).await;
            written.map_err(|error| self.transfer_error("a write", error))
        })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            self.flusher.flush().await.map_err(|failure| match failure {
                FlushFailure::Now(error) => self.transfer_error("a flush", error),
                FlushFailure::Earlier(cause) => self.flush_error(&cause),
            })
        })
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            check_range(self, block, blocks)?;
            if blocks == 0 || !self.discards.load(Ordering::Relaxed) {
                return Ok(());
            }
            let bytes = BLOCK_BYTES as u64;
            match file::discard(&self.file, block * bytes, blocks * bytes).await {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    self.discards.store(false, Ordering::Relaxed);
                    tracing::info!(drive = self.name, "this drive cannot give space back");
                    Ok(())
                }
                Err(error) => Err(self.transfer_error("a discard", error)),
            }
        })
    }
}

struct Opened {
    file: File,
    bytes: u64,
    direct: bool,
    device: bool,
    made: bool,
}

fn open_locked(path: &Path, name: &str, options: &OpenOptions) -> Result<Opened, DriveError> {
    let (device, missing) = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => (false, false),
        Ok(metadata) if metadata.file_type().is_block_device() => (true, false),
        Ok(metadata) => {
            let is = if metadata.is_dir() {
                "a directory"
            } else {
                "a special file"
            };
            let text = format!("is {is}; name a regular file or a block device");
            return Err(DriveError::invalid(name, text));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => (false, true),
        Err(error) => return Err(open_error(name, error)),
    };
    let create = match options.create_bytes {
        Some(bytes) if !device => Some(creatable(name, bytes)?),
        _ => None,
    };
    if missing && create.is_none() {
        let text = "there is no such file or device; check the path, attach the device, or put the \
                    file back";
        return Err(DriveError::new(ErrorKind::NotFound, name, text));
    }
    if missing && path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        let text = "there is no such device; check its name and that it is attached (files are not \
                    made in /dev, which is memory)";
        return Err(DriveError::new(ErrorKind::NotFound, name, text));
    }
    let (mut file, mut direct) = open_direct(path, name, device, create.is_some())?;
    lock(&file, name)?;
    let mut bytes = if device {
        check_sectors(&file, name)?;
        file.seek(SeekFrom::End(0))
            .map_err(|error| open_error(name, error))?
    } else {
        file.metadata()
            .map_err(|error| open_error(name, error))?
            .len()
    };
    let made = missing && bytes == 0;
    // An empty file is one whose making was interrupted, or one made for this with `touch`.
    if let (0, Some(wanted)) = (bytes, create) {
        make_sparse(&file, path, wanted).map_err(|error| {
            if made {
                // Best effort: an empty file is in nobody's way.
                let _ = fs::remove_file(path);
            }
            open_error(name, error)
        })?;
        bytes = wanted;
    }
    if direct && bytes >= BLOCK_BYTES as u64 && !reads_direct(&file, name)? {
        direct = false;
        // The lock is the open file's: this one stays open until the other has its own.
        file = reopen_buffered(path, name, file)?;
    }
    Ok(Opened {
        device,
        file,
        bytes,
        direct,
        made,
    })
}

fn creatable(name: &str, bytes: u64) -> Result<u64, DriveError> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES as u64) || i64::try_from(bytes).is_err() {
        let text = format!("cannot be made with {bytes} bytes: give a multiple of {BLOCK_BYTES}");
        return Err(DriveError::invalid(name, text));
    }
    Ok(bytes)
}

/// With O_DIRECT, or without (false) if the file system refuses it.
fn open_direct(
    path: &Path,
    name: &str,
    device: bool,
    create: bool,
) -> Result<(File, bool), DriveError> {
    // On a block device O_EXCL means: fail if it is mounted, or opened like this by another.
    let exclusive = if device {
        OFlags::EXCL
    } else {
        OFlags::empty()
    };
    let open = |flags: OFlags| {
        let mut options = File::options();
        options.read(true).write(true).create(create).mode(0o600);
        options
            .custom_flags((flags | exclusive).bits() as i32)
            .open(path)
    };
    match open(OFlags::DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let file = open(OFlags::empty()).map_err(|error| open_error(name, error))?;
            Ok((file, false))
        }
        Err(error) => Err(open_error(name, error)),
    }
}

fn reopen_buffered(path: &Path, name: &str, locked: File) -> Result<File, DriveError> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| open_error(name, error))?;
    drop(locked);
    lock(&file, name)?;
    Ok(file)
}

fn lock(file: &File, name: &str) -> Result<(), DriveError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(in_use(name)),
        Err(errno) => Err(open_error(name, errno.into())),
    }
}

fn in_use(name: &str) -> DriveError {
    let users = users::of(Path::new(name));
    if !users.is_empty() {
        return used_by(name, &users);
    }
    let text = "is in use: another process has it open, or it is mounted; stop that process (fuser \
                shows it) or unmount it";
    DriveError::new(ErrorKind::InUse, name, text)
}

fn used_by(name: &str, users: &[String]) -> DriveError {
    let text = format!(
        "is in use: it {}; end that first, or name another drive",
        users.join("; it ")
    );
    DriveError::new(ErrorKind::InUse, name, text)
}

fn open_error(name: &str, error: io::Error) -> DriveError {
    if error.kind() == io::ErrorKind::ResourceBusy {
        return in_use(name).with_source(error);
    }
    let (kind, text) = if error.kind() == io::ErrorKind::NotFound {
        (
            ErrorKind::NotFound,
            "a folder on the way to it is missing; make it first".to_owned(),
        )
    } else if is_no_space(&error) {
        let text =
            format!("its file system has no room for it: {error}; free space or make it smaller");
        (ErrorKind::NoSpace, text)
    } else if matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    ) {
        (
            ErrorKind::Io,
            format!("may not be read and written: {error}; check owner, mode and mount"),
        )
    } else {
        (ErrorKind::Io, format!("cannot be opened: {error}"))
    };
    DriveError::new(kind, name, text).with_source(error)
}

/// Drops what the page cache has of the file. Linux marks a page clean when it could not be written, and
/// goes on to read from it: after that failure only the drive itself tells what it holds. Pages that are
/// still to be written stay, and the next flush tells of their failure.
///
/// # Errors
/// What the kernel says.
pub fn forget_cached(file: impl AsFd) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

fn check_sectors(file: &File, name: &str) -> Result<(), DriveError> {
    let sector = ioctl_blksszget(file).map_err(|errno| open_error(name, errno.into()))?;
    if !matches!(sector, 512 | 1024 | 2048 | 4096) {
        let text = format!("has sectors of {sector} bytes; at most {BLOCK_BYTES} are supported");
        return Err(DriveError::invalid(name, text));
    }
    Ok(())
}

fn make_sparse(file: &File, path: &Path, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)?;
    file.sync_all()?;
    // The name, too, must survive a power loss.
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Whether an aligned block can be read: some file systems accept O_DIRECT and then ask for more
/// alignment than a block has, or refuse transfers.
fn reads_direct(file: &File, name: &str) -> Result<bool, DriveError> {
    let pool = BufferPool::new(BLOCK_BYTES).map_err(|error| open_error(name, error))?;
    let Some(mut buffer) = pool.try_alloc(BLOCK_BYTES) else {
        return Ok(true);
    };
    match rustix::io::pread(file, &mut *buffer, 0) {
        Ok(_) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => {
            let text = format!("its first block cannot be read: {errno}; replace the drive");
            Err(DriveError::new(ErrorKind::Io, name, text).with_source(errno.into()))
        }
    }
}

fn check_size(name: &str, bytes: u64, options: &OpenOptions) -> Result<(), DriveError> {
    let block = BLOCK_BYTES as u64;
    if let Some(expected) = options.expected_blocks
        && bytes / block < expected
    {
        let text = format!(
            "has {bytes} bytes, but should have {}: it was truncated, or is another one; put the \
             right one back",
            expected.saturating_mul(block)
        );
        return Err(DriveError::new(ErrorKind::Truncated, name, text));
    }
    if bytes < block {
        let text = format!("has {bytes} bytes: too small for a single block of {block}");
        return Err(DriveError::invalid(name, text));
    }
    if let (None, Some(wanted)) = (options.expected_blocks, options.create_bytes)
        && bytes < wanted
    {
        let text = format!(
            "is there already, with {bytes} bytes instead of {wanted}; remove it if it is not needed, \
             or ask for less"
        );
        return Err(DriveError::invalid(name, text));
    }
    Ok(())
}
