//! A plan with addresses: the launches, in their order.

use crate::error::CudaError;
use crate::launch::{Arg, DeviceBuffer, Launch};
use crate::ops::linear::plan::{LinearPlan, OutType, Route, shape};
use crate::ops::linear::rows::{self, PLAIN_THREADS, TILED_THREADS};

/// Where everything is. A buffer may be longer than needed.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// f16 // [m, x_stride]
    pub x: DeviceBuffer,
    /// In halves: a multiple of 8, at least k.
    pub x_stride: u32,
    /// Packed // [tiles][tile_bytes]
    pub weights: DeviceBuffer,
    /// f32 // [32 tiles]
    pub column_scale: DeviceBuffer,
    /// f16 // [n], if the product has one
    pub bias: Option<DeviceBuffer>,
    /// f32 // [m, out_stride], if the product has one
    pub residual: Option<DeviceBuffer>,
    /// [m, out_stride]
    pub out: DeviceBuffer,
    /// In numbers: at least n.
    pub out_stride: u32,
    /// `Workspace::sums_bytes`
    pub sums: Option<DeviceBuffer>,
    /// `Workspace::counters_bytes`, zero
    pub counters: Option<DeviceBuffer>,
    /// `Workspace::rows_bytes`
    pub rows: Option<DeviceBuffer>,
}

/// product[m, n] = sum_k x[m, k] rows[n, k]: f16 numbers, f32 sums, for a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of x.
    pub m: u32,
    /// Rows of `rows`.
    pub n: u32,
    /// Numbers a row.
    pub k: u32,
    /// f16 // [m, x_stride]
    pub x: DeviceBuffer,
    /// In halves.
    pub x_stride: u32,
    /// f16 // [n, row_stride]
    pub rows: DeviceBuffer,
    /// In halves.
    pub row_stride: u32,
    /// f32 // [m, n]
    pub product: DeviceBuffer,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A kernel.
    Kernel(Launch),
    /// A library's product.
    Product(Product),
}

impl LinearPlan {
    /// The steps for these operands.
    ///
    /// # Errors
    /// A buffer that is missing, too short or not aligned, or a stride that does not fit.
    pub fn steps(&self, at: &Operands) -> Result<Vec<Step>, CudaError> {
        self.check_operands(at)?;
        match self.route {
            Route::Skinny(skinny) => Ok(vec![Step::Kernel(Launch {
                symbol: rows::skinny(&self.linear.format, skinny.shape),
                grid: [self.linear.blocks(skinny.shape), skinny.parts, 1],
                block: [skinny.warps * 32, 1, 1],
                shared_bytes: skinny.shape.shared_bytes(skinny.warps),
                args: self.args(at),
            })]),
            Route::Tiled { parts } => {
                let [along, across] = self.linear.tiled_blocks(self.m);
                Ok(vec![Step::Kernel(Launch {
                    symbol: rows::tiled(&self.linear.format),
                    grid: [along, across, parts],
                    block: [TILED_THREADS, 1, 1],
                    shared_bytes: 0,
                    args: self.args(at),
                })])
            }
            Route::Library { columns } => {
                let firsts = (0..self.linear.n).step_by(columns as usize);
                Ok(firsts.flat_map(|first| self.chunk(at, first, columns)).collect())
            }
        }
    }

    fn args(&self, at: &Operands) -> Vec<Arg> {
        let null = Arg::Ptr(0);
        let optional = |buffer: Option<DeviceBuffer>| buffer.map_or(null, |buffer| buffer.arg());
        vec![
            at.x.arg(),
            Arg::U32(at.x_stride),
            at.weights.arg(),
            at.column_scale.arg(),
            optional(at.bias),
            optional(at.residual),
            at.out.arg(),
            Arg::U32(at.out_stride),
            Arg::U32(u32::from(self.linear.out == OutType::F32)),
            Arg::U32(self.m),
            Arg::U32(self.linear.n),
            Arg::U32(self.linear.k),
            Arg::U32(self.tile_bytes()),
            optional(at.sums),
            optional(at.counters),
        ]
    }

    fn tile_bytes(&self) -> u32 {
        let bytes = self.linear.format.tile_bytes(self.linear.k);
        u32::try_from(bytes).expect("k is limited, and a number takes at most 2 bytes and its scale")
    }

