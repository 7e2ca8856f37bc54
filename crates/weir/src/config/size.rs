//! Sizes as users write them, by the rules of util-linux.

use std::fmt;

/// Why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// Nothing but blanks.
    Empty,
    /// Starts with a minus sign.
    Negative,
    /// No number where one must stand.
    NotANumber,
    /// A number, then something that is no unit.
    UnknownUnit,
    /// Part of a byte.
    FractionOfByte,
    /// More than 100 percent.
    PercentTooLarge,
    /// Does not fit in 64 bits.
    Overflow,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SizeError::Empty => "the size is empty; write for example 2G",
            SizeError::Negative => "a size cannot be negative",
            SizeError::NotANumber => "not a number; write for example 2G, 1.5GiB, 800MB, 50% or max",
            SizeError::UnknownUnit => {
                "unknown unit; K, M, G, T, P, E (or KiB, ...) count in 1024s, KB, MB, ... in 1000s, % is of \
                 RAM"
            }
            SizeError::FractionOfByte => "bytes come whole; add a unit, for example 1.5G",
            SizeError::PercentTooLarge => "more than 100% of RAM",
            SizeError::Overflow => "the size does not fit in 64 bits",
        })
    }
}

impl std::error::Error for SizeError {}

/// Digits after the point that count; more are below a byte for every unit.
const FRACTION_DIGITS_MAX: usize = 18;

/// Reads a size in bytes.
///
/// `K` and `KiB` are 1024 bytes, `KB` is 1000 (util-linux's rule), up to `E`; upper and lower case are the
/// same and decimals are allowed (`1.5G`). A bare number is bytes. `N%` is a part of `total_ram` (bytes) and
/// `max` all of it. The result is rounded down to whole bytes.
pub fn parse_size(text: &str, total_ram: u64) -> Result<u64, SizeError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SizeError::Empty);
    }
    if text.eq_ignore_ascii_case("max") {
        return Ok(total_ram);
    }
    if text.starts_with('-') {
        return Err(SizeError::Negative);
    }
    let number_len = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = text.split_at(number_len);
    let number = Decimal::parse(number)?;
    let unit = unit.trim_start();
    if unit == "%" {
        let in_range = number.whole < 100 || (number.whole == 100 && number.fraction == 0);
        return if in_range {
            number.times(u128::from(total_ram), 100)
        } else {
            Err(SizeError::PercentTooLarge)
        };
    }
    match multiplier(unit)? {
        1 if number.fraction != 0 => Err(SizeError::FractionOfByte),
        factor => number.times(factor, 1),
    }
}

/// A decimal number without loss: `whole + fraction / scale`.
struct Decimal {
    whole: u128,
    fraction: u128,
    scale: u128,
}

impl Decimal {
    fn parse(text: &str) -> Result<Decimal, SizeError> {
        let (whole, fraction) = match text.split_once('.') {
            Some((_, "")) => return Err(SizeError::NotANumber),
            Some((whole, fraction)) => (if whole.is_empty() { "0" } else { whole }, fraction),
            None => (text, ""),
        };
        if whole.is_empty() || fraction.contains('.') {
            return Err(SizeError::NotANumber);
        }
        let mut value = Decimal { whole: 0, fraction: 0, scale: 1 };
        for digit in whole.bytes().map(|b| u128::from(b - b'0')) {
            value.whole = value.whole * 10 + digit;
            if value.whole > u128::from(u64::MAX) {
                return Err(SizeError::Overflow);
            }
        }
        for digit in fraction.bytes().take(FRACTION_DIGITS_MAX).map(|b| u128::from(b - b'0')) {
            value.fraction = value.fraction * 10 + digit;
            value.scale *= 10;
        }
        Ok(value)
    }

    /// `self * factor / divisor`, rounded down. Cannot overflow: whole and factor are below 2^64, fraction
    /// and scale below 2^60.
    fn times(&self, factor: u128, divisor: u128) -> Result<u64, SizeError> {
        let scaled = self.whole.checked_mul(factor).ok_or(SizeError::Overflow)?;
        let part = self.fraction.checked_mul(factor).ok_or(SizeError::Overflow)? / self.scale;
        let sum = scaled.checked_add(part).ok_or(SizeError::Overflow)?;
        u64::try_from(sum / divisor).map_err(|_| SizeError::Overflow)
    }
}

fn multiplier(unit: &str) -> Result<u128, SizeError> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Ok(1);
    }
    let mut rest = unit.chars();
    let letter = rest.next().unwrap_or_default();
    let power = "KMGTPE".find(letter).ok_or(if letter.is_ascii_digit() || letter == '%' {
        SizeError::NotANumber
    } else {
        SizeError::UnknownUnit
    })? as u32
        + 1;
    match rest.as_str() {
        "" | "IB" => Ok(1024_u128.pow(power)),
        "B" => Ok(1000_u128.pow(power)),
        _ => Err(SizeError::UnknownUnit),
    }
}

/// A size for people: the largest unit that leaves at least 1, at most two decimals (`1.5 GiB`).
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 1)) != 0 {
        unit += 1;
    }
    let value = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    let text = format!("{value:.2}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {}", UNITS[unit])
}

