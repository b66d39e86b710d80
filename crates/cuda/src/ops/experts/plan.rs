//! How a stack of experts runs: a pure function of its shape and the bucket of tokens.
//!
//! Nothing here depends on the number of multiprocessors: who shares a k is fixed for each kernel, so that the results of
//! a token are the same bits in every bucket, on both paths and on every card. What a device is filled with is the number of
//! row blocks and column tiles.

use crate::error::CudaError;
use crate::ops::experts::router::{Router, RouterInput};
use crate::ops::experts::rows::{
    self, EXPERTS_MAX, ROUTE_SHAPES, ROUTE_THREADS, ROW_TILES, RouteShape, SHARED_MAX, TOP_K_MAX,
};
use crate::ops::experts::weights::ExpertBytes;
use crate::ops::linear::formats::LinearFormat;

/// Tokens of a bucket at most. (More are for a prefill that expands experts, not for this stack.)
pub const TOKENS_MAX: u32 = 4096;
/// Width of a token and of an expert at most.
pub const WIDTH_MAX: u32 = 1 << 16;
/// Tokens of the direct path at most.
pub const DIRECT_TOKENS_MAX: u32 = 4;

/// The function on the gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(g) u`
    Silu,
    /// `gelu(g) u`, with the tanh approximation.
    GeluTanh,
    /// `silu(min(g, limit)) clamp(u, -limit, limit)`, as DeepSeek V4 has it.
    SiluClamped {
        /// The bound.
        limit: f32,
    },
    /// `g sigmoid(alpha g) (u + 1)` with g at most the limit and u between its bounds, as gpt-oss has it.
    SiluBetween {
        /// The bound.
        limit: f32,
        /// Multiplier in the sigmoid.
        alpha: f32,
    },
}

/// A layer's experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertStack {
    /// Experts, up to 512.
    pub experts: u32,
    /// Experts a token.
    pub top_k: u32,
    /// Width of a token: a multiple of 8.
    pub hidden: u32,
    /// Width of an expert.
    pub inner: u32,
    /// Of gate and up.
    pub gated: LinearFormat,
    /// Of down.
    pub down: LinearFormat,
    /// On the gate.
    pub activation: Activation,
    /// The router.
    pub router: Router,
}

/// Who makes row blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A row block is one slot.
    Direct,
    /// A row block is up to 8 `row_tiles` slots of one expert.
    Grouped {
        /// 1 or 2.
        row_tiles: u32,
    },
    /// A row block is up to 64 slots of one expert. A sum is then one chain over k where the other two add parts of it: other bits, in
    /// the same bound.
    Tiled,
}

/// How a stack runs for a bucket of tokens. `launches` makes launches of it (see `operands`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsPlan {
    /// The stack.
    pub stack: ExpertStack,
    /// Tokens of the bucket.
    pub tokens: u32,
    /// Who makes row blocks.
    pub path: Path,
}

/// Where each part of the workspace lies. The counters come first and are zero before the first launch; launches leave
/// them zero. Nothing else needs to be cleared or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// u32 // [token groups + 1]
    pub counters: usize,
    /// f32 // [tokens, experts (+ 1)]
    pub logits: usize,
    /// f32 // [tokens, 2 top_k]: ids as bits, then weights
    pub routes: usize,
    /// f32 // [tokens]
    pub shared_weight: usize,
    /// u32 // [1]
    pub block_count: usize,
    /// u32 // [row blocks]
    pub block_expert: usize,
    /// u32 // [row blocks, 8 row_tiles]
    pub block_slots: usize,
    /// f16 // [slots, inner_stride]
    pub hidden: usize,
    /// f32 // [slots, hidden]
    pub rows: usize,
    /// All.
    pub bytes: usize,
}

/// A size that is not allowed.
pub(super) fn fault(what: &'static str, value: impl Into<u64>, allowed: impl Into<String>) -> CudaError {
    let value: u64 = value.into();
    CudaError::Shape {
        what,
        value: value as _,
        allowed: allowed.into(),
    }
}

