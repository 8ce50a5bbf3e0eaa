//! A pool in memory, and an executor that needs no reactor.
#![allow(dead_code)]

pub(crate) mod folder;

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use dedup::{
    BOUNCE_BYTES_MIN, Blocking, BootId, Engine, EngineConfig, EngineError, EngineParts, ErrorKind,
    Volume, VolumeSpec,
};
use drives::{
    AbsentDrive, BLOCK_BYTES, Drive, DriveError, Extent, GatherExtent, LocalBoxFuture, Transferred,
};
use meta::{JournalConfig, JournalMedia, MemoryMedia, MemoryStore, VerifyPolicy};
use reactor::{Buffer, BufferPool};

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// A drive in memory that can be slow, fail, or hold damaged blocks.
pub(crate) struct TestDrive {
    blocks: u64,
    content: Mutex<BTreeMap<u64, Vec<u8>>>,
    pub(crate) fail_reads: AtomicBool,
    /// Reads of these blocks fail, until they are written.
    pub(crate) unreadable: Mutex<BTreeSet<u64>>,
    pub(crate) fail_writes: AtomicBool,
    /// Writes of a sub-block with this content fail.
    pub(crate) fail_content: AtomicU64,
    pub(crate) fail_flushes: AtomicBool,
    /// Nothing is answered as long as this is set.
    pub(crate) hangs: AtomicBool,
    /// Each write yields so often before it takes effect.
    pub(crate) write_delay: AtomicU64,
    pub(crate) written_blocks: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) discarded_blocks: AtomicU64,
}

impl TestDrive {
    /// A drive with room for so many data blocks.
    pub(crate) fn new(data_blocks: u64) -> Arc<Self> {
        Arc::new(Self {
            blocks: 256 + data_blocks,
            content: Mutex::default(),
            fail_reads: AtomicBool::new(false),
            unreadable: Mutex::default(),
            fail_writes: AtomicBool::new(false),
            fail_content: AtomicU64::new(0),
            fail_flushes: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            write_delay: AtomicU64::new(0),
            written_blocks: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            discarded_blocks: AtomicU64::new(0),
        })
    }

    /// Flips a bit in every block that was ever written.
    pub(crate) fn corrupt_all(&self) {
        self.corrupt_all_at(77);
    }

    /// Flips a bit of this byte in every block that was ever written.
    pub(crate) fn corrupt_all_at(&self, byte: usize) {
        for bytes in self.content.lock().unwrap().values_mut() {
            bytes[byte] ^= 4;
        }
    }

    /// Sets a bit that is clear in every block that holds this content.
    pub(crate) fn corrupt_content(&self, content: u64) {
        self.change_content(content, |bytes| bytes[77] |= 4);
    }

    /// Undoes [`Self::corrupt_content`].
    pub(crate) fn mend_content(&self, content: u64) {
        self.change_content(content, |bytes| bytes[77] &= !4);
    }

    /// From now on reads of the blocks that hold this content fail, until they are written.
    pub(crate) fn lose_content(&self, content: u64) {
        let blocks = self.content.lock().unwrap();
        let holds = |(_, bytes): &(&u64, &Vec<u8>)| contents(bytes) == [content];
        let lost = blocks.iter().filter(holds).map(|(block, _)| *block);
        self.unreadable.lock().unwrap().extend(lost);
    }

    /// All blocks can be read again.
    pub(crate) fn find_all(&self) {
        self.unreadable.lock().unwrap().clear();
    }

    /// Changes the bytes of every block that holds this content.
    pub(crate) fn change_content(&self, content: u64, change: impl Fn(&mut [u8])) {
        for bytes in self.content.lock().unwrap().values_mut() {
            if contents(bytes) == [content] {
                change(bytes);
            }
        }
    }

    fn error(&self, what: &str) -> DriveError {
        DriveError::new(
            drives::ErrorKind::Io,
            "test",
            format!("the {what} failed on purpose"),
        )
    }
}

async fn yield_times(count: u64) {
    let mut left = count;
    std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The bytes of each extent.
pub(crate) fn parts<'a>(
    buffer: &'a Buffer,
    extents: &'a [Extent],
) -> impl Iterator<Item = (u64, &'a [u8])> + Clone {
    extents.iter().map(|extent| {
        let bytes = &buffer[extent.buffer_offset..];
        (extent.block, &bytes[..extent.blocks as usize * BLOCK_BYTES])
    })
}

