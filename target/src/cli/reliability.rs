//! How rarely a pool loses data, for people.

use api::reliability::Reliability;
use dedup::Redundancy;

use crate::time::format_duration;

/// One line, and one more where something would help.
pub(super) fn reliability_text(reliability: &Reliability, redundancy: Redundancy) -> String {
    if reliability.is_in_cluster {
        return "Loss of data: the Ceph cluster keeps the copies, and says how safe they are (`ceph -s`)\n".to_owned();
    }
    let mut text = format!(
        "Loss of data: about {:.1e} a year",
        reliability.losses_per_year
    );
    text += &how(reliability, redundancy);
    if let Some(wanted) = reliability.wanted_losses_per_year {
        text += &format!("; wanted {wanted:e}: ");
        text += match reliability.is_met {
            Some(true) => "met",
            _ => "NOT met",
        };
    }
    text.push('\n');
    if let Some(remedy) = &reliability.remedy {
        text += &format!("What helps: {remedy}.\n");
    }
    text
}

/// What the figure follows from.
fn how(reliability: &Reliability, redundancy: Redundancy) -> String {
    let copies = redundancy.copies();
    if copies == 1 {
        return ", because there is one copy: the failure of a drive loses what is on it"
            .to_owned();
    }
    if usize::from(reliability.copies_min) < copies {
        let left = match reliability.copies_min {
            1 => "one copy".to_owned(),
            several => format!("{several} copies"),
        };
        let mut text = format!(" as long as some data have {left} online, of {copies}");
        let then = reliability.losses_per_year_when_online;
        if then < reliability.losses_per_year {
            text += &format!("; about {then:.1e} with all drives online");
        }
        return text;
    }
    let mut text = format!(
        ", with rebuilds of {} ({})",
        format_duration(reliability.rebuild_seconds),
        match reliability.is_rebuild_measured {
            true => "measured",
            false => "assumed",
        }
    );
    if reliability.replace_seconds > 0 {
        text += &format!(
            ", {} after a failure for lack of a spare",
            format_duration(reliability.replace_seconds)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Reliability {
        Reliability {
            losses_per_year: 3.14e-8,
            losses_per_year_when_online: 3.14e-8,
            wanted_losses_per_year: Some(1e-6),
            is_met: Some(true),
            copies_min: 2,
            rebuild_seconds: 2460,
            is_rebuild_measured: true,
            ..Reliability::default()
        }
    }

    #[test]
    fn of_a_pool_in_a_cluster_no_figure_is_made_up() {
        let reliability = Reliability {
            is_in_cluster: true,
            ..example()
        };
        let text = reliability_text(&reliability, Redundancy::None);
        assert!(text.contains("Ceph") && !text.contains("a year"), "{text}");
    }

    #[test]
    fn the_line_says_what_is_achieved_by_what_and_whether_it_is_enough() {
        let text = reliability_text(&example(), Redundancy::Mirror2);
        assert_eq!(
            text,
            "Loss of data: about 3.1e-8 a year, with rebuilds of 41m 0s (measured); wanted 1e-6: met\n"
        );
        let late = Reliability {
            replace_seconds: 86_400,
            is_rebuild_measured: false,
            wanted_losses_per_year: None,
            is_met: None,
            ..example()
        };
        assert_eq!(
            reliability_text(&late, Redundancy::Mirror2),
            "Loss of data: about 3.1e-8 a year, with rebuilds of 41m 0s (assumed), 1d 0h after a failure for lack of a spare\n"
        );
    }

    #[test]
    fn what_is_not_enough_says_why_and_what_helps() {
        let degraded = Reliability {
            losses_per_year: 0.0101,
            copies_min: 1,
            is_met: Some(false),
            remedy: Some("bring it back".to_owned()),
            ..example()
        };
        assert_eq!(
            reliability_text(&degraded, Redundancy::Mirror2),
            "Loss of data: about 1.0e-2 a year as long as some data have one copy online, of 2; about 3.1e-8 with all drives \
             online; wanted 1e-6: NOT met\nWhat helps: bring it back.\n"
        );
        let alone = reliability_text(&degraded, Redundancy::None);
        assert!(
            alone.contains("the failure of a drive loses what is on it"),
            "{alone}"
        );
    }
}
