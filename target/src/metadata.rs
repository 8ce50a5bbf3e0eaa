//! The pool's metadata on its drives: the areas behind what the engine has of each drive, and who holds a copy.
//!
//! Guarantees:
//! - An area takes so long to answer at most. One that did not answer is not used again before all that it was told has ended,
//!   because that may still happen; if nobody can know, before the drive is opened again.
//! - Areas have a reactor of their own, from the first of them on: nothing here runs on one that serves hosts, and a pool
//!   without areas has no memory registered for them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drives::{BLOCK_BYTES, Drive, DriveError, Extent};
use meta::{FileMedia, MetadataArea, MetadataOnDrives, PendingIo, RocksStore};
use reactor::{Buffer, BufferPool, Handle, PoolConfig, ReactorThread};
use subsystem::errors::Failure;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::errors::of_meta;

/// Memory for what is on its way to areas and from them, in bytes.
const BUFFER_BYTES: usize = 16 << 20;

/// Blocks of one transfer at most.
const TRANSFER_BLOCKS: usize = 256;

/// How many times as long as a transfer a flush may take, if the drive answers a read meanwhile.
const FLUSH_FACTOR: u32 = 10;

/// How many times as long a drive may take that nobody can stand in for.
const ONLY_DRIVE_FACTOR: u32 = 30;

/// The folder of a store of less than this (bytes) is copied to drives before hosts are served; that of a larger one
/// meanwhile.
const COPIED_AT_ONCE_BYTES: u64 = 256 << 20;

/// The blocks of a drive behind those that the engine has.
pub(crate) struct AreaOfDrive {
    /// The whole drive.
    pub(crate) drive: Arc<dyn Drive>,
    pub(crate) first_block: u64,
    pub(crate) blocks: u64,
}

/// Starts the reactor for areas.
///
/// # Errors
/// The system has no thread or memory for it.
pub(crate) fn start_reactor() -> Result<ReactorThread, Failure> {
    let config = reactor::Config {
        name: "metadata".to_owned(),
        buffer_pool: PoolConfig {
            bytes: BUFFER_BYTES,
        },
        ..reactor::Config::default()
    };
    reactor::start(config)
        .map_err(|e| Failure::unavailable(format!("the reactor for metadata cannot start: {e}")))
}

impl AreaOfDrive {
    /// The area, on that reactor.
    pub(crate) fn on(self, reactor: &Handle, answer_max: Duration) -> Arc<dyn MetadataArea> {
        Arc::new(Area {
            drive: self.drive,
            first_block: self.first_block,
            blocks: self.blocks,
            reactor: reactor.clone(),
            answer_max,
            under_way: Arc::default(),
        })
    }
}

/// See the module.
struct Area {
    drive: Arc<dyn Drive>,
    first_block: u64,
    blocks: u64,
    reactor: Handle,
    answer_max: Duration,
    under_way: Arc<UnderWay>,
}

/// What an area was told that has not ended.
#[derive(Default)]
struct UnderWay {
    /// Transfers and flushes that nobody waits for any more.
    late: AtomicU64,
    /// Something ended, and may still happen.
    is_in_doubt: AtomicBool,
}

impl UnderWay {
    /// Why the area cannot be told anything now.
    fn refusal(&self) -> Option<io::Error> {
        let why = match (
            self.is_in_doubt.load(Ordering::Acquire),
            self.late.load(Ordering::Acquire),
        ) {
            (false, 0) => return None,
            (true, _) => {
                "what it was told may still happen: it can hold metadata again when it is opened again"
            }
            (false, _) => {
                "it did not answer in time: it can hold metadata again when what it was told has ended"
            }
        };
        Some(io::Error::new(io::ErrorKind::TimedOut, why))
    }
}

/// Copies bytes from or to a part of a transfer's buffer.
type Parts = Vec<(u64, usize)>;

