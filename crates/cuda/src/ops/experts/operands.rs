//! A plan with addresses: the launches, in their order.

use crate::error::CudaError;
use crate::launch::{Arg, DeviceBuffer, Launch};
use crate::ops::experts::plan::{Activation, ExpertsPlan, Path, Workspace, fault};
use crate::ops::experts::router::{RouterInput, Score, Selection};
use crate::ops::experts::rows::{
    self, COMBINE, COMBINE_THREADS, DOWN_SHARED, DOWN_THREADS, GATED_SHARED, GATED_THREADS, ROUTE_THREADS,
    TILED_THREADS,
};

/// What the shared expert gives.
#[derive(Clone, Copy, Debug)]
pub struct SharedExpert {
    /// f32 // [tokens, stride]
    pub rows: DeviceBuffer,
    /// In numbers: a multiple of 4, at least hidden.
    pub stride: u32,
}

/// A table of choices.
#[derive(Clone, Copy, Debug)]
pub struct Choices {
    /// u32 // [rows, top_k]: held by `ExpertStack::check_choices`
    pub table: DeviceBuffer,
    /// u32 // [tokens]: the row of each token; past the table's end it is the last row
    pub row_of: DeviceBuffer,
}

/// Where everything is. A buffer may be longer than needed.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// f16 // [tokens, x_stride]
    pub x: DeviceBuffer,
    /// In halves: a multiple of 8, at least hidden.
    pub x_stride: u32,
    /// u32 // [1]: how many tokens of the bucket exist; without, all
    pub token_count: Option<DeviceBuffer>,
    /// f16 or f32 // [experts, hidden]; the router's logits f32 // [tokens, experts (+ 1)] if another operation computed them
    pub router: DeviceBuffer,
    /// As the router // [hidden], if the shared expert has a gate and the logits are computed here
    pub shared_gate: Option<DeviceBuffer>,
    /// f32 // [experts], if the router has one
    pub router_bias: Option<DeviceBuffer>,
    /// The table, if the router chooses by one
    pub choices: Option<Choices>,
    /// `ExpertStack::gated_bytes`
    pub gated: DeviceBuffer,
    /// f32, its column factors
    pub gated_scale: DeviceBuffer,
    /// f32, laid out as its column factors
    pub gated_bias: Option<DeviceBuffer>,
    /// `ExpertStack::down_bytes`
    pub down: DeviceBuffer,
    /// f32, its column factors
    pub down_scale: DeviceBuffer,
    /// f32, laid out as its column factors
    pub down_bias: Option<DeviceBuffer>,
    /// The shared expert, if there is one
    pub shared: Option<SharedExpert>,
    /// f32 // [tokens, out_stride]; may be `out`
    pub residual: Option<DeviceBuffer>,
    /// f32 // [tokens, out_stride]
    pub out: DeviceBuffer,
    /// In numbers: a multiple of 4, at least hidden.
    pub out_stride: u32,
    /// `Workspace::bytes`, the counters zero
    pub workspace: DeviceBuffer,
}

impl ExpertsPlan {
    /// The launches: route, gated, down and combine; on the direct path down combines too.
    ///
    /// # Errors
    /// A buffer that is missing, too short or not aligned, or a stride that does not fit.
    pub fn launches(&self, at: &Operands) -> Result<Vec<Launch>, CudaError> {
        self.check_operands(at)?;
        let work = self.workspace();
        let mut launches = vec![self.route(at, &work), self.gated(at, &work)];
        match self.path {
            Path::Direct => launches.push(self.down_direct(at, &work)),
            Path::Grouped { row_tiles } => {
                launches.push(self.down(at, &work, row_tiles));
                launches.push(self.combine(at, &work));
            }
            Path::Tiled => {
                launches.push(self.down_tiled(at, &work));
                launches.push(self.combine(at, &work));
            }
        }
        Ok(launches)
    }

