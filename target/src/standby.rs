//! A standby: it waits until the pool has no owner, and takes it over.
//!
//! Guarantees:
//! - A pool whose owner keeps its lease is left alone. One that is silent is taken when its lease was seen to be over for as long
//!   as a lease, with a cluster that answered promptly all the time: an owner that waited for the same cluster as this
//!   node is not taken for dead. Data do not depend on that: who takes the drives shuts the last owner out first.
//! - What this node has of the pool in its folder is used only if nobody opened the pool since. Otherwise the folder is made anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use dedup::ErrorKind;
use drives::nodes::Ownership;
use meta::{Ahead, Opening, PoolDir, RocksOptions, Store as _};
use subsystem::errors::Failure;
use uuid::Uuid;

use crate::errors::{of_drive, of_meta};
use crate::import::{Source, check_pool, is_any_labelled};
use crate::nodes::{Node, blocking};
use crate::opened_drive::ClaimedDrives;
use crate::options::{DriveArg, drive_path};
use crate::pool::{self, OpenPool, PoolRequest};
use crate::preparing::{Preparing, drives_of};
use crate::records;

/// How often the owner's lease is looked at.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// An answer that takes longer says nothing of the owner: it may have waited as long.
const PROMPT: Duration = Duration::from_millis(500);

/// How long a node that gave its pool away waits for another one to take it.
const YIELD_MAX: Duration = Duration::from_secs(10);

/// What is to be done about the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// To make it, if that was asked for.
    Make,
    /// To take it.
    Take(From),
    /// To wait: this machine has it, or none at this moment.
    Wait(Option<String>),
}

/// From whom the pool is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// From nobody, as far as is known: who has it all the same keeps it.
    Nobody,
    /// From an owner that left, or let its lease end, and is shut out.
    Owner,
}

/// What was seen of the pool's owner.
pub(crate) struct Watch {
    node: Arc<Node>,
    sight: Sight,
    /// The pool's drives, as long as it is not known that there is a pool.
    unknown: Option<Vec<PathBuf>>,
}

/// How long the cluster was seen without a gap.
struct Sight {
    lease: Duration,
    /// Since then all answers came promptly, and were asked for often.
    unbroken_since: Option<Instant>,
    last_answer: Option<Instant>,
    /// This process gave the pool away, and leaves it to others until then.
    yields_until: Option<Instant>,
}

impl Sight {
    /// An answer, and what it says; an error is none. It may have been asked for long before.
    fn judge(
        &mut self,
        answered: Instant,
        seen: Result<Ownership, Failure>,
    ) -> Result<Verdict, Failure> {
        let was_seen_until = self.last_answer.replace(answered);
        let is_gap = was_seen_until
            .is_none_or(|until| answered.duration_since(until) > LOOK_INTERVAL + PROMPT);
        if seen.is_err() || is_gap {
            self.unbroken_since = Some(answered);
        }
        let unbroken = self
            .unbroken_since
            .map_or(Duration::ZERO, |since| answered.duration_since(since));
        Ok(match seen? {
            Ownership::GaveAway => {
                let until = *self.yields_until.get_or_insert(answered + YIELD_MAX);
                match answered < until {
                    true => Verdict::Wait(None),
                    false => Verdict::Take(From::Owner),
                }
            }
            Ownership::Owned(machine) => Verdict::Wait(Some(machine)),
            Ownership::Silent(machine) if unbroken < self.lease => Verdict::Wait(Some(machine)),
            // Its owner says so again, if it lives.
            Ownership::Forgotten if unbroken < self.lease => Verdict::Wait(None),
            Ownership::Missing => Verdict::Make,
            Ownership::Forgotten => Verdict::Take(From::Nobody),
            Ownership::Left | Ownership::Silent(_) => Verdict::Take(From::Owner),
        })
    }
}

impl Watch {
    /// # Errors
    /// What was named is no drive.
    pub(crate) fn new(node: Arc<Node>, request: &PoolRequest) -> Result<Self, Failure> {
        let sight = Sight {
            lease: node.lease(),
            unbroken_since: None,
            last_answer: None,
            yields_until: None,
        };
        let unknown = match PoolDir::exists(&request.dir) {
            true => None,
            false => Some(named(request)?),
        };
        Ok(Self {
            node,
            sight,
            unknown,
        })
    }

