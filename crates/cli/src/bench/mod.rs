//! Measuring: the machine's memory, prefill and decode, and the report.

mod bandwidth;
mod chart;
mod report;
mod run;

pub use bandwidth::read_bandwidth;
pub use chart::svg;
pub use report::{Report, Row, Spread};
pub use run::{Plan, measure};