    fn route(&self, at: &Operands, work: &Workspace) -> Launch {
        let (router, shape) = (&self.stack.router, self.route_shape());
        let given = router.input == RouterInput::Logits;
        let blocks = if given {
            1
        } else {
            self.logit_rows().div_ceil(shape.block_rows())
        };
        let (matrix, logits) = if given {
            (Arg::Ptr(0), at.router.arg())
        } else {
            (at.router.arg(), within(at, work.logits))
        };
        let mut args = vec![
            at.x.arg(),
            Arg::U32(at.x_stride),
            Arg::U32(self.tokens),
            optional(at.token_count),
            matrix,
            if given {
                Arg::Ptr(0)
            } else {
                optional(at.shared_gate)
            },
            optional(at.router_bias),
            Arg::U32(self.stack.hidden),
            Arg::U32(self.stack.experts),
            Arg::U32(self.logit_rows()),
            Arg::U32(self.stack.top_k),
            Arg::U32(match router.score {
                Score::Softmax => 0,
                Score::Sigmoid => 1,
                Score::SqrtSoftplus => 2,
            }),
            Arg::U32(router.groups),
            Arg::U32(router.groups_kept),
            Arg::U32(router.group_best),
            Arg::U32(u32::from(router.renormalise)),
            Arg::F32(router.scale),
            Arg::F32(router.softcap),
            optional(at.choices.map(|choices| choices.table)),
            optional(at.choices.map(|choices| choices.row_of)),
            Arg::U32(match router.selection {
                Selection::Best => 0,
                Selection::Table { rows } => rows,
            }),
            logits,
            within(at, work.counters),
            within(at, work.routes),
            within(at, work.shared_weight),
            Arg::U32(self.block_rows()),
        ];
        args.extend(self.table(at, work));
        Launch {
            symbol: shape.symbol(),
            grid: [blocks, self.tokens.div_ceil(shape.tokens), 1],
            block: [ROUTE_THREADS, 1, 1],
            shared_bytes: self.route_shared(),
            args,
        }
    }

    fn gated(&self, at: &Operands, work: &Workspace) -> Launch {
        let (kind, limit, alpha) = match self.stack.activation {
            Activation::Silu => (0, 0.0, 0.0),
            Activation::GeluTanh => (1, 0.0, 0.0),
            Activation::SiluClamped { limit } => (2, limit, 0.0),
            Activation::SiluBetween { limit, alpha } => (3, limit, alpha),
        };
        let bytes = self.stack.gated_bytes();
        let (symbol, grid, threads, shared_bytes) = match self.path {
            Path::Direct | Path::Grouped { .. } => {
                let symbol = match self.path {
                    Path::Grouped { row_tiles } => rows::gated(&self.stack.gated, row_tiles),
                    Path::Direct | Path::Tiled => rows::gated_direct(&self.stack.gated),
                };
                (
                    symbol,
                    [size(bytes.tiles), self.row_blocks(), 1],
                    GATED_THREADS,
                    GATED_SHARED,
                )
            }
            Path::Tiled => (
                rows::gated_tiled(&self.stack.gated),
                [self.row_blocks(), size(bytes.tiles).div_ceil(2), 1],
                TILED_THREADS,
                0,
            ),
        };
        let mut args = vec![at.x.arg(), Arg::U32(at.x_stride)];
        args.extend(self.row_table(at, work));
        args.extend([
            at.gated.arg(),
            Arg::U32(size(bytes.tile_bytes)),
            at.gated_scale.arg(),
            optional(at.gated_bias),
            within(at, work.hidden),
            Arg::U32(self.inner_stride()),
            Arg::U32(self.stack.inner),
            Arg::U32(self.stack.hidden),
            Arg::U32(kind),
            Arg::F32(limit),
            Arg::F32(alpha),
        ]);
        Launch {
            symbol,
            grid,
            block: [threads, 1, 1],
            shared_bytes,
            args,
        }
    }

    fn down(&self, at: &Operands, work: &Workspace, row_tiles: u32) -> Launch {
        let tiles = size(self.stack.down_bytes().tiles);
        Launch {
            symbol: rows::down(&self.stack.down, row_tiles),
            grid: [tiles, self.row_blocks(), 1],
            block: [DOWN_THREADS, 1, 1],
            shared_bytes: DOWN_SHARED,
            args: self.down_args(at, work),
        }
    }

