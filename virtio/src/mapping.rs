//! Memory of a front-end, mapped, and what happens when it goes away while it is used.
//!
//! A front-end can cut off the file of the memory that it shares, punch a hole into it where the file system is full, or
//! have it on a drive that fails. Whoever touches such a page then gets the signal SIGBUS, which ends a program by default.
//! To take only files that are sealed against that would not do: files on huge pages and in `/dev/shm` cannot be sealed, and
//! a seal forbids neither holes nor drives that fail. So the signal is caught: zeros are put in place of the whole mapping,
//! it is marked as lost, and the access goes on. It then fails like one outside of memory, and its session ends.
//!
//! Guarantees:
//! - Nothing is mapped beyond the end of its file, and all accesses are checked against what is mapped.
//! - No access that a loss happened before or during succeeds: nobody takes the zeros for the guest's data.
//! - A SIGBUS anywhere else does what it did before.
//! - The handler takes no lock and no memory.

use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::fstatfs;
use vm_memory::mmap::MmapRegion;
use vm_memory::{AtomicAccess, Bytes, FileOffset, VolatileMemory, VolatileSlice};

/// The type of the file system of huge pages (`HUGETLBFS_MAGIC` of linux/magic.h).
const HUGETLBFS: u64 = 0x9584_58f6;

/// Mappings that were lost since the program began, so that accesses cost one look while there are none.
static LOSSES: AtomicUsize = AtomicUsize::new(0);
/// All places for mappings, those in use and those that are not.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
/// Those that are not in use.
static FREE: Mutex<Vec<&'static Place>> = Mutex::new(Vec::new());
/// What a SIGBUS did before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// Whether it is caught now, or why not.
static CAUGHT: OnceLock<Result<(), i32>> = OnceLock::new();

/// Where a mapping is. The signal's handler reads places while they change.
struct Place {
    /// Odd while it changes.
    version: AtomicUsize,
    start: AtomicUsize,
    /// 0 while it is not in use.
    len: AtomicUsize,
    is_lost: AtomicBool,
    next: *const Place,
}

// SAFETY: places are never freed, and `next` never changes.
unsafe impl Send for Place {}
// SAFETY: as above; all else is atomic.
unsafe impl Sync for Place {}

impl Place {
    /// A place for a mapping. There are as many as mappings at one time.
    fn take(start: usize, len: usize) -> &'static Self {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = free.pop().unwrap_or_else(|| {
            // Under the lock, so that nobody else adds one.
            let place: &'static Self = Box::leak(Box::new(Self {
                version: AtomicUsize::new(0),
                start: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                is_lost: AtomicBool::new(false),
                next: PLACES.load(Ordering::Acquire),
            }));
            PLACES.store(ptr::from_ref(place).cast_mut(), Ordering::Release);
            place
        });
        place.is_lost.store(false, Ordering::Relaxed);
        place.set(start, len);
        place
    }

    fn give_back(&'static self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(0, 0);
        free.push(self);
    }

    fn set(&self, start: usize, len: usize) {
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Its mapping, if that has the address. The mapping of whoever touches it does not change meanwhile.
    fn of(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        let has = address
            .checked_sub(start)
            .is_some_and(|offset| offset < len);
        (is_whole && has).then_some((start, len))
    }

    /// The place of the mapping that has an address.
    fn find(address: usize) -> Option<(&'static Self, usize, usize)> {
        let mut next = PLACES.load(Ordering::Acquire).cast_const();
        // SAFETY: places are never freed, and were whole before they were told of.
        while let Some(place) = unsafe { next.as_ref::<'static>() } {
            if let Some((start, len)) = place.of(address) {
                return Some((place, start, len));
            }
            next = place.next;
        }
        None
    }
}

