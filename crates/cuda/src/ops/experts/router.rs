//! A router's rule: from logits to experts and their weights.

use crate::error::CudaError;
use crate::ops::experts::plan::{ExpertStack, fault};

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// `sqrt(ln(1 + e^x))` of each, as DeepSeek V4 has it.
    SqrtSoftplus,
}

/// Who decides which experts a token gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The best ranks.
    Best,
    /// A table, as in the first layers of DeepSeek V4: `Operands::choices`. The scores only weigh.
    Table {
        /// Rows of the table: tokens of the vocabulary.
        rows: u32,
    },
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
    /// Logits become `softcap tanh(logit / softcap)` first; 0: they do not.
    pub softcap: f32,
    /// How they become scores.
    pub score: Score,
    /// Who decides.
    pub selection: Selection,
    /// Whether a bias [experts] moves the choice (not the weights).
    pub bias: bool,
    /// Groups of neighbouring experts; 0 or 1: none.
    pub groups: u32,
    /// Groups that a token may choose from.
    pub groups_kept: u32,
    /// A group's rank is the sum of its best so many: 1 or 2.
    pub group_best: u32,
    /// Whether the chosen weights are divided by their sum (and 1e-20, which only a sum below 1e-13 shows).
    pub renormalise: bool,
    /// Multiplier of the weights.
    pub scale: f32,
    /// Whether the sigmoid of one more row is the shared expert's weight.
    pub shared_gate: bool,
}

impl Router {
    /// A router without extras: the best of these scores, renormalised.
    pub const fn plain(input: RouterInput, score: Score) -> Self {
        Self {
            input,
            softcap: 0.0,
            score,
            selection: Selection::Best,
            bias: false,
            groups: 0,
            groups_kept: 0,
            group_best: 1,
            renormalise: true,
            scale: 1.0,
            shared_gate: false,
        }
    }
}

impl ExpertStack {
    pub(super) fn check_router(&self) -> Result<(), CudaError> {
        let cap = self.router.softcap;
        if !(cap >= 0.0 && cap.is_finite()) {
            return Err(fault(
                "bits of the cap on logits",
                cap.to_bits(),
                "those of 0 (no cap) or of a positive number",
            ));
        }
        let Selection::Table { rows } = self.router.selection else {
            return Ok(());
        };
        if rows == 0 {
            return Err(fault("rows of the table of choices", rows, "1 and more"));
        }
        if self.router.bias || self.router.groups > 1 {
            return Err(fault(
                "groups or biases beside a table of choices",
                self.router.groups.max(1),
                "none: nothing is ranked",
            ));
        }
        Ok(())
    }

    /// Holds a table of choices, `[rows, top_k]`, to what the kernels count on.
    ///
    /// # Errors
    /// Not whole rows, an expert that does not exist, or one twice in a row.
    pub fn check_choices(&self, table: &[u32]) -> Result<(), CudaError> {
        let top_k = self.top_k as usize;
        if top_k == 0 || !table.len().is_multiple_of(top_k) {
            return Err(fault(
                "choices in a table",
                table.len() as u64,
                format!("multiples of {top_k}"),
            ));
        }
        for row in table.chunks_exact(top_k) {
            for (rank, &expert) in row.iter().enumerate() {
                if expert >= self.experts || row[..rank].contains(&expert) {
                    let allowed = format!("each of 0 to {} once in a row", self.experts.saturating_sub(1));
                    return Err(fault("an expert in a table of choices", expert, allowed));
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_groups(&self) -> Result<(), CudaError> {
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
