//! Spares take the place of drives that failed, drives that failed and answer again are used again, drives that were emptied leave
//! the pool, and drives that are online hold its metadata.
//!
//! Guarantees: nothing of the pool lies on a drive that leaves it; a spare takes the place of a drive that is offline because it
//! failed, and such a drive is used again, never one that somebody took offline; copies stay in different failure domains; what is
//! not empty, or too small, is left as it is, and the log says so.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::drives::AddDrive;
use futures_util::lock::Mutex;
use meta::{PoolDir, SpareSpec};
use subsystem::errors::Failure;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::drive_changes::{let_go, replace, use_again};
use crate::drive_return::Returns;
use crate::pool::Serving;

/// How often drives are looked for that failed or are empty.
const LOOK: Duration = Duration::from_millis(250);

/// How long a spare that could not be used, or a drive that could not leave, is left alone.
const AGAIN: Duration = Duration::from_secs(60);

/// How long a drive is left alone that is online, and cannot be told anything of metadata yet.
const SOON: Duration = Duration::from_secs(3);

/// Fewer drives than should hold the metadata, and what is there is left alone.
struct Short {
    until: Instant,
    /// The drives that were online.
    online: Vec<u16>,
}

impl Short {
    fn is_over(&self, online: &[u16]) -> bool {
        Instant::now() >= self.until || self.online != online
    }
}

/// The drives and spares of a pool in service.
#[derive(Clone)]
pub(crate) struct DriveWatch {
    pool: Serving,
    dir: Arc<Mutex<PoolDir>>,
}

impl DriveWatch {
    pub(crate) fn new(pool: Serving, dir: Arc<Mutex<PoolDir>>) -> Self {
        Self { pool, dir }
    }

    /// Looks after the drives, until it is dropped. The work itself is done on `control`, which it may block. A drive that failed
    /// is tried again after `return_after`; never if that is nothing.
    pub(crate) async fn keep(self, control: reactor::Handle, return_after: Duration) {
        let mut returns = Returns::new(return_after);
        // One at a time, and beside the rest: a drive may take long to answer.
        let mut returning: Option<Return> = None;
        let mut refused: BTreeMap<PathBuf, Instant> = BTreeMap::new();
        let mut kept: BTreeMap<u16, Instant> = BTreeMap::new();
        let mut metadata: Option<Short> = None;
        loop {
            tokio::time::sleep(LOOK).await;
            kept.retain(|_, at| at.elapsed() < AGAIN);
            let (online, waits) = self.online();
            if metadata.as_ref().is_none_or(|short| short.is_over(&online)) {
                let is_short = self.keep_metadata().await;
                metadata = is_short.then(|| Short {
                    until: Instant::now() + if waits { SOON } else { AGAIN },
                    online,
                });
            }
            let empty = self.pool.engine.empty_drives();
            if let Some(index) = empty.into_iter().find(|index| !kept.contains_key(index)) {
                let watch = self.clone();
                let work = control.spawn(move || async move { watch.let_go(index).await });
                if !matches!(work.await, Ok(true)) {
                    kept.insert(index, Instant::now());
                }
            }
            let failed = self.pool.engine.failed_drives();
            returning = match returning {
                Some(one) if one.work.is_finished() => {
                    one.note(&mut returns).await;
                    None
                }
                Some(one) => Some(one),
                None => self.begin_return(&failed, &mut returns, &control).await,
            };
            refused.retain(|_, at| at.elapsed() < AGAIN);
            let Some((drive, spare)) = self.choose(&failed, &refused).await else {
                continue;
            };
            let (watch, path) = (self.clone(), spare.path.clone());
            let work = control.spawn(move || async move { watch.take_over(drive, spare).await });
            if !matches!(work.await, Ok(true)) {
                refused.insert(path, Instant::now());
            }
        }
    }

