//! How often a pool loses data: of drives that somebody plans to use, and of a pool as it is.
//!
//! The model: drives fail independently, each at the same rate λ. Data are lost when all drives of a copyset fail, the drives that
//! hold all copies of some data ([`Copysets`]), before one of them has its data again. Drives are rebuilt one after the other,
//! each in the time T. So a set of k drives loses data k! · λ · (λT)^(k−1) times a year, to first order in λT: any of the orders
//! in which they fail, each failure but the first while a rebuild goes on (Patterson, Gibson and Katz, SIGMOD 1988, for k = 2; a
//! Markov chain with one repair at a time for more). The losses of a pool are those of all its sets together. Where each drive's
//! copies are spread over all n others those are n λ · (n−1) λT · … · (n−c+1) λT for c copies; failure domains leave out sets,
//! and a drive that is not online makes smaller ones.
//! What fails together (a shelf, a machine, a bad batch) is not in it: copies in different failure domains are the remedy
//! against that.

use std::str::FromStr;

use dedup::{Copysets, Redundancy};
use meta::COPIES_MAX;
use serde::Serialize;

use crate::size::parse_size;

/// Drives of a plan at most: those of a pool.
const DRIVES_MAX: u32 = 256;

/// Hours of a year.
const YEAR_HOURS: f64 = 24.0 * 365.25;

/// What is copied to a new drive in a second, in bytes, where nothing was measured: a hard disk's sequential writes.
pub const REBUILD_BYTES_DEFAULT: u64 = 200 << 20;

/// So many drives of one size: `6x4T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveGroup {
    /// How many.
    pub count: u32,
    /// Bytes of each.
    pub bytes: u64,
}

impl FromStr for DriveGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (count, size) = text.split_once('x').unwrap_or(("1", text));
        let count = count.trim().parse().ok();
        let count = count.filter(|count| (1..=DRIVES_MAX).contains(count));
        match (count, parse_size(size)) {
            (Some(count), Ok(bytes @ 1..)) => Ok(Self { count, bytes }),
            _ => Err(format!(
                "write how many drives and their size, such as 6x4T, with 1 to {DRIVES_MAX} drives"
            )),
        }
    }
}

/// What a plan is made of.
#[derive(Clone, Debug)]
pub struct Question {
    /// The drives.
    pub drives: Vec<DriveGroup>,
    /// The share of drives that fail in a year, above 0 and below 1.
    pub yearly_failures: f64,
    /// Losses of data in a year that are accepted.
    pub wanted: f64,
    /// The share of the drives that is in use, above 0 and at most 1.
    pub fill: f64,
    /// Bytes of a drive that are rebuilt in a second.
    pub rebuild_bytes: u64,
    /// Hours until another drive is in the place of one that failed; 0 with a spare.
    pub replace_hours: f64,
}

/// What a redundancy gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The redundancy.
    pub redundancy: Redundancy,
    /// Room for data, in bytes; 0 if there are fewer drives than copies.
    pub capacity_bytes: u64,
    /// Drives that may be lost at the same time.
    pub survives_drives: usize,
    /// Losses of data in a year.
    pub losses_per_year: f64,
    /// Whether these are as few as is wanted.
    pub meets: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// All drives together.
    pub drives: u32,
    /// Failures of one drive in a year.
    pub failures_per_year: f64,
    /// Hours from the failure of a drive to the end of the rebuild.
    pub rebuild_hours: f64,
    /// Losses of data in a year that are accepted.
    pub wanted_losses_per_year: f64,
    /// What each redundancy gives.
    pub choices: Vec<Choice>,
    /// The one with the fewest copies that meets what is wanted.
    pub recommended: Option<Redundancy>,
}

impl Plan {
    /// The answer to a question.
    #[must_use]
    pub fn new(question: &Question) -> Self {
        let drives: u32 = question.drives.iter().map(|group| group.count).sum();
        let largest = question.drives.iter().map(|group| group.bytes).max();
        let copied = largest.unwrap_or(0) as f64 * question.fill;
        let rebuild_hours =
            question.replace_hours + copied / question.rebuild_bytes.max(1) as f64 / 3600.0;
        let rate = failures_per_year(question.yearly_failures);
        let each_alone = vec![1; drives as usize];
        let choices = [Redundancy::None, Redundancy::Mirror2, Redundancy::Mirror3];
        let choices: Vec<Choice> = choices
            .into_iter()
            .map(|redundancy| {
                let sets = possible_copysets(&each_alone, redundancy.copies());
                let losses = losses_per_year(&sets, drives, rate, rebuild_hours);
                let capacity_bytes = capacity(&question.drives, redundancy.copies());
                Choice {
                    redundancy,
                    capacity_bytes,
                    survives_drives: redundancy.copies() - 1,
                    losses_per_year: losses,
                    meets: capacity_bytes > 0 && losses <= question.wanted,
                }
            })
            .collect();
        let recommended = choices.iter().find(|choice| choice.meets);
        Self {
            drives,
            failures_per_year: rate,
            rebuild_hours,
            wanted_losses_per_year: question.wanted,
            recommended: recommended.map(|choice| choice.redundancy),
            choices,
        }
    }

