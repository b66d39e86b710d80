//! What can go wrong while a graph is built or rewritten.

/// A graph that cannot be: each message names the operation, the value and what would be allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// An operand has the wrong shape.
    #[error("{op} `{label}`: {what}: got {got}, wanted {wanted}")]
    Shape {
        /// Name of the operation.
        op: &'static str,
        /// Label of the node.
        label: String,
        /// Which operand.
        what: &'static str,
        /// The shape found.
        got: String,
        /// What would be right.
        wanted: String,
    },
    /// A pass cannot treat this graph.
    #[error("{pass}: `{label}`: {reason}")]
    Pass {
        /// Name of the pass.
        pass: &'static str,
        /// The node or weight concerned.
        label: String,
        /// Why not, and what would be allowed.
        reason: String,
    },
}