    /// The drives that are online and may hold metadata, and whether one of them cannot be told anything yet.
    fn online(&self) -> (Vec<u16>, bool) {
        let is_online = |index| !self.pool.engine.is_drive_offline(index);
        let metadata = self.pool.metadata.as_ref();
        metadata.map_or_else(Default::default, |metadata| metadata.online(is_online))
    }

    /// Drives that are online hold the metadata, and know what the pool is. Whether there is something that could not be done,
    /// and is to be left alone for some time.
    async fn keep_metadata(&self) -> bool {
        let Some(metadata) = self.pool.metadata.clone() else {
            return false;
        };
        let engine = self.pool.engine.clone();
        let text = self.dir.lock().await.identity().to_text();
        let is_online = move |index| !engine.is_drive_offline(index);
        let text = text.ok().filter(|text| !metadata.knows_identity(text));
        if text.is_none() && !metadata.wants(&is_online) {
            return false;
        }
        let work = tokio::task::spawn_blocking(move || {
            if let Some(text) = text {
                metadata.note_identity(&text)?;
            }
            metadata.keep(&is_online)?;
            Ok::<_, Failure>(metadata.wants(&is_online))
        });
        match work.await {
            Ok(Ok(wants)) => wants,
            Ok(Err(error)) => {
                tracing::error!(
                    "the pool's metadata is not kept on its drives: {}",
                    error.message
                );
                true
            }
            Err(_) => true,
        }
    }

    /// A drive that failed, and the spare that is to take its place.
    async fn choose(
        &self,
        failed: &[u16],
        refused: &BTreeMap<PathBuf, Instant>,
    ) -> Option<(u16, SpareSpec)> {
        if failed.is_empty() {
            return None;
        }
        let dir = self.dir.lock().await;
        let spares = dir.identity().spares.iter();
        let spares = spares.filter(|spare| !refused.contains_key(&spare.path));
        let spares: Vec<&SpareSpec> = spares.collect();
        let domains = self.pool.engine.drive_domains();
        failed.iter().find_map(|drive| {
            let spare = best(&spares, *drive, &domains)?;
            Some((*drive, spare.clone()))
        })
    }

    /// Begins to use one of the drives that failed again, if it is time for one.
    async fn begin_return(
        &self,
        failed: &[u16],
        returns: &mut Returns,
        control: &reactor::Handle,
    ) -> Option<Return> {
        // One that is to be removed is not filled again.
        let failed = failed.iter().copied();
        let failed = failed.filter(|index| !self.pool.engine.is_drive_emptying(*index));
        let failed: Vec<u16> = failed.collect();
        if failed.is_empty() {
            return None;
        }
        let failed: Vec<(u16, PathBuf)> = {
            let dir = self.dir.lock().await;
            let path = |index: &u16| Some((*index, dir.drive_path(*index)?));
            failed.iter().filter_map(path).collect()
        };
        let index = returns.due(&failed, Instant::now())?;
        let (_, path) = failed.into_iter().find(|(failed, _)| *failed == index)?;
        let watch = self.clone();
        let work =
            control.spawn(move || async move { use_again(&watch.pool, &watch.dir, index).await });
        let work = tokio::spawn(async move { work.await.ok() });
        Some(Return { path, work })
    }

    /// Whether a drive that is empty left the pool.
    async fn let_go(&self, index: u16) -> bool {
        let mut dir = self.dir.lock().await;
        let drive = dir.drive_path(index).unwrap_or_default();
        let left = let_go(&self.pool, &mut dir, index).await;
        match &left {
            Ok(()) => tracing::warn!(
                drive = %drive.display(),
                "the drive was emptied and is no drive of the pool any more; the daemon keeps it open until it ends"
            ),
            Err(error) => tracing::error!(
                drive = %drive.display(),
                "the drive is empty and cannot be removed: {}",
                error.message
            ),
        }
        left.is_ok()
    }

