//! Sizes in bytes and times, as people write and read them.

use std::time::Duration;

use tensora::text::ByteSize;

/// `4GiB`, `1.5 MB`, `4096`: a number of bytes with a binary (KiB) or decimal (KB) unit, in
/// upper or lower case. Nothing that takes a size makes sense of none, so it is at least one byte.
pub fn parse(text: &str) -> Result<u64, String> {
    match any(text)? {
        0 => Err(format!("{text:?} is not at least one byte")),
        bytes => Ok(bytes),
    }
}

fn any(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write it like 4GiB, 512MiB, 2GB or 4096");
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let factor: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        "e" | "eib" => 1 << 60,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        "eb" => 1_000_000_000_000_000_000,
        _ => return Err(wrong()),
    };
    let too_large = || format!("{text} is more than 2^64 bytes");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(too_large);
    }
    // Digits alone that do not parse are too many of them.
    if !number.is_empty() && !number.contains('.') {
        return Err(too_large());
    }
    let fraction: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = fraction * factor as f64;
    if bytes >= u64::MAX as f64 {
        return Err(too_large());
    }
    Ok(bytes.round() as u64)
}

/// Bytes in the unit that leaves one to four digits before the point.
pub fn bytes(count: u64) -> String {
    ByteSize(count).to_string()
}

/// Milliseconds, in milliseconds or seconds.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 1000.0 => format!("{ms:.1} ms"),
        ms => format!("{:.2} s", ms / 1000.0),
    }
}

/// A duration as a number of milliseconds.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// GiB per second; 0 where nothing took any time.
pub fn gib_per_s(bytes: u64, ms: f64) -> f64 {
    if ms <= 0.0 {
        return 0.0;
    }
    bytes as f64 / f64::from(1 << 30) / (ms / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_unit() {
        for (text, bytes) in [
            ("4096", 4096),
            ("12B", 12),
            ("4KiB", 4096),
            ("4k", 4096),
            ("256MiB", 256 << 20),
            ("1.5 GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("3kb", 3000),
            ("1TiB", 1 << 40),
            ("1PiB", 1 << 50),
            ("2eib", 2 << 60),
            ("3PB", 3_000_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "0GiB",
            "0.1",
            "16EiB",
            "GiB",
            "-1",
            "1e3",
            "4 XB",
            "1.2.3MB",
            ".",
            "20000000TiB",
            "99999999999999999999",
            "0x10",
            "1_000",
            "∞",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_round_trip_and_times_are_short() {
        // What is printed can be typed.
        for count in [1, 1023, 256 << 20, 3 << 29, 1 << 50, 3 << 60] {
            assert_eq!(parse(&bytes(count)), Ok(count));
        }
        assert_eq!(milliseconds(0.123), "0.12 ms");
        assert_eq!(milliseconds(123.44), "123.4 ms");
        assert_eq!(milliseconds(12_345.0), "12.35 s");
        assert_eq!(gib_per_s(1 << 30, 500.0), 2.0);
        assert_eq!(gib_per_s(5, 0.0), 0.0);
    }
}
