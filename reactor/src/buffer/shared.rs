//! Memory of buffers that other processes can map: servers of drives read and write the data of hosts where they lie.
//!
//! Guarantees: the file never changes its length, so that no process that has it can cut it off; all of its memory is there
//! from the start, so that no access meets a lack of it later; pools have parts of it that do not overlap.
//!
//! Who gets the file can read and change every buffer in it at any time: give it only to processes that are trusted as this one.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};

use super::arena::ARENA_ALIGNMENT;

/// The pages of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedPages {
    /// Those of the system's usual size.
    Usual,
    /// Huge pages of 2 MiB, which the administrator has set aside (`vm.nr_hugepages`). Devices without an IOMMU need them.
    Huge,
}

/// All that is alive in this process.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Weak<Inner>>> {
    // Each change is one call.
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module. Clones are the same memory.
#[derive(Clone)]
pub struct SharedMemory(Arc<Inner>);

struct Inner {
    file: File,
    pages: SharedPages,
    bytes: usize,
    /// Bytes that pools have.
    taken: AtomicUsize,
}

impl SharedMemory {
    /// So many bytes, rounded up to a multiple of [`MAX_BUFFER_BYTES`](super::MAX_BUFFER_BYTES).
    ///
    /// # Errors
    /// The system has not so much, with the remedy.
    pub fn new(bytes: usize, pages: SharedPages) -> io::Result<Self> {
        let rounded = bytes
            .max(1)
            .checked_next_multiple_of(ARENA_ALIGNMENT)
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or_else(|| {
                let text = format!("{bytes} bytes of shared buffers are too many; name fewer");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?;
        let remedy = |error: io::Error| {
            let text = match pages {
                SharedPages::Usual => format!(
                    "the system has no {rounded} bytes for shared buffers: {error}; name fewer, or free some memory"
                ),
                SharedPages::Huge => format!(
                    "the system has no {} free huge pages of 2 MiB for shared buffers: {error}; set them aside by sysctl \
                     vm.nr_hugepages, or use usual pages",
                    rounded / ARENA_ALIGNMENT
                ),
            };
            io::Error::new(error.kind(), text)
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let flags = match pages {
            SharedPages::Usual => flags,
            SharedPages::Huge => flags | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        };
        let file = File::from(
            memfd_create("onefold-buffers", flags).map_err(|errno| remedy(errno.into()))?,
        );
        // The system gives usual pages until it has none left for anybody.
        if pages == SharedPages::Usual && available_bytes().is_some_and(|left| left < rounded) {
            return Err(remedy(io::ErrorKind::OutOfMemory.into()));
        }
        fallocate(&file, FallocateFlags::empty(), 0, rounded as u64)
            .map_err(|errno| remedy(errno.into()))?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let inner = Arc::new(Inner {
            file,
            pages,
            bytes: rounded,
            taken: AtomicUsize::new(0),
        });
        let mut all = all();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&inner));
        drop(all);
        Ok(Self(inner))
    }

    /// All shared memory in this process, oldest first.
    pub fn all() -> Vec<Self> {
        all().iter().filter_map(Weak::upgrade).map(Self).collect()
    }

    /// The file, to be given to another process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// Its pages.
    pub fn pages(&self) -> SharedPages {
        self.0.pages
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether both are the same memory.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Where the next part of so many bytes is, which nobody else gets.
    ///
    /// # Errors
    /// There is not so much left.
    pub(super) fn take(&self, bytes: usize) -> io::Result<u64> {
        let taken = self
            .0
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                let end = taken.checked_add(bytes)?;
                (end <= self.0.bytes).then_some(end)
            });
        let taken = taken.map_err(|taken| {
            let left = self.0.bytes - taken;
            let text = format!(
                "a buffer pool of {bytes} bytes does not fit the {left} bytes that are left of the shared memory; make that larger"
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        Ok(taken as u64)
    }
}

/// Memory that programs can have without swapping, as the system estimates it (`MemAvailable` of proc_meminfo(5)).
fn available_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes)", self.0.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::BufferPool;

    #[test]
    fn a_process_that_has_the_file_reads_and_writes_the_buffers_of_all_pools_in_it() {
        let memory = SharedMemory::new(8 << 20, SharedPages::Usual).expect("memory");
        let pools = [(); 2].map(|()| BufferPool::in_shared(4 << 20, &memory).expect("a pool"));
        let other = File::from(memory.file().try_clone_to_owned().expect("a descriptor"));
        let mut places = Vec::new();
        for (pool, byte) in pools.iter().zip(1_u8..) {
            let first = pool.try_alloc(4096).expect("memory");
            let mut buffer = pool.try_alloc(8192).expect("memory");
            buffer.fill(byte);
            let (of, at) = buffer.shared_place().expect("it is shared");
            assert!(of.is(&memory));
            let mut seen = [0; 8192];
            other.read_exact_at(&mut seen, at).expect("read");
            assert_eq!(seen, [byte; 8192]);
            other.write_all_at(&[9], at + 5).expect("written");
            assert_eq!((buffer[4], buffer[5]), (byte, 9));
            places.push((at, 8192));
            places.push((first.shared_place().expect("it is shared").1, 4096));
        }
        places.sort_unstable();
        assert!(
            places
                .windows(2)
                .all(|pair| pair[0].0 + pair[0].1 <= pair[1].0)
        );
        other.set_len(0).expect_err("it is sealed");
        other.set_len(16 << 20).expect_err("it is sealed");
        assert!(SharedMemory::all().iter().any(|shared| shared.is(&memory)));
    }

    #[test]
    fn more_pools_than_there_is_shared_memory_for_are_refused_and_private_buffers_have_no_place() {
        let memory = SharedMemory::new(2 << 20, SharedPages::Usual).expect("memory");
        let _pool = BufferPool::in_shared(1, &memory).expect("a pool");
        let refused = BufferPool::in_shared(1, &memory).expect_err("it is full");
        assert!(refused.to_string().contains("2097152 bytes"), "{refused}");
        let private = BufferPool::new(1).expect("a pool");
        let buffer = private.try_alloc(1).expect("memory");
        assert!(buffer.shared_place().is_none());
        let absurd = SharedMemory::new(usize::MAX, SharedPages::Usual);
        absurd.expect_err("too many");
        let error = SharedMemory::new(1 << 50, SharedPages::Usual).expect_err("too many");
        assert!(error.to_string().contains("name fewer"), "{error}");
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