    /// The library's route for the columns from `first` on.
    fn chunk(&self, at: &Operands, first: u32, columns: u32) -> [Step; 3] {
        let linear = &self.linear;
        let columns = columns.min(linear.n - first);
        let (rows_at, sums_at) = match (at.rows, at.sums) {
            (Some(rows), Some(sums)) => (rows, sums),
            _ => unreachable!("the operands were checked against the workspace"),
        };
        let optional = |buffer: Option<DeviceBuffer>| Arg::Ptr(buffer.map_or(0, |buffer| buffer.address()));
        let first_tile = u64::from(first / 32) * u64::from(self.tile_bytes());
        let dequant = Launch {
            symbol: rows::dequant(&linear.format),
            grid: [
                linear.pieces().div_ceil(PLAIN_THREADS / 32),
                columns.div_ceil(32),
                1,
            ],
            block: [PLAIN_THREADS, 1, 1],
            shared_bytes: 0,
            args: vec![
                Arg::Ptr(at.weights.address() + first_tile),
                Arg::U32(self.tile_bytes()),
                Arg::U32(linear.pieces()),
                Arg::U32(linear.row_stride()),
                rows_at.arg(),
            ],
        };
        let product = Product {
            m: self.m,
            n: columns,
            k: linear.k,
            x: at.x,
            x_stride: at.x_stride,
            rows: rows_at,
            row_stride: linear.row_stride(),
            product: sums_at,
        };
        let finish = Launch {
            symbol: rows::FINISH.to_owned(),
            grid: [columns.div_ceil(PLAIN_THREADS), self.m.min(1024), 1],
            block: [PLAIN_THREADS, 1, 1],
            shared_bytes: 0,
            args: vec![
                sums_at.arg(),
                Arg::U32(first),
                Arg::U32(columns),
                at.column_scale.arg(),
                optional(at.bias),
                optional(at.residual),
                at.out.arg(),
                Arg::U32(at.out_stride),
                Arg::U32(u32::from(linear.out == OutType::F32)),
                Arg::U32(self.m),
                Arg::U32(linear.n),
            ],
        };
        [
            Step::Kernel(dequant),
            Step::Product(product),
            Step::Kernel(finish),
        ]
    }

    fn check_strides(&self, at: &Operands) -> Result<(), CudaError> {
        let linear = &self.linear;
        if at.x_stride < linear.k || !at.x_stride.is_multiple_of(8) {
            let allowed = format!("multiples of 8 from {} on", linear.k);
            return Err(shape("stride of x", at.x_stride, allowed));
        }
        if at.out_stride < linear.n {
            return Err(shape(
                "stride of out",
                at.out_stride,
                format!("{} and more", linear.n),
            ));
        }
        Ok(())
    }

