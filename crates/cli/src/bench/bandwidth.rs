//! How fast this machine reads memory: the yardstick of decoding, which reads every weight once a step.

use std::sync::Barrier;
use std::time::Instant;

/// Bytes each thread reads; far beyond any cache.
const THREAD_BYTES: usize = 256 << 20;
const PASSES: usize = 4;

/// Bytes a second that `threads` threads read together, the best of a few passes.
pub fn read_bandwidth(threads: usize) -> f64 {
    let buffers: Vec<Vec<u64>> = (0..threads)
        .map(|t| vec![t as u64 + 1; THREAD_BYTES / 8])
        .collect();
    let barrier = Barrier::new(threads);
    let mut times = vec![Vec::new(); threads];
    std::thread::scope(|scope| {
        for (buffer, times) in buffers.iter().zip(&mut times) {
            let barrier = &barrier;
            scope.spawn(move || {
                for _ in 0..PASSES {
                    barrier.wait();
                    let start = Instant::now();
                    std::hint::black_box(sum(buffer));
                    times.push(start.elapsed().as_secs_f64());
                }
            });
        }
    });
    let slowest = |pass: usize| times.iter().map(|t| t[pass]).fold(0.0, f64::max);
    let best = (0..PASSES).map(slowest).fold(f64::INFINITY, f64::min);
    (threads * THREAD_BYTES) as f64 / best
}

/// Sixteen independent sums keep enough loads in flight.
fn sum(buffer: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    for chunk in buffer.chunks_exact(16) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
