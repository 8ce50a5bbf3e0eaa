//! A panic in the middle of a change ends the process, and the next one has all that was acknowledged.

mod support;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meta::HookedMedia;
use support::{Pool, block_on, folder, spec};

/// The pool of the process that panics.
const STORY: &str = "ONEFOLD_PANIC_STORY";
const SIGABRT: i32 = 6;

/// Writes to a pool, and panics under the journal's lock: the record of a write is in the journal, and its
/// changes are not made.
fn panic_with_the_journal(dir: &Path) {
    let panics = Arc::new(AtomicBool::new(false));
    let now = panics.clone();
    tell(dir, &panics, move || {
        assert!(!now.load(Ordering::Relaxed), "on purpose");
        Ok(())
    });
}

/// The same under the state's lock: a write failed with the journal, and the log is told that the pool is
/// read-only from now on.
fn panic_with_the_state(dir: &Path) {
    tracing_subscriber::fmt().with_writer(|| Log).init();
    let fails = Arc::new(AtomicBool::new(false));
    let now = fails.clone();
    tell(dir, &fails, move || match now.load(Ordering::Relaxed) {
        true => Err(io::Error::other("on purpose")),
        false => Ok(()),
    });
}

/// A log that panics once, when the state is about to change.
struct Log;

static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let begins = String::from_utf8_lossy(text).contains("read-only from now on");
        let panics = begins && !HAS_PANICKED.swap(true, Ordering::Relaxed);
        assert!(!panics, "on purpose");
        io::stderr().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes to a pool whose journal calls `after_write`, and once more when `begins` is set.
fn tell(
    dir: &Path,
    begins: &AtomicBool,
    after_write: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) {
    let buffers = Pool::new(1);
    let (_pool, engine) = folder::open_on(dir, |inner| {
        Arc::new(HookedMedia::new(Arc::new(inner), after_write))
    });
    let volume = block_on(engine.create_volume(spec("v", 500, 4096))).unwrap();
    buffers.write(&volume, 0, &[1, 2, 3]).unwrap();
    begins.store(true, Ordering::Relaxed);
    // As the executor of a reactor does with the panic of a task.
    let caught = catch_unwind(AssertUnwindSafe(|| buffers.write(&volume, 1, &[4])));
    assert!(caught.is_err());
    // It went on.
    std::process::exit(0);
}

/// Lets `story` panic in a process of its own, which must end at once; the next one has what was acknowledged.
fn ends_the_process(test: &str, story: fn(&Path)) {
    if let Some(dir) = std::env::var_os(STORY) {
        return story(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    folder::create(dir.path());
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

#[test]
fn a_panic_between_a_record_and_its_changes_ends_the_process_and_a_restart_has_what_was_acknowledged()
 {
    ends_the_process(
        "a_panic_between_a_record_and_its_changes_ends_the_process_and_a_restart_has_what_was_acknowledged",
        panic_with_the_journal,
    );
}

#[test]
fn a_panic_in_the_middle_of_a_change_of_the_state_ends_the_process_and_a_restart_has_what_was_acknowledged()
 {
    ends_the_process(
        "a_panic_in_the_middle_of_a_change_of_the_state_ends_the_process_and_a_restart_has_what_was_acknowledged",
        panic_with_the_state,
    );
}
