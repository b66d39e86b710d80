//! Flags: what can be typed ([`Low`]), what other programs call it ([`foreign`]), and where values come from
//! ([`layers`]: command line, environment, file, default).

pub mod foreign;
pub mod layers;
mod low;

pub use layers::{Layered, Origin};
pub use low::*;
