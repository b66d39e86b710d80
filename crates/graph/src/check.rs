//! What holds for every graph, whichever pass it left.

use crate::{Graph, GraphError, NodeId, ValueId, ValueSource};

impl Graph {
    /// Checks the whole graph: operands exist and are computed before they are read, every view lies inside its base,
    /// every shape follows from its operation.
    ///
    /// # Errors
    /// Names the first node or value that breaks a rule.
    pub fn check(&self) -> Result<(), GraphError> {
        for (index, value) in self.values.iter().enumerate() {
            self.check_value(ValueId(index as u32), &value.name)?;
        }
        let mut written = vec![false; self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let wrong = |reason: String| GraphError::Pass {
                pass: "check",
                label: node.label.clone(),
                reason,
            };
            for &input in &node.inputs {
                if input.0 as usize >= self.values.len() {
                    return Err(wrong(format!("input %{} does not exist", input.0)));
                }
                let base = self.storage(input).base;
                if matches!(self.value(base).source, ValueSource::Node(_)) && !written[base.0 as usize] {
                    return Err(wrong(format!("%{} is read before it is written", base.0)));
                }
            }
            if node.weights.iter().any(|w| w.0 as usize >= self.weights.len()) {
                return Err(wrong("a weight does not exist".into()));
            }
            let dims = crate::infer::infer(self, &node.op, &node.label, &node.inputs, &node.weights)?;
            let output = self.value(node.output);
            if output.source != ValueSource::Node(NodeId(index as u32)) || output.dims != dims {
                return Err(wrong(format!("output %{} is not this node's", node.output.0)));
            }
            written[node.output.0 as usize] = true;
        }
        match self.output {
            Some(output) if (output.0 as usize) < self.values.len() => Ok(()),
            _ => Err(GraphError::Pass {
                pass: "check",
                label: "output".into(),
                reason: "the graph has no logits".into(),
            }),
        }
    }

    fn check_value(&self, id: ValueId, name: &str) -> Result<(), GraphError> {
        let wrong = |reason: String| GraphError::Pass {
            pass: "check",
            label: name.to_owned(),
            reason,
        };
        match self.value(id).source {
            ValueSource::Tokens | ValueSource::Positions | ValueSource::Rows => Ok(()),
            ValueSource::Node(node) => match self.nodes.get(node.0 as usize) {
                Some(node) if node.output == id => Ok(()),
                _ => Err(wrong(format!("node {} does not write it", node.0))),
            },
            ValueSource::View(view) => {
                let Some(base) = self.values.get(view.base.0 as usize) else {
                    return Err(wrong(format!("base %{} does not exist", view.base.0)));
                };
                if matches!(base.source, ValueSource::View(_)) {
                    return Err(wrong("a view of a view".into()));
                }
                let end = view.offset + self.value(id).row_len();
                if view.row_stride != base.row_len() || end > base.row_len() {
                    return Err(wrong(format!("ends at {end} of a row of {}", base.row_len())));
                }
                if self.value(id).dims[0] != base.dims[0] {
                    return Err(wrong("another number of rows than its base".into()));
                }
                Ok(())
            }
        }
    }
}