impl ExpertStack {
    /// Experts of `[experts, top_k, hidden, inner]`, SwiGLU, one format.
    pub const fn plain(
        format: LinearFormat,
        [experts, top_k, hidden, inner]: [u32; 4],
        router: Router,
    ) -> Self {
        Self {
            experts,
            top_k,
            hidden,
            inner,
            gated: format,
            down: format,
            activation: Activation::Silu,
            router,
        }
    }

    /// Plans a bucket.
    ///
    /// # Errors
    /// A size outside its limits.
    pub fn plan(&self, tokens: u32) -> Result<ExpertsPlan, CudaError> {
        self.plan_path(tokens, self.best_path(tokens))
    }

    /// Plans a bucket on a given path. The results are the same bits on the direct and the grouped path; the tiled one's are the same
    /// in every bucket.
    ///
    /// # Errors
    /// A size outside its limits.
    pub fn plan_path(&self, tokens: u32, path: Path) -> Result<ExpertsPlan, CudaError> {
        self.check()?;
        let plan = ExpertsPlan {
            stack: *self,
            tokens,
            path,
        };
        if !(1..=TOKENS_MAX).contains(&tokens) {
            return Err(fault("tokens", tokens, format!("1 to {TOKENS_MAX}")));
        }
        if let Path::Grouped { row_tiles } = path
            && !ROW_TILES.contains(&row_tiles)
        {
            return Err(fault("row tiles", row_tiles, format!("{ROW_TILES:?}")));
        }
        if plan.route_shared() > SHARED_MAX {
            let most = (SHARED_MAX - (plan.route_shared() - 2 * plan.slots())) / 2;
            return Err(fault("slots", plan.slots(), format!("up to {most}")));
        }
        Ok(plan)
    }

    /// Direct while hardly any two tokens choose one expert; two row tiles where experts have more than eight slots; tiled where
    /// they fill half of a tile.
    fn best_path(&self, tokens: u32) -> Path {
        let slots = u64::from(tokens) * u64::from(self.top_k);
        let others = slots.saturating_sub(u64::from(self.top_k));
        if tokens <= DIRECT_TOKENS_MAX && 4 * others <= u64::from(self.experts) {
            Path::Direct
        } else if slots >= u64::from(rows::TILED_ROWS / 2) * u64::from(self.experts) {
            Path::Tiled
        } else if slots > 8 * u64::from(self.experts) {
            Path::Grouped { row_tiles: 2 }
        } else {
            Path::Grouped { row_tiles: 1 }
        }
    }

    /// Gate and up in memory.
    pub fn gated_bytes(&self) -> ExpertBytes {
        self.expert_bytes(&self.gated, 2, self.inner, self.hidden)
    }

    /// Down in memory.
    pub fn down_bytes(&self) -> ExpertBytes {
        self.expert_bytes(&self.down, 1, self.hidden, self.inner)
    }

    fn expert_bytes(&self, format: &LinearFormat, matrices: usize, n: u32, k: u32) -> ExpertBytes {
        ExpertBytes {
            experts: self.experts as usize,
            matrices,
            tiles: n.div_ceil(32) as usize,
            tile_bytes: format.tile_bytes(k),
        }
    }

    fn check(&self) -> Result<(), CudaError> {
        for (what, value, most) in [
            ("experts", self.experts, EXPERTS_MAX),
            ("experts a token", self.top_k, TOP_K_MAX.min(self.experts)),
            ("width of a token", self.hidden, WIDTH_MAX),
            ("width of an expert", self.inner, WIDTH_MAX),
        ] {
            if !(1..=most).contains(&value) {
                return Err(fault(what, value, format!("1 to {most}")));
            }
        }
        for (what, value, step) in [
            ("width of a token", self.hidden, 8),
            ("width of a token", self.hidden, self.gated.k_multiple),
            ("width of an expert", self.inner, self.down.k_multiple),
        ] {
            if !value.is_multiple_of(step) {
                return Err(fault(what, value, format!("multiples of {step}")));
            }
        }
        self.check_router()?;
        self.check_groups()
    }
}

