//! `strftime_now` for templates, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// The time now, in the form that `format` asks for; an unknown directive is printed as it stands, as the C library does.
pub(super) fn strftime_now(format: &str) -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    strftime(format, seconds)
}

/// Year, month (1 to 12), day of the month and day of the year (from 1) of a day counted from 1970-01-01.
fn civil(days: u64) -> (u64, usize, u64, u64) {
    let leap = |y: u64| (y.is_multiple_of(4) && !y.is_multiple_of(100)) || y.is_multiple_of(400);
    // Whole cycles of 400 years are skipped at once.
    let mut year = 1970 + 400 * (days / 146_097);
    let mut rest = days % 146_097;
    while rest >= 365 + u64::from(leap(year)) {
        rest -= 365 + u64::from(leap(year));
        year += 1;
    }
    let of_year = rest + 1;
    let lengths = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 0;
    while rest >= lengths[month] {
        rest -= lengths[month];
        month += 1;
    }
    (year, month + 1, rest + 1, of_year)
}

fn strftime(format: &str, seconds: u64) -> String {
    let (year, month, day, of_year) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[(seconds / 86_400 % 7) as usize]);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // "-" drops the leading zero.
        let bare = chars.next_if_eq(&'-').is_some();
        let number = |value: u64, width: usize| {
            if bare {
                value.to_string()
            } else {
                format!("{value:0width$}")
            }
        };
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&number(year % 100, 2)),
            Some('m') => out.push_str(&number(month as u64, 2)),
            Some('d') => out.push_str(&number(day, 2)),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('j') => out.push_str(&number(of_year, 3)),
            Some('H') => out.push_str(&number(hour, 2)),
            Some('I') => out.push_str(&number(hour12, 2)),
            Some('M') => out.push_str(&number(minute, 2)),
            Some('S') => out.push_str(&number(second, 2)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_days() {
        let cases = [
            (0, "%Y-%m-%d %a %j", "1970-01-01 Thu 001"),
            (951_782_400, "%d %b %Y", "29 Feb 2000"),
            (1_709_164_800, "%-d %B %Y, %A", "29 February 2024, Thursday"),
            (
                1_767_225_599,
                "%F %T %p %I %y %j",
                "2025-12-31 23:59:59 PM 11 25 365",
            ),
            (4_102_444_800, "%e %q %% %", " 1 %q % %"),
        ];
        for (seconds, format, want) in cases {
            assert_eq!(strftime(format, seconds), want, "{seconds} {format}");
        }
    }
}