    /// The arithmetic of a choice, as people write it.
    #[must_use]
    pub fn arithmetic(&self, choice: &Choice) -> String {
        let mut text = format!("{} x {:.4}", self.drives, self.failures_per_year);
        for other in 1..choice.redundancy.copies() as u32 {
            text += &format!(
                " x ({} x {:.4} x {:.1} h / {YEAR_HOURS} h)",
                self.drives.saturating_sub(other),
                self.failures_per_year,
                self.rebuild_hours
            );
        }
        text
    }
}

/// Failures of a drive in a year, of which that share fails in a year: they fail at a constant rate. The share is above 0 and at
/// most 1.
pub(crate) fn failures_per_year(share: f64) -> f64 {
    // All of them would be an infinite rate: that of a drive that lasts some days is as good.
    const MOST: f64 = 0.999_999;
    -(1.0 - share.min(MOST)).ln()
}

/// All sets of drives in different failure domains that so many copies can have. `domains`: how many drives are in each; a drive
/// that fails alone is a domain of its own.
pub(crate) fn possible_copysets(domains: &[u64], copies: usize) -> Copysets {
    // How many sets there are of none, one, two and three drives in the domains so far.
    let mut sets = [1, 0, 0, 0];
    const { assert!(COPIES_MAX == 3) };
    for drives in domains {
        for size in (1..sets.len()).rev() {
            sets[size] += sets[size - 1] * drives;
        }
    }
    let mut possible = Copysets::default();
    if let Some(of_size) = possible.of_size.get_mut(copies.wrapping_sub(1)) {
        *of_size = sets[copies];
    }
    possible
}

/// Losses of data in a year of so many drives that fail that often: see the head of the module.
pub(crate) fn losses_per_year(
    copysets: &Copysets,
    drives: u32,
    rate: f64,
    rebuild_hours: f64,
) -> f64 {
    let during = rate * rebuild_hours / YEAR_HOURS;
    let (mut losses, mut of_a_set) = (0.0, rate);
    for (sets, next) in copysets.of_size.into_iter().zip(2_u32..) {
        losses += sets as f64 * of_a_set;
        of_a_set *= f64::from(next) * during;
    }
    // No failure causes more than one loss.
    losses.min(f64::from(drives) * rate)
}

