//! A chart of a report: one bar a row, tokens a second, in an SVG of its own.

use super::report::Report;

const WIDTH: usize = 720;
const LEFT: usize = 130;
const ROW: usize = 34;
const TOP: usize = 56;

/// The chart.
pub fn svg(report: &Report) -> String {
    let height = TOP + ROW * report.rows.len() + 24;
    let most = report.rows.iter().map(|row| row.rate.most).fold(1e-9, f64::max);
    let room = (WIDTH - LEFT - 150) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"600\">{}</text>\n\
         <text x=\"16\" y=\"43\" fill=\"#666\">{}, {} threads, tokens a second</text>\n",
        escape(&report.model),
        escape(&report.processor),
        report.threads
    );
    for (index, row) in report.rows.iter().enumerate() {
        let y = TOP + ROW * index;
        let length = (row.rate.median / most * room).max(1.0);
        let text = y + 20;
        let colour = if row.bytes_per_second > 0.0 {
            "#2a7de1"
        } else {
            "#e17a2a"
        };
        let share = if row.bytes_per_second > 0.0 {
            format!(
                " ({:.0} % of bandwidth)",
                row.bytes_per_second / report.bandwidth * 100.0
            )
        } else {
            String::new()
        };
        let low = LEFT as f64 + row.rate.least / most * room;
        let high = LEFT as f64 + row.rate.most / most * room;
        out.push_str(&format!(
            "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{}\" width=\"{length:.1}\" height=\"20\" rx=\"3\" fill=\"{colour}\"/>\n\
             <line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#222\" stroke-width=\"2\"/>\n\
             <text x=\"{:.1}\" y=\"{text}\">{:.1}{share}</text>\n",
            LEFT - 10,
            escape(&row.test),
            y + 5,
            y + 15,
            y + 15,
            LEFT as f64 + length + 8.0,
            row.rate.median
        ));
    }
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
