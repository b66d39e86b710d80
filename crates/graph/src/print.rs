//! The text form of a graph: one line a node, for people and for snapshot tests.
//!
//! A value that owns a buffer is `%n`; a view is written as its buffer and the numbers it covers, `%n[0..64]`, so that
//! every line shows what is really read. The step's inputs go by their names.

use std::fmt;

use crate::{
    Activation, CacheSpec, Dim, Graph, Node, Op, RopeScaling, RopeSpec, RouterScore, ValueId, ValueSource,
    Weight,
};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "graph: {} nodes, {} weights, {} caches",
            self.nodes.len(),
            self.weights.len(),
            self.caches.len()
        )?;
        for (index, rope) in self.ropes.iter().enumerate() {
            writeln!(f, "rope {index}: {rope}")?;
        }
        for (index, cache) in self.caches.iter().enumerate() {
            writeln!(f, "cache {index}: {cache}")?;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            writeln!(
                f,
                "{}",
                NodeLine {
                    graph: self,
                    index,
                    node
                }
            )?;
        }
        match self.output {
            Some(output) => writeln!(f, "output {}", Operand(self, output)),
            None => writeln!(f, "no output"),
        }
    }
}

struct NodeLine<'a> {
    graph: &'a Graph,
    index: usize,
    node: &'a Node,
}

impl fmt::Display for NodeLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (graph, node) = (self.graph, self.node);
        write!(
            f,
            "{:4} {} = {}{}",
            self.index,
            Operand(graph, node.output),
            node.op.name(),
            Params(&node.op)
        )?;
        for &input in &node.inputs {
            write!(f, " {}", Operand(graph, input))?;
        }
        for &weight in &node.weights {
            write!(f, " {}", graph.weight(weight))?;
        }
        write!(f, "  # {}", node.label)
    }
}

/// A value as an operand: where it lies and its shape.
struct Operand<'a>(&'a Graph, ValueId);

impl fmt::Display for Operand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0.value(self.1);
        match value.source {
            ValueSource::Tokens | ValueSource::Positions | ValueSource::Rows => f.write_str(&value.name)?,
            ValueSource::Node(_) => write!(f, "%{}", self.1.0)?,
            ValueSource::View(view) => {
                let end = view.offset + value.row_len();
                write!(f, "%{}[{}..{end}]", view.base.0, view.offset)?;
            }
        }
        write!(f, ":{}", Shape(&value.dims))
    }
}

/// `[tokens, 64]`.
pub(crate) struct Shape<'a>(pub(crate) &'a [Dim]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?} {}", self.name, self.dims, self.format)?;
        if let Some(rows) = &self.row_range {
            write!(f, " rows {}..{}", rows.start, rows.end)?;
        }
        if let Some(columns) = &self.column_range {
            write!(f, " columns {}..{}", columns.start, columns.end)?;
        }
        Ok(())
    }
}

impl fmt::Display for CacheSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "layer {}, {} heads, key {}, value {}",
            self.layer, self.kv_heads, self.key_dim, self.value_dim
        )?;
        match self.window {
            Some(window) => write!(f, ", window {window}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for RopeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dims {}, theta {}", self.dims, self.theta)?;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => write!(f, ", linear {factor}"),
            RopeScaling::Llama3 {
                factor,
                low_frequency_factor,
                high_frequency_factor,
                original_context,
            } => write!(
                f,
                ", llama3 {factor}, low {low_frequency_factor}, high {high_frequency_factor}, original {original_context}"
            ),
            RopeScaling::Divisors(divisors) => write!(f, ", {} divisors", divisors.len()),
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                attention_factor,
            } => write!(
                f,
                ", yarn {factor}, original {original_context}, beta {beta_fast} {beta_slow}, attention {attention_factor}"
            ),
        }
    }
}

/// ` (eps 1e-6)`, or nothing.
struct Params<'a>(&'a Op);

impl fmt::Display for Params<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Op::Embed { scale } | Op::LinearAdd { scale } | Op::Add { scale } => {
                if *scale == 1.0 {
                    return Ok(());
                }
                write!(f, "(scale {scale})")
            }
            Op::RmsNorm { eps } => write!(f, "(eps {eps:e})"),
            Op::Linear { bias } => f.write_str(if *bias { "(bias)" } else { "" }),
            Op::LinearGated { activation } | Op::Gated { activation } | Op::ExpertsGated { activation } => {
                write!(f, "({})", activation.name())
            }
            Op::Scale { by } => write!(f, "(by {by})"),
            Op::Softcap { cap } => write!(f, "(cap {cap})"),
            Op::Rope { rope } => write!(f, "(rope {})", rope.0),
            Op::Attention {
                cache,
                scale,
                window,
                softcap,
            } => {
                write!(f, "(cache {}, scale {scale}", cache.0)?;
                if let Some(window) = window {
                    write!(f, ", window {window}")?;
                }
                if let Some(cap) = softcap {
                    write!(f, ", softcap {cap}")?;
                }
                f.write_str(")")
            }
            Op::Route {
                top_k,
                score,
                renormalise,
                scale,
            } => {
                write!(f, "(top {top_k}, {}", score.name())?;
                if *renormalise {
                    f.write_str(", renormalise")?;
                }
                if *scale != 1.0 {
                    write!(f, ", scale {scale}")?;
                }
                f.write_str(")")
            }
            Op::TakeRows | Op::ExpertsDown | Op::AllReduce => Ok(()),
        }
    }
}

impl Activation {
    /// Name, as the text printer and the census show it.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
        }
    }
}

impl RouterScore {
    /// Name, as the text printer and the census show it.
    pub fn name(self) -> &'static str {
        match self {
            RouterScore::Softmax => "softmax",
            RouterScore::Sigmoid => "sigmoid",
        }
    }
}