impl Area {
    /// The transfers that some blocks take: each the block on the drive, and how many.
    fn transfers(&self, block: u64, bytes: usize) -> io::Result<Parts> {
        let blocks = bytes / BLOCK_BYTES;
        let end = block.checked_add(blocks as u64);
        if !bytes.is_multiple_of(BLOCK_BYTES) || end.is_none_or(|end| end > self.blocks) {
            let text = format!(
                "blocks {block} + {blocks} are not among the {} that are kept for metadata",
                self.blocks
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let starts = (0..blocks).step_by(TRANSFER_BLOCKS);
        let part = |start: usize| {
            let block = self.first_block + block + start as u64;
            (block, TRANSFER_BLOCKS.min(blocks - start))
        };
        Ok(starts.map(part).collect())
    }

    /// Begins work on the drive; it fails when it takes longer than an answer may, or so many times as long, as long as the
    /// drive answers reads meanwhile.
    fn begin<T, Work>(
        &self,
        turns_max: u32,
        work: impl FnOnce(Arc<dyn Drive>, BufferPool) -> Work + Send + 'static,
    ) -> impl FnOnce() -> io::Result<T> + Send + 'static
    where
        T: Send + 'static,
        Work: Future<Output = Result<T, DriveError>> + 'static,
    {
        let (drive, buffers) = (self.drive.clone(), self.reactor.buffers().clone());
        let (under_way, answer_max) = (self.under_way.clone(), self.answer_max);
        let begun = match under_way.refusal() {
            Some(refusal) => Err(refusal),
            None => Ok(self.reactor.spawn(move || {
                let (tell, told) = oneshot::channel();
                let state = under_way.clone();
                let (asked, memory) = (drive.clone(), buffers.clone());
                let ends = async move {
                    let done = work(drive, buffers).await;
                    if matches!(&done, Err(error) if error.is_in_doubt()) {
                        state.is_in_doubt.store(true, Ordering::Release);
                    }
                    if tell.send(done).is_err() {
                        state.late.fetch_sub(1, Ordering::AcqRel);
                    }
                };
                // It goes on when nobody waits any more.
                reactor::spawn(ends).detach();
                async move {
                    let mut told = told;
                    for turn in 1.. {
                        if let Ok(done) = reactor::timeout(answer_max, &mut told).await {
                            return done.ok();
                        }
                        let goes_on =
                            turn < turns_max && answers(&asked, &memory, answer_max).await;
                        // It may have ended in this very moment.
                        if let Ok(done) = told.try_recv() {
                            return Some(done);
                        }
                        if !goes_on {
                            break;
                        }
                    }
                    // Counted before it can find nobody waiting.
                    under_way.late.fetch_add(1, Ordering::AcqRel);
                    None
                }
            })),
        };
        let under_way = self.under_way.clone();
        move || match begun?.wait() {
            Ok(Some(done)) => done.map_err(io::Error::other),
            Ok(None) => Err(under_way
                .refusal()
                .unwrap_or_else(|| io::ErrorKind::TimedOut.into())),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl MetadataArea for Area {
    fn name(&self) -> String {
        self.drive.name().to_owned()
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut rest = bytes;
        for (block, blocks) in self.transfers(block, rest.len())? {
            let (part, others) = rest.split_at_mut(blocks * BLOCK_BYTES);
            let read = self.begin(1, move |drive, buffers| async move {
                let buffer = buffers.alloc(blocks * BLOCK_BYTES).await;
                let (result, buffer) = drive.read(buffer, &[extent(block, blocks)]).await;
                result.map(|()| buffer)
            });
            part.copy_from_slice(&read()?[..blocks * BLOCK_BYTES]);
            rest = others;
        }
        Ok(())
    }

    fn write(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        let transfers = match self.transfers(block, bytes.len()) {
            Ok(transfers) => transfers,
            Err(error) => return PendingIo::new(move || Err(error)),
        };
        let started = self.begin(1, move |drive, buffers| async move {
            let mut at = 0;
            for (block, blocks) in transfers {
                let len = blocks * BLOCK_BYTES;
                let mut buffer: Buffer = buffers.alloc(len).await;
                buffer[..len].copy_from_slice(&bytes[at..at + len]);
                let (result, _) = drive.write(buffer, &[extent(block, blocks)]).await;
                result?;
                at += len;
            }
            Ok(())
        });
        PendingIo::new(started)
    }

    fn flush(&self) -> PendingIo {
        let flush = |drive: Arc<dyn Drive>, _| async move { drive.flush().await };
        PendingIo::new(self.begin(FLUSH_FACTOR, flush))
    }
}

/// Whether a drive answers a read in time, be it with an error. Without memory for that nobody knows, and it has its time.
async fn answers(drive: &Arc<dyn Drive>, buffers: &BufferPool, answer_max: Duration) -> bool {
    let Some(buffer) = buffers.try_alloc(BLOCK_BYTES) else {
        return true;
    };
    let drive = drive.clone();
    // It goes on when nobody waits any more.
    let read = reactor::spawn(async move { drive.read(buffer, &[extent(0, 1)]).await });
    reactor::timeout(answer_max, read).await.is_ok()
}

fn extent(block: u64, blocks: usize) -> Extent {
    Extent {
        block,
        buffer_offset: 0,
        blocks: blocks as u32,
    }
}

/// The areas of a pool in service. Its calls block: not for a reactor's thread.
pub(crate) struct PoolMetadata {
    pub(crate) copies: Arc<MetadataOnDrives>,
    areas: Mutex<Areas>,
    /// What the drives know of the pool's identity.
    identity: Mutex<String>,
}

/// The areas of the pool's drives, and what they run on.
struct Areas {
    /// By the index of the drive.
    by_drive: BTreeMap<u16, Arc<dyn MetadataArea>>,
    /// `None` until there is an area.
    reactor: Option<ReactorThread>,
    answer_max: Duration,
}

impl Areas {
    /// The drive with that index has this area.
    fn insert(&mut self, index: u16, area: AreaOfDrive) -> Result<(), Failure> {
        let reactor = match self.reactor.take() {
            Some(started) => started,
            None => start_reactor()?,
        };
        let area = area.on(&reactor.handle(), self.answer_max);
        self.reactor = Some(reactor);
        self.by_drive.insert(index, area);
        Ok(())
    }

    /// Those of the drives that are online.
    fn online(&self, is_online: impl Fn(u16) -> bool) -> Vec<(u16, Arc<dyn MetadataArea>)> {
        let all = self.by_drive.iter();
        all.filter(|(index, _)| is_online(**index))
            .map(|(index, area)| (*index, area.clone()))
            .collect()
    }
}

impl std::fmt::Debug for PoolMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PoolMetadata")
            .field(&self.copies.state())
            .finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolMetadata {
    /// Looks what these areas, each with the index of its drive, hold of the pool in the folder, with the text of its identity.
    ///
    /// # Errors
    /// The folder's store cannot be used, or the system has no thread.
    pub(crate) fn open(
        pool: (Uuid, &Path, &str),
        store: Arc<RocksStore>,
        journal: Arc<FileMedia>,
        areas: Vec<(u16, AreaOfDrive)>,
        answer_max: Duration,
    ) -> Result<Self, Failure> {
        let answer_max = match areas.len() {
            // It is dropped for good when it is late, and nobody has its copy.
            0 | 1 => answer_max.saturating_mul(ONLY_DRIVE_FACTOR),
            _ => answer_max,
        };
        let mut opened = Areas {
            by_drive: BTreeMap::new(),
            reactor: None,
            answer_max,
        };
        for (index, area) in areas {
            opened.insert(index, area)?;
        }
        let all = opened.online(|_| true);
        let copies = MetadataOnDrives::open(pool, store, journal, &all).map_err(of_meta)?;
        Ok(Self {
            copies,
            areas: Mutex::new(opened),
            identity: Mutex::default(),
        })
    }

    /// The pool was opened: drives that hold none of its metadata get it, if that is soon done; else [`Self::keep`] sees
    /// to it.
    ///
    /// # Errors
    /// The folder's store cannot be used.
    pub(crate) fn opened(&self, identity: &str) -> Result<(), Failure> {
        self.note_identity(identity)?;
        match self.copies.store_bytes() < COPIED_AT_ONCE_BYTES {
            true => self.keep(|_| true),
            false => Ok(()),
        }
    }

    /// Whether the drives know this text.
    pub(crate) fn knows_identity(&self, text: &str) -> bool {
        *lock(&self.identity) == text
    }

    /// The pool's identity is this text: the drives know when this returns.
    ///
    /// # Errors
    /// The folder's store cannot be used.
    pub(crate) fn note_identity(&self, text: &str) -> Result<(), Failure> {
        let mut identity = lock(&self.identity);
        if *identity == text {
            return Ok(());
        }
        self.copies.set_identity(text).map_err(of_meta)?;
        text.clone_into(&mut identity);
        Ok(())
    }

    /// Another drive has this index from now on, or the drive was opened again.
    ///
    /// # Errors
    /// The folder's store cannot be used.
    pub(crate) fn set_area(&self, index: u16, area: Option<AreaOfDrive>) -> Result<(), Failure> {
        self.copies.leave(index).map_err(of_meta)?;
        let mut areas = lock(&self.areas);
        areas.by_drive.remove(&index);
        match area {
            Some(area) => areas.insert(index, area),
            None => Ok(()),
        }
    }

    /// Whether drives that are online should hold the metadata and do not, or those that are not online do.
    pub(crate) fn wants(&self, is_online: impl Fn(u16) -> bool) -> bool {
        let areas = lock(&self.areas);
        let indexes = areas.by_drive.keys().copied();
        let online = indexes.filter(|index| is_online(*index));
        let held = self.copies.state().drives;
        held.iter().any(|index| !is_online(*index)) || self.copies.wants(online)
    }

    /// Drives that are online hold the metadata afterwards, if it has room on them, and others do not.
    ///
    /// # Errors
    /// The folder's store cannot be used.
    pub(crate) fn keep(&self, is_online: impl Fn(u16) -> bool) -> Result<(), Failure> {
        for index in self.copies.state().drives {
            if !is_online(index) {
                self.copies.leave(index).map_err(of_meta)?;
            }
        }
        let online = lock(&self.areas).online(is_online);
        if self.copies.wants(online.iter().map(|(index, _)| *index)) {
            self.copies.join(&online).map_err(of_meta)?;
        }
        Ok(())
    }
}