    fn down_tiled(&self, at: &Operands, work: &Workspace) -> Launch {
        let tiles = size(self.stack.down_bytes().tiles);
        let mut args = self.down_args(at, work);
        // The activation, which this half of the kernel has not.
        args.extend([Arg::U32(0), Arg::F32(0.0), Arg::F32(0.0)]);
        Launch {
            symbol: rows::down_tiled(&self.stack.down),
            grid: [self.row_blocks(), tiles.div_ceil(4), 1],
            block: [TILED_THREADS, 1, 1],
            shared_bytes: 0,
            args,
        }
    }

    fn down_args(&self, at: &Operands, work: &Workspace) -> Vec<Arg> {
        let bytes = self.stack.down_bytes();
        let mut args = vec![within(at, work.hidden), Arg::U32(self.inner_stride())];
        args.extend(self.row_table(at, work));
        args.extend([
            at.down.arg(),
            Arg::U32(size(bytes.tile_bytes)),
            at.down_scale.arg(),
            optional(at.down_bias),
            within(at, work.rows),
            Arg::U32(self.stack.hidden),
            Arg::U32(self.stack.hidden),
            Arg::U32(self.stack.inner),
        ]);
        args
    }

    fn down_direct(&self, at: &Operands, work: &Workspace) -> Launch {
        let bytes = self.stack.down_bytes();
        let mut args = vec![
            within(at, work.hidden),
            Arg::U32(self.inner_stride()),
            optional(at.token_count),
            within(at, work.routes),
            Arg::U32(self.stack.top_k),
            at.down.arg(),
            Arg::U32(size(bytes.tile_bytes)),
            at.down_scale.arg(),
            optional(at.down_bias),
        ];
        args.extend(self.combination(at, work));
        args.extend([Arg::U32(self.stack.hidden), Arg::U32(self.stack.inner)]);
        Launch {
            symbol: rows::down_direct(&self.stack.down),
            grid: [size(bytes.tiles), self.tokens, 1],
            block: [32 * self.direct_warps(), 1, 1],
            shared_bytes: rows::direct_shared(self.stack.top_k),
            args,
        }
    }

    fn combine(&self, at: &Operands, work: &Workspace) -> Launch {
        let mut args = vec![
            within(at, work.rows),
            Arg::U32(self.stack.hidden),
            optional(at.token_count),
            within(at, work.routes),
            Arg::U32(self.stack.top_k),
        ];
        args.extend(self.combination(at, work));
        args.push(Arg::U32(self.stack.hidden));
        Launch {
            symbol: COMBINE.to_owned(),
            grid: [self.stack.hidden.div_ceil(4 * COMBINE_THREADS), self.tokens, 1],
            block: [COMBINE_THREADS, 1, 1],
            shared_bytes: 0,
            args,
        }
    }

    /// `Combine`'s arguments.
    fn combination(&self, at: &Operands, work: &Workspace) -> [Arg; 6] {
        let gate = self.stack.router.shared_gate;
        [
            optional(at.shared.map(|shared| shared.rows)),
            Arg::U32(at.shared.map_or(0, |shared| shared.stride)),
            if gate {
                within(at, work.shared_weight)
            } else {
                Arg::Ptr(0)
            },
            optional(at.residual),
            at.out.arg(),
            Arg::U32(at.out_stride),
        ]
    }

    /// `RowTable`'s arguments.
    fn row_table(&self, at: &Operands, work: &Workspace) -> [Arg; 7] {
        let [count, expert, slots] = self.table(at, work);
        [
            optional(at.token_count),
            within(at, work.routes),
            count,
            expert,
            slots,
            Arg::U32(self.tokens),
            Arg::U32(self.stack.top_k),
        ]
    }

    fn table(&self, at: &Operands, work: &Workspace) -> [Arg; 3] {
        match self.path {
            Path::Direct => [Arg::Ptr(0); 3],
            Path::Grouped { .. } | Path::Tiled => {
                [work.block_count, work.block_expert, work.block_slots].map(|part| within(at, part))
            }
        }
    }