/// As [`parts`], of several buffers.
pub(crate) fn gathered<'a>(
    buffers: &'a [Buffer],
    extents: &'a [GatherExtent],
) -> impl Iterator<Item = (u64, &'a [u8])> + Clone {
    extents.iter().map(|extent| {
        let bytes = &buffers[extent.buffer as usize][extent.buffer_offset as usize..];
        (extent.block, &bytes[..extent.blocks as usize * BLOCK_BYTES])
    })
}

impl TestDrive {
    /// Returns when it does not hang.
    async fn answer(&self) {
        while self.hangs.load(Ordering::Relaxed) {
            yield_times(1).await;
        }
    }

    fn load(&self, buffer: &mut [u8], extents: &[Extent]) -> Result<(), DriveError> {
        let is_lost = |extent: &Extent| {
            let blocks = extent.block..extent.block + u64::from(extent.blocks);
            let unreadable = self.unreadable.lock().unwrap();
            unreadable.range(blocks).next().is_some()
        };
        if self.fail_reads.load(Ordering::Relaxed) || extents.iter().any(is_lost) {
            return Err(self.error("read"));
        }
        let content = self.content.lock().unwrap();
        for extent in extents {
            for at in 0..u64::from(extent.blocks) {
                assert!(extent.block + at < self.blocks);
                let from = extent.buffer_offset + at as usize * BLOCK_BYTES;
                let target = &mut buffer[from..from + BLOCK_BYTES];
                match content.get(&(extent.block + at)) {
                    Some(bytes) => target.copy_from_slice(bytes),
                    None => target.fill(0),
                }
            }
        }
        Ok(())
    }

    async fn store<'a>(
        &self,
        parts: impl Iterator<Item = (u64, &'a [u8])> + Clone,
    ) -> Result<(), DriveError> {
        yield_times(self.write_delay.load(Ordering::Relaxed)).await;
        self.answer().await;
        let guilty = self.fail_content.load(Ordering::Relaxed);
        let is_guilty = |(_, bytes): (u64, &[u8])| guilty != 0 && contents(bytes).contains(&guilty);
        if self.fail_writes.load(Ordering::Relaxed) || parts.clone().any(is_guilty) {
            return Err(self.error("write"));
        }
        let mut content = self.content.lock().unwrap();
        for (first, bytes) in parts {
            self.writes.fetch_add(1, Ordering::Relaxed);
            for (block, bytes) in (first..).zip(bytes.chunks(BLOCK_BYTES)) {
                self.unreadable.lock().unwrap().remove(&block);
                content.insert(block, bytes.to_vec());
                self.written_blocks.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

impl Drive for TestDrive {
    fn name(&self) -> &str {
        "test"
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read<'a>(
        &'a self,
        mut buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            self.answer().await;
            let read = self.load(&mut buffer, extents);
            (read, buffer)
        })
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            let written = self.store(parts(&buffer, extents)).await;
            (written, buffer)
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move { self.store(gathered(&buffers, extents)).await })
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            self.answer().await;
            match self.fail_flushes.load(Ordering::Relaxed) {
                true => Err(self.error("flush")),
                false => Ok(()),
            }
        })
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.content
            .lock()
            .unwrap()
            .retain(|at, _| !(block..block + blocks).contains(at));
        self.discarded_blocks.fetch_add(blocks, Ordering::Relaxed);
        Box::pin(ready(Ok(())))
    }
}

/// All parts of a pool; the engine comes and goes.
pub(crate) struct Pool {
    pub(crate) drives: Vec<Arc<TestDrive>>,
    pub(crate) media: Arc<MemoryMedia>,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) config: EngineConfig,
    /// Which start of the machine it is opened in.
    pub(crate) boot: Option<BootId>,
    pub(crate) buffers: BufferPool,
}

impl Pool {
    /// One drive with so many data blocks, and a journal of 64 KiB.
    pub(crate) fn new(data_blocks: u64) -> Self {
        Self {
            drives: vec![TestDrive::new(data_blocks)],
            media: Arc::new(MemoryMedia::new(64 << 10)),
            store: Arc::new(MemoryStore::new()),
            config: EngineConfig {
                bounce_bytes: BOUNCE_BYTES_MIN,
                trim_record_entries: 64,
                journal: JournalConfig {
                    payload_bytes_max: 16 << 10,
                    reserve_bytes: 1 << 10,
                },
                ..EngineConfig::default()
            },
            boot: None,
            buffers: BufferPool::new(16 << 20).unwrap(),
        }
    }

    /// A drive as the pool has it: nothing stands for one that was removed.
    fn of_pool(&self, index: u16, drive: &Arc<TestDrive>) -> Arc<dyn Drive> {
        match self.config.removed.contains(&index) {
            true => {
                let reason = "it was removed from the pool".to_owned();
                Arc::new(AbsentDrive::new(
                    "removed".to_owned(),
                    drive.blocks(),
                    reason,
                ))
            }
            false => drive.clone(),
        }
    }

