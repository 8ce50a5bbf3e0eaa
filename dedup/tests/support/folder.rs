//! A pool in a folder, with RocksDB, a journal file and a drive file.
#![allow(dead_code)]

use std::fs::{File, OpenOptions};
use std::future::ready;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use dedup::{Blocking, Engine, EngineConfig, EngineParts, PoolLabels};
use drives::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, Transferred,
};
use meta::{
    DriveSpec, FileMedia, FingerprintFunction, JournalMedia, LABEL_BYTES, Label, Opening, PoolDir,
    PoolSpec, RocksOptions,
};
use reactor::Buffer;
use uuid::Uuid;

use super::{Pool, block_on, gathered, parts, spec};

/// Blocks of its drive.
pub(crate) const BLOCKS: u64 = 1024;

/// A file as a drive, without a reactor.
struct PlainFile(File);

impl PlainFile {
    fn store<'a>(&self, parts: impl Iterator<Item = (u64, &'a [u8])>) -> Result<(), DriveError> {
        for (block, bytes) in parts {
            let written = self.0.write_all_at(bytes, block * BLOCK_BYTES as u64);
            written
                .map_err(|error| DriveError::new(ErrorKind::Io, self.name(), error.to_string()))?;
        }
        Ok(())
    }
}

impl Drive for PlainFile {
    fn name(&self) -> &str {
        "drive0"
    }

    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn read<'a>(
        &'a self,
        mut buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        for extent in extents {
            let end = extent.buffer_offset + extent.blocks as usize * BLOCK_BYTES;
            let offset = extent.block * BLOCK_BYTES as u64;
            self.0
                .read_exact_at(&mut buffer[extent.buffer_offset..end], offset)
                .unwrap();
        }
        Box::pin(ready((Ok(()), buffer)))
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let written = self.store(parts(&buffer, extents));
        Box::pin(ready((written, buffer)))
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(ready(self.store(gathered(&buffers, extents))))
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.0.sync_data().unwrap();
        Box::pin(ready(Ok(())))
    }

    fn discard<'a>(&'a self, _: u64, _: u64) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(ready(Ok(())))
    }
}

pub(crate) fn create(dir: &Path) {
    let spec = PoolSpec {
        journal_bytes: 4 << 20,
        fingerprint: FingerprintFunction::Clnh,
        ..PoolSpec::new(vec![DriveSpec::new("drive0", BLOCKS)])
    };
    let creation = PoolDir::begin(dir, &spec).unwrap();
    let drive = File::create(creation.drive_path(0).unwrap()).unwrap();
    drive.set_len(BLOCKS * BLOCK_BYTES as u64).unwrap();
    // As the program before epochs labeled it.
    let label = Label {
        drive: creation.identity().label(0).unwrap(),
        sequence: 0,
        opening: None,
    };
    for copy in 0..2 {
        drive
            .write_all_at(&label.encode(), copy * LABEL_BYTES as u64)
            .unwrap();
    }
    creation.finish().unwrap();
}

/// The pool and its engine; dropping both without a word is a kill.
pub(crate) fn open(dir: &Path) -> (PoolDir, Arc<Engine>) {
    open_on(dir, |journal| Arc::new(journal))
}

/// The same, on a journal that is made of the pool's.
pub(crate) fn open_on(
    dir: &Path,
    journal: impl FnOnce(FileMedia) -> Arc<dyn JournalMedia>,
) -> (PoolDir, Arc<Engine>) {
    try_open_on(dir, OpenOptions::new().write(true), journal).unwrap()
}

/// The pool and its engine, on a drive that takes no writes any more.
pub(crate) fn open_worn(dir: &Path) -> (PoolDir, Arc<Engine>) {
    let opened = try_open_on(dir, &mut OpenOptions::new(), |journal| Arc::new(journal));
    opened.unwrap()
}

/// What the drives' labels are to say.
pub(crate) fn labels(pool: &PoolDir) -> PoolLabels {
    PoolLabels {
        drives: vec![pool.identity().label(0).unwrap()],
        opening: Opening {
            id: Uuid::new_v4(),
            locations: Opening::in_folder(&pool.paths().dir),
            ..Opening::default()
        },
        accepted_epoch: pool.accepted_epoch().unwrap(),
    }
}

/// The pool and its engine, if it opens.
pub(crate) fn try_open(dir: &Path) -> dedup::Result<(PoolDir, Arc<Engine>)> {
    try_open_on(dir, OpenOptions::new().write(true), |journal| {
        Arc::new(journal)
    })
}

fn try_open_on(
    dir: &Path,
    drive: &mut OpenOptions,
    journal: impl FnOnce(FileMedia) -> Arc<dyn JournalMedia>,
) -> dedup::Result<(PoolDir, Arc<Engine>)> {
    let pool = PoolDir::open(dir).unwrap();
    let drive = drive.read(true).open(pool.drive_path(0).unwrap()).unwrap();
    let engine = Engine::open(EngineParts {
        drives: vec![Arc::new(PlainFile(drive))],
        journal: journal(pool.open_journal().unwrap()),
        store: Arc::new(pool.open_store(RocksOptions::default()).unwrap()),
        hash_keys: pool.identity().hash_keys.clone(),
        fingerprint: pool.identity().fingerprint,
        blocking: Blocking::Inline,
        boot: None,
        config: EngineConfig {
            labels: Some(labels(&pool)),
            ..EngineConfig::default()
        },
    });
    block_on(engine).map(|engine| (pool, engine))
}

/// A pool with some content, partly in the store and partly in the journal only.
pub(crate) fn filled() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let buffers = Pool::new(1);
    let (pool, engine) = open(dir.path());
    let volume = block_on(engine.create_volume(spec("v", 500, 4096))).unwrap();
    buffers.write(&volume, 0, &[1, 2, 3, 1, 0, 4]).unwrap();
    block_on(engine.checkpoint()).unwrap();
    buffers.write(&volume, 3, &[5, 6]).unwrap();
    block_on(volume.trim(0, 4096)).unwrap();
    drop((volume, engine, pool));
    let path = dir.path().to_path_buf();
    (dir, path)
}
