//! Times as people write them: `30s`, `100us`, `5m`.
//!
//! Guarantee: a time is exact or an error; nothing is rounded.

use std::time::Duration;

/// The units, in microseconds.
const UNITS: [(&str, u64); 5] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
];

/// The shortest and the longest time that a host may be waited for.
const TIMEOUTS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
/// The longest that a thread polls before it sleeps.
const SPIN_MAX: Duration = Duration::from_millis(1);

/// Parses how long a host is waited for. A number alone is seconds.
///
/// # Errors
/// It is no time, or not from one second to one hour.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    let time = parse(text, "s", "30s")?;
    match (TIMEOUTS[0]..=TIMEOUTS[1]).contains(&time) {
        true => Ok(time),
        false => Err(format!("'{text}' is not a time from 1s to 1h")),
    }
}

/// Parses how long a thread polls. A number alone is microseconds.
///
/// # Errors
/// It is no time, or longer than a millisecond.
pub fn parse_spin(text: &str) -> Result<Duration, String> {
    let time = parse(text, "us", "100us")?;
    match time <= SPIN_MAX {
        true => Ok(time),
        false => Err(format!("'{text}' is not a time from 0us to 1ms")),
    }
}

fn parse(text: &str, alone: &str, such_as: &str) -> Result<Duration, String> {
    let malformed = || {
        format!("'{text}' is not a time: write a number with us, ms, s, m or h, such as {such_as}")
    };
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = trimmed.split_at(digits);
    let unit = match unit.trim_start() {
        "" => alone,
        unit => unit,
    };
    let found = UNITS.iter().find(|(name, _)| *name == unit);
    let (_, micros) = found.ok_or_else(malformed)?;
    let number: u64 = number.parse().map_err(|_| malformed())?;
    let micros = number.checked_mul(*micros).ok_or_else(malformed)?;
    Ok(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_a_number_alone_has_the_options_own() {
        for (text, millis) in [
            ("30", 30_000),
            ("30s", 30_000),
            ("1500ms", 1500),
            ("2 m", 120_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(
                parse_timeout(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for (text, micros) in [("0", 0), ("100", 100), ("100us", 100), ("1ms", 1000)] {
            assert_eq!(
                parse_spin(text),
                Ok(Duration::from_micros(micros)),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_time_or_beyond_its_bounds_is_refused_by_its_text() {
        for text in [
            "",
            "s",
            "-1",
            "1.5s",
            "30 seconds",
            "0",
            "999ms",
            "61m",
            "2h",
            "99999999999999999999",
            "9999999999999999h",
        ] {
            let refused = parse_timeout(text).expect_err(text);
            assert!(refused.contains(&format!("'{text}'")), "{refused}");
        }
        for text in ["1001", "2ms", "1s", "x"] {
            assert!(parse_spin(text).is_err(), "{text}");
        }
    }
}