/// Room for data of which each piece has so many copies on different drives: the most that fits, where no drive holds more
/// than one copy of a piece.
fn capacity(groups: &[DriveGroup], copies: usize) -> u64 {
    let copies = copies as u128;
    let room = |most: u128| -> u128 {
        let of = |group: &DriveGroup| u128::from(group.bytes).min(most) * u128::from(group.count);
        groups.iter().map(of).sum()
    };
    let (mut fits, mut above) = (0, room(u128::from(u64::MAX)) / copies + 1);
    while above - fits > 1 {
        let middle = (fits + above) / 2;
        match room(middle) >= copies * middle {
            true => fits = middle,
            false => above = middle,
        }
    }
    u64::try_from(fits).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(drives: &[&str]) -> Question {
        Question {
            drives: drives.iter().map(|group| group.parse().unwrap()).collect(),
            yearly_failures: 0.009,
            wanted: 1e-5,
            fill: 1.0,
            rebuild_bytes: 1 << 30,
            replace_hours: 0.0,
        }
    }

    #[test]
    fn the_losses_are_those_of_the_formula_worked_out_by_hand() {
        // 24 drives, 0.9 % a year, half an hour: 2.6e-6 with two copies and 2.9e-11 with three, by hand with a rate of 0.009.
        for (copies, expected) in [(1, 0.216), (2, 2.552e-6), (3, 2.884e-11)] {
            let sets = possible_copysets(&[1; 24], copies);
            let losses = losses_per_year(&sets, 24, 0.009, 0.5);
            assert!((losses / expected - 1.0).abs() < 0.01, "{copies}: {losses}");
        }
    }

    #[test]
    fn copies_in_different_domains_have_fewer_sets_of_drives_that_lose_data_together() {
        let sets = |domains: &[u64], copies: usize| possible_copysets(domains, copies).of_size;
        assert_eq!(sets(&[1, 1, 1, 1], 1), [4, 0, 0]);
        assert_eq!(sets(&[1, 1, 1, 1], 2), [0, 6, 0]);
        assert_eq!(sets(&[1, 1, 1, 1], 3), [0, 0, 4]);
        assert_eq!(sets(&[2, 2], 2), [0, 4, 0]);
        assert_eq!(sets(&[2, 2], 3), [0, 0, 0], "a third copy has no place");
        assert_eq!(sets(&[2, 2, 2], 3), [0, 0, 8]);
        assert_eq!(sets(&[3, 1], 2), [0, 3, 0]);
        let losses =
            |domains: &[u64]| losses_per_year(&possible_copysets(domains, 2), 4, 0.01, 10.0);
        assert!((losses(&[2, 2]) / losses(&[1; 4]) - 4.0 / 6.0).abs() < 1e-9);
    }

    #[test]
    fn a_drive_that_is_away_makes_every_failure_of_its_partners_a_loss() {
        // Two copies on four drives, one of which is away: its three partners have something alone.
        let degraded = Copysets { of_size: [3, 3, 0] };
        let losses = losses_per_year(&degraded, 4, 0.01, 10.0);
        let expected = 3.0 * 0.01 + 3.0 * 2.0 * 0.01 * 0.01 * 10.0 / YEAR_HOURS;
        assert!((losses / expected - 1.0).abs() < 1e-9, "{losses}");
        // With a rebuild that never ends each failure is a loss, and no more than one.
        let never = losses_per_year(&possible_copysets(&[1; 4], 2), 4, 0.01, 1e9);
        assert!((never - 0.04).abs() < 1e-9, "{never}");
        assert_eq!(losses_per_year(&Copysets::default(), 4, 0.01, 10.0), 0.0);
    }

    #[test]
    fn drives_that_all_fail_within_a_year_have_a_rate_that_is_a_number() {
        assert!((failures_per_year(0.009) - 0.00904).abs() < 1e-5);
        assert!(failures_per_year(1.0) > 10.0 && failures_per_year(1.0).is_finite());
    }

    #[test]
    fn the_redundancy_with_the_fewest_copies_that_is_safe_enough_is_recommended() {
        let half_an_hour = Question {
            rebuild_bytes: (4u64 << 40) / 1800,
            ..question(&["24x4T"])
        };
        let plan = Plan::new(&half_an_hour);
        assert!((plan.rebuild_hours - 0.5).abs() < 0.001);
        assert_eq!(plan.recommended, Some(Redundancy::Mirror2));
        let safer = Question {
            wanted: 1e-9,
            ..half_an_hour.clone()
        };
        assert_eq!(Plan::new(&safer).recommended, Some(Redundancy::Mirror3));
        let hopeless = Question {
            wanted: 1e-15,
            ..half_an_hour.clone()
        };
        assert_eq!(Plan::new(&hopeless).recommended, None);
        let slow = Question {
            replace_hours: 48.0,
            ..half_an_hour
        };
        assert_eq!(Plan::new(&slow).recommended, Some(Redundancy::Mirror3));
        let plan = Plan::new(&question(&["4T"]));
        assert_eq!(plan.choices[1].capacity_bytes, 0, "a copy has no place");
        assert_eq!(plan.recommended, None);
    }

    #[test]
    fn no_drive_holds_two_copies_of_a_piece() {
        const G: u64 = 1 << 30;
        for (drives, copies, expected) in [
            (&["4x1G"][..], 1, 4 * G),
            (&["4x1G"], 2, 2 * G),
            (&["3x1G"], 2, 3 * G / 2),
            (&["1G", "8G"], 2, G),
            (&["8G", "2x4G"], 2, 8 * G),
            (&["9G", "3x1G"], 2, 3 * G),
            (&["3x5G"], 3, 5 * G),
            (&["2x5G"], 3, 0),
        ] {
            let groups: Vec<DriveGroup> =
                drives.iter().map(|group| group.parse().unwrap()).collect();
            assert_eq!(capacity(&groups, copies), expected, "{drives:?} {copies}");
        }
    }

    #[test]
    fn senseless_drives_are_refused() {
        for wrong in ["", "x", "0x4T", "6x", "6x0", "257x4T", "-1x4T", "sixx4T"] {
            assert!(wrong.parse::<DriveGroup>().is_err(), "{wrong}");
        }
    }
}