/// A place in use.
struct Watch(&'static Place);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Memory of a front-end.
pub(crate) struct Mapping {
    /// Dropped before the mapping is.
    watch: Watch,
    region: MmapRegion<()>,
}

/// An access failed: it is outside of the mapping, or the mapping is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unusable;

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

impl Mapping {
    /// Maps so many bytes of a file from an offset.
    pub(crate) fn new(file: File, offset: u64, len: u64) -> io::Result<Self> {
        let end = offset.checked_add(len).filter(|_| len > 0);
        let end = end.ok_or_else(|| invalid("a mapping without an end"))?;
        if end > file.metadata()?.len() {
            return Err(invalid("a mapping beyond the end of its file"));
        }
        // Of huge pages only whole ones can be given back.
        let system = fstatfs(&file)?;
        let page = system.f_bsize as u64;
        if system.f_type as u64 == HUGETLBFS && page > 0 && !len.is_multiple_of(page) {
            return Err(invalid("a mapping that is not of whole huge pages"));
        }
        let len = usize::try_from(len);
        let len = len.map_err(|_| invalid("a mapping too long for this machine"))?;
        catch_signal()?;
        let region = MmapRegion::from_file(FileOffset::new(file, offset), len);
        let region = region.map_err(io::Error::other)?;
        let watch = Watch(Place::take(region.as_ptr().expose_provenance(), len));
        Ok(Self { watch, region })
    }

    /// Whether its memory has gone away.
    pub(crate) fn is_lost(&self) -> bool {
        LOSSES.load(Ordering::Relaxed) > 0 && self.watch.0.is_lost.load(Ordering::Relaxed)
    }

    /// Uses a part of it.
    #[inline]
    fn access<T>(
        &self,
        at: usize,
        len: usize,
        run: impl FnOnce(VolatileSlice<'_>) -> T,
    ) -> Result<T, Unusable> {
        let part = self.region.get_slice(at, len).map_err(|_| Unusable)?;
        let result = run(part);
        // Zeros are seen only after the marks of the loss were made.
        fence(Ordering::Acquire);
        match self.is_lost() {
            true => Err(Unusable),
            false => Ok(result),
        }
    }

    #[inline]
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> Result<(), Unusable> {
        self.access(at, to.len(), |part| part.copy_to(to)).map(drop)
    }

    #[inline]
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> Result<(), Unusable> {
        self.access(at, from.len(), |part| part.copy_from(from))
    }

    #[inline]
    pub(crate) fn load<T: AtomicAccess>(&self, at: usize) -> Result<T, Unusable> {
        let loaded = self.access(at, size_of::<T>(), |part| part.load(0, Ordering::Acquire))?;
        loaded.map_err(|_| Unusable)
    }

    #[inline]
    pub(crate) fn store<T: AtomicAccess>(&self, at: usize, value: T) -> Result<(), Unusable> {
        let store = |part: VolatileSlice<'_>| part.store(value, 0, Ordering::Release);
        let stored = self.access(at, size_of::<T>(), store)?;
        stored.map_err(|_| Unusable)
    }
}

/// Catches SIGBUS from now on.
fn catch_signal() -> io::Result<()> {
    let caught = CAUGHT.get_or_init(|| {
        let ask_or_set = |new: *const libc::sigaction, old: *mut libc::sigaction| {
            // SAFETY: each of both is null or points to what is ours for the whole call.
            match unsafe { libc::sigaction(libc::SIGBUS, new, old) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
            }
        };
        // SAFETY: zeros are a valid action: the default one, with no flags and no signals.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // Asked for first, so that the handler finds it.
        ask_or_set(ptr::null(), &raw mut action)?;
        let before = BEFORE.get_or_init(|| action);
        action.sa_sigaction = on_bus_error as Handler as usize;
        // Threads have a stack for signals of their own, by which an overflow of the usual one is told.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        action.sa_mask = before.sa_mask;
        ask_or_set(&raw const action, ptr::null_mut())
    });
    caught.map_err(io::Error::from_raw_os_error)
}

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Puts zeros in place of a mapping whose memory has gone away. It does only what a signal's handler may.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the system gives a handler with SA_SIGINFO what it knows of the signal.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // There is no memory behind the address, or it is damaged. All else is no access.
    let is_access = code == libc::BUS_ADRERR || code == libc::BUS_MCEERR_AR;
    if is_access
        && let Some((place, start, len)) = Place::find(address)
        && put_zeros(place, start, len)
    {
        return;
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: `before` is what this call gave when it was asked.
        unsafe { libc::sigaction(signal, ptr::from_ref(before), ptr::null_mut()) };
    }
    // An access is done again, and fails again. What another process sent does not come back by itself.
    if code <= 0 {
        // SAFETY: it sends a signal to this thread, and nothing else.
        unsafe { libc::raise(signal) };
    }
}

/// Whether it could.
fn put_zeros(place: &Place, start: usize, len: usize) -> bool {
    LOSSES.fetch_add(1, Ordering::SeqCst);
    place.is_lost.store(true, Ordering::SeqCst);
    // SAFETY: it is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the range is a mapping of ours, which whoever made this signal uses at this moment, so it stays. It is used
    // by volatile accesses alone, which find other bytes at any time.
    let made = unsafe {
        libc::mmap(
            ptr::with_exposed_provenance_mut(start),
            len,
            access,
            kind,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { *errno = before };
    made != libc::MAP_FAILED
}