/// The bytes that a text stands for; `total_ram` (what `%` and `max` refer to) is asked only when it is
/// needed.
pub fn size_of(text: &str, total_ram: &impl Fn() -> u64) -> Result<u64, String> {
    // Asking for the machine's RAM reads files; most sizes do not need it.
    let relative = text.contains('%') || text.trim().eq_ignore_ascii_case("max");
    let total = if relative { total_ram() } else { 0 };
    parse_size(text, total).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM: u64 = 24_000_000_000;

    #[track_caller]
    fn ok(text: &str, bytes: u64) {
        assert_eq!(parse_size(text, RAM), Ok(bytes), "{text}");
    }

    #[track_caller]
    fn refused(text: &str, error: SizeError) {
        assert_eq!(parse_size(text, RAM), Err(error), "{text}");
    }

    #[test]
    fn letters_and_ib_count_in_1024s() {
        ok("1K", 1024);
        ok("1KiB", 1024);
        ok("2G", 2_147_483_648);
        ok("2GiB", 2_147_483_648);
        ok("3M", 3 << 20);
        ok("1T", 1 << 40);
        ok("1P", 1 << 50);
        ok("15E", 15 << 60);
    }

    #[test]
    fn letters_with_b_count_in_1000s() {
        ok("1KB", 1000);
        ok("2GB", 2_000_000_000);
        ok("1.5MB", 1_500_000);
        ok("18EB", 18_000_000_000_000_000_000);
    }

    #[test]
    fn case_and_surrounding_blanks_do_not_matter() {
        ok("2g", 2 << 30);
        ok("2gib", 2 << 30);
        ok("2Gb", 2_000_000_000);
        ok(" 64 MiB\n", 64 << 20);
        ok("MAX", RAM);
    }

    #[test]
    fn bare_numbers_are_bytes() {
        ok("0", 0);
        ok("4096", 4096);
        ok("12B", 12);
        ok("18446744073709551615", u64::MAX);
    }

    #[test]
    fn decimals_are_exact_and_rounded_down() {
        ok("1.5G", 1_610_612_736);
        ok(".5K", 512);
        ok("0.1K", 102);
        ok("1.0000000000000000000000000001K", 1024);
        ok("1.0", 1);
    }

    #[test]
    fn percent_and_max_refer_to_the_given_ram() {
        ok("max", RAM);
        ok("50%", RAM / 2);
        ok("100%", RAM);
        ok("12.5%", RAM / 8);
        ok("0%", 0);
        assert_eq!(parse_size("100%", u64::MAX), Ok(u64::MAX));
        refused("101%", SizeError::PercentTooLarge);
        refused("100.1%", SizeError::PercentTooLarge);
    }

    #[test]
    fn nothing_and_blanks_are_empty() {
        refused("", SizeError::Empty);
        refused(" \t", SizeError::Empty);
    }

    #[test]
    fn negative_sizes_are_refused_as_such() {
        refused("-1", SizeError::Negative);
        refused("-2G", SizeError::Negative);
        refused("-5%", SizeError::Negative);
    }

    #[test]
    fn what_is_not_a_number_is_refused() {
        for text in
            ["nan", "inf", "infinity", "G", "%", ".", "1..5G", "1.2.3", "5.G", "+1G", "0x10", "abc", "max%"]
        {
            let error = parse_size(text, RAM).unwrap_err();
            assert!(matches!(error, SizeError::NotANumber | SizeError::UnknownUnit), "{text}: {error:?}");
        }
    }

    #[test]
    fn unknown_units_are_refused() {
        for text in ["1X", "1KX", "1GiBs", "1iB", "1GG", "1e3", "1BK", "2 G B"] {
            let error = parse_size(text, RAM).unwrap_err();
            assert!(matches!(error, SizeError::UnknownUnit), "{text}: {error:?}");
        }
    }

    #[test]
    fn fractions_of_a_byte_are_refused() {
        refused("1.5", SizeError::FractionOfByte);
        refused("0.5B", SizeError::FractionOfByte);
    }

    #[test]
    fn what_exceeds_64_bits_is_refused() {
        refused("16E", SizeError::Overflow);
        refused("18446744073709551616", SizeError::Overflow);
        refused("99999999999999999999999999999999999999999999G", SizeError::Overflow);
        refused("18446744073709551615.9E", SizeError::Overflow);
    }

    #[test]
    fn every_refusal_has_a_message_of_its_own() {
        let all = [
            SizeError::Empty,
            SizeError::Negative,
            SizeError::NotANumber,
            SizeError::UnknownUnit,
            SizeError::FractionOfByte,
            SizeError::PercentTooLarge,
            SizeError::Overflow,
        ];
        let texts: std::collections::BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), all.len());
    }

    #[test]
    fn sizes_for_people_keep_two_decimals_at_most() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(1023), "1023 B");
        assert_eq!(format_size(1024), "1 KiB");
        assert_eq!(format_size(100 << 30), "100 GiB");
        assert_eq!(format_size(1_610_612_736), "1.5 GiB");
        assert_eq!(format_size(u64::MAX), "16 EiB");
    }
}