    fn check_operands(&self, at: &Operands) -> Result<(), CudaError> {
        let (stack, router) = (&self.stack, &self.stack.router);
        let (tokens, hidden) = (self.tokens as usize, stack.hidden as usize);
        for (what, stride, step) in [
            ("halves from a token to the next", at.x_stride, 8),
            ("numbers from a result to the next", at.out_stride, 4),
            (
                "numbers from a shared result to the next",
                at.shared.map_or(at.out_stride, |shared| shared.stride),
                4,
            ),
        ] {
            if stride < stack.hidden || !stride.is_multiple_of(step) {
                return Err(fault(
                    what,
                    stride,
                    format!("multiples of {step}, at least {}", stack.hidden),
                ));
            }
        }
        let rows = |stride: u32, bytes: usize| ((tokens - 1) * stride as usize + hidden) * bytes;
        let (gated, down) = (stack.gated_bytes(), stack.down_bytes());
        let table_rows = match router.selection {
            Selection::Best => 0,
            Selection::Table { rows } => rows,
        };
        let (router_bytes, gate_bytes) = match router.input {
            RouterInput::F16 => (2 * hidden * stack.experts as usize, 2 * hidden),
            RouterInput::F32 => (4 * hidden * stack.experts as usize, 4 * hidden),
            RouterInput::Logits => (4 * tokens * self.logit_rows() as usize, 0),
        };
        let needed = [
            (Some(at.x), rows(at.x_stride, 2)),
            (Some(at.router), router_bytes),
            (Some(at.gated), gated.bytes()),
            (Some(at.gated_scale), 4 * gated.column_scales()),
            (Some(at.down), down.bytes()),
            (Some(at.down_scale), 4 * down.column_scales()),
            (Some(at.out), rows(at.out_stride, 4)),
            (Some(at.workspace), self.workspace().bytes),
            (at.token_count, 4),
            (at.shared_gate, gate_bytes),
            (at.router_bias, 4 * stack.experts as usize),
            (
                at.choices.map(|choices| choices.table),
                4 * table_rows as usize * stack.top_k as usize,
            ),
            (at.choices.map(|choices| choices.row_of), 4 * tokens),
            (at.gated_bias, 4 * gated.column_scales()),
            (at.down_bias, 4 * down.column_scales()),
            (
                at.shared.map(|shared| shared.rows),
                rows(at.shared.map_or(0, |shared| shared.stride), 4),
            ),
            (at.residual, rows(at.out_stride, 4)),
        ];
        for (buffer, bytes) in needed {
            let Some(buffer) = buffer else { continue };
            let address = buffer.range(0, bytes)?;
            if !address.is_multiple_of(16) {
                return Err(fault("an operand's address", address, "multiples of 16"));
            }
        }
        let gate_wanted = router.shared_gate && router.input != RouterInput::Logits;
        for (what, wanted, found) in [
            ("router biases", router.bias, at.router_bias.is_some()),
            ("tables of choices", table_rows > 0, at.choices.is_some()),
            ("shared experts' gates", gate_wanted, at.shared_gate.is_some()),
            (
                "shared experts",
                router.shared_gate || at.shared.is_some(),
                at.shared.is_some(),
            ),
        ] {
            if wanted != found {
                return Err(fault(what, u32::from(found), u32::from(wanted).to_string()));
            }
        }
        Ok(())
    }
}

fn optional(buffer: Option<DeviceBuffer>) -> Arg {
    Arg::Ptr(buffer.map_or(0, |buffer| buffer.address()))
}

fn within(at: &Operands, offset: usize) -> Arg {
    Arg::Ptr(at.workspace.address() + offset as u64)
}

