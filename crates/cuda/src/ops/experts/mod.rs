//! Mixture of experts: router, gate and up, down, combination.
//!
//! ```text
//! route:   logits = x R^T, scores, the best top_k of each token, the table of row blocks
//! gated:   hidden[slot] = act(G_e x) * (U_e x)      slot = token * top_k + rank, e its expert
//! down:    rows[slot] = D_e hidden[slot]
//! combine: out[token] = sum_slot weight * rows[slot] (+ shared expert) (+ residual), slots in order
//! ```
//! A router's rule is a `Router`: softmax, sigmoid or sqrt(softplus), a cap on logits, a bias, groups, or a table that lists
//! the experts of each token of the vocabulary; the chosen weights may be renormalised and scaled.
//!
//! Three paths. Two have the same bits: *grouped* sorts the slots by expert, so that each expert is read once for up to 8 or 16
//! of them; *direct*, for a few tokens, takes each slot alone and combines where it multiplies (three launches, no table).
//! *Tiled*, for a prefill, takes 64 slots of an expert at once and sums in another order: its bits are others, in the same bound.
//! Every launch's shape follows from the bucket of tokens alone; how many tokens there are may stay on the device.
//!
//! Weights: an expert is a run of tiles as `layout` describes them, experts one after the other. Of gate and up the tiles
//! alternate (gate's tile 0, up's tile 0, gate's tile 1, ..), so that what a block reads is one run of bytes; their column
//! factors alternate alike.

pub mod operands;
pub mod plan;
pub mod router;
pub mod rows;
pub mod weights;

pub use operands::{Choices, Operands, SharedExpert};
pub use plan::{Activation, ExpertStack, ExpertsPlan, Path, Workspace};
pub use router::{Router, RouterInput, Score, Selection};
pub use weights::ExpertBytes;