    /// Looks at the owner's lease.
    ///
    /// # Errors
    /// The drives do not answer.
    pub(crate) async fn look(&mut self) -> Result<Verdict, Failure> {
        let node = self.node.clone();
        let seen = blocking(move || node.owner()).await;
        let seen = match seen {
            // A node table does not know whether there was ever a pool.
            Ok(Ownership::Forgotten) if self.is_unmade().await? => Ok(Ownership::Missing),
            seen => seen,
        };
        self.sight.judge(Instant::now(), seen)
    }

    /// Whether no drive is one of a pool.
    async fn is_unmade(&mut self) -> Result<bool, Failure> {
        let Node::Sleds(_) = &*self.node else {
            return Ok(false);
        };
        let Some(paths) = self.unknown.clone() else {
            return Ok(false);
        };
        let looked = tokio::task::spawn_blocking(move || is_any_labelled(&paths)).await;
        let looked = looked.map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()));
        let is_labelled = looked??;
        if is_labelled {
            self.unknown = None;
        }
        Ok(!is_labelled)
    }
}

/// Begins to make the pool's folder of what its owner writes, or goes on with what was made `ahead` of it.
///
/// # Errors
/// What was named is no drive, or the system gives no thread.
pub(crate) fn prepare(request: &PoolRequest, ahead: Option<Ahead>) -> Result<Preparing, Failure> {
    let dir = std::path::absolute(&request.dir).map_err(|error| {
        Failure::invalid(format!("'{}' is no path: {error}", request.dir.display()))
    })?;
    Preparing::start(dir, named(request)?, ahead)
}

/// Looks whether the pool of this node's folder is that of the drives, whose owner says that it is `offered`.
///
/// # Errors
/// No drive that was named is of the folder's pool, or the folder cannot be read.
pub(crate) async fn check_folder(request: &PoolRequest, offered: Uuid) -> Result<(), Failure> {
    if !PoolDir::exists(&request.dir) {
        return Ok(());
    }
    let known = PoolDir::read_identity(&request.dir).map_err(of_meta)?.uuid;
    if known == offered {
        return Ok(());
    }
    let drives = named(request)?;
    let looked = tokio::task::spawn_blocking(move || check_pool(&drives, known)).await;
    looked.map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))?
}

/// The drives that this node was told of.
fn named(request: &PoolRequest) -> Result<Vec<PathBuf>, Failure> {
    let paths = request.drives.iter().filter_map(|drive| match drive {
        DriveArg::Path { path, .. } => Some(drive_path(path)),
        DriveArg::Memory { .. } => None,
    });
    paths.collect::<Result<_, _>>().map_err(Failure::invalid)
}

/// Takes the pool, and opens it. `ahead`: what was made of its folder while another node had it.
///
/// # Errors
/// Another node took it, or was alive after all ([`ErrorKind::Unavailable`]); or it cannot be opened.
pub(crate) async fn take(
    request: &PoolRequest,
    (node, from): (Arc<Node>, From),
    control: &reactor::Handle,
    ahead: Option<Ahead>,
) -> Result<OpenPool, Failure> {
    let (dir, named) = (request.dir.clone(), named(request)?);
    let work = move || {
        let shared_until = node.last_epoch().map_err(of_drive)?;
        let claim = |drives: &[PathBuf], known| match from {
            From::Nobody => Source::share(drives, known),
            From::Owner => Source::take_over(drives, known, shared_until),
        };
        let (epoch, claimed) = prepare_folder(&dir, named, claim, (shared_until, ahead))?;
        // If it dies before all know that it has the pool, the others know from whom they take it.
        node.opens(epoch.saturating_add(1)).map_err(of_drive)?;
        Ok(claimed)
    };
    let prepared: Result<Result<_, Failure>, _> = tokio::task::spawn_blocking(work).await;
    let claimed =
        prepared.map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))??;
    let mut request = request.clone();
    // They were named to find the pool. It may have others by now, as its folder says.
    request.drives.clear();
    let opening = control.spawn(move || async move { pool::open_claimed(&request, claimed).await });
    opening.await?
}

