//! How rarely a pool in service loses data, by the model of [`crate::plan`].
//!
//! Guarantee: what is not known is what `onefold pool plan` takes for granted, and the figures say so.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::reliability::{Reliability, ReliabilityGoal};
use dedup::{Copysets, DriveState, Engine, PoolStatus, Redundancy};
use futures_util::lock::Mutex;
use meta::PoolDir;

use crate::opened_drive::is_in_cluster;
use crate::plan::{REBUILD_BYTES_DEFAULT, failures_per_year, losses_per_year, possible_copysets};

/// How many spares a pool has.
#[derive(Default)]
pub(crate) struct Spares(AtomicUsize);

impl Spares {
    /// Those of now; or those of before, while somebody changes the pool's drives: that may take long, and nobody waits for it.
    pub(crate) fn of(&self, dir: &Mutex<PoolDir>) -> usize {
        if let Some(dir) = dir.try_lock() {
            self.0.store(dir.identity().spares.len(), Ordering::Relaxed);
        }
        self.0.load(Ordering::Relaxed)
    }
}

/// How rarely the pool loses data as it is now, with so many spares.
pub(crate) fn reliability(
    engine: &Engine,
    goal: &ReliabilityGoal,
    space: &PoolStatus,
    spares: usize,
) -> Reliability {
    let speed = engine.rebuild_speed();
    Pool {
        redundancy: space.redundancy,
        now: engine.copysets(),
        when_online: engine.copysets_when_online(),
        drives: space.drives.iter().map(Into::into).collect(),
        spares,
        measured: speed.map(|speed| speed.bytes_per_second()),
    }
    .judge(goal)
}

/// What counts of a drive.
#[derive(Clone, Debug)]
struct DriveFacts {
    state: DriveState,
    domain: Option<String>,
    used_bytes: u64,
    capacity_bytes: u64,
    /// A cluster keeps its copies.
    is_in_cluster: bool,
}

impl From<&dedup::DriveStatus> for DriveFacts {
    fn from(drive: &dedup::DriveStatus) -> Self {
        Self {
            state: drive.state,
            domain: drive.domain.clone(),
            used_bytes: drive.used_bytes,
            capacity_bytes: drive.capacity_bytes,
            is_in_cluster: is_in_cluster(Path::new(&drive.name)),
        }
    }
}

/// A pool as it is.
#[derive(Clone, Debug)]
struct Pool {
    redundancy: Redundancy,
    /// Of copies on drives that are online.
    now: Copysets,
    /// Of all copies.
    when_online: Copysets,
    drives: Vec<DriveFacts>,
    spares: usize,
    /// Bytes that were copied to a drive in a second.
    measured: Option<u64>,
}

impl Pool {
    fn judge(&self, goal: &ReliabilityGoal) -> Reliability {
        let copies = self.redundancy.copies();
        let replace_seconds = match self.spares {
            0 => goal.replace_seconds,
            _ => 0,
        };
        let rebuild_seconds = self.rebuild_seconds(copies);
        let is_in_cluster =
            !self.drives.is_empty() && self.drives.iter().all(|it| it.is_in_cluster);
        let losses = |sets: &Copysets| match is_in_cluster {
            true => 0.0,
            false => self.losses(goal, sets, replace_seconds + rebuild_seconds),
        };
        let of_now = losses(&self.now);
        let is_met = goal.losses_per_year.map(|wanted| of_now <= wanted);
        Reliability {
            losses_per_year: of_now,
            losses_per_year_when_online: losses(&self.when_online),
            wanted_losses_per_year: goal.losses_per_year,
            is_met,
            copies_min: self.now.copies_min().unwrap_or(copies) as u8,
            annual_failure_percent: goal.annual_failure_percent,
            replace_seconds,
            rebuild_seconds,
            rebuild_bytes_per_second: self.bytes_per_second(),
            is_rebuild_measured: self.measured.is_some(),
            is_in_cluster,
            remedy: goal
                .losses_per_year
                .filter(|_| is_met == Some(false))
                .map(|wanted| self.remedy(goal, wanted)),
        }
    }

    fn losses(&self, goal: &ReliabilityGoal, sets: &Copysets, rebuild_seconds: u64) -> f64 {
        let rate = failures_per_year(goal.annual_failure_percent / 100.0);
        let drives = u32::try_from(self.drives.len()).unwrap_or(u32::MAX);
        losses_per_year(sets, drives, rate, rebuild_seconds as f64 / 3600.0)
    }

    fn bytes_per_second(&self) -> u64 {
        self.measured.unwrap_or(REBUILD_BYTES_DEFAULT).max(1)
    }

    /// How long the fullest drive takes to be filled, if there are so many copies of what there is now.
    fn rebuild_seconds(&self, copies: usize) -> u64 {
        let (more, than) = (copies as u64, self.redundancy.copies() as u64);
        let bytes = self.drives.iter().map(|drive| {
            let used = u128::from(drive.used_bytes) * u128::from(more) / u128::from(than);
            used.min(u128::from(drive.capacity_bytes)) as u64
        });
        let fullest = bytes.max().unwrap_or(0);
        fullest.div_ceil(self.bytes_per_second())
    }

