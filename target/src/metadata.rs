//! The pool's metadata on its drives: the areas behind what the engine has of each drive, and who holds a copy.
//!
//! Guarantees:
//! - An area takes so long to answer at most ([`BoundedDrive`] has the rule). One that did not answer, for metadata or for data,
//!   is not used again before all that it was told has ended, because that may still happen; if nobody can know, before the
//!   drive is opened again.
//! - Areas have a reactor of their own, from the first of them on: nothing here runs on one that serves hosts, and a pool
//!   without areas has no memory registered for them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drives::{
    BLOCK_BYTES, BoundedDrive, Bounds, Drive, DriveError, ErrorKind, Extent, Left, Permission,
};
use meta::{FileMedia, MetadataArea, MetadataOnDrives, PendingIo, RocksStore};
use reactor::{Buffer, BufferPool, Handle, PoolConfig, ReactorThread};
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::errors::of_meta;

/// Memory for what is on its way to areas and from them, in bytes.
const BUFFER_BYTES: usize = 16 << 20;

/// Blocks of one transfer at most.
const TRANSFER_BLOCKS: usize = 256;

/// Bytes of that memory that one area has at the same time: one that hangs leaves the others theirs.
const IN_FLIGHT_BYTES: usize = 4 << 20;

/// Transfers of one read that are on their way at the same time.
const READS_MAX: usize = IN_FLIGHT_BYTES / (TRANSFER_BLOCKS * BLOCK_BYTES);

/// How many times as long a drive may take that nobody can stand in for.
const ONLY_DRIVE_FACTOR: u32 = 30;

/// How long metadata wait for room on a drive that has all that another node would need, or for its answer, and how often they ask
/// for room.
const ROOM_MAX: Duration = Duration::from_secs(600);
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// The folder of a store of less than this (bytes) is copied to drives before hosts are served; that of a larger one
/// meanwhile.
const COPIED_AT_ONCE_BYTES: u64 = 256 << 20;

/// The blocks of a drive behind those that the engine has.
pub(crate) struct AreaOfDrive {
    /// The whole drive.
    pub(crate) drive: Arc<dyn Drive>,
    pub(crate) first_block: u64,
    pub(crate) blocks: u64,
    /// What the device was left with by the engine, which has the rest of it.
    pub(crate) left: Option<Arc<Left>>,
    /// Whether it is in a cluster: nothing else has what it holds, so a write waits where there is no room; and the cluster may stand
    /// still for longer than any other drive, which the drive itself gives a bound.
    pub(crate) is_in_cluster: bool,
    /// Whether the drive has data in memory that a write of metadata takes along ([`Drive::write_flushing`]).
    pub(crate) flushes_data: bool,
}

/// How long to wait for an area.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    /// Others have what one holds: as long as a transfer of data may take, and not at all where the device was left.
    Short(Duration),
    /// Nobody can stand in for it.
    Long(Duration),
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
    pub(crate) fn on(self, reactor: &Handle, patience: Patience) -> Arc<Area> {
        let (answer_max, left) = match patience {
            _ if self.is_in_cluster => (ROOM_MAX, Arc::default()),
            Patience::Short(answer_max) => (answer_max, self.left.unwrap_or_default()),
            Patience::Long(answer_max) => (answer_max, Arc::default()),
        };
        let bounds = Bounds {
            answer_max,
            in_flight_bytes: IN_FLIGHT_BYTES,
        };
        // Who holds metadata can be left at any time: without it there is a copy less.
        let permission = Permission::default();
        permission.ask(|_| true);
        let drive = BoundedDrive::sharing(self.drive, 0, bounds, Arc::new(permission), left);
        Arc::new(Area {
            drive: Arc::new(drive),
            first_block: self.first_block,
            blocks: self.blocks,
            is_in_cluster: self.is_in_cluster,
            flushes_data: self.flushes_data,
            reactor: reactor.clone(),
        })
    }
}

/// See the module.
pub(crate) struct Area {
    drive: Arc<BoundedDrive>,
    first_block: u64,
    blocks: u64,
    is_in_cluster: bool,
    flushes_data: bool,
    reactor: Handle,
}

