//! What plans and rows need to know of a packed format: `layout`'s table in the kernels' numbers.

use crate::layout::{self, FormatRow, PackedFormat};

/// A packed format as the device code sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearFormat {
    /// The form.
    pub packed: PackedFormat,
    /// As in symbols: `nvfp4`.
    pub name: &'static str,
    /// The device struct.
    pub device_type: &'static str,
    /// The header that defines it, below `device/`.
    pub header: &'static str,
    /// Numbers of k that a warp takes at once: 64 or 128.
    pub piece: u32,
    /// Numbers of k in a stripe, to whose multiple k is padded.
    pub stripe: u32,
    /// Bytes of a stripe of 32 columns.
    pub stripe_bytes: u32,
    /// k is a multiple of this in whatever the weights come from.
    pub k_multiple: u32,
}

/// All of them.
pub const FORMATS: &[LinearFormat] = &{
    let mut all = [LinearFormat::of(&layout::FORMATS[0]); layout::FORMATS.len()];
    let mut index = 0;
    while index < all.len() {
        all[index] = LinearFormat::of(&layout::FORMATS[index]);
        index += 1;
    }
    all
};

/// The one of this name.
pub fn named(name: &str) -> Option<LinearFormat> {
    FORMATS.iter().find(|format| format.name == name).copied()
}

/// The same as a list.
pub fn formats() -> Vec<LinearFormat> {
    FORMATS.to_vec()
}

impl LinearFormat {
    /// From the layout's table.
    pub const fn of(row: &FormatRow) -> Self {
        Self {
            packed: row.format,
            name: row.name,
            device_type: row.type_name,
            header: row.header,
            // All below 65536.
            piece: row.piece as u32,
            stripe: row.stripe as u32,
            stripe_bytes: row.stripe_bytes() as u32,
            k_multiple: row.k_multiple as u32,
        }
    }

    /// Bytes of a tile of 32 columns.
    pub const fn tile_bytes(&self, k: u32) -> usize {
        k.div_ceil(self.stripe) as usize * self.stripe_bytes as usize
    }

    /// Bytes of a whole matrix of `n` columns.
    pub const fn weight_bytes(&self, n: u32, k: u32) -> usize {
        n.div_ceil(32) as usize * self.tile_bytes(k)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    #[test]
    fn sizes_are_the_layouts() {
        for format in FORMATS {
            for (n, stripes) in [(1, 1), (33, 2), (64, 7)] {
                let k = format.stripe * stripes;
                let layout = Layout::new(format.packed, n as usize, k as usize).unwrap();
                assert_eq!(format.tile_bytes(k), layout.tile_bytes(), "{}", format.name);
                assert_eq!(format.weight_bytes(n, k), layout.bytes(), "{}", format.name);
            }
        }
    }
}
