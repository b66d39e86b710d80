//! Rotary position embedding (Su et al., 2021): what a graph has to say about it.
//!
//! The canonical pairing is (i, i + dims/2). Checkpoints that store interleaved pairs are permuted at load, so a graph
//! never asks the source.

/// Index of a [`RopeSpec`] in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeId(pub u32);

/// Frequencies of one rotary embedding. Frequency i of `dims / 2` is `theta^(-2 i / dims)`, then scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Rotated dimensions of a head, counted from its start; even.
    pub dims: usize,
    /// Base.
    pub theta: f32,
    /// Change of the frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// Published changes of rotary frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// Positions divided by `factor` (Chen et al., 2023).
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3.1's piecewise rule: long waves divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// Divisor of the long waves.
        factor: f32,
        /// Waves longer than `original_context / low` are divided.
        low_frequency_factor: f32,
        /// Waves shorter than `original_context / high` are kept.
        high_frequency_factor: f32,
        /// Context length of the first training, tokens.
        original_context: usize,
    },
    /// One divisor for each frequency, as GGUF's `rope_freqs.weight` has it.
    Divisors(Vec<f32>),
    /// YaRN (Peng et al., 2023). `attention_factor` multiplies both cosine and sine.
    Yarn {
        /// Divisor of the long waves.
        factor: f32,
        /// Context length of the first training, tokens.
        original_context: usize,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f32,
        /// Rotations under which a frequency is divided.
        beta_slow: f32,
        /// Multiplier of cosine and sine.
        attention_factor: f32,
    },
}

impl RopeSpec {
    /// The `dims / 2` angular frequencies, radians a position, after scaling.
    pub fn frequencies(&self) -> Vec<f32> {
        let half = self.dims / 2;
        let base = |i: usize| f64::from(self.theta).powf(-2.0 * i as f64 / self.dims as f64);
        (0..half)
            .map(|i| self.scale_frequency(i, base(i)) as f32)
            .collect()
    }

    /// Multiplier of cosine and sine.
    pub fn magnitude(&self) -> f32 {
        match &self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => *attention_factor,
            RopeScaling::None
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Divisors(_) => 1.0,
        }
    }

    fn scale_frequency(&self, i: usize, frequency: f64) -> f64 {
        match &self.scaling {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / f64::from(*factor),
            RopeScaling::Divisors(divisors) => frequency / f64::from(divisors[i]),
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor,
                high_frequency_factor,
                original_context,
            } => {
                let (low, high) = (
                    f64::from(*low_frequency_factor),
                    f64::from(*high_frequency_factor),
                );
                let waves = *original_context as f64 * frequency / std::f64::consts::TAU;
                let divided = frequency / f64::from(*factor);
                let ramp = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                divided + ramp * (frequency - divided)
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                ..
            } => {
                let dims = self.dims as f64;
                let border = |rotations: f32| {
                    dims * (*original_context as f64 / (f64::from(rotations) * std::f64::consts::TAU)).ln()
                        / (2.0 * f64::from(self.theta).ln())
                };
                let low = border(*beta_fast).floor().clamp(0.0, dims - 1.0);
                let high = border(*beta_slow).ceil().clamp(0.0, dims - 1.0);
                let width = if high > low { high - low } else { 0.001 };
                let ramp = ((i as f64 - low) / width).clamp(0.0, 1.0);
                frequency / f64::from(*factor) * ramp + frequency * (1.0 - ramp)
            }
        }
    }
}