/// Why an area cannot be told anything now.
fn refusal(drive: &BoundedDrive) -> Option<io::Error> {
    let why = match (drive.is_in_doubt(), drive.is_left()) {
        (false, false) => return None,
        (true, _) => {
            "what it was told may still happen: it can hold metadata again when it is opened again"
        }
        (false, true) => {
            "it did not answer in time: it can hold metadata again when what it was told has ended"
        }
    };
    Some(io::Error::new(io::ErrorKind::TimedOut, why))
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

    /// Begins work on the drive.
    fn begin<T, Work>(
        &self,
        work: impl FnOnce(Arc<BoundedDrive>, BufferPool) -> Work + Send + 'static,
    ) -> impl FnOnce() -> io::Result<T> + Send + 'static
    where
        T: Send + 'static,
        Work: Future<Output = Result<T, DriveError>> + 'static,
    {
        let (drive, buffers) = (self.drive.clone(), self.reactor.buffers().clone());
        let begun = match refusal(&drive) {
            Some(refusal) => Err(refusal),
            None => Ok(self.reactor.spawn(move || work(drive, buffers))),
        };
        let drive = self.drive.clone();
        move || match begun?.wait() {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(refusal(&drive).unwrap_or_else(|| io::Error::other(error))),
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
        let begin = |(block, blocks): (u64, usize)| {
            let read = self.begin(move |drive, buffers| async move {
                let buffer = buffers.alloc(blocks * BLOCK_BYTES).await;
                let extents = [extent(block, blocks)];
                let (result, buffer) = drive.read_or_leave(buffer, &extents).await?;
                result.map(|()| buffer)
            });
            (blocks * BLOCK_BYTES, read)
        };
        let transfers = self.transfers(block, bytes.len())?;
        let mut begun: VecDeque<_> = VecDeque::with_capacity(READS_MAX);
        let (mut rest, mut next) = (bytes, transfers.into_iter());
        loop {
            let more = READS_MAX - begun.len();
            begun.extend(next.by_ref().take(more).map(begin));
            let Some((len, read)) = begun.pop_front() else {
                return Ok(());
            };
            let (part, others) = rest.split_at_mut(len);
            part.copy_from_slice(&read()?[..len]);
            rest = others;
        }
    }

    fn write(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        self.begin_write(block, bytes, false)
    }

    fn flush(&self) -> PendingIo {
        let flush = |drive: Arc<BoundedDrive>, _| async move { drive.flush().await };
        PendingIo::new(self.begin(flush))
    }

    fn flushes_data(&self) -> bool {
        self.flushes_data
    }

    fn write_with_data(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        self.begin_write(block, bytes, true)
    }
}

/// As those have them who know nothing of drives.
fn shared(areas: Vec<(u16, Arc<Area>)>) -> Vec<(u16, Arc<dyn MetadataArea>)> {
    let areas = areas.into_iter();
    areas
        .map(|(index, area)| (index, area as Arc<dyn MetadataArea>))
        .collect()
}

impl Area {
    /// Whether it can be told something: what it was told before has ended, or is fenced now. The engine fences what it told the drive, and
    /// knows nothing of metadata. Blocks.
    fn is_settled(&self) -> bool {
        if self.drive.is_in_doubt() && !self.drive.is_left() {
            let drive = self.drive.clone();
            let fencing = self
                .reactor
                .spawn(move || async move { drive.fence().await });
            if let Ok(Err(error)) = fencing.wait() {
                tracing::debug!(%error, "what was told of metadata may still happen");
            }
        }
        refusal(&self.drive).is_none()
    }

    fn begin_write(&self, block: u64, bytes: Arc<Vec<u8>>, flushes: bool) -> PendingIo {
        let transfers = match self.transfers(block, bytes.len()) {
            Ok(transfers) => transfers,
            Err(error) => return PendingIo::new(move || Err(error)),
        };
        let is_in_cluster = self.is_in_cluster;
        let started = self.begin(move |drive, buffers| async move {
            let mut at = 0;
            for (block, blocks) in transfers {
                let len = blocks * BLOCK_BYTES;
                let mut buffer: Buffer = buffers.alloc(len).await;
                buffer[..len].copy_from_slice(&bytes[at..at + len]);
                let extents = [extent(block, blocks)];
                let deadline = reactor::now() + ROOM_MAX;
                let mut is_told = false;
                loop {
                    let (result, back) = match flushes {
                        true => drive.write_flushing(buffer, &extents).await,
                        false => drive.write(buffer, &extents).await,
                    };
                    buffer = back;
                    match result {
                        Err(error)
                            if is_in_cluster
                                && error.kind() == ErrorKind::NoSpace
                                && reactor::now() < deadline =>
                        {
                            if !std::mem::replace(&mut is_told, true) {
                                tracing::warn!("metadata wait for room: {error}");
                            }
                            reactor::sleep(ROOM_PAUSE).await;
                        }
                        result => break result?,
                    }
                }
                at += len;
            }
            Ok(())
        });
        PendingIo::new(started)
    }
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
    by_drive: BTreeMap<u16, Arc<Area>>,
    /// `None` until there is an area.
    reactor: Option<ReactorThread>,
    patience: Patience,
}

impl Areas {
    /// The drive with that index has this area.
    fn insert(&mut self, index: u16, area: AreaOfDrive) -> Result<(), Failure> {
        let reactor = match self.reactor.take() {
            Some(started) => started,
            None => start_reactor()?,
        };
        let area = area.on(&reactor.handle(), self.patience);
        self.reactor = Some(reactor);
        self.by_drive.insert(index, area);
        Ok(())
    }

    /// Those of the drives that are online.
    fn online(&self, is_online: impl Fn(u16) -> bool) -> Vec<(u16, Arc<Area>)> {
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
        let patience = match areas.len() {
            // It is dropped for good when it is late, and nobody has its copy.
            0 | 1 => Patience::Long(answer_max.saturating_mul(ONLY_DRIVE_FACTOR)),
            _ => Patience::Short(answer_max),
        };
        let mut opened = Areas {
            by_drive: BTreeMap::new(),
            reactor: None,
            patience,
        };
        for (index, area) in areas {
            opened.insert(index, area)?;
        }
        let all = shared(opened.online(|_| true));
        let copies = MetadataOnDrives::open(pool, store, journal, &all).map_err(of_meta)?;
        Ok(Self {
            copies,
            areas: Mutex::new(opened),
            identity: Mutex::default(),
        })
    }

    /// The pool was opened: drives that hold none of its metadata get it, if that is soon done; else [`Self::keep`] sees
    /// to it. `needs_copy`: they get it in any case, and nothing is acknowledged any more that none of them has.
    ///
    /// # Errors
    /// The folder's store cannot be used, or no drive takes the metadata.
    pub(crate) fn opened(&self, identity: &str, needs_copy: bool) -> Result<(), Failure> {
        self.note_identity(identity)?;
        if needs_copy || self.copies.store_bytes() < COPIED_AT_ONCE_BYTES {
            self.keep(|_| true)?;
        }
        match needs_copy {
            true => self.copies.require_copy().map_err(of_meta),
            false => Ok(()),
        }
    }

    /// From now on another node may take the pool over ([`MetadataOnDrives::share`]); `cut_off` gets the reason.
    pub(crate) fn share(&self, cut_off: fn(&str)) {
        self.copies.share(move || {
            cut_off(
                "more than half of the drives that hold the pool's metadata did not take a change, and another node may have the pool",
            );
        });
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
        let mut online = lock(&self.areas).online(is_online);
        if !self.copies.wants(online.iter().map(|(index, _)| *index)) {
            return Ok(());
        }
        // One that cannot be told anything yet is no error: it is asked again.
        online.retain(|(_, area)| area.is_settled());
        if self.copies.wants(online.iter().map(|(index, _)| *index)) {
            self.copies.join(&shared(online)).map_err(of_meta)?;
        }
        Ok(())
    }

    /// Indexes of the drives that are online and have an area, and whether one of them cannot be told anything yet.
    pub(crate) fn online(&self, is_online: impl Fn(u16) -> bool) -> (Vec<u16>, bool) {
        let online = lock(&self.areas).online(is_online);
        let waits = online
            .iter()
            .any(|(_, area)| refusal(&area.drive).is_some());
        (online.into_iter().map(|(index, _)| index).collect(), waits)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use conformance::SlowDrive;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    fn area(slow: &Arc<SlowDrive>, left: &Arc<Left>, reactor: &ReactorThread) -> Arc<Area> {
        let area = AreaOfDrive {
            drive: slow.clone(),
            first_block: 50,
            blocks: 50,
            left: Some(left.clone()),
            is_in_cluster: false,
            flushes_data: false,
        };
        area.on(&reactor.handle(), Patience::Short(LIMIT))
    }

    fn block(byte: u8) -> Arc<Vec<u8>> {
        Arc::new(vec![byte; BLOCK_BYTES])
    }

    #[test]
    fn a_drive_that_hangs_at_a_flush_of_metadata_is_left_and_used_again_when_it_has_answered() {
        let (slow, left) = (SlowDrive::new(100), Arc::default());
        let reactor = start_reactor().expect("a reactor");
        let area = area(&slow, &left, &reactor);
        area.write(3, block(7)).wait().expect("written");
        // As long as it answers reads meanwhile, it is busy and does not hang.
        slow.holds_flushes.store(true, Ordering::Relaxed);
        let flush = area.flush();
        let asked = slow.asked();
        while slow.asked() < asked + 30 {
            std::thread::yield_now();
        }
        slow.holds_flushes.store(false, Ordering::Relaxed);
        flush.wait().expect("it was busy");

        slow.holds_flushes.store(true, Ordering::Relaxed);
        slow.holds_back.store(true, Ordering::Relaxed);
        let error = area.flush().wait().expect_err("it answers nothing");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let flushes = slow.flushes();
        let error = area.flush().wait().expect_err("it was left");
        assert!(error.to_string().contains("has ended"), "{error}");
        assert_eq!(slow.flushes(), flushes, "it was not asked again");
        slow.holds_flushes.store(false, Ordering::Relaxed);
        slow.holds_back.store(false, Ordering::Relaxed);
        while area.flush().wait().is_err() {
            std::thread::yield_now();
        }
        let mut bytes = [0; BLOCK_BYTES];
        area.read(3, &mut bytes).expect("read");
        assert_eq!(bytes[..], block(7)[..]);
    }

    #[test]
    fn a_drive_that_the_engine_has_left_is_not_waited_for_with_metadata() {
        let slow = SlowDrive::new(100);
        let front = drives::FrontDrive::new(slow.clone(), 50);
        let left = front.left().expect("it is a part");
        let reactor = start_reactor().expect("a reactor");
        let area = area(&slow, &left, &reactor);
        let bounds = Bounds {
            answer_max: LIMIT,
            in_flight_bytes: 1 << 20,
        };
        let permission = Permission::default();
        permission.ask(|_| true);
        let data = BoundedDrive::new(Arc::new(front), 0, bounds, Arc::new(permission));
        slow.holds_back.store(true, Ordering::Relaxed);
        let written = reactor.handle().spawn(move || async move {
            let buffers = reactor::current().expect("inside").buffers().clone();
            let buffer = buffers.alloc(BLOCK_BYTES).await;
            data.write(buffer, &[extent(1, 1)]).await.0
        });
        written.wait().expect("no panic").expect_err("it hangs");
        let error = area.write(0, block(1)).wait().expect_err("it was left");
        assert!(error.to_string().contains("has ended"), "{error}");
        assert_eq!(slow.asked(), 1, "it was not asked again");
        slow.holds_back.store(false, Ordering::Relaxed);
        while area.write(0, block(1)).wait().is_err() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_only_drive_with_metadata_is_waited_for_also_when_its_data_have_a_copy() {
        let (slow, left) = (SlowDrive::new(100), Arc::<Left>::default());
        let reactor = start_reactor().expect("a reactor");
        let other = AreaOfDrive {
            drive: slow.clone(),
            first_block: 0,
            blocks: 50,
            left: Some(left.clone()),
            is_in_cluster: false,
            flushes_data: false,
        };
        let other = other.on(&reactor.handle(), Patience::Short(LIMIT));
        let only = AreaOfDrive {
            drive: slow.clone(),
            first_block: 50,
            blocks: 50,
            left: Some(left),
            is_in_cluster: false,
            flushes_data: false,
        };
        let only = only.on(&reactor.handle(), Patience::Long(Duration::from_secs(3600)));
        // A cluster stands still now and then, and says itself what takes too long.
        let in_cluster = AreaOfDrive {
            drive: slow.clone(),
            first_block: 0,
            blocks: 50,
            left: None,
            is_in_cluster: true,
            flushes_data: false,
        };
        let in_cluster = in_cluster.on(&reactor.handle(), Patience::Short(LIMIT));
        slow.holds_back.store(true, Ordering::Relaxed);
        let write_in_cluster = in_cluster.write(1, block(3));
        other.write(0, block(1)).wait().expect_err("it hangs");
        let write = only.write(0, block(2));
        while slow.asked() < 3 {
            std::thread::yield_now();
        }
        slow.holds_back.store(false, Ordering::Relaxed);
        write.wait().expect("it answered in the end");
        write_in_cluster.wait().expect("it answered in the end");
    }
}
