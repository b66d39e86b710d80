//! How a stack of experts runs: a pure function of its shape and the bucket of tokens.
//!
//! Nothing here depends on the number of multiprocessors: who shares a k is fixed for each kernel, so that the results of
//! a token are the same bits in every bucket, on both paths and on every card. What a device is filled with is the number of
//! row blocks and column tiles.

use crate::error::CudaError;
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

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// Where the logits come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterInput {
    /// x and a matrix of f16.
    F16,
    /// x and a matrix of f32.
    F32,
    /// Another operation computed them.
    Logits,
}

/// The router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Where the logits come from.
    pub input: RouterInput,
    /// How they become scores.
    pub score: Score,
    /// Whether a bias [experts] moves the choice (not the weights).
    pub bias: bool,
    /// Groups of neighbouring experts; 0 or 1: none.
    pub groups: u32,
    /// Groups that a token may choose from.
    pub groups_kept: u32,
    /// A group's rank is the sum of its best so many: 1 or 2.
    pub group_best: u32,
    /// Whether the chosen weights are divided by their sum.
    pub renormalise: bool,
    /// Multiplier of the weights.
    pub scale: f32,
    /// Whether the sigmoid of one more row is the shared expert's weight.
    pub shared_gate: bool,
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
        /// 1 or 4.
        row_tiles: u32,
    },
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
    /// Plans a bucket.
    ///
    /// # Errors
    /// A size outside its limits.
    pub fn plan(&self, tokens: u32) -> Result<ExpertsPlan, CudaError> {
        self.plan_path(tokens, self.best_path(tokens))
    }

    /// Plans a bucket on a given path; the results are the same bits on every path.
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

    /// Direct while hardly any two tokens choose one expert; four row tiles where experts have more than eight slots.
    fn best_path(&self, tokens: u32) -> Path {
        let slots = u64::from(tokens) * u64::from(self.top_k);
        let others = slots.saturating_sub(u64::from(self.top_k));
        if tokens <= DIRECT_TOKENS_MAX && 4 * others <= u64::from(self.experts) {
            Path::Direct
        } else if slots > 8 * u64::from(self.experts) {
            Path::Grouped { row_tiles: 4 }
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
        self.check_groups()
    }

    fn check_groups(&self) -> Result<(), CudaError> {
        let Router {
            groups,
            groups_kept,
            group_best,
            ..
        } = self.router;
        if groups <= 1 {
            return Ok(());
        }
        if groups > 32 || !self.experts.is_multiple_of(groups) {
            let allowed = format!("up to 32 that divide {} experts", self.experts);
            return Err(fault("groups", groups, allowed));
        }
        let size = self.experts / groups;
        if !(1..=groups).contains(&groups_kept) || groups_kept * size < self.top_k {
            let allowed = format!("up to {groups}, with at least {} experts", self.top_k);
            return Err(fault("groups to choose from", groups_kept, allowed));
        }
        if !(1..=2).contains(&group_best) || group_best > size {
            return Err(fault(
                "ranks of a group",
                group_best,
                "1, or 2 of two experts a group or more",
            ));
        }
        Ok(())
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
        }
    }

    /// Row blocks at most, whatever the tokens choose: an expert with c slots has ceil(c / rows) of them, and c is at most
    /// the tokens since a token's experts differ.
    pub fn row_blocks(&self) -> u32 {
        let (slots, rows) = (self.slots(), self.block_rows());
        let used = slots.min(self.stack.experts);
        match self.path {
            Path::Direct => slots,
            Path::Grouped { .. } if self.tokens <= rows => used,
            Path::Grouped { .. } => used + (slots - used) / rows,
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

    /// Dynamic shared memory of the router: ranks of a token a warp for groups; counts and ids for the table.
    pub(super) fn route_shared(&self) -> u32 {
        let (warps, experts) = (ROUTE_THREADS / 32, self.stack.experts);
        let groups = if self.stack.router.groups > 1 {
            warps * experts * 4
        } else {
            0
        };
        match self.path {
            Path::Direct => groups,
            Path::Grouped { .. } => groups.max(4 * (warps + experts) + 2 * (warps * experts + self.slots())),
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
        let grouped = matches!(self.path, Path::Grouped { .. });
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

    /// Warps of a block of the direct down kernel: as few as take the work in as many rounds as the most can.
    pub(super) fn direct_warps(&self) -> u32 {
        let work = self.stack.top_k * rows::DOWN_PARTS;
        work.div_ceil(work.div_ceil(rows::DIRECT_THREADS / 32))
    }
}
