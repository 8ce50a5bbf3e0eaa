//! Sizes as people write them: `4k`, `64G`, `1.5T` in, `1.2 GiB` out. All units are binary.
//!
//! Guarantee: [`parse_size`] accepts exactly what [`format_exact`] prints, and never rounds: a
//! size that is not a whole number of bytes is an error.

use thiserror::Error;

/// The letters, and the power of two that each stands for.
const UNITS: [(char, u32); 5] = [('k', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// Why a text is not a size.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SizeError {
    /// Not of the form NUMBER[k|M|G|T].
    #[error(
        "'{0}' is not a size: write a number of bytes, or a number with k, M, G or T (binary), such as 64G"
    )]
    Malformed(String),
    /// A number below zero.
    #[error("'{0}' is a negative size: write one such as 64G")]
    Negative(String),
    /// Larger than 2^64-1 bytes.
    #[error("'{0}' is too large: a size must be below 16 EiB")]
    TooLarge(String),
    /// A fraction that is not a whole number of bytes, such as `1.0001k`.
    #[error("'{0}' is not a whole number of bytes")]
    Fractional(String),
}

/// Parses a size in bytes. Suffixes k, M, G, T, P (also in the other case, also followed by `iB`
/// or `B`) are powers of 1024; a decimal fraction is allowed when the result is whole.
///
/// # Errors
/// [`SizeError`] names the text and says what a size looks like.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let malformed = || SizeError::Malformed(text.to_owned());
    let trimmed = text.trim();
    let below_zero = trimmed.strip_prefix('-');
    if below_zero.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(SizeError::Negative(text.to_owned()));
    }
    let digits_end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits_end);
    let shift = unit_shift(suffix.trim_start()).ok_or_else(malformed)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 15 {
        return Err(malformed());
    }
    let too_large = || SizeError::TooLarge(text.to_owned());
    if !whole
        .bytes()
        .chain(fraction.bytes())
        .all(|b| b.is_ascii_digit())
    {
        return Err(malformed());
    }
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let scale = 10u128.pow(fraction.len() as u32);
    let fraction: u128 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().map_err(|_| malformed())?
    };
    let scaled = whole
        .checked_mul(scale)
        .and_then(|v| v.checked_add(fraction))
        .and_then(|v| v.checked_mul(1u128 << shift))
        .ok_or_else(too_large)?;
    if scaled % scale != 0 {
        return Err(SizeError::Fractional(text.to_owned()));
    }
    u64::try_from(scaled / scale).map_err(|_| too_large())
}

fn unit_shift(suffix: &str) -> Option<u32> {
    let mut letters = suffix.chars();
    let Some(first) = letters.next() else {
        return Some(0);
    };
    let rest = letters.as_str();
    if first.eq_ignore_ascii_case(&'b') && rest.is_empty() {
        return Some(0);
    }
    if !matches!(rest, "" | "B" | "iB" | "ib" | "b") {
        return None;
    }
    UNITS
        .iter()
        .find(|(letter, _)| letter.eq_ignore_ascii_case(&first))
        .map(|&(_, shift)| shift)
}

/// A size for people: three significant digits and a binary unit, such as `1.21 GiB` or `512 B`.
#[must_use]
pub fn format_human(bytes: u64) -> String {
    const NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 999.5 and not 1024, so that four digits never appear in front of the unit.
    while value >= 999.5 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = match () {
        () if unit == 0 || value >= 99.95 => 0,
        () if value >= 9.995 => 1,
        () => 2,
    };
    format!("{value:.decimals$} {}", NAMES[unit])
}

/// The shortest exact form that [`parse_size`] reads back, such as `64G` or `4097`.
#[must_use]
pub fn format_exact(bytes: u64) -> String {
    for &(letter, shift) in UNITS.iter().rev() {
        if bytes != 0 && bytes.is_multiple_of(1u64 << shift) {
            return format!("{}{letter}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_binary_and_case_does_not_matter() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("10M", 10 << 20),
            ("64G", 64 << 30),
            ("64GiB", 64 << 30),
            ("1.5T", 3 << 39),
            ("2 g", 2 << 30),
            ("512B", 512),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_the_text_in_the_message() {
        for text in [
            "", "k", "-1", "4x", "4kk", "1.", ".5G", "1..2G", "0x10", "4 k b", "四",
        ] {
            let error = parse_size(text).expect_err(text);
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(matches!(parse_size("-5G"), Err(SizeError::Negative(_))));
        assert!(matches!(parse_size("--json"), Err(SizeError::Malformed(_))));
        assert!(matches!(
            parse_size("1.0001k"),
            Err(SizeError::Fractional(_))
        ));
        assert!(matches!(parse_size("16384P"), Err(SizeError::TooLarge(_))));
        assert!(matches!(
            parse_size("99999999999999999999999999999999999999999999"),
            Err(SizeError::TooLarge(_))
        ));
    }

    #[test]
    fn people_see_three_digits_and_a_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (4096, "4.00 KiB"),
            (64 << 30, "64.0 GiB"),
            (100 << 20, "100 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(format_human(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn the_exact_form_reads_back(bytes: u64) {
            prop_assert_eq!(parse_size(&format_exact(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = parse_size(&text);
        }

        #[test]
        fn number_like_text_makes_no_panic(text in "[0-9.]{0,50}[kKMGTPiB ]{0,3}") {
            let _ = parse_size(&text);
        }
    }
}
