//! When a drive that failed is tried again, without anybody's doing.
//!
//! Guarantees: a drive that cannot be reached is tried at an even pace for as long as it takes; one that fails again after it was
//! filled waits longer each time, and is left to people after [`RETURNS_MAX`] of them. What is remembered of a drive is forgotten
//! when it has not failed for a day.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

/// How often a drive is used again that fails each time.
const RETURNS_MAX: u32 = 5;

/// After how long without a failure a drive counts as one that never failed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// What is known of a drive that failed.
#[derive(Clone, Copy, Debug)]
struct Failed {
    /// When it is tried next.
    next: Instant,
    /// When it was seen to have failed the last time.
    seen: Instant,
    /// It was seen to have failed since it was used again.
    waits: bool,
    returns: u32,
    is_told: bool,
}

/// Drives that failed.
#[derive(Debug)]
pub(crate) struct Returns {
    after: Duration,
    drives: BTreeMap<PathBuf, Failed>,
}

impl Returns {
    /// They are tried so long after they failed; never if that is nothing.
    pub(crate) fn new(after: Duration) -> Self {
        Self {
            after,
            drives: BTreeMap::new(),
        }
    }

    /// Which of the drives that failed is to be tried now. `failed` are all of them, each with its index and path.
    pub(crate) fn due(&mut self, failed: &[(u16, PathBuf)], now: Instant) -> Option<u16> {
        if self.after.is_zero() {
            return None;
        }
        self.drives
            .retain(|_, drive| now.duration_since(drive.seen) < FORGOTTEN_AFTER);
        let mut due = None;
        for (index, path) in failed {
            let after = self.after;
            let drive = self.drives.entry(path.clone()).or_insert(Failed {
                next: now + after,
                seen: now,
                waits: true,
                returns: 0,
                is_told: false,
            });
            drive.seen = now;
            if !drive.waits {
                drive.waits = true;
                drive.next = now + after.saturating_mul(1 << drive.returns);
            }
            if drive.returns < RETURNS_MAX && drive.next <= now {
                due = due.or(Some(*index));
            }
        }
        due
    }

    /// It could not be reached. Whether that is to be told: once until it is used again.
    pub(crate) fn not_reached(&mut self, path: &Path, now: Instant) -> bool {
        let after = self.after;
        self.drives.get_mut(path).is_some_and(|drive| {
            drive.next = now + after;
            !std::mem::replace(&mut drive.is_told, true)
        })
    }

    /// It is used again. Whether it is left to people if it fails once more.
    pub(crate) fn returned(&mut self, path: &Path) -> bool {
        self.drives.get_mut(path).is_some_and(|drive| {
            drive.waits = false;
            drive.is_told = false;
            drive.returns += 1;
            drive.returns == RETURNS_MAX
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    fn failed() -> Vec<(u16, PathBuf)> {
        vec![(3, "/dev/a".into())]
    }

    /// The seconds until the drive is tried, if it fails all the time.
    fn until_due(returns: &mut Returns, now: &mut Instant) -> Option<u64> {
        (0..5000).find(|_| {
            let due = returns.due(&failed(), *now);
            *now += SECOND;
            due == Some(3)
        })
    }

    #[test]
    fn a_drive_that_cannot_be_reached_is_tried_at_an_even_pace_and_told_once() {
        let (mut returns, mut now) = (Returns::new(AFTER), Instant::now());
        let path = Path::new("/dev/a");
        assert_eq!(until_due(&mut returns, &mut now), Some(30));
        assert!(returns.not_reached(path, now));
        for _ in 0..100 {
            assert_eq!(until_due(&mut returns, &mut now), Some(30));
            assert!(!returns.not_reached(path, now));
        }
        assert!(!returns.returned(path));
        assert_eq!(until_due(&mut returns, &mut now), Some(60));
        assert!(returns.not_reached(path, now), "it is another time");
    }

    #[test]
    fn a_drive_that_fails_again_and_again_waits_longer_and_is_left_to_people() {
        let (mut returns, mut now) = (Returns::new(AFTER), Instant::now());
        let waits = [30, 60, 120, 240, 480];
        for (at, wait) in waits.into_iter().enumerate() {
            assert_eq!(until_due(&mut returns, &mut now), Some(wait));
            let is_last = returns.returned(Path::new("/dev/a"));
            assert_eq!(is_last, at + 1 == waits.len());
            // It is filled, and works for some time.
            now += AFTER;
            assert_eq!(returns.due(&[], now), None);
        }
        assert_eq!(until_due(&mut returns, &mut now), None);
        // Another drive in its place is another one.
        assert_eq!(returns.due(&[(3, "/dev/b".into())], now), None);
        assert_eq!(returns.due(&[(3, "/dev/b".into())], now + AFTER), Some(3));
    }

    #[test]
    fn a_failure_is_forgotten_after_a_day_without_another_one() {
        let (mut returns, mut now) = (Returns::new(AFTER), Instant::now());
        for _ in 0..RETURNS_MAX {
            assert!(until_due(&mut returns, &mut now).is_some());
            returns.returned(Path::new("/dev/a"));
        }
        assert_eq!(returns.due(&failed(), now), None);
        now += FORGOTTEN_AFTER;
        assert_eq!(returns.due(&[], now), None);
        assert_eq!(until_due(&mut returns, &mut now), Some(30));
    }

    #[test]
    fn where_nobody_wants_it_no_drive_is_tried() {
        let (mut returns, mut now) = (Returns::new(Duration::ZERO), Instant::now());
        assert_eq!(until_due(&mut returns, &mut now), None);
    }
}