impl ExpertsPlan {
    /// Slots of the bucket.
    pub const fn slots(&self) -> u32 {
        self.tokens * self.stack.top_k
    }

    /// Slots of a full row block.
    pub const fn block_rows(&self) -> u32 {
        match self.path {
            Path::Direct => 1,
            Path::Grouped { row_tiles } => 8 * row_tiles,
            Path::Tiled => rows::TILED_ROWS,
        }
    }

    /// Row blocks at most, whatever the tokens choose: an expert with c slots has ceil(c / rows) of them, and c is at most
    /// the tokens since a token's experts differ.
    pub fn row_blocks(&self) -> u32 {
        let (slots, rows) = (self.slots(), self.block_rows());
        let used = slots.min(self.stack.experts);
        match self.path {
            Path::Direct => slots,
            Path::Grouped { .. } | Path::Tiled if self.tokens <= rows => used,
            Path::Grouped { .. } | Path::Tiled => used + (slots - used) / rows,
        }
    }

    /// The router's kernel.
    pub(super) fn route_shape(&self) -> RouteShape {
        let f32_matrix = self.stack.router.input == RouterInput::F32;
        let tokens = if self.tokens <= DIRECT_TOKENS_MAX { 1 } else { 8 };
        *ROUTE_SHAPES
            .iter()
            .find(|shape| shape.f32_matrix == f32_matrix && shape.tokens == tokens)
            .expect("both matrices have both numbers of tokens")
    }

    /// Rows of the router's matrix, the shared expert's gate included.
    pub fn logit_rows(&self) -> u32 {
        self.stack.experts + u32::from(self.stack.router.shared_gate)
    }

    /// Dynamic shared memory of the router: scores of a token a warp; then counts and ids for the table.
    pub(super) fn route_shared(&self) -> u32 {
        let (warps, experts) = (ROUTE_THREADS / 32, self.stack.experts);
        let scores = warps * 4 * (32 + experts.next_multiple_of(8) / 2 * 5);
        match self.path {
            Path::Direct => scores,
            Path::Grouped { .. } | Path::Tiled => {
                scores.max(4 * (warps + experts) + 2 * (warps * experts + self.slots()))
            }
        }
    }

    /// Halves from one slot's row of the intermediate to the next.
    pub const fn inner_stride(&self) -> u32 {
        self.stack.inner.next_multiple_of(8)
    }

    /// The workspace.
    pub fn workspace(&self) -> Workspace {
        let (tokens, slots) = (self.tokens as usize, self.slots() as usize);
        let mut end = 0;
        let mut take = |bytes: usize| {
            let at = end;
            end = (end + bytes).next_multiple_of(256);
            at
        };
        let grouped = self.path != Path::Direct;
        let blocks = if grouped { self.row_blocks() as usize } else { 0 };
        let shape = self.route_shape();
        Workspace {
            counters: take(4 * (self.tokens.div_ceil(shape.tokens) as usize + 1)),
            logits: take(4 * tokens * self.logit_rows() as usize),
            routes: take(8 * slots),
            shared_weight: take(4 * tokens),
            block_count: take(4),
            block_expert: take(4 * blocks),
            block_slots: take(4 * blocks * self.block_rows() as usize),
            hidden: take(2 * slots * self.inner_stride() as usize),
            rows: take(if grouped {
                4 * slots * self.stack.hidden as usize
            } else {
                0
            }),
            bytes: end,
        }
    }

