//! A drive that tells what it was asked for, and holds or fails what it is told to.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use drives::{
    Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, MemoryDrive, Transferred,
};
use reactor::Buffer;
use reactor::sync::Event;

/// What the drive was asked for, when it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    Read,
    Write,
    Flush,
    Discard,
}

/// What the drive does instead of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Failing {
    #[default]
    Not,
    /// It fails, and does nothing.
    Io,
    /// Its file system is full.
    NoSpace,
    /// Nobody knows what becomes of it.
    InDoubt,
}

#[derive(Default)]
pub(crate) struct Spy {
    pub(crate) did: Mutex<Vec<Did>>,
    pub(crate) failing: Mutex<Failing>,
    /// Writes wait for the gate as long as this is true.
    pub(crate) holds_writes: AtomicBool,
    /// A write waits.
    pub(crate) holding: Event,
    pub(crate) gate: Event,
}

impl Spy {
    pub(crate) fn did(&self) -> Vec<Did> {
        self.did.lock().unwrap().clone()
    }

    pub(crate) fn fail(&self, how: Failing) {
        *self.failing.lock().unwrap() = how;
    }

    fn outcome(&self) -> Result<(), DriveError> {
        let error = |kind| Err(DriveError::new(kind, "spy", "told to fail"));
        match *self.failing.lock().unwrap() {
            Failing::Not => Ok(()),
            Failing::Io => error(ErrorKind::Io),
            Failing::NoSpace => error(ErrorKind::NoSpace),
            Failing::InDoubt => error(ErrorKind::Io).map_err(DriveError::in_doubt),
        }
    }

    fn done(&self, what: Did) {
        self.did.lock().unwrap().push(what);
    }
}

pub(crate) struct SpyDrive {
    memory: MemoryDrive,
    spy: Arc<Spy>,
}

impl SpyDrive {
    pub(crate) fn new(blocks: u64) -> (Self, Arc<Spy>) {
        let spy = Arc::<Spy>::default();
        let drive = Self {
            memory: MemoryDrive::new(blocks),
            spy: spy.clone(),
        };
        (drive, spy)
    }
}

impl Drive for SpyDrive {
    fn name(&self) -> &str {
        "spy"
    }

    fn blocks(&self) -> u64 {
        self.memory.blocks()
    }

    fn read<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            if let Err(error) = self.spy.outcome() {
                return (Err(error), buffer);
            }
            let done = self.memory.read(buffer, extents).await;
            self.spy.done(Did::Read);
            done
        })
    }

    fn write<'a>(
        &'a self,
        buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(async move {
            if self.spy.holds_writes.load(Ordering::Relaxed) {
                self.spy.holding.set();
                self.spy.gate.wait().await;
            }
            if let Err(error) = self.spy.outcome() {
                return (Err(error), buffer);
            }
            let done = self.memory.write(buffer, extents).await;
            self.spy.done(Did::Write);
            done
        })
    }

    fn write_many<'a>(
        &'a self,
        buffers: Rc<Vec<Buffer>>,
        extents: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        self.memory.write_many(buffers, extents)
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            self.spy.outcome()?;
            self.spy.done(Did::Flush);
            Ok(())
        })
    }

    fn discard<'a>(
        &'a self,
        block: u64,
        blocks: u64,
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(async move {
            self.spy.outcome()?;
            self.spy.done(Did::Discard);
            self.memory.discard(block, blocks).await
        })
    }
}
