//! A drive that needs a reactor, for commands that run without one.
//!
//! Guarantee: it is read and flushed only, by a thread of its own; futures are ready at once, and the caller's thread waits.

use std::fmt;
use std::future::ready;
use std::rc::Rc;
use std::sync::Arc;

use reactor::{Buffer, BufferPool, ReactorThread};

use crate::{
    BLOCK_BYTES, Drive, DriveError, ErrorKind, Extent, GatherExtent, LocalBoxFuture, Transferred,
    check_transfer,
};

/// Bytes of buffers for what is read at a time.
const BUFFER_BYTES: usize = 4 << 20;

/// See the module. Must not be used on a reactor's thread.
pub struct BlockingDrive {
    drive: Arc<dyn Drive>,
    buffers: BufferPool,
    thread: ReactorThread,
}

impl fmt::Debug for BlockingDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockingDrive").field(&self.name()).finish()
    }
}

impl BlockingDrive {
    /// Starts the thread, and opens the drive of that name there. Blocks.
    ///
    /// # Errors
    /// Those of `open`; or the system has no thread or memory for it.
    pub fn open<D, Opening>(
        name: &str,
        open: impl FnOnce() -> Opening + Send + 'static,
    ) -> Result<Self, DriveError>
    where
        D: Drive + 'static,
        Opening: Future<Output = Result<D, DriveError>> + 'static,
    {
        let failed =
            |error: std::io::Error| DriveError::new(ErrorKind::Io, name, error.to_string());
        let config = reactor::Config {
            name: "remote drive".to_owned(),
            buffer_pool: reactor::PoolConfig {
                bytes: BUFFER_BYTES,
            },
            ..reactor::Config::default()
        };
        let thread = reactor::start(config).map_err(failed)?;
        let opening = thread.handle().spawn(open);
        let drive = opening
            .wait()
            .map_err(|error| failed(std::io::Error::other(error)))??;
        Ok(Self {
            drive: Arc::new(drive),
            buffers: thread.handle().buffers().clone(),
            thread,
        })
    }

    /// Runs work on the drive's thread, and waits for it.
    fn wait<T, Work>(
        &self,
        work: impl FnOnce(Arc<dyn Drive>) -> Work + Send + 'static,
    ) -> Result<T, DriveError>
    where
        T: Send + 'static,
        Work: Future<Output = Result<T, DriveError>> + 'static,
    {
        let drive = self.drive.clone();
        let working = self.thread.handle().spawn(move || work(drive));
        let ended = working.wait();
        ended.map_err(|error| DriveError::new(ErrorKind::Io, self.name(), error.to_string()))?
    }

    fn read_now(&self, buffer: &mut Buffer, extents: &[Extent]) -> Result<(), DriveError> {
        check_transfer(self, buffer, extents)?;
        let (pool, len, wanted) = (self.buffers.clone(), buffer.len(), extents.to_vec());
        let read = self.wait(move |drive| async move {
            let memory = pool.alloc(len).await;
            let (result, memory) = drive.read(memory, &wanted).await;
            result.map(|()| memory)
        })?;
        for extent in extents {
            let bytes = extent.blocks as usize * BLOCK_BYTES;
            let range = extent.buffer_offset..extent.buffer_offset + bytes;
            buffer[range.clone()].copy_from_slice(&read[range]);
        }
        Ok(())
    }

    fn refuse(&self) -> DriveError {
        DriveError::new(
            ErrorKind::Invalid,
            self.name(),
            "is only read by this command",
        )
    }
}

impl Drive for BlockingDrive {
    fn name(&self) -> &str {
        self.drive.name()
    }

    fn blocks(&self) -> u64 {
        self.drive.blocks()
    }

    fn read<'a>(
        &'a self,
        mut buffer: Buffer,
        extents: &'a [Extent],
    ) -> LocalBoxFuture<'a, Transferred> {
        let result = self.read_now(&mut buffer, extents);
        Box::pin(ready((result, buffer)))
    }

    fn write<'a>(&'a self, buffer: Buffer, _: &'a [Extent]) -> LocalBoxFuture<'a, Transferred> {
        Box::pin(ready((Err(self.refuse()), buffer)))
    }

    fn write_many<'a>(
        &'a self,
        _: Rc<Vec<Buffer>>,
        _: &'a [GatherExtent],
    ) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(ready(Err(self.refuse())))
    }

    fn flush<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        let flushed = self.wait(|drive| async move { drive.flush().await });
        Box::pin(ready(flushed))
    }

    fn discard<'a>(&'a self, _: u64, _: u64) -> LocalBoxFuture<'a, Result<(), DriveError>> {
        Box::pin(ready(Err(self.refuse())))
    }
}
