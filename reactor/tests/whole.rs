//! What a panic means to who holds a lock of state that must never be seen half-changed.

use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};
use std::sync::Mutex;

use reactor::lock_whole;

/// The story that this process is started again for.
const STORY: &str = "ONEFOLD_PANIC_STORY";

/// Runs a test of this file again, in a process of its own that tells a story.
fn tell(test: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(STORY, "1")
        .output()
        .unwrap()
}

fn is_told() -> bool {
    std::env::var_os(STORY).is_some()
}

/// Gives something back while it is dropped, as a command does.
struct GivesBack<'a>(&'a Mutex<u32>);

impl Drop for GivesBack<'_> {
    fn drop(&mut self) {
        *lock_whole(self.0) += 1;
    }
}

#[test]
fn a_panic_of_who_holds_the_lock_ends_the_process_though_somebody_would_catch_it() {
    const SIGABRT: i32 = 6;
    if is_told() {
        let state = Mutex::new(0);
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let mut state = lock_whole(&state);
            *state += 1;
            panic!("on purpose");
        }));
        // It went on.
        std::process::exit(0);
    }
    let test = "a_panic_of_who_holds_the_lock_ends_the_process_though_somebody_would_catch_it";
    let told = tell(test);
    let (out, err) = (
        String::from_utf8_lossy(&told.stdout),
        String::from_utf8_lossy(&told.stderr),
    );
    assert_eq!(told.status.signal(), Some(SIGABRT), "{out} {err}");
    assert!(err.contains("on purpose"), "{err}");
    assert!(
        err.contains("half-changed") && err.contains("journal"),
        "{err}"
    );
}

#[test]
fn a_panic_beside_the_lock_goes_on_and_what_its_task_took_is_given_back() {
    let state = Mutex::new(0);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _taken = GivesBack(&state);
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    assert_eq!(*lock_whole(&state), 1);
}
