//! A progress line on standard error: redrawn in place on a terminal, silent elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Shortest time between two redraws.
const REDRAW: Duration = Duration::from_millis(100);
const BAR_CELLS: usize = 30;

/// One bar. Dropping it clears the line.
pub struct Progress {
    label: String,
    total: u64,
    done: u64,
    first: u64,
    start: Instant,
    drawn: Option<Instant>,
    live: bool,
}

impl Progress {
    /// A bar over `total` bytes of which `done` are there already; draws nothing when `quiet` or not on a terminal.
    pub fn new(label: impl Into<String>, total: u64, done: u64, quiet: bool) -> Self {
        let live = !quiet && std::io::stderr().is_terminal();
        Self {
            label: label.into(),
            total,
            done,
            first: done,
            start: Instant::now(),
            drawn: None,
            live,
        }
    }

    /// Counts `bytes` more.
    pub fn add(&mut self, bytes: u64) {
        self.set(self.done + bytes);
    }

    /// Sets the count.
    pub fn set(&mut self, done: u64) {
        self.done = done;
        if self.live && self.drawn.is_none_or(|at| at.elapsed() >= REDRAW) {
            self.draw();
        }
    }

    fn draw(&mut self) {
        self.drawn = Some(Instant::now());
        let line = render(
            &self.label,
            self.done,
            self.total,
            self.done - self.first,
            self.start.elapsed(),
        );
        let mut err = std::io::stderr().lock();
        // A terminal that went away must not stop the work.
        let _ = write!(err, "\r\x1b[K{line}").and_then(|()| err.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.live && self.drawn.is_some() {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn render(label: &str, done: u64, total: u64, moved: u64, elapsed: Duration) -> String {
    let share = if total == 0 {
        1.0
    } else {
        (done as f64 / total as f64).min(1.0)
    };
    let cells = (share * BAR_CELLS as f64) as usize;
    let rate = moved as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = if rate > 0.0 {
        (total.saturating_sub(done)) as f64 / rate
    } else {
        0.0
    };
    format!(
        "{label} [{}{}] {:3.0}% {}/{} {}/s {:.0}s",
        "#".repeat(cells),
        "-".repeat(BAR_CELLS - cells),
        share * 100.0,
        bytes(done),
        bytes(total),
        bytes(rate as u64),
        left
    )
}

/// A count of bytes for people, in binary units.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_at_their_borders() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (98_362_432, "93.8 MiB"),
            (1 << 40, "1.0 TiB"),
            (u64::MAX, "16777216.0 TiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text, "{count}");
        }
    }

    #[test]
    fn a_bar_stays_in_its_cells() {
        for (done, total) in [(0, 0), (0, 10), (10, 10), (11, 10)] {
            let line = render("x", done, total, done, Duration::ZERO);
            let cells = line.chars().filter(|c| matches!(c, '#' | '-')).count();
            assert_eq!(cells, BAR_CELLS, "{line}");
        }
    }
}