    fn check_operands(&self, at: &Operands) -> Result<(), CudaError> {
        let linear = &self.linear;
        let (m, n) = (self.m as usize, linear.n as usize);
        self.check_strides(at)?;
        let spread = |stride: u32, last: usize| (m - 1) * stride as usize + last;
        let need = self.workspace();
        let out_numbers = spread(at.out_stride, n);
        let some = |has: bool, bytes: usize| if has { bytes } else { 0 };
        for (what, buffer, bytes, alignment) in [
            ("x", Some(at.x), spread(at.x_stride, linear.k as usize) * 2, 16),
            (
                "weights",
                Some(at.weights),
                linear.format.weight_bytes(linear.n, linear.k),
                16,
            ),
            (
                "column scale",
                Some(at.column_scale),
                linear.tiles() as usize * 128,
                4,
            ),
            ("bias", at.bias, some(linear.bias, n * 2), 2),
            ("residual", at.residual, some(linear.residual, out_numbers * 4), 4),
            (
                "out",
                Some(at.out),
                out_numbers * linear.out.bytes(),
                linear.out.bytes() as u64,
            ),
            ("sums", at.sums, need.sums_bytes, 4),
            ("counters", at.counters, need.counters_bytes, 4),
            ("rows", at.rows, need.rows_bytes, 16),
        ] {
            let length = buffer.map_or(0, |buffer| buffer.bytes());
            if length < bytes {
                return Err(shape(what, length as u64, format!("{bytes} bytes and more")));
            }
            let address = buffer.map_or(0, |buffer| buffer.address());
            if !address.is_multiple_of(alignment) {
                return Err(shape(
                    what,
                    address,
                    format!("addresses at multiples of {alignment}"),
                ));
            }
        }
        for (what, has, given) in [
            ("bias", linear.bias, at.bias.is_some()),
            ("residual", linear.residual, at.residual.is_some()),
        ] {
            if has != given {
                return Err(shape(
                    what,
                    u64::from(given),
                    format!("{} buffer, as planned", u64::from(has)),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::PackedFormat;
    use crate::ops::linear::divide::Device;
    use crate::ops::linear::{Linear, LinearFormat};

    fn plan(m: u32) -> LinearPlan {
        let linear = Linear {
            format: LinearFormat::of(PackedFormat::Nvfp4.row()),
            n: 33,
            k: 64,
            out: OutType::F16,
            bias: true,
            residual: false,
        };
        linear.plan(m, Device::V100).unwrap()
    }

    fn operands(plan: &LinearPlan) -> Operands {
        let mut next = 0x1000;
        let mut buffer = |bytes: usize| {
            let buffer = DeviceBuffer::new(next, bytes);
            next += 1 << 20;
            buffer
        };
        let (linear, m, need) = (&plan.linear, plan.m as usize, plan.workspace());
        let k = linear.k as usize;
        Operands {
            x: buffer(m * k * 2),
            x_stride: linear.k,
            weights: buffer(linear.format.weight_bytes(linear.n, linear.k)),
            column_scale: buffer(256),
            bias: Some(buffer(66)),
            residual: None,
            out: buffer(m * 33 * 2),
            out_stride: 33,
            sums: Some(buffer(need.sums_bytes)),
            counters: Some(buffer(need.counters_bytes)),
            rows: Some(buffer(need.rows_bytes)),
        }
    }

    #[test]
    fn every_launch_keeps_to_its_row() {
        let rows = rows::rows();
        for m in [1, 8, 9, 16, 17, 32, 33, 64, 65, 512, 513, 2000] {
            let plan = plan(m);
            for step in plan.steps(&operands(&plan)).unwrap() {
                let Step::Kernel(launch) = step else { continue };
                let row = rows.iter().find(|row| row.symbol == launch.symbol).unwrap();
                assert!(
                    launch.block[0] <= row.threads && launch.block[0] >= 32,
                    "{launch:?}"
                );
                assert!(launch.shared_bytes <= row.shared_bytes, "{launch:?}");
                assert!(launch.grid.iter().all(|n| (1..=65535).contains(n)), "{launch:?}");
            }
        }
    }

    #[test]
    fn the_library_route_has_three_steps_a_chunk() {
        let mut plan = plan(513);
        plan.route = Route::Library { columns: 32 };
        let steps = plan.steps(&operands(&plan)).unwrap();
        let products: Vec<u32> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Product(product) => Some(product.n),
                Step::Kernel(_) => None,
            })
            .collect();
        assert_eq!((steps.len(), products), (6, vec![32, 1]));
    }

    #[test]
    fn wrong_operands_are_named() {
        let plan = plan(8);
        let good = operands(&plan);
        assert!(plan.steps(&good).is_ok());
        let short = |buffer: DeviceBuffer| DeviceBuffer::new(buffer.address(), buffer.bytes() - 1);
        let cases: [(&str, Operands); 9] = [
            (
                "x is",
                Operands {
                    x: short(good.x),
                    ..good
                },
            ),
            (
                "stride of x",
                Operands {
                    x_stride: good.x_stride + 4,
                    ..good
                },
            ),
            ("stride of x", Operands { x_stride: 8, ..good }),
            (
                "stride of out",
                Operands {
                    out_stride: 32,
                    ..good
                },
            ),
            (
                "weights",
                Operands {
                    weights: short(good.weights),
                    ..good
                },
            ),
            (
                "column scale",
                Operands {
                    column_scale: short(good.column_scale),
                    ..good
                },
            ),
            ("bias", Operands { bias: None, ..good }),
            (
                "residual",
                Operands {
                    residual: Some(DeviceBuffer::new(0x100, 1 << 16)),
                    ..good
                },
            ),
            (
                "x is",
                Operands {
                    x: DeviceBuffer::new(good.x.address() + 8, good.x.bytes()),
                    ..good
                },
            ),
        ];
        for (want, operands) in cases {
            let error = plan.steps(&operands).unwrap_err().to_string();
            assert!(error.contains(want), "wanted {want}: {error}");
        }
    }
}
