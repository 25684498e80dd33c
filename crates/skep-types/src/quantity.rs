//! Sizes and durations as people type them: a unit is required, zero is refused.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Why a size or duration was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a number with one of the units.
    #[error("`{text}` is not a {what}: a number with a unit is expected, such as {example}")]
    Malformed {
        /// What was typed.
        text: String,
        /// `size` or `duration`.
        what: &'static str,
        /// A good one.
        example: &'static str,
    },
    /// Zero is never a limit.
    #[error("`{0}` is zero; a limit must be greater than zero")]
    Zero(String),
    /// Larger than can be counted.
    #[error("`{0}` is too large to be a limit")]
    TooLarge(String),
}

/// A number of bytes greater than zero: `512M`, `2G`, `64K`, `100B`, `1T` (powers of 1024).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("K", 1 << 10),
    ("KB", 1 << 10),
    ("KIB", 1 << 10),
    ("M", 1 << 20),
    ("MB", 1 << 20),
    ("MIB", 1 << 20),
    ("G", 1 << 30),
    ("GB", 1 << 30),
    ("GIB", 1 << 30),
    ("T", 1 << 40),
    ("TB", 1 << 40),
    ("TIB", 1 << 40),
    // Nobody has as much; whoever types it is told that it is too much, not that it is no size.
    ("P", 1 << 50),
    ("PB", 1 << 50),
    ("PIB", 1 << 50),
    ("E", 1 << 60),
    ("EB", 1 << 60),
    ("EIB", 1 << 60),
];

impl FromStr for ByteSize {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let malformed =
            || QuantityError::Malformed { text: text.into(), what: "size", example: "512M or 2G" };
        // A bare zero is answered as what it is, not as a missing unit.
        if text == "0" {
            return Err(QuantityError::Zero(text.into()));
        }
        let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(malformed)?;
        let (digits, unit) = text.split_at(split);
        let unit = unit.to_ascii_uppercase();
        let (_, factor) =
            SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?;
        if digits.is_empty() {
            return Err(malformed());
        }
        let number: u64 = digits.parse().map_err(|_| QuantityError::TooLarge(text.into()))?;
        // The kernel counts file and memory sizes in signed 64 bits.
        match number.checked_mul(*factor).filter(|bytes| *bytes <= i64::MAX as u64) {
            Some(0) => Err(QuantityError::Zero(text.into())),
            Some(bytes) => Ok(Self(bytes)),
            None => Err(QuantityError::TooLarge(text.into())),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        if unit == "B" || value.fract() < 0.05 {
            write!(f, "{value:.0} {unit}")
        } else {
            write!(f, "{value:.1} {unit}")
        }
    }
}

/// Parses `500ms`, `30s`, `10m`, `4h`, `7d`; refuses zero and a missing unit.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    let malformed =
        || QuantityError::Malformed { text: text.into(), what: "duration", example: "30s or 10m" };
    if text == "0" {
        return Err(QuantityError::Zero(text.into()));
    }
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(malformed)?;
    let (digits, unit) = text.split_at(split);
    let factor: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(malformed()),
    };
    if digits.is_empty() {
        return Err(malformed());
    }
    let number: u64 = digits.parse().map_err(|_| QuantityError::TooLarge(text.into()))?;
    // A century is longer than any limit means, and far from where timers overflow.
    match number.checked_mul(factor).filter(|ms| *ms <= 36_525 * 86_400_000) {
        Some(0) => Err(QuantityError::Zero(text.into())),
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err(QuantityError::TooLarge(text.into())),
    }
}

impl ByteSize {
    /// As a settings file or an option takes it: `512M`, `2G`; exact.
    pub fn written(self) -> String {
        let units = [("T", 1_u64 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
        let fits =
            units.into_iter().find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor));
        let (unit, factor) = fits.unwrap_or(("B", 1));
        format!("{}{unit}", self.0 / factor)
    }
}

/// A duration as a settings file or an option takes it: `500ms`, `90s`, `4h`; exact to the millisecond.
pub fn written_duration(duration: Duration) -> String {
    let whole = duration.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let fits = units.into_iter().find(|(_, factor)| whole > 0 && whole.is_multiple_of(*factor));
    let (unit, factor) = fits.unwrap_or(("ms", 1));
    format!("{}{unit}", whole / factor)
}

/// A duration as people read it: `350 ms`, `2.4 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`.
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..=9 => format!("{:.1} s", duration.as_secs_f64()),
        10..=59 => format!("{seconds} s"),
        60..=3_599 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..=86_399 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["1B", "1023B", "3K", "512M", "1025M", "2G", "7T"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().written(), text);
        }
        for text in ["1ms", "1500ms", "90s", "7m", "4h", "25h", "14d"] {
            assert_eq!(written_duration(parse_duration(text).unwrap()), text);
        }
    }

    #[test]
    fn sizes() {
        assert_eq!("512M".parse::<ByteSize>().unwrap().0, 512 << 20);
        assert_eq!("2g".parse::<ByteSize>().unwrap().to_string(), "2 GiB");
        for bad in ["0", "0M", "5", "-1M", "1.5G", "", "M", "99999999999T", "9223372036854775808B"]
        {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(parse_duration("4h").unwrap(), Duration::from_secs(14_400));
        for bad in ["0", "0s", "5", "-1s", "s", "1y", "99999999999999999999s", "9999999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!(show_duration(Duration::from_millis(2_400)), "2.4 s");
    }
}
