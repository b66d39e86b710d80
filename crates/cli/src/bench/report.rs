//! The report: aligned columns, Markdown or JSON. Rows are named as llama-bench names them, so that figures can be laid
//! side by side.

use serde_json::{Value, json};

/// Middle and width of a few measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub least: f64,
    /// Largest.
    pub most: f64,
}

/// Rows wider than this are marked.
const NOISY: f64 = 0.03;

impl Spread {
    /// Of at least one measurement.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => 0.0,
            even if even % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        let least = sorted.first().copied().unwrap_or(0.0);
        let most = sorted.last().copied().unwrap_or(0.0);
        Self { median, least, most }
    }

    /// Half of the range over the median.
    pub fn relative(&self) -> f64 {
        if self.median > 0.0 {
            (self.most - self.least) / 2.0 / self.median
        } else {
            0.0
        }
    }
}

/// One measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// `pp512`, `tg128`, `tg128 x8`.
    pub test: String,
    /// Tokens a second, all streams together.
    pub rate: Spread,
    /// Billions of operations a second, two for each weight and token.
    pub gops: f64,
    /// Bytes of weights, keys and values read a second; 0 where compute is what counts.
    pub bytes_per_second: f64,
}

/// All of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// Formats of its weights.
    pub formats: String,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Parameters.
    pub parameters: u64,
    /// Threads.
    pub threads: usize,
    /// The backend's words.
    pub backend: String,
    /// Processor.
    pub processor: String,
    /// Bytes a second that this machine reads with as many threads.
    pub bandwidth: f64,
    /// Highest resident size of the process, bytes; 0 where unknown.
    pub peak_bytes: u64,
    /// Measurements.
    pub rows: Vec<Row>,
}

impl Report {
    const HEAD: [&'static str; 6] = ["test", "tok/s", "+-", "GOP/s", "GB/s", "of bandwidth"];

    fn cells(&self) -> Vec<[String; 6]> {
        let cell = |row: &Row| {
            let wide = if row.rate.relative() > NOISY { " noisy" } else { "" };
            let (gbs, share) = if row.bytes_per_second > 0.0 {
                let share = row.bytes_per_second / self.bandwidth * 100.0;
                (
                    format!("{:.1}", row.bytes_per_second / 1e9),
                    format!("{share:.0} %"),
                )
            } else {
                (String::new(), String::new())
            };
            [
                row.test.clone(),
                format!("{:.1}", row.rate.median),
                format!("{:.1} %{wide}", row.rate.relative() * 100.0),
                format!("{:.0}", row.gops),
                gbs,
                share,
            ]
        };
        self.rows.iter().map(cell).collect()
    }

    fn head_lines(&self) -> [String; 2] {
        [
            format!(
                "{}: {:.1} M parameters, {:.1} MiB ({})",
                self.model,
                self.parameters as f64 / 1e6,
                self.weight_bytes as f64 / f64::from(1 << 20),
                self.formats
            ),
            format!(
                "{}, {} threads, reads {:.1} GB/s; {}; peak memory {:.0} MiB",
                self.processor,
                self.threads,
                self.bandwidth / 1e9,
                self.backend,
                self.peak_bytes as f64 / f64::from(1 << 20)
            ),
        ]
    }

    /// Aligned columns.
    pub fn table(&self) -> String {
        let cells = self.cells();
        let width = |column: usize| {
            let longest = cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
            longest.max(Self::HEAD[column].len())
        };
        let widths: Vec<usize> = (0..6).map(width).collect();
        let line = |row: &[String; 6]| {
            let parts: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:>width$}"))
                .collect();
            parts.join("  ")
        };
        let head = line(&Self::HEAD.map(str::to_owned));
        let mut out = self.head_lines().join("\n");
        out.push_str(&format!("\n\n{head}\n"));
        for row in &cells {
            out.push_str(&line(row));
            out.push('\n');
        }
        out
    }

    /// A Markdown table.
    pub fn markdown(&self) -> String {
        let mut out = format!(
            "{}\n\n| {} |\n|---|---|---|---|---|---|\n",
            self.head_lines().join("  \n"),
            Self::HEAD.join(" | ")
        );
        for row in self.cells() {
            out.push_str(&format!("| {} |\n", row.join(" | ")));
        }
        out
    }

    /// One JSON document.
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "test": row.test,
                "tokens_per_second": row.rate.median,
                "least": row.rate.least,
                "most": row.rate.most,
                "noisy": row.rate.relative() > NOISY,
                "gop_per_second": row.gops,
                "bytes_per_second": row.bytes_per_second,
                "bandwidth_share": if row.bytes_per_second > 0.0 { Some(row.bytes_per_second / self.bandwidth) } else { None },
            })
        };
        json!({
            "model": self.model,
            "formats": self.formats,
            "weight_bytes": self.weight_bytes,
            "parameters": self.parameters,
            "threads": self.threads,
            "backend": self.backend,
            "processor": self.processor,
            "bandwidth_bytes_per_second": self.bandwidth,
            "peak_bytes": self.peak_bytes,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        for (values, median, relative) in [
            (&[3.0][..], 3.0, 0.0),
            (&[1.0, 3.0], 2.0, 0.5),
            (&[9.0, 1.0, 2.0], 2.0, 2.0),
            (&[], 0.0, 0.0),
        ] {
            let spread = Spread::of(values);
            assert_eq!(
                (spread.median, spread.relative()),
                (median, relative),
                "{values:?}"
            );
        }
    }

    fn report() -> Report {
        let row = |test: &str, rate: &[f64], bytes_per_second| Row {
            test: test.into(),
            rate: Spread::of(rate),
            gops: 1.0,
            bytes_per_second,
        };
        Report {
            model: "m".into(),
            formats: "Q4_0".into(),
            weight_bytes: 1 << 20,
            parameters: 1_000_000,
            threads: 2,
            backend: "b".into(),
            processor: "p".into(),
            bandwidth: 2e9,
            peak_bytes: 0,
            rows: vec![
                row("pp512", &[100.0, 100.0], 0.0),
                row("tg128", &[10.0, 20.0], 1e9),
            ],
        }
    }

    #[test]
    fn every_form_has_every_row() {
        let report = report();
        let table = report.table();
        assert!(table.contains("50 %") && table.contains("noisy"), "{table}");
        let markdown = report.markdown();
        assert_eq!(
            markdown.lines().filter(|l| l.starts_with('|')).count(),
            4,
            "{markdown}"
        );
        let json = report.json();
        assert_eq!(json["rows"][1]["bandwidth_share"], 0.5);
        assert_eq!(json["rows"][0]["bandwidth_share"], Value::Null);
        let svg = super::super::svg(&report);
        assert!(
            svg.starts_with("<svg") && svg.contains("tg128") && svg.trim_end().ends_with("</svg>"),
            "{svg}"
        );
    }
}
