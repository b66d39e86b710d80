//! Models by name: the hub's cache on disk, its HTTP interface, downloads, and the default model.

pub mod api;
pub mod cache;
pub mod default_model;
pub mod fetch;
pub mod name;
mod resolve;
pub mod select;

pub use cache::Cache;
pub use name::{ModelName, RepoName};
pub use resolve::{Store, resolve};