    pub(crate) fn drive(&self) -> &TestDrive {
        &self.drives[0]
    }

    pub(crate) fn open(&self) -> Arc<Engine> {
        self.try_open().unwrap()
    }

    pub(crate) fn try_open(&self) -> Result<Arc<Engine>, EngineError> {
        self.try_open_on(self.media.clone())
    }

    /// As `try_open`, on another journal.
    pub(crate) fn try_open_on(
        &self,
        journal: Arc<dyn JournalMedia>,
    ) -> Result<Arc<Engine>, EngineError> {
        block_on(Engine::open(EngineParts {
            drives: (0u16..)
                .zip(&self.drives)
                .map(|(index, drive)| self.of_pool(index, drive))
                .collect(),
            journal,
            store: self.store.clone(),
            hash_keys: [9; 32].into(),
            fingerprint: meta::FingerprintFunction::Clnh,
            blocking: Blocking::Inline,
            boot: self.boot,
            config: self.config.clone(),
        }))
    }

    /// Opens, with a volume `v` of so many sub-blocks.
    pub(crate) fn with_volume(
        &self,
        sub_blocks: u64,
        lba_bytes: u32,
    ) -> (Arc<Engine>, Arc<Volume>) {
        let engine = self.open();
        let volume = block_on(engine.create_volume(spec("v", sub_blocks, lba_bytes))).unwrap();
        (engine, volume)
    }

    /// A buffer of sub-blocks with these contents; zero = zeros.
    pub(crate) fn buffer(&self, contents: &[u64]) -> Buffer {
        let mut buf = self
            .buffers
            .try_alloc(contents.len() * BLOCK_BYTES)
            .unwrap();
        for (block, content) in buf.chunks_exact_mut(BLOCK_BYTES).zip(contents) {
            block.fill(0);
            for word in block.chunks_exact_mut(512) {
                word[..8].copy_from_slice(&content.to_le_bytes());
            }
        }
        buf
    }

    pub(crate) fn write(
        &self,
        volume: &Volume,
        sub_block: u64,
        contents: &[u64],
    ) -> Result<(), EngineError> {
        let buf = self.buffer(contents);
        block_on(volume.write(sub_block * BLOCK_BYTES as u64, buf, false)).0
    }

    pub(crate) fn read(
        &self,
        volume: &Volume,
        sub_block: u64,
        count: usize,
    ) -> Result<Vec<u64>, EngineError> {
        let mut buf = self.buffers.try_alloc(count * BLOCK_BYTES).unwrap();
        buf.fill(0xee);
        let (result, buf) = block_on(volume.read(sub_block * BLOCK_BYTES as u64, buf));
        if result.is_err() {
            assert!(
                buf.iter().all(|byte| *byte == 0),
                "a failed read returned data"
            );
        }
        result.map(|()| contents(&buf))
    }
}

/// What the sub-blocks of a buffer hold.
pub(crate) fn contents(bytes: &[u8]) -> Vec<u64> {
    let word = |block: &[u8]| u64::from_le_bytes(block[512..520].try_into().unwrap());
    bytes.chunks_exact(BLOCK_BYTES).map(word).collect()
}

/// As `spec`, without deduplication.
pub(crate) fn plain_spec(name: &str, sub_blocks: u64) -> VolumeSpec {
    VolumeSpec {
        dedup: false,
        ..spec(name, sub_blocks, 4096)
    }
}

pub(crate) fn spec(name: &str, sub_blocks: u64, lba_bytes: u32) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        size_bytes: sub_blocks * BLOCK_BYTES as u64,
        lba_bytes,
        nsid: None,
        uuid: None,
        dedup: true,
        compression: meta::Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
    }
}

/// Blocks in use, waiting, and free.
pub(crate) fn space(engine: &Engine) -> (u64, u64, u64) {
    let status = engine.status();
    let grain = BLOCK_BYTES as u64;
    assert_eq!(
        status.used_bytes + status.reclaiming_bytes + status.free_bytes,
        status.capacity_bytes
    );
    (
        status.used_bytes / grain,
        status.reclaiming_bytes / grain,
        status.free_bytes / grain,
    )
}

#[track_caller]
pub(crate) fn expect_kind<T>(result: Result<T, EngineError>, kind: ErrorKind) -> String {
    match result {
        Ok(_) => panic!("it succeeded; {kind} was expected"),
        Err(error) => {
            assert_eq!(error.kind, kind, "{error}");
            error.message
        }
    }
}
