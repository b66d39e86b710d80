//! Random numbers that depend on the request's seed and the token's index alone, so that no schedule changes an answer.

/// A number in [0, 1) for the `index`-th token of the request with `seed`.
pub fn unit(seed: u64, index: u64) -> f64 {
    let bits = mix(seed ^ mix(index.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014) after one step of its counter.
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly_over_seeds_and_indices() {
        for fixed_seed in [true, false] {
            let mut counts = [0u32; 16];
            for i in 0..16_000 {
                let x = if fixed_seed { unit(7, i) } else { unit(i, 7) };
                assert!((0.0..1.0).contains(&x));
                counts[(x * 16.0) as usize] += 1;
            }
            // Expected 1000 each with a standard deviation of 31.
            assert!(
                counts.iter().all(|count| count.abs_diff(1000) < 160),
                "{counts:?}"
            );
        }
    }
}
