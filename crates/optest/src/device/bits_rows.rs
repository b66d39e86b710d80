//! The rows beside the products, on two executors: unpacking for a library, what finishes its sums, and packing.

use galvani_cuda::ops::linear::divide::Device;
use galvani_cuda::ops::linear::{Product, Step};
use galvani_cuda::repack::device::{repack_on_device, scratch_bytes, symbol};

use super::Executor;
use super::check::Filled;
use super::random::{RandomWeight, kinds};
use crate::weights::Random;

type Failure = Box<dyn std::error::Error>;

/// What kernels wrote, with their names.
pub type Written = Vec<(String, Vec<u8>)>;

/// A case of the library's route, step by step: the rows of halves that it unpacks, and what becomes of sums. The library's own sums
/// have its own order, so random ones take their place, the same for each executor.
///
/// # Errors
/// The executor's.
pub fn library(filled: &Filled, on: &mut dyn Executor) -> Result<Written, Failure> {
    on.reset()?;
    let plan = filled.case.plan(Device::V100)?;
    let at = filled.place(on, &plan)?;
    let mut written = Written::new();
    let mut last = String::new();
    for step in plan.steps(&at)? {
        match step {
            Step::Kernel(launch) => {
                on.run(&launch)?;
                last = launch.symbol;
            }
            Step::Product(product) => {
                written.push((last.clone(), rows(on, &product)?));
                let mut random = Random(filled.case.seed << 8 | 0x77);
                let count = product.m as usize * product.n as usize;
                let sums: Vec<u8> = (0..count).flat_map(|_| random.normal().to_le_bytes()).collect();
                on.upload(&product.product, 0, &sums)?;
            }
        }
    }
    let mut out = vec![0; at.out.bytes()];
    on.download(&at.out, 0, &mut out)?;
    written.push((last, out));
    Ok(written)
}

fn rows(on: &mut dyn Executor, product: &Product) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; 2 * product.n as usize * product.row_stride as usize];
    on.download(&product.rows, 0, &mut bytes)?;
    Ok(bytes)
}

/// Shapes that packing is tried with: (columns, stripes of k), and tiles of the scratch.
const SHAPES: [(usize, usize, usize); 2] = [(70, 2, 3), (33, 1, 1)];

/// Packs a random weight of every kind in two shapes; the packed bytes and the factors of the columns.
///
/// # Errors
/// The executor's, or a kind that cannot be packed.
pub fn packing(on: &mut dyn Executor, seed: u64) -> Result<Written, Failure> {
    let mut written = Written::new();
    for (index, kind) in kinds().into_iter().enumerate() {
        for (n, stripes, tiles_at_once) in SHAPES {
            on.reset()?;
            let k = 256 * stripes;
            let source = RandomWeight::new(kind, n, k, seed ^ (index as u64 + 1));
            let weight = source.weight()?;
            let layout = weight.layout()?;
            let tiles = on.alloc(layout.bytes())?;
            let scales = on.alloc(4 * layout.column_scales())?;
            let scratch = on.alloc(scratch_bytes(&weight, tiles_at_once))?;
            repack_on_device(on, &weight, &scratch, &tiles, &scales)?;
            let mut bytes = vec![0; layout.bytes() + 4 * layout.column_scales()];
            let (packed, factors) = bytes.split_at_mut(layout.bytes());
            on.download(&tiles, 0, packed)?;
            on.download(&scales, 0, factors)?;
            written.push((symbol(&weight)?, bytes));
        }
    }
    Ok(written)
}
