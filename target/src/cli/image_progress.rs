//! The progress bar of imports and exports, on standard error where that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over the bytes of an image; without its length it counts them.
pub(super) fn bar(bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match bytes {
        Some(bytes) => (
            ProgressBar::new(bytes),
            "{bar:40} {percent}% {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        ),
        None => (
            ProgressBar::no_length(),
            "{spinner} {binary_bytes} {binary_bytes_per_sec} {elapsed}",
        ),
    };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