/// Makes the pool's folder of its drives, unless it has all that they have. The drives that were claimed for that are this node's
/// until the pool is open: if nobody had them meanwhile, another standby would take them. `said`: the last opening that any node
/// said to begin, where nodes say so. Returns the epoch of the last opening too. Blocks.
fn prepare_folder(
    dir: &Path,
    named: Vec<PathBuf>,
    claim: impl Fn(&[PathBuf], Option<Uuid>) -> Result<Source, Failure>,
    (said, ahead): (Option<u32>, Option<Ahead>),
) -> Result<(u32, ClaimedDrives), Failure> {
    if !PoolDir::exists(dir) {
        let imported = claim(&named, None)?.import(dir, ahead)?;
        return Ok((imported.epoch, imported.claimed));
    }
    // Before they are this node's, another one may open the pool still.
    let known = PoolDir::look(dir).map_err(of_meta)?.identity().uuid;
    let mut source = claim(&drives_of(dir, named)?, Some(known))?;
    let is_known = |source: &Source| source.newest_opening().is_some_and(|it| is_last(it, said));
    let mut is_own = is_known(&source) && is_newest(dir, source.newest_opening())?;
    if is_own {
        // Another node may have taken the drives since, and have failed then.
        source.shut_out_owner()?;
        is_own = is_known(&source) && is_newest(dir, source.newest_opening())?;
    }
    if is_own {
        let epoch = source.newest_opening().map_or(0, |opening| opening.epoch);
        return Ok((epoch, source.into_drives()));
    }
    // It has nothing that the drives have not: all that was acknowledged is there.
    tracing::info!(
        pool = %dir.display(),
        "another node had the pool since: the folder is made anew of the drives"
    );
    let aside = aside(dir);
    let failed = |what: &str, error: std::io::Error| {
        Failure::unavailable(format!("{what} '{}': {error}", dir.display()))
    };
    match std::fs::remove_dir_all(&aside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed("cannot tidy up beside", error));
        }
        _ => {}
    }
    std::fs::rename(dir, &aside).map_err(|error| failed("cannot set aside the folder", error))?;
    let imported = match source.import(dir, ahead) {
        Ok(imported) => imported,
        Err(failure) => {
            // It is refused if it is older, so nothing comes of it but a better message.
            let _ = std::fs::rename(&aside, dir);
            return Err(failure);
        }
    };
    records::move_to(&aside, dir);
    // Hosts wait for the pool.
    let removing = move || {
        if let Err(error) = std::fs::remove_dir_all(&aside) {
            tracing::warn!(folder = %aside.display(), %error, "an older copy of the pool's folder is left");
        }
    };
    if let Err(error) = Builder::new()
        .name("onefold-older".to_owned())
        .spawn(removing)
    {
        tracing::warn!(%error, "an older copy of the pool's folder is left");
    }
    Ok((imported.epoch, imported.claimed))
}

/// Where an older folder is while a new one is made.
fn aside(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".older");
    PathBuf::from(name)
}

/// Whether no node said that it opens the pool later. One that did may have lost the drives that are reached here, and gone on with the
/// other half of those with the metadata: then these drives and this folder know nothing of it, and an import asks for more than half.
fn is_last(newest: &Opening, said: Option<u32>) -> bool {
    said.is_none_or(|said| said <= newest.epoch)
}

