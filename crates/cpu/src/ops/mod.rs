//! Everything but products: kernels written once over [`crate::lanes::Lanes`].

pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod route;
pub(crate) mod rows;
pub(crate) mod tile;

#[cfg(test)]
mod tests;