    /// How many drives are in each failure domain.
    fn domains(&self) -> Vec<u64> {
        let mut named: BTreeMap<&str, u64> = BTreeMap::new();
        let mut domains = Vec::new();
        for drive in &self.drives {
            match &drive.domain {
                Some(domain) => *named.entry(domain).or_default() += 1,
                None => domains.push(1),
            }
        }
        domains.extend(named.into_values());
        domains
    }

    /// What gives as few losses as are wanted.
    fn remedy(&self, goal: &ReliabilityGoal, wanted: f64) -> String {
        let copies = self.redundancy.copies();
        let gives = |sets: &Copysets, copies: usize, replace_seconds: u64| {
            self.losses(goal, sets, replace_seconds + self.rebuild_seconds(copies)) <= wanted
        };
        let replace_seconds = match self.spares {
            0 => goal.replace_seconds,
            _ => 0,
        };
        if self.now != self.when_online {
            let back = match self.drives.iter().any(|it| it.state == DriveState::Offline) {
                true => {
                    "bring back what is offline: `onefold drive online PATH`, or `onefold drive replace OLD NEW`"
                }
                false => {
                    "wait until the rebuild has ended: `onefold drive list` tells how far it is"
                }
            };
            return match gives(&self.when_online, copies, replace_seconds) {
                true => back.to_owned(),
                false => format!("{back}; it is not enough yet then"),
            };
        }
        if self
            .when_online
            .copies_min()
            .is_some_and(|min| min < copies)
        {
            return "wait until all data have their copies: `onefold status` tells how many have not"
                .to_owned();
        }
        let domains = self.domains();
        let mut helps = Vec::new();
        let spare = "let a spare wait (`onefold drive spare PATH`)";
        let needs_spare = self.spares == 0 && goal.replace_seconds > 0;
        if copies > 1 && needs_spare && gives(&self.when_online, copies, 0) {
            helps.push(spare.to_owned());
        }
        // As many domains as copies, with as many drives each as can be, have the fewest sets.
        let count = self.drives.len() as u64;
        let apart: Vec<u64> = (0..copies as u64)
            .map(|at| (count + at) / copies as u64)
            .collect();
        if copies > 1 && gives(&possible_copysets(&apart, copies), copies, replace_seconds) {
            helps.push(format!(
                "put the drives into {copies} failure domains (`onefold drive replace OLD NEW,domain=NAME`)"
            ));
        }
        for more in [Redundancy::Mirror2, Redundancy::Mirror3] {
            let wished = more.copies();
            if wished <= copies {
                continue;
            }
            let lacking = wished.saturating_sub(domains.len());
            let mut with = domains.clone();
            with.extend(vec![1; lacking]);
            let sets = possible_copysets(&with, wished);
            let mut steps = Vec::new();
            match lacking {
                0 => {}
                1 => steps.push("add a drive (`onefold drive add PATH`)".to_owned()),
                _ => steps.push(format!("add {lacking} drives (`onefold drive add PATH`)")),
            }
            steps.push(format!(
                "keep {wished} copies (`onefold pool set --redundancy {more}`)"
            ));
            if gives(&sets, wished, replace_seconds) {
                helps.push(steps.join(" and "));
                break;
            }
            if needs_spare && gives(&sets, wished, 0) {
                steps.push(spare.to_owned());
                helps.push(steps.join(" and "));
                break;
            }
        }
        match helps.is_empty() {
            true => "no redundancy gives that with these drives: use drives that fail less and are rebuilt faster, or accept more \
                     (`onefold pool set --loss`)"
                .to_owned(),
            false => helps.join("; or "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1 << 40;

    fn drive(domain: Option<&str>) -> DriveFacts {
        DriveFacts {
            state: DriveState::Online,
            domain: domain.map(str::to_owned),
            used_bytes: T,
            capacity_bytes: 4 * T,
            is_in_cluster: false,
        }
    }

    /// A pool of so many drives with 1 TiB on each, copied at 1 TiB an hour.
    fn pool(drives: usize, redundancy: Redundancy) -> Pool {
        let sets = possible_copysets(&vec![1; drives], redundancy.copies());
        Pool {
            redundancy,
            now: sets,
            when_online: sets,
            drives: vec![drive(None); drives],
            spares: 1,
            measured: Some(T / 3600),
        }
    }

    fn goal(losses: f64) -> ReliabilityGoal {
        ReliabilityGoal {
            losses_per_year: Some(losses),
            ..ReliabilityGoal::default()
        }
    }

    fn remedy(pool: &Pool, losses: f64) -> String {
        let judged = pool.judge(&goal(losses));
        assert_eq!(judged.is_met, Some(false), "{judged:?}");
        judged.remedy.expect("a remedy")
    }

    #[test]
    fn a_pool_without_a_goal_has_figures_and_needs_no_remedy() {
        let judged = pool(1, Redundancy::None).judge(&ReliabilityGoal::default());
        assert!((judged.losses_per_year - 0.01005).abs() < 1e-5);
        assert_eq!((judged.is_met, judged.remedy), (None, None));
        assert_eq!(judged.copies_min, 1);
    }

    #[test]
    fn a_rebuild_takes_what_was_measured_or_what_a_plan_takes_and_says_which() {
        let mut pool = pool(4, Redundancy::Mirror2);
        let judged = pool.judge(&goal(1e-6));
        assert_eq!(judged.rebuild_seconds, 3601, "rounded up");
        assert!(judged.is_rebuild_measured);
        // 4 x 0.01005 x 3 x 0.01005 x 1 h / 8766 h
        assert!((judged.losses_per_year / 1.383e-7 - 1.0).abs() < 0.01);
        assert_eq!(judged.is_met, Some(true));
        pool.measured = None;
        let judged = pool.judge(&goal(1e-6));
        assert_eq!(judged.rebuild_bytes_per_second, REBUILD_BYTES_DEFAULT);
        assert_eq!(judged.rebuild_seconds, T.div_ceil(200 << 20));
        assert!(!judged.is_rebuild_measured);
    }

    #[test]
    fn without_a_spare_the_time_until_a_drive_is_replaced_counts() {
        let mut pool = pool(4, Redundancy::Mirror2);
        pool.spares = 0;
        let judged = pool.judge(&goal(1e-6));
        assert_eq!(judged.replace_seconds, 86_400);
        assert!((judged.losses_per_year / (25.0 * 1.383e-7) - 1.0).abs() < 0.01);
        let text = remedy(&pool, 1e-6);
        assert!(text.starts_with("let a spare wait"), "{text}");
        assert!(text.contains("; or keep 3 copies"), "{text}");
        let soon = ReliabilityGoal {
            replace_seconds: 0,
            ..goal(1e-6)
        };
        assert_eq!(pool.judge(&soon).is_met, Some(true));
    }

    #[test]
    fn one_copy_is_not_enough_and_a_second_one_needs_a_second_drive() {
        let text = remedy(&pool(2, Redundancy::None), 1e-6);
        assert_eq!(
            text,
            "keep 2 copies (`onefold pool set --redundancy mirror=2`)"
        );
        let text = remedy(&pool(1, Redundancy::None), 1e-6);
        assert!(text.starts_with("add a drive (`onefold drive add PATH`) and keep 2"));
        let mut shelf = pool(2, Redundancy::None);
        shelf.drives = vec![drive(Some("a")), drive(Some("a"))];
        let text = remedy(&shelf, 1e-6);
        assert!(text.starts_with("add a drive"), "one domain: {text}");
        assert!(remedy(&shelf, 1e-30).starts_with("no redundancy"));
    }

    #[test]
    fn a_pool_that_lacks_a_drive_achieves_less_and_the_drive_is_the_remedy() {
        let mut pool = pool(4, Redundancy::Mirror2);
        pool.now = Copysets { of_size: [3, 3, 0] };
        pool.drives[0].state = DriveState::Offline;
        let judged = pool.judge(&goal(1e-6));
        assert!(judged.losses_per_year > 0.03 && judged.losses_per_year < 0.031);
        assert!(judged.losses_per_year_when_online < 1e-6);
        assert_eq!(judged.copies_min, 1);
        let text = remedy(&pool, 1e-6);
        assert!(text.contains("onefold drive replace"), "{text}");
        assert!(!text.contains("not enough"), "{text}");
        assert!(remedy(&pool, 1e-9).ends_with("it is not enough yet then"));
        pool.drives[0].state = DriveState::Rebuilding;
        assert!(remedy(&pool, 1e-6).starts_with("wait until the rebuild"));
    }

    #[test]
    fn copies_that_are_still_being_made_are_waited_for() {
        let mut pool = pool(4, Redundancy::Mirror2);
        (pool.now.of_size, pool.when_online.of_size) = ([2, 5, 0], [2, 5, 0]);
        assert!(remedy(&pool, 1e-6).starts_with("wait until all data have their copies"));
    }

    #[test]
    fn failure_domains_are_named_where_they_are_enough() {
        // Six sets of four drives, four of two domains: 1.4e-7 and 9.2e-8.
        let text = remedy(&pool(4, Redundancy::Mirror2), 1e-7);
        assert!(
            text.starts_with("put the drives into 2 failure domains"),
            "{text}"
        );
        let mut apart = pool(4, Redundancy::Mirror2);
        apart.drives = [Some("a"), Some("a"), Some("b"), Some("b")]
            .map(drive)
            .to_vec();
        let sets = possible_copysets(&apart.domains(), 2);
        (apart.now, apart.when_online) = (sets, sets);
        assert_eq!(apart.judge(&goal(1e-7)).is_met, Some(true));
    }
}
