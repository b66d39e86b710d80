//! The kernel pack: compiling rows, the file they are kept in, and what their machine code shows.

pub mod build;
pub mod cubin;
pub mod facts;
pub mod file;
pub mod find;
pub mod hash;
pub mod nvrtc;
pub mod occupancy;
pub mod ptx;
pub mod report;
pub mod sass;