    /// Whether the spare is the drive now.
    async fn take_over(&self, drive: u16, spare: SpareSpec) -> bool {
        let mut dir = self.dir.lock().await;
        let failed = dir.drive_path(drive).unwrap_or_default();
        let path = spare.path.display().to_string();
        let add = AddDrive {
            path: spare.path,
            size_bytes: None,
            force: false,
            domain: spare.domain,
            spare: false,
        };
        let replaced = replace(&self.pool, &mut dir, drive, add).await;
        match &replaced {
            Ok(()) => tracing::warn!(
                event = "alert",
                spare = path,
                failed = %failed.display(),
                "a spare takes the place of a drive that failed"
            ),
            Err(error) => tracing::error!(
                event = "alert",
                spare = path,
                failed = %failed.display(),
                "a spare cannot take the place of a drive that failed: {}",
                error.message
            ),
        }
        replaced.is_ok()
    }
}

/// A drive that failed, and is about to be used again.
struct Return {
    path: PathBuf,
    work: JoinHandle<Option<Result<(), Failure>>>,
}

impl Return {
    /// What became of it.
    async fn note(self, returns: &mut Returns) {
        let drive = self.path.display();
        let failure = match self.work.await {
            Ok(Some(Ok(()))) => None,
            Ok(Some(Err(failure))) => Some(failure.message),
            // The daemon ends.
            Ok(None) | Err(_) => return,
        };
        let Some(why) = failure else {
            let is_last = returns.returned(&self.path);
            tracing::warn!(
                event = "alert",
                %drive,
                "a drive that failed answers, and is used again: what it lacks is copied to it"
            );
            if is_last {
                tracing::warn!(
                    %drive,
                    "it failed several times within a day: if it fails once more, it stays offline until `onefold drive online` or \
                     `onefold drive replace`"
                );
            }
            return;
        };
        if returns.not_reached(&self.path, Instant::now()) {
            tracing::warn!(
                %drive,
                "a drive that failed cannot be used again yet, and is tried from time to time: {why}"
            );
        }
    }
}

/// The spare that fits a drive: one of its failure domain, or one of no domain, or one of a domain in which no other drive
/// is. So copies stay in different ones.
fn best<'a>(
    spares: &[&'a SpareSpec],
    drive: u16,
    domains: &[Option<String>],
) -> Option<&'a SpareSpec> {
    let own = domains.get(usize::from(drive)).and_then(Option::as_ref);
    let others = (0u16..).zip(domains).filter(|(other, _)| *other != drive);
    let others: Vec<&String> = others.filter_map(|(_, domain)| domain.as_ref()).collect();
    let rank = |spare: &SpareSpec| match &spare.domain {
        domain if domain.as_ref() == own => Some(0),
        None => Some(1),
        Some(domain) if !others.contains(&domain) => Some(2),
        Some(_) => None,
    };
    let ranked = spares
        .iter()
        .filter_map(|spare| Some((rank(spare)?, spare)));
    ranked
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, spare)| *spare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_takes_no_place_where_both_copies_could_fail_together() {
        let spare = |path: &str, domain: Option<&str>| SpareSpec {
            path: path.into(),
            domain: domain.map(str::to_owned),
        };
        let (a, b, c, none) = (
            spare("of a", Some("a")),
            spare("of b", Some("b")),
            spare("of c", Some("c")),
            spare("of none", None),
        );
        let domains = [Some("a".to_owned()), Some("b".to_owned())];
        let all = [&b, &c, &none, &a];
        assert_eq!(best(&all, 0, &domains), Some(&a));
        assert_eq!(best(&all, 1, &domains), Some(&b));
        assert_eq!(best(&all[..3], 0, &domains), Some(&none));
        assert_eq!(best(&all[..2], 0, &domains), Some(&c));
        assert_eq!(best(&[&b], 0, &domains), None);
        assert_eq!(best(&[&c, &none], 0, &[None, None]), Some(&none));
    }
}
