//! A panic in the middle of a change ends the process, and the next one has all that was acknowledged.

mod support;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meta::{FileMedia, JournalMedia};
use support::{Pool, block_on, folder, spec};

/// The pool of the process that panics.
const STORY: &str = "ONEFOLD_PANIC_STORY";
const SIGABRT: i32 = 6;

/// A journal whose writes are done, and then panic.
struct Panicking {
    inner: FileMedia,
    panics: AtomicBool,
}

impl JournalMedia for Panicking {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)?;
        assert!(!self.panics.load(Ordering::Relaxed), "on purpose");
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// Writes to a pool, and panics where the record of a write is in the journal and its changes are not made.
fn tell(dir: &Path) {
    let buffers = Pool::new(1);
    let mut journal = None;
    let (_pool, engine) = folder::open_on(dir, |inner| {
        let panics = AtomicBool::new(false);
        journal
            .insert(Arc::new(Panicking { inner, panics }))
            .clone()
    });
    let volume = block_on(engine.create_volume(spec("v", 500, 4096))).unwrap();
    buffers.write(&volume, 0, &[1, 2, 3]).unwrap();
    journal.unwrap().panics.store(true, Ordering::Relaxed);
    // As the executor of a reactor does with the panic of a task.
    let caught = catch_unwind(AssertUnwindSafe(|| buffers.write(&volume, 1, &[4])));
    assert!(caught.is_err());
    // It went on.
    std::process::exit(0);
}

#[test]
fn a_panic_between_a_record_and_its_changes_ends_the_process_and_a_restart_has_what_was_acknowledged()
 {
    if let Some(dir) = std::env::var_os(STORY) {
        return tell(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    folder::create(dir.path());
    let test = "a_panic_between_a_record_and_its_changes_ends_the_process_and_a_restart_has_what_was_acknowledged";
    let told = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(STORY, dir.path())
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&told.stdout),
        String::from_utf8_lossy(&told.stderr),
    );
    assert_eq!(told.status.signal(), Some(SIGABRT), "{out} {err}");
    assert!(
        err.contains("half-changed") && err.contains("journal"),
        "{err}"
    );

    let buffers = Pool::new(1);
    let (_pool, engine) = folder::open(dir.path());
    let volume = engine.volume("v").unwrap();
    let found = buffers.read(&volume, 0, 3).unwrap();
    // Of the write that was not acknowledged all or nothing is there.
    assert!(found == [1, 2, 3] || found == [1, 4, 3], "{found:?}");
    buffers.write(&volume, 1, &[5]).unwrap();
    assert_eq!(buffers.read(&volume, 0, 3).unwrap(), [1, 5, 3]);
    block_on(engine.shutdown()).unwrap();
}
