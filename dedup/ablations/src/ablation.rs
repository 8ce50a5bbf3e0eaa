//! Which rule is broken.

use std::cell::Cell;

// The rules: `Broken`, of which each has its `ALL`.
include!(concat!(env!("OUT_DIR"), "/broken.rs"));

thread_local! {
    static BROKEN: Cell<Option<Broken>> = const { Cell::new(None) };
}

/// Breaks the engine on this thread, until the next call.
pub(crate) fn set(broken: Option<Broken>) {
    BROKEN.set(broken);
}

/// Whether this rule is broken on this thread.
pub(crate) fn is(broken: Broken) -> bool {
    BROKEN.get() == Some(broken)
}

/// Whether any rule is broken on this thread.
pub(crate) fn is_active() -> bool {
    BROKEN.get().is_some()
}
