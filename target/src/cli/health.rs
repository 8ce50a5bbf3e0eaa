//! How the pool does, in words.

use std::fmt::Write as _;

use api::health::Health;
use dedup::{DamageStatus, HealthState, Reason, ScrubPhase, Verdict};

use super::scrub::{damage_text, scrub_line};
use crate::size::format_human;

/// The verdict on a pool and its reasons, one a line.
pub(super) fn verdict_text(verdict: &Verdict) -> String {
    let state = match verdict.state {
        HealthState::Ok => verdict.state.to_string(),
        _ => verdict.state.to_string().to_uppercase(),
    };
    let refused = match verdict.refused_writes {
        0 => String::new(),
        several => format!(" ({several} writes failed since the start)"),
    };
    let mut text = format!("Health: {state}{refused}\n");
    for Reason {
        what,
        since,
        remedy,
    } in &verdict.reasons
    {
        let _ = writeln!(text, "  since {since}: {what}; {remedy}");
    }
    text
}

/// What `onefold status` says about a pool's health in detail, below its table; nothing if all is well.
pub(super) fn health_text(health: &Health) -> String {
    let mut text = String::new();
    if health.damage != DamageStatus::default() {
        text += &format!("\n{}", damage_text(&health.damage));
    }
    for trouble in &health.drives {
        let whose = match &trouble.volumes {
            None => "its volumes are being counted".to_owned(),
            Some(volumes) if volumes.is_empty() => "no volume has data on it".to_owned(),
            Some(volumes) => {
                let named = volumes
                    .iter()
                    .map(|volume| format!("'{}' ({})", volume.name, format_human(volume.bytes)));
                format!(
                    "volumes with data on it: {}",
                    named.collect::<Vec<_>>().join(", ")
                )
            }
        };
        let _ = writeln!(
            text,
            "\nDRIVE {} FAILS: {} errors, the last one: {}; {whose}",
            trouble.drive, trouble.errors, trouble.last_error
        );
    }
    if health.scrub.phase == ScrubPhase::Running {
        text += &format!("\n{}", scrub_line(&health.scrub));
    }
    let verify = &health.verify;
    if verify.collisions + verify.failed_blocks > 0 {
        let _ = writeln!(
            text,
            "\nOf {} duplicates compared, {} had another content and were stored apart; {} could not be \
             compared (the log names them).",
            verify.compared_blocks, verify.collisions, verify.failed_blocks
        );
    }
    for volume in &health.deleting {
        let _ = writeln!(
            text,
            "\nFreeing the deleted volume '{}': {} of {} left",
            volume.name,
            format_human(volume.remaining_bytes),
            format_human(volume.total_bytes)
        );
    }
    for volume in &health.trimming {
        let _ = writeln!(
            text,
            "\nFreeing what was trimmed of volume '{}': {} of {} left to look through",
            volume.name,
            format_human(volume.remaining_bytes),
            format_human(volume.total_bytes)
        );
    }
    text
}