    /// Warps of a block of the direct down kernel: as few as take the work in as many rounds as the most can. Blocks fill a
    /// multiprocessor only where even a V100 has one for each; more of them are of a size that two fit.
    pub(crate) fn direct_warps(&self) -> u32 {
        let work = self.stack.top_k * rows::DOWN_PARTS;
        let blocks = self.stack.hidden.div_ceil(32) * self.tokens;
        let threads = match blocks {
            0..=80 => rows::direct_threads(&self.stack.down),
            _ => rows::direct_threads(&self.stack.down).min(512),
        };
        work.div_ceil(work.div_ceil(threads / 32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::experts::router::{Score, Selection};
    use crate::ops::linear::formats::named;

    fn stack(sizes: [u32; 4]) -> ExpertStack {
        let format = named("nvfp4").expect("listed");
        ExpertStack::plain(format, sizes, Router::plain(RouterInput::F16, Score::Softmax))
    }

    /// No way to choose needs more row blocks than are launched, and some way needs them all.
    #[test]
    fn row_blocks_are_the_most_that_can_be() {
        let needed = |counts: &[u32], rows: u32| counts.iter().map(|count| count.div_ceil(rows)).sum::<u32>();
        for experts in [1, 2, 8, 60, 256] {
            for top_k in [1, 2, 8, 10] {
                for tokens in [1, 2, 7, 8, 9, 33, 64] {
                    for row_tiles in [1, 2, 8] {
                        if top_k > experts {
                            continue;
                        }
                        let path = match row_tiles {
                            8 => Path::Tiled,
                            row_tiles => Path::Grouped { row_tiles },
                        };
                        let plan = stack([experts, top_k, 64, 64])
                            .plan_path(tokens, path)
                            .expect("fits");
                        let (slots, rows) = (tokens * top_k, 8 * row_tiles);
                        // The first slots make every expert's first row block, the rest fill as many more as they can.
                        let used = slots.min(experts);
                        let mut counts = vec![1; used as usize];
                        let mut left = slots - used;
                        for count in &mut counts {
                            let more = left.min(tokens - 1);
                            *count += more / rows * rows;
                            left -= more / rows * rows;
                        }
                        assert!(
                            needed(&counts, rows) <= plan.row_blocks(),
                            "{experts} {top_k} {tokens} {rows}"
                        );
                        let even: Vec<u32> = (0..experts)
                            .map(|expert| slots / experts + u32::from(expert < slots % experts))
                            .collect();
                        assert!(needed(&even, rows) <= plan.row_blocks());
                        assert!(plan.row_blocks() <= slots);
                        if tokens > rows && left == 0 {
                            assert_eq!(needed(&counts, rows), plan.row_blocks());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn paths_follow_the_number_of_tokens() {
        let one = Path::Grouped { row_tiles: 1 };
        let two = Path::Grouped { row_tiles: 2 };
        for (sizes, tokens, want) in [
            ([256, 8, 2048, 512], 1, Path::Direct),
            ([256, 8, 2048, 512], 4, Path::Direct),
            ([256, 8, 2048, 512], 5, one),
            ([256, 10, 3072, 1024], 4, Path::Direct),
            ([256, 8, 2048, 512], 256, one),
            ([256, 8, 2048, 512], 257, two),
            ([8, 2, 4096, 14336], 1, Path::Direct),
            ([8, 2, 4096, 14336], 2, Path::Direct),
            ([8, 2, 4096, 14336], 3, one),
            ([8, 2, 4096, 14336], 33, two),
            ([256, 8, 2048, 512], 1023, two),
            ([256, 8, 2048, 512], 1024, Path::Tiled),
            ([8, 2, 4096, 14336], 127, two),
            ([8, 2, 4096, 14336], 128, Path::Tiled),
        ] {
            assert_eq!(
                stack(sizes).plan(tokens).expect("fits").path,
                want,
                "{sizes:?} {tokens}"
            );
        }
    }

    #[test]
    fn the_direct_kernel_wastes_no_round() {
        for (top_k, warps) in [(1, 4), (2, 8), (4, 16), (6, 24), (8, 32), (10, 20), (32, 32)] {
            let plan = stack([256, top_k, 64, 64]).plan(1).expect("fits");
            assert_eq!(plan.direct_warps(), warps, "{top_k}");
        }
        for (sizes, tokens, warps) in [
            ([256, 8, 2048, 512], 1, 32),
            ([256, 8, 2048, 512], 2, 16),
            ([256, 10, 3072, 1024], 1, 14),
        ] {
            let plan = stack(sizes).plan(tokens).expect("fits");
            assert_eq!(plan.direct_warps(), warps, "{sizes:?} {tokens}");
        }
    }

    #[test]
    fn parts_of_the_workspace_do_not_overlap() {
        for (tokens, path) in [(1, Path::Direct), (9, Path::Grouped { row_tiles: 1 })] {
            let plan = stack([60, 4, 64, 48]).plan_path(tokens, path).expect("fits");
            let work = plan.workspace();
            let parts = [
                work.counters,
                work.logits,
                work.routes,
                work.shared_weight,
                work.block_count,
                work.block_expert,
                work.block_slots,
                work.hidden,
                work.rows,
                work.bytes,
            ];
            assert!(parts.is_sorted() && parts.iter().all(|part| part.is_multiple_of(256)));
            assert!(work.routes - work.logits >= 4 * tokens as usize * 60);
            assert!(work.rows - work.hidden >= 2 * tokens as usize * 4 * 48);
        }
    }

    #[test]
    fn tables_of_choices_are_checked() {
        let stack = stack([8, 2, 64, 64]);
        assert!(stack.check_choices(&[0, 7, 3, 2]).is_ok());
        for wrong in [&[0, 8][..], &[3, 3], &[0, 1, 2]] {
            assert!(stack.check_choices(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_are_checked() {
        let faults = |change: &dyn Fn(&mut ExpertStack)| {
            let mut changed = stack([64, 4, 64, 48]);
            change(&mut changed);
            changed.plan(9).is_err()
        };
        assert!(!faults(&|_| {}));
        assert!(faults(&|s| s.experts = 0));
        assert!(faults(&|s| s.experts = EXPERTS_MAX + 1));
        assert!(faults(&|s| s.top_k = 0));
        assert!(faults(&|s| s.top_k = TOP_K_MAX + 1));
        assert!(faults(&|s| s.experts = 3));
        assert!(faults(&|s| s.hidden = 0));
        assert!(faults(&|s| s.hidden = 68));
        assert!(faults(&|s| s.hidden = 72), "not a multiple of NVFP4's 16");
        assert!(faults(&|s| s.inner = 40));
        assert!(faults(&|s| s.inner = WIDTH_MAX + 16));
        let selection = |rows: u32, bias: bool, groups: u32| {
            faults(&|s| {
                s.router.selection = Selection::Table { rows };
                s.router.bias = bias;
                s.router.groups = groups;
                s.router.groups_kept = groups;
            })
        };
        assert!(!selection(7, false, 0) && selection(0, false, 0));
        assert!(selection(7, true, 0) && selection(7, false, 8));
        assert!(!faults(&|s| s.router.softcap = 30.0));
        assert!(faults(&|s| s.router.softcap = -1.0) && faults(&|s| s.router.softcap = f32::NAN));
        let groups = |groups: u32, groups_kept: u32, group_best: u32| {
            faults(&|s| {
                s.router.groups = groups;
                s.router.groups_kept = groups_kept;
                s.router.group_best = group_best;
            })
        };
        assert!(!groups(8, 1, 2) && !groups(32, 2, 2));
        assert!(groups(7, 1, 1), "does not divide");
        assert!(groups(64, 4, 1), "more than the lanes of a warp");
        assert!(groups(8, 0, 1) && groups(8, 9, 1));
        assert!(groups(32, 1, 1), "fewer experts than are chosen");
        assert!(groups(8, 2, 0) && groups(8, 2, 3));
        assert!(stack([64, 4, 64, 48]).plan(0).is_err());
        assert!(stack([64, 4, 64, 48]).plan(TOKENS_MAX).is_ok());
        assert!(stack([64, 4, 64, 48]).plan(TOKENS_MAX + 1).is_err());
        assert!(
            stack([64, 32, 64, 48]).plan(TOKENS_MAX).is_err(),
            "more slots than the router's shared memory holds"
        );
        assert!(
            stack([64, 4, 64, 48])
                .plan_path(9, Path::Grouped { row_tiles: 3 })
                .is_err()
        );
    }
}
