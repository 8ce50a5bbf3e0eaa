//! For tests: RocksDB on files that lose what was not synced when their power is cut.
//!
//! The files are real; what RocksDB's own `FaultInjectionTestFS` adds is memory of what was synced, and what
//! not. It is part of the library, but not of its interface for C, so there is a shim in C++ (`shim.cc`), and
//! the `unsafe` that calls it is here and nowhere else.

use std::ptr::NonNull;

use rocksdb::Env;

/// What the shim holds.
#[repr(C)]
struct Files {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn onefold_power_new() -> *mut Files;
    fn onefold_power_env(power: *mut Files) -> *mut librocksdb_sys::rocksdb_env_t;
    fn onefold_power_cut(power: *mut Files);
    fn onefold_power_lose(power: *mut Files) -> bool;
    fn onefold_power_delete(power: *mut Files);
}

/// The power of some files.
pub struct Power {
    files: NonNull<Files>,
}

// SAFETY: the C++ object locks its own state in every call that is made here.
unsafe impl Send for Power {}
// SAFETY: as above.
unsafe impl Sync for Power {}

impl Power {
    /// It is on.
    ///
    /// # Panics
    /// Not as long as there is memory.
    #[must_use]
    pub fn on() -> Self {
        // SAFETY: no arguments; what it returns is deleted by `drop` alone.
        let files = unsafe { onefold_power_new() };
        let files = NonNull::new(files).expect("C++ gives memory or throws");
        Self { files }
    }

    /// What a database does its file work with, to be under this power.
    #[must_use]
    pub fn env(&self) -> Env {
        // SAFETY: `files` is alive. The environment is new, has the layout that RocksDB's C interface
        // deletes, and shares the files by reference count.
        unsafe { Env::from_raw(onefold_power_env(self.files.as_ptr())) }
    }

    /// The power goes: from now on all that would change files fails.
    pub fn cut(&self) {
        // SAFETY: `files` is alive, and locks itself.
        unsafe { onefold_power_cut(self.files.as_ptr()) }
    }

    /// Takes from the files what was not synced, and says whether that worked. The database must be closed.
    #[must_use]
    pub fn lose(self) -> bool {
        // SAFETY: `files` is alive, and locks itself.
        unsafe { onefold_power_lose(self.files.as_ptr()) }
    }
}

impl Drop for Power {
    fn drop(&mut self) {
        // SAFETY: it came from `onefold_power_new`, and nobody uses it after this.
        unsafe { onefold_power_delete(self.files.as_ptr()) }
    }
}
