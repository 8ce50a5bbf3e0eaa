//! What a standby makes of the pool's folder before it takes the pool: it follows the metadata that the owner writes to the drives.
//!
//! Guarantees: the drives are only read, and a takeover waits for it no longer than [`END_MAX`]. Where it does not get on, the
//! takeover reads all of the metadata, which takes longer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use meta::{Ahead, Followed, PoolDir};
use subsystem::errors::Failure;

use crate::errors::of_meta;
use crate::import::ReadOnly;
use crate::pool;

/// How often the log of changes is looked at. An owner adds to it every ten seconds, mostly.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// How long it waits before it tries again what failed.
const AGAIN: Duration = Duration::from_secs(10);

/// How long a takeover waits for the end of a look.
const END_MAX: Duration = Duration::from_secs(2);

/// A thread that prepares a folder.
#[derive(Debug)]
pub(crate) struct Preparing {
    is_wanted: Arc<AtomicBool>,
    /// The thread waits for its end.
    go_on: Sender<()>,
    made: Receiver<Option<Ahead>>,
}

impl Preparing {
    /// Begins to prepare the folder `dir` of the pool with these drives; none: those that the folder knows. `ahead`: what was made of it
    /// before.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(
        dir: PathBuf,
        named: Vec<PathBuf>,
        ahead: Option<Ahead>,
    ) -> Result<Self, Failure> {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let (go_on, goes_on) = channel();
        let (ended, made) = channel();
        let wanted = is_wanted.clone();
        let work = move || {
            let mut work = Work {
                dir,
                named,
                is_wanted: wanted,
                drives: None,
                ahead,
                is_told: false,
            };
            work.run(&goes_on);
            // Whoever waits for it may open them at once.
            work.drives = None;
            // If nobody takes it any more, it is removed here.
            let _ = ended.send(work.ahead.take());
        };
        let started = Builder::new().name("onefold-ahead".to_owned()).spawn(work);
        started.map_err(|error| {
            Failure::unavailable(format!("a thread for the pool's folder: {error}"))
        })?;
        Ok(Self {
            is_wanted,
            go_on,
            made,
        })
    }

    /// Ends it; what it has made. Blocks.
    pub(crate) fn end(self) -> Option<Ahead> {
        let Self {
            is_wanted,
            go_on,
            made,
        } = self;
        is_wanted.store(false, Ordering::Release);
        drop(go_on);
        made.recv_timeout(END_MAX).ok().flatten()
    }
}

/// The drives of the pool: those that were named, or that the pool's folder knows. Blocks.
pub(crate) fn drives_of(dir: &Path, named: Vec<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
    if !named.is_empty() {
        return Ok(named);
    }
    let known = PoolDir::open(dir).map_err(of_meta)?;
    let drives = pool::own_drives(&known).into_iter();
    Ok(drives.map(|(_, path)| path).collect())
}

/// What the thread does.
struct Work {
    dir: PathBuf,
    named: Vec<PathBuf>,
    is_wanted: Arc<AtomicBool>,
    drives: Option<ReadOnly>,
    ahead: Option<Ahead>,
    /// That it does not get on was told.
    is_told: bool,
}

impl Work {
    fn run(&mut self, goes_on: &Receiver<()>) {
        while self.is_wanted.load(Ordering::Acquire) {
            let pause = match self.step() {
                Ok(()) => {
                    self.is_told = false;
                    LOOK_INTERVAL
                }
                Err(failure) => {
                    if !std::mem::replace(&mut self.is_told, true)
                        && self.is_wanted.load(Ordering::Acquire)
                    {
                        tracing::warn!(
                            %failure,
                            "the pool's folder cannot be prepared at present: a takeover would read all of the metadata"
                        );
                    }
                    // Whatever it was, drives that are opened anew are known to be there.
                    self.drives = None;
                    AGAIN
                }
            };
            if goes_on.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Makes what came since the last look.
    fn step(&mut self) -> Result<(), Failure> {
        let drives = match &mut self.drives {
            Some(drives) => drives,
            none => none.insert(ReadOnly::open(&drives_of(&self.dir, self.named.clone())?)?),
        };
        let wanted = self.is_wanted.clone();
        let is_wanted = move || wanted.load(Ordering::Acquire);
        let Some(mut ahead) = self.ahead.take() else {
            let begun = Ahead::begin(drives.pool, &drives.areas, &self.dir, &is_wanted);
            let mut ahead = begun.map_err(of_meta)?;
            let followed = ahead.follow(&drives.areas, &is_wanted).map_err(of_meta)?;
            tracing::info!(pool = %self.dir.display(), ?followed, "the pool's folder is prepared for a takeover");
            self.ahead = Some(ahead);
            return Ok(());
        };
        // If the store takes nothing, it is thrown away.
        match ahead.follow(&drives.areas, &is_wanted).map_err(of_meta)? {
            Followed::Changes(_) => {
                self.ahead = Some(ahead);
                Ok(())
            }
            Followed::Unreachable(error) => {
                self.ahead = Some(ahead);
                Err(of_meta(error))
            }
            Followed::Lost => {
                drop(ahead);
                tracing::info!(
                    "the pool's drives have another log of its metadata: its folder is prepared anew"
                );
                Ok(())
            }
        }
    }
}