/// Sizes that the plan's limits hold to 32 bits.
fn size(value: usize) -> u32 {
    u32::try_from(value)
        .expect("widths are limited: a tile is at most 32 x 65536 numbers of 2 bytes and scales")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::experts::plan::ExpertStack;
    use crate::ops::experts::router::Router;
    use crate::ops::linear::formats::named;

    fn stack() -> ExpertStack {
        let router = Router {
            bias: true,
            shared_gate: true,
            ..Router::plain(RouterInput::F32, Score::Sigmoid)
        };
        ExpertStack::plain(named("nvfp4").expect("listed"), [8, 2, 64, 48], router)
    }

    fn operands(plan: &ExpertsPlan) -> Operands {
        let mut next = 0x1000;
        let mut take = |bytes: usize| {
            let buffer = DeviceBuffer::new(next, bytes);
            next += bytes.next_multiple_of(256) as u64;
            buffer
        };
        let rows = plan.tokens as usize * 64;
        let (gated, down) = (stack().gated_bytes(), stack().down_bytes());
        Operands {
            x: take(2 * rows),
            x_stride: 64,
            token_count: None,
            router: take(4 * 8 * 64),
            shared_gate: Some(take(4 * 64)),
            router_bias: Some(take(4 * 8)),
            choices: None,
            gated: take(gated.bytes()),
            gated_scale: take(4 * gated.column_scales()),
            gated_bias: None,
            down: take(down.bytes()),
            down_scale: take(4 * down.column_scales()),
            down_bias: None,
            shared: Some(SharedExpert {
                rows: take(4 * rows),
                stride: 64,
            }),
            residual: None,
            out: take(4 * rows),
            out_stride: 64,
            workspace: take(plan.workspace().bytes),
        }
    }

    #[test]
    fn few_launches_of_a_shape_that_the_bucket_fixes() {
        for (tokens, want) in [
            (1, vec![[5, 1, 1], [2, 2, 1], [2, 1, 1]]),
            (9, vec![[3, 2, 1], [2, 9, 1], [2, 9, 1], [1, 9, 1]]),
        ] {
            let plan = stack().plan(tokens).expect("fits");
            let launches = plan.launches(&operands(&plan)).expect("all is there");
            let grids: Vec<_> = launches.iter().map(|launch| launch.grid).collect();
            assert_eq!(grids, want, "{tokens} tokens");
            let known = rows::rows();
            for launch in &launches {
                let row = known
                    .iter()
                    .find(|row| row.symbol == launch.symbol)
                    .expect("a row");
                assert!(launch.block[0] <= row.threads && launch.shared_bytes <= row.shared_bytes);
            }
        }
    }

    #[test]
    fn operands_are_checked() {
        let plan = stack().plan(9).expect("fits");
        let right = operands(&plan);
        let faults = |change: &dyn Fn(&mut Operands)| {
            let mut changed = right;
            change(&mut changed);
            plan.launches(&changed).is_err()
        };
        let short = |buffer: DeviceBuffer| DeviceBuffer::new(buffer.address(), buffer.bytes() - 1);
        assert!(!faults(&|_| {}));
        assert!(faults(&|at| at.x = short(at.x)));
        assert!(faults(&|at| at.router = short(at.router)));
        assert!(faults(&|at| at.gated = short(at.gated)));
        assert!(faults(&|at| at.gated_scale = short(at.gated_scale)));
        assert!(faults(&|at| at.down = short(at.down)));
        assert!(faults(&|at| at.down_scale = short(at.down_scale)));
        assert!(faults(&|at| at.out = short(at.out)));
        assert!(faults(&|at| at.workspace = short(at.workspace)));
        assert!(faults(
            &|at| at.x = DeviceBuffer::new(at.x.address() + 8, at.x.bytes())
        ));
        assert!(faults(&|at| at.x_stride = 60));
        assert!(
            faults(&|at| at.x_stride = 72),
            "the last row would end behind the buffer"
        );
        assert!(faults(&|at| at.out_stride = 66));
        assert!(faults(&|at| at.shared = None));
        assert!(faults(&|at| at.shared_gate = None));
        assert!(faults(&|at| at.router_bias = None));
        let choices = |rows: usize, tokens: usize| {
            let mut listed = stack();
            listed.router.bias = false;
            listed.router.selection = Selection::Table { rows: 5 };
            let plan = listed.plan(9).expect("fits");
            let mut at = right;
            at.router_bias = None;
            at.choices = Some(Choices {
                table: DeviceBuffer::new(0x10_0000, 4 * 2 * rows),
                row_of: DeviceBuffer::new(0x20_0000, 4 * tokens),
            });
            plan.launches(&at)
        };
        assert!(choices(5, 9).is_ok() && choices(4, 9).is_err() && choices(5, 8).is_err());
        assert!(faults(&|at| {
            let buffer = right.out;
            at.choices = Some(Choices {
                table: buffer,
                row_of: buffer,
            });
        }));
        assert!(faults(&|at| at.residual = Some(short(at.out))));
        assert!(faults(&|at| at.gated_bias = Some(short(at.gated_scale))));
    }
}
