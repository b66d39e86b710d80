//! What plans and rows need to know of a packed format.

/// A packed format as the device code sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearFormat {
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
    /// Roundings to f16 that a weight has, beyond its exact value.
    pub roundings: u32,
}

/// All of them.
pub const FORMATS: &[LinearFormat] = &[LinearFormat {
    name: "nvfp4",
    device_type: "Nvfp4",
    header: "quant/nvfp4.cuh",
    piece: 64,
    stripe: 64,
    stripe_bytes: 1152,
    k_multiple: 16,
    roundings: 0,
}];

impl LinearFormat {
    /// Bytes of a tile of 32 columns.
    pub fn tile_bytes(&self, k: u32) -> usize {
        k.div_ceil(self.stripe) as usize * self.stripe_bytes as usize
    }

    /// Bytes of a whole matrix of `n` columns.
    pub fn weight_bytes(&self, n: u32, k: u32) -> usize {
        n.div_ceil(32) as usize * self.tile_bytes(k)
    }
}
