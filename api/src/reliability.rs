//! How rarely a pool loses data: what is wanted of it, and what it achieves.
//!
//! Guarantee: percentages, times and numbers of losses are within their bounds, so that figures made of them are numbers.

use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;

use crate::extract::given;

/// Of a hundred drives so many fail in a year, where nobody says how many: about the mean of large fleets, 0.4 to 2.
pub const ANNUAL_FAILURE_PERCENT_DEFAULT: f64 = 1.0;

/// How long it takes until another drive is in the place of one that failed, without a spare, where nobody says how long: a
/// day.
pub const REPLACE_SECONDS_DEFAULT: u64 = 24 * 3600;

/// The longest such time: a year.
const REPLACE_SECONDS_MAX: u64 = 366 * 24 * 3600;

/// What is wanted of a pool, and what is known of its drives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReliabilityGoal {
    /// Losses of data in a year that are accepted; `None`: nothing is wanted.
    pub losses_per_year: Option<f64>,
    /// Of a hundred drives so many fail in a year.
    pub annual_failure_percent: f64,
    /// How long it takes until another drive is in the place of one that failed, where no spare waits.
    pub replace_seconds: u64,
}

impl Default for ReliabilityGoal {
    fn default() -> Self {
        Self {
            losses_per_year: None,
            annual_failure_percent: ANNUAL_FAILURE_PERCENT_DEFAULT,
            replace_seconds: REPLACE_SECONDS_DEFAULT,
        }
    }
}

impl ReliabilityGoal {
    /// Whether there can be such a goal.
    ///
    /// # Errors
    /// Names what is wrong.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let wrong = |text: String| Err(Failure::invalid(text));
        if let Some(losses) = self.losses_per_year
            && !(losses > 0.0 && losses.is_finite())
        {
            return wrong(format!(
                "{losses} losses of data a year cannot be wanted: use a number above 0, such as 1e-6"
            ));
        }
        let percent = self.annual_failure_percent;
        if !(percent > 0.0 && percent <= 100.0) {
            return wrong(format!(
                "of a hundred drives {percent} cannot fail in a year: use a number above 0 and up to 100, such as 1.5"
            ));
        }
        match self.replace_seconds <= REPLACE_SECONDS_MAX {
            true => Ok(()),
            false => wrong(format!(
                "{} s until a drive is replaced are too long: use {REPLACE_SECONDS_MAX}, a year, at most",
                self.replace_seconds
            )),
        }
    }
}

/// Changes of a goal: what is missing stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetReliability {
    /// Losses of data in a year that are accepted; `null`: nothing is wanted any more.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub losses_per_year: Option<Option<f64>>,
    /// Of a hundred drives so many fail in a year.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annual_failure_percent: Option<f64>,
    /// How long it takes until another drive is in the place of one that failed, where no spare waits, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_seconds: Option<u64>,
}

impl SetReliability {
    /// The goal after the changes.
    ///
    /// # Errors
    /// There can be no such goal.
    pub(crate) fn applied_to(&self, goal: ReliabilityGoal) -> Result<ReliabilityGoal, Failure> {
        let changed = ReliabilityGoal {
            losses_per_year: self.losses_per_year.unwrap_or(goal.losses_per_year),
            annual_failure_percent: self
                .annual_failure_percent
                .unwrap_or(goal.annual_failure_percent),
            replace_seconds: self.replace_seconds.unwrap_or(goal.replace_seconds),
        };
        changed.check()?;
        Ok(changed)
    }
}

/// How rarely a pool loses data as it is now, by the model behind `onefold pool plan`: drives fail independently of each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reliability {
    /// Losses of data in a year, if the pool stayed as it is at this moment.
    pub losses_per_year: f64,
    /// The same with all drives online.
    pub losses_per_year_when_online: f64,
    /// Losses of data in a year that are accepted; `null`: nobody said so (`onefold pool set --loss`).
    pub wanted_losses_per_year: Option<f64>,
    /// Whether there are no more than that; `null` where nothing is wanted.
    pub is_met: Option<bool>,
    /// The fewest copies on drives that are online of any data now.
    pub copies_min: u8,
    /// Of a hundred drives so many fail in a year.
    pub annual_failure_percent: f64,
    /// How long it takes until another drive is in the place of one that failed; 0: a spare waits.
    pub replace_seconds: u64,
    /// How long a drive in that place takes to be filled, with as many data as the fullest drive has.
    pub rebuild_seconds: u64,
    /// What is copied to it in a second.
    pub rebuild_bytes_per_second: u64,
    /// Whether that was measured when a drive was filled last; or else it is what `onefold pool plan` takes.
    pub is_rebuild_measured: bool,
    /// Its drives are in a cluster, which keeps the copies: what that loses is not counted.
    #[serde(default)]
    pub is_in_cluster: bool,
    /// What would help; `null` if nothing has to.
    pub remedy: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_stays_and_null_takes_the_goal_away() {
        let set = |text: &str, goal| {
            let set: SetReliability = serde_json::from_str(text).expect("a change");
            set.applied_to(goal)
        };
        let goal = ReliabilityGoal::default();
        let wanted = set(r#"{"losses_per_year": 1e-6}"#, goal).expect("a goal");
        assert_eq!(wanted.losses_per_year, Some(1e-6));
        assert_eq!(wanted.annual_failure_percent, 1.0);
        let other = set(
            r#"{"annual_failure_percent": 1.5, "replace_seconds": 0}"#,
            wanted,
        );
        let other = other.expect("a goal");
        assert_eq!(other.losses_per_year, Some(1e-6));
        assert_eq!(
            (other.annual_failure_percent, other.replace_seconds),
            (1.5, 0)
        );
        let none = set(r#"{"losses_per_year": null}"#, other).expect("a goal");
        assert_eq!(none.losses_per_year, None);
        assert_eq!(none.annual_failure_percent, 1.5);
    }

    #[test]
    fn what_no_pool_can_be_is_refused_with_what_can() {
        let base = ReliabilityGoal::default();
        let with = |losses: f64| ReliabilityGoal {
            losses_per_year: Some(losses),
            ..base
        };
        let failing = |annual_failure_percent: f64| ReliabilityGoal {
            annual_failure_percent,
            ..base
        };
        let late = ReliabilityGoal {
            replace_seconds: REPLACE_SECONDS_MAX + 1,
            ..base
        };
        for (goal, remedy) in [
            (with(0.0), "such as 1e-6"),
            (with(-1.0), "such as 1e-6"),
            (with(f64::NAN), "such as 1e-6"),
            (with(f64::INFINITY), "such as 1e-6"),
            (failing(0.0), "such as 1.5"),
            (failing(100.5), "such as 1.5"),
            (failing(f64::NAN), "such as 1.5"),
            (late, "at most"),
        ] {
            let refused = SetReliability::default().applied_to(goal);
            let message = refused.expect_err("no goal").message;
            assert!(message.contains(remedy), "{message}");
        }
        assert!(failing(100.0).check().is_ok());
    }
}
