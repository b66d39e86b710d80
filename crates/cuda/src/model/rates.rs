//! The rates of a GPU that the model needs, each with its source.

use super::Pass;

/// A GPU as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// Name.
    pub name: &'static str,
    /// Multiprocessors.
    pub sms: u32,
    /// Clock under load, GHz.
    pub clock_ghz: f64,
    /// Bytes that a plain read loop gets from memory, GB/s.
    pub read_gbs: f64,
    /// Bytes from the second-level cache, GB/s.
    pub l2_gbs: f64,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_bytes: u32,
    /// Cycles of a quarter's tensor core for one step of HMMA.884.
    pub volta_step_cycles: f64,
    /// The same for one HMMA.16816.
    pub tensor_cycles: f64,
    /// Cycles that a warp's pair-of-halves instruction takes its pipe.
    pub half_cycles: f64,
}

/// Tesla V100, PCIe.
///
/// 80 multiprocessors and 1.38 GHz by the data sheet (SXM2 boards run at up to 1.53); 850 GB/s as users measured by read loops
/// (849 to 853; 879 on SXM2); second-level cache 2,155 GB/s and pipes of sixteen lanes ("Dissecting the NVIDIA Volta GPU
/// Architecture via Microbenchmarking", Jia et al., 2018); 8.38 cycles for the four steps of one m8n8k4 when four chains
/// alternate (published measurement at 1.53 GHz).
pub const V100: Gpu = Gpu {
    name: "V100",
    sms: 80,
    clock_ghz: 1.38,
    read_gbs: 850.0,
    l2_gbs: 2155.0,
    shared_bytes: 96 << 10,
    volta_step_cycles: 8.38 / 4.0,
    tensor_cycles: f64::INFINITY,
    half_cycles: 2.0,
};

/// H200: 132 multiprocessors; 1.98 GHz seen under load; read bandwidth by our own read loop in the run of `h200.tsv`; the
/// second-level cache's rate is an estimate.
pub const H200: Gpu = Gpu {
    name: "H200",
    sms: 132,
    clock_ghz: 1.98,
    read_gbs: 4646.0,
    l2_gbs: 5500.0,
    shared_bytes: 227 << 10,
    volta_step_cycles: f64::INFINITY,
    tensor_cycles: 4.0,
    half_cycles: 1.0,
};

impl Gpu {
    /// Cycles of one quarter of a multiprocessor for one warp's pass: of its busiest pipe, or of its issue slots.
    pub fn cycles(&self, pass: &Pass) -> f64 {
        let times = |count: u32, cycles: f64| {
            if count == 0 {
                0.0
            } else {
                f64::from(count) * cycles
            }
        };
        [
            f64::from(pass.issued),
            2.0 * f64::from(pass.int),
            2.0 * f64::from(pass.fma),
            self.half_cycles * f64::from(pass.half),
            times(pass.volta_steps, self.volta_step_cycles) + times(pass.tensor, self.tensor_cycles),
        ]
        .into_iter()
        .fold(0.0, f64::max)
    }
}
