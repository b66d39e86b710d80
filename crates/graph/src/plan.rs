//! Fixed addresses: every buffer gets an offset in one arena, and buffers that never live at once share bytes.
//!
//! Largest first, each buffer goes into the smallest gap left by those it meets in time (offline best fit for interval
//! scheduling of memory; Pisarchyk & Lee, 2020, compare the variants).

use std::fmt;

use crate::{Extent, Graph, ValueId};

/// Offsets are multiples of this many bytes: one cache line, one AVX-512 register.
pub const PLAN_ALIGNMENT: usize = 64;

/// One buffer of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// The value that owns it.
    pub value: ValueId,
    /// Offset into the arena, bytes.
    pub offset: usize,
    /// Size, bytes, a multiple of [`PLAN_ALIGNMENT`].
    pub bytes: usize,
    /// Index of the node that writes it.
    pub first: usize,
    /// Index of the last node that reads it, itself or through a view.
    pub last: usize,
}

/// Where every buffer of a graph lies. Values of 4 bytes a number.
///
/// The step's inputs are not in the arena, and neither are the logits, which a backend writes where the caller wants them
/// (unless they are a view: then their base is here).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Buffers, in the order in which they are written.
    pub buffers: Vec<Buffer>,
    /// Size of the arena, bytes.
    pub bytes: usize,
    index: Vec<Option<u32>>,
}

/// Plans `graph` for steps of at most `extent`.
pub fn plan(graph: &Graph, extent: Extent) -> Plan {
    let mut buffers = lifetimes(graph, extent);
    let mut by_size: Vec<usize> = (0..buffers.len()).collect();
    by_size.sort_by_key(|&i| (std::cmp::Reverse(buffers[i].bytes), buffers[i].first));
    let mut placed: Vec<usize> = Vec::with_capacity(buffers.len());
    for index in by_size {
        let mut met: Vec<(usize, usize)> = placed
            .iter()
            .map(|&other| &buffers[other])
            .filter(|other| other.meets(&buffers[index]))
            .map(|other| (other.offset, other.offset + other.bytes))
            .collect();
        met.sort_unstable();
        buffers[index].offset = best_gap(&met, buffers[index].bytes);
        placed.push(index);
    }
    let mut index = vec![None; graph.values.len()];
    for (i, buffer) in buffers.iter().enumerate() {
        index[buffer.value.0 as usize] = Some(i as u32);
    }
    let bytes = buffers.iter().map(|b| b.offset + b.bytes).max().unwrap_or(0);
    let plan = Plan {
        buffers,
        bytes,
        index,
    };
    plan.check_integrity();
    plan
}

/// One buffer for each value a node writes, offsets still 0.
fn lifetimes(graph: &Graph, extent: Extent) -> Vec<Buffer> {
    let mut last: Vec<usize> = vec![0; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        last[node.output.0 as usize] = index;
        for &input in &node.inputs {
            last[graph.storage(input).base.0 as usize] = index;
        }
    }
    let logits_elsewhere = graph.output;
    if let Some(output) = graph.output {
        last[graph.storage(output).base.0 as usize] = graph.nodes.len();
    }
    graph
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| Some(node.output) != logits_elsewhere)
        .map(|(first, node)| {
            let value = graph.value(node.output);
            let bytes = value.dims[0].resolve(extent) * value.row_len() * size_of::<f32>();
            Buffer {
                value: node.output,
                offset: 0,
                bytes: bytes.next_multiple_of(PLAN_ALIGNMENT),
                first,
                last: last[node.output.0 as usize],
            }
        })
        .collect()
}

/// Start of the smallest gap of at least `bytes` between the sorted ranges `taken`, or the end of the last.
fn best_gap(taken: &[(usize, usize)], bytes: usize) -> usize {
    let mut best: Option<(usize, usize)> = None;
    let mut end = 0;
    for &(start, stop) in taken {
        if start > end {
            let gap = start - end;
            if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, end));
            }
        }
        end = end.max(stop);
    }
    best.map_or(end, |(_, start)| start)
}

impl Buffer {
    /// Whether both are alive at some node. A node's inputs and output are: nothing is computed in place.
    fn meets(&self, other: &Buffer) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl Plan {
    /// Offset of `value`'s buffer in bytes; `None` for step inputs, views (ask for the base) and the logits.
    pub fn offset(&self, value: ValueId) -> Option<usize> {
        let index = self.index[value.0 as usize]?;
        Some(self.buffers[index as usize].offset)
    }

    /// Asserts that no two buffers that are alive at once overlap, and that all lie inside the arena.
    ///
    /// # Panics
    /// When they do, which is a mistake in [`plan`].
    pub fn check_integrity(&self) {
        for (i, a) in self.buffers.iter().enumerate() {
            assert!(
                a.offset.is_multiple_of(PLAN_ALIGNMENT),
                "%{} is not aligned",
                a.value.0
            );
            assert!(
                a.offset + a.bytes <= self.bytes,
                "%{} leaves the arena",
                a.value.0
            );
            for b in &self.buffers[..i] {
                let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                assert!(apart || !a.meets(b), "%{} and %{} overlap", a.value.0, b.value.0);
            }
        }
    }

    /// The text form: one line a buffer.
    pub fn display<'a>(&'a self, graph: &'a Graph) -> impl fmt::Display + 'a {
        PlanText { plan: self, graph }
    }
}

struct PlanText<'a> {
    plan: &'a Plan,
    graph: &'a Graph,
}

impl fmt::Display for PlanText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plan, graph) = (self.plan, self.graph);
        let total: usize = plan.buffers.iter().map(|b| b.bytes).sum();
        writeln!(
            f,
            "arena: {} bytes for {} buffers of {total} bytes",
            plan.bytes,
            plan.buffers.len()
        )?;
        for buffer in &plan.buffers {
            let value = graph.value(buffer.value);
            let lives = if graph.nodes.len() == buffer.last {
                "end".into()
            } else {
                buffer.last.to_string()
            };
            writeln!(
                f,
                "%{:<5} {:>10} +{:<10} nodes {}..={lives} {} # {}",
                buffer.value.0,
                buffer.offset,
                buffer.bytes,
                buffer.first,
                crate::print::Shape(&value.dims),
                value.name,
            )?;
        }
        if let Some(output) = graph.output
            && plan.offset(graph.storage(output).base).is_none()
        {
            writeln!(f, "%{:<5} logits, written where the caller wants them", output.0)?;
        }
        Ok(())
    }
}