/// Whether nobody has opened the pool since this folder did.
fn is_newest(dir: &Path, newest: Option<&Opening>) -> Result<bool, Failure> {
    let Some(newest) = newest else {
        return Ok(false);
    };
    let folder = PoolDir::open(dir).map_err(of_meta)?;
    let settings = folder
        .open_served_store(RocksOptions::default())
        .and_then(|store| store.settings());
    // What cannot be read is made anew.
    Ok(settings.is_ok_and(|settings| dedup::is_of_opening(&settings, newest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);

    struct Story {
        sight: Sight,
        now: Instant,
    }

    impl Story {
        fn new() -> Self {
            Self {
                sight: Sight {
                    lease: LEASE,
                    unbroken_since: None,
                    last_answer: None,
                    yields_until: None,
                },
                now: Instant::now(),
            }
        }

        fn see(&mut self, takes: Duration, seen: Result<Ownership, Failure>) -> Option<Verdict> {
            self.now += LOOK_INTERVAL + takes;
            self.sight.judge(self.now, seen).ok()
        }

        fn see_at_once(&mut self, seen: Ownership) -> Verdict {
            let verdict = self.see(Duration::from_millis(1), Ok(seen));
            verdict.expect("an answer")
        }
    }

    fn owned() -> Ownership {
        Ownership::Owned("a".to_owned())
    }

    fn silent() -> Ownership {
        Ownership::Silent("a".to_owned())
    }

    fn waits() -> Verdict {
        Verdict::Wait(Some("a".to_owned()))
    }

    #[test]
    fn a_folder_is_not_the_newest_when_a_node_said_that_it_opens_the_pool_later() {
        let newest = Opening {
            epoch: 7,
            ..Opening::default()
        };
        assert!(!is_last(&newest, Some(8)));
        assert!(is_last(&newest, Some(7)), "that was this opening");
        assert!(is_last(&newest, Some(0)), "the sleds forgot");
        assert!(is_last(&newest, None), "the cluster shuts others out");
    }

    #[test]
    fn an_owner_that_was_watched_and_let_its_lease_end_is_followed_at_once() {
        let mut story = Story::new();
        for _ in 0..20 {
            assert_eq!(story.see_at_once(owned()), waits());
        }
        assert_eq!(story.see_at_once(silent()), Verdict::Take(From::Owner));
    }

    #[test]
    fn a_cluster_that_stood_still_gives_the_owner_the_time_of_a_lease() {
        for stall in [Ok(owned()), Err(Failure::unavailable("it does not answer"))] {
            let mut story = Story::new();
            for _ in 0..20 {
                story.see_at_once(owned());
            }
            story.see(Duration::from_secs(20), stall);
            let began = story.now;
            loop {
                let verdict = story.see_at_once(silent());
                if verdict == Verdict::Take(From::Owner) {
                    break;
                }
                assert!(story.now - began < LEASE * 2, "it waits for ever");
            }
            assert!(story.now - began >= LEASE);
            // The owner came back in time.
            story.see(Duration::from_secs(20), Ok(owned()));
            assert_eq!(story.see_at_once(owned()), waits());
        }
    }

    #[test]
    fn a_standby_that_is_answered_with_errors_has_seen_nothing() {
        let mut story = Story::new();
        for _ in 0..20 {
            story.see_at_once(owned());
        }
        for _ in 0..20 {
            let refused = Err(Failure::unavailable("the cluster says: no"));
            assert_eq!(story.see(Duration::from_millis(1), refused), None);
        }
        assert_eq!(story.see_at_once(silent()), waits());
    }

    #[test]
    fn a_standby_that_slept_has_seen_nothing() {
        let mut story = Story::new();
        for _ in 0..20 {
            story.see_at_once(owned());
        }
        story.now += Duration::from_secs(100);
        assert_eq!(story.see_at_once(silent()), waits());
    }

    #[test]
    fn who_starts_waits_for_a_silent_owner_and_not_for_one_that_left() {
        assert_eq!(Story::new().see_at_once(silent()), waits());
        assert_eq!(
            Story::new().see_at_once(Ownership::Left),
            Verdict::Take(From::Owner)
        );
        assert_eq!(Story::new().see_at_once(Ownership::Missing), Verdict::Make);
    }

    #[test]
    fn an_owner_that_was_forgotten_has_the_time_of_a_lease_and_then_keeps_what_it_has() {
        let mut story = Story::new();
        let began = story.now;
        while story.see_at_once(Ownership::Forgotten) == Verdict::Wait(None) {
            assert!(story.now - began < LEASE * 2, "it waits for ever");
        }
        assert!(story.now - began >= LEASE);
        assert_eq!(
            story.see_at_once(Ownership::Forgotten),
            Verdict::Take(From::Nobody)
        );
    }

    #[test]
    fn who_gave_the_pool_away_takes_it_back_only_if_nobody_else_does() {
        let mut story = Story::new();
        let nobody = Verdict::Wait(None);
        assert_eq!(story.see_at_once(Ownership::GaveAway), nobody);
        assert_eq!(story.see_at_once(owned()), waits());
        assert_eq!(
            story.see_at_once(Ownership::Left),
            Verdict::Take(From::Owner),
            "it was taken, and left again"
        );
        let mut story = Story::new();
        assert_eq!(story.see_at_once(Ownership::GaveAway), nobody);
        story.now += YIELD_MAX;
        assert_eq!(
            story.see_at_once(Ownership::GaveAway),
            Verdict::Take(From::Owner),
            "nobody took it"
        );
    }
}
