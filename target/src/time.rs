//! Times as people write them: `30s`, `100us`, `5m`.
//!
//! Guarantee: a time is exact or an error; nothing is rounded.

use std::time::Duration;

/// The units, in microseconds.
const UNITS: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// The shortest and the longest time that a host may be waited for.
const TIMEOUTS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
/// The longest that a thread polls before it sleeps.
const SPIN_MAX: Duration = Duration::from_millis(1);

/// Parses a timeout for hosts. A number alone is seconds.
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

/// Parses how long something counts, or `never` if it does not end. A number alone is days.
///
/// # Errors
/// It is no time, or not at least a second.
pub fn parse_lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" {
        return Ok(Lifetime(None));
    }
    let time = parse(text, "d", "90d")?;
    match time >= TIMEOUTS[0] {
        true => Ok(Lifetime(Some(time))),
        false => Err(format!(
            "'{text}' is not a time of a second or more, or never"
        )),
    }
}

/// Parses how often something is done. A number alone is minutes.
///
/// # Errors
/// It is no time.
pub fn parse_every(text: &str) -> Result<Duration, String> {
    parse(text, "m", "1h")
}

/// Parses how much of a limit may be used at once. A number alone is milliseconds.
///
/// # Errors
/// It is no time, or not of whole milliseconds up to an hour.
pub fn parse_burst(text: &str) -> Result<Duration, String> {
    let time = parse(text, "ms", "100ms")?;
    let is_whole = time.subsec_nanos().is_multiple_of(1_000_000);
    match is_whole && time <= TIMEOUTS[1] {
        true => Ok(time),
        false => Err(format!("'{text}' is not a time from 0ms to 1h")),
    }
}

/// Parses after how long a read is hedged; 0 is never. A number alone is milliseconds.
///
/// # Errors
/// It is no time, or longer than an hour.
pub fn parse_hedge_after(text: &str) -> Result<Duration, String> {
    up_to_an_hour(text, "ms", "10ms")
}

/// Parses after how long a drive that failed is used again; 0 is never. A number alone is seconds.
///
/// # Errors
/// It is no time, or longer than an hour.
pub fn parse_drive_return(text: &str) -> Result<Duration, String> {
    up_to_an_hour(text, "s", "30s")
}

fn up_to_an_hour(text: &str, alone: &str, such_as: &str) -> Result<Duration, String> {
    let time = parse(text, alone, such_as)?;
    match time <= TIMEOUTS[1] {
        true => Ok(time),
        false => Err(format!("'{text}' is not a time from 0{alone} to 1h")),
    }
}

/// How long something counts; `None` for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(pub Option<Duration>);

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
        format!(
            "'{text}' is not a time: write a number with us, ms, s, m, h or d, such as {such_as}"
        )
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

/// A time for people: its two largest units, such as `3d 4h` or `12s`.
#[must_use]
pub fn format_duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

/// A short time for people: microseconds up to ten thousand, then milliseconds, then seconds.
#[must_use]
pub fn format_latency(nanoseconds: u64) -> String {
    let us = nanoseconds as f64 / 1e3;
    match us {
        us if us < 10.0 => format!("{us:.1} us"),
        us if us < 1e4 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_the_two_largest_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (61, "1m 1s"),
            (7260, "2h 1m"),
            (273_600, "3d 4h"),
        ] {
            assert_eq!(format_duration(seconds), text);
        }
    }

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
    fn a_lifetime_is_in_days_or_never_ends() {
        for (text, seconds) in [("90", 7_776_000), ("90d", 7_776_000), ("30s", 30)] {
            let lifetime = Lifetime(Some(Duration::from_secs(seconds)));
            assert_eq!(parse_lifetime(text), Ok(lifetime), "{text}");
        }
        assert_eq!(parse_lifetime("never"), Ok(Lifetime(None)));
        for text in ["0", "ever", "", "1y"] {
            assert!(parse_lifetime(text).is_err(), "{text}");
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
