//! The shape contract of every operation: operands in, output shape out.

use crate::{CacheId, Dim, Graph, GraphError, Op, RopeId, ValueId, WeightId};

/// Output shape of `op`, or what is wrong with its operands.
pub(crate) fn infer(
    graph: &Graph,
    op: &Op,
    label: &str,
    inputs: &[ValueId],
    weights: &[WeightId],
) -> Result<Vec<Dim>, GraphError> {
    let check = Check {
        graph,
        op,
        label,
        inputs,
        weights,
    };
    match op {
        Op::Embed { .. } => {
            check.count(1, 1)?;
            check.input_dims(0, 1)?;
            let table = check.weight_dims(0, 2)?;
            Ok(vec![check.outer(0), Dim::Fixed(table[1])])
        }
        Op::RmsNorm { .. } => {
            check.count(1, 1)?;
            let weight = check.weight_dims(0, 1)?;
            let dims = check.dims(0);
            check.equal("last dimension", dims[dims.len() - 1], Dim::Fixed(weight[0]))?;
            Ok(dims.to_vec())
        }
        Op::Linear { bias } => check.linear(*bias),
        Op::LinearAdd { .. } => {
            check.count(2, 1)?;
            let n = check.matrix(0, 0)?;
            let out = vec![check.outer(0), Dim::Fixed(n)];
            check.shape("residual", 1, &out)?;
            Ok(out)
        }
        Op::LinearGated { .. } => {
            check.count(1, 2)?;
            let (gate, up) = (check.matrix(0, 0)?, check.matrix(0, 1)?);
            check.equal("up rows", Dim::Fixed(up), Dim::Fixed(gate))?;
            Ok(vec![check.outer(0), Dim::Fixed(gate)])
        }
        Op::Gated { .. } | Op::Add { .. } => {
            check.count(2, 0)?;
            let first = check.dims(0).to_vec();
            check.shape("second operand", 1, &first)?;
            Ok(first)
        }
        Op::Scale { .. } | Op::Softcap { .. } | Op::AllReduce => {
            check.count(1, 0)?;
            Ok(check.dims(0).to_vec())
        }
        Op::Rope { rope } => check.rope(*rope),
        Op::Attention { cache, .. } => check.attention(*cache),
        Op::TakeRows => {
            check.count(2, 0)?;
            let x = check.input_dims(0, 2)?;
            Ok(vec![check.outer(1), x[1]])
        }
        Op::Route { top_k, .. } => check.route(*top_k),
        Op::ExpertsGated { .. } => check.experts_gated(),
        Op::ExpertsDown => {
            check.count(2, 1)?;
            let x = check.input_dims(0, 3)?;
            let down = check.weight_dims(0, 3)?;
            check.equal("input", x[2], Dim::Fixed(down[2]))?;
            Ok(vec![x[0], Dim::Fixed(down[1])])
        }
    }
}

struct Check<'a> {
    graph: &'a Graph,
    op: &'a Op,
    label: &'a str,
    inputs: &'a [ValueId],
    weights: &'a [WeightId],
}

impl<'a> Check<'a> {
    fn linear(&self, bias: bool) -> Result<Vec<Dim>, GraphError> {
        let parts = if bias {
            self.weights.len() / 2
        } else {
            self.weights.len()
        };
        if self.inputs.len() != 1 || parts == 0 || (bias && !self.weights.len().is_multiple_of(2)) {
            return Err(self.wrong(
                "weights",
                self.weights.len().to_string(),
                "matrices, then a bias for each".into(),
            ));
        }
        let mut total = 0;
        for part in 0..parts {
            let n = self.matrix(0, part)?;
            if bias {
                let b = self.weight_dims(parts + part, 1)?;
                self.equal("bias", Dim::Fixed(b[0]), Dim::Fixed(n))?;
            }
            total += n;
        }
        Ok(vec![self.outer(0), Dim::Fixed(total)])
    }

    /// `[T, heads, D]` and positions.
    fn rope(&self, rope: RopeId) -> Result<Vec<Dim>, GraphError> {
        self.count(2, 0)?;
        let dims = self.input_dims(0, 3)?.to_vec();
        let rotated = self.graph.rope(rope).dims;
        match dims[2].fixed() {
            Some(head) if head >= rotated && rotated.is_multiple_of(2) => Ok(dims),
            _ => Err(self.wrong("head", dims[2].to_string(), format!("at least {rotated}, even"))),
        }
    }

    /// q, k and v, against their cache.
    fn attention(&self, cache: CacheId) -> Result<Vec<Dim>, GraphError> {
        self.count(3, 0)?;
        let spec = self.graph.cache(cache);
        let q = self.input_dims(0, 3)?.to_vec();
        self.shape(
            "k",
            1,
            &[q[0], Dim::Fixed(spec.kv_heads), Dim::Fixed(spec.key_dim)],
        )?;
        self.shape(
            "v",
            2,
            &[q[0], Dim::Fixed(spec.kv_heads), Dim::Fixed(spec.value_dim)],
        )?;
        self.equal("q head", q[2], Dim::Fixed(spec.key_dim))?;
        match q[1].fixed() {
            Some(heads) if spec.kv_heads > 0 && heads.is_multiple_of(spec.kv_heads) => {
                Ok(vec![q[0], q[1], Dim::Fixed(spec.value_dim)])
            }
            _ => Err(self.wrong(
                "heads",
                q[1].to_string(),
                format!("a multiple of {}", spec.kv_heads),
            )),
        }
    }

    /// Router logits to ids and weights.
    fn route(&self, top_k: usize) -> Result<Vec<Dim>, GraphError> {
        if self.weights.len() > 1 {
            self.count(1, 1)?;
        }
        let logits = self.input_dims(0, 2)?;
        match logits[1].fixed() {
            Some(experts) if (1..=experts).contains(&top_k) => Ok(vec![logits[0], Dim::Fixed(2 * top_k)]),
            _ => Err(self.wrong("top_k", top_k.to_string(), format!("1 to {}", logits[1]))),
        }
    }

    /// Gate and up products of the chosen experts.
    fn experts_gated(&self) -> Result<Vec<Dim>, GraphError> {
        self.count(2, 2)?;
        let x = self.input_dims(0, 2)?;
        let routes = self.input_dims(1, 2)?;
        let (gate, up) = (self.weight_dims(0, 3)?, self.weight_dims(1, 3)?);
        self.equal("input", x[1], Dim::Fixed(gate[2]))?;
        if gate != up {
            return Err(self.wrong("up", format!("{up:?}"), format!("{gate:?}")));
        }
        let slots = routes[1].fixed().expect("inner dimensions are fixed") / 2;
        Ok(vec![x[0], Dim::Fixed(slots), Dim::Fixed(gate[1])])
    }

    /// Checks that input `input` is `[.., K]` for the matrix `weight` `[N, K]`; returns N.
    fn matrix(&self, input: usize, weight: usize) -> Result<usize, GraphError> {
        let x = self.dims(input);
        let w = self.weight_dims(weight, 2)?;
        let k: usize = x[1..].iter().filter_map(|d| d.fixed()).product();
        self.equal("input row", Dim::Fixed(k), Dim::Fixed(w[1]))?;
        Ok(w[0])
    }

    fn count(&self, inputs: usize, weights: usize) -> Result<(), GraphError> {
        if self.inputs.len() == inputs && self.weights.len() == weights {
            return Ok(());
        }
        Err(self.wrong(
            "operands",
            format!("{} values and {} weights", self.inputs.len(), self.weights.len()),
            format!("{inputs} and {weights}"),
        ))
    }

    fn dims(&self, input: usize) -> &'a [Dim] {
        &self.graph.value(self.inputs[input]).dims
    }

    fn outer(&self, input: usize) -> Dim {
        self.dims(input)[0]
    }

    fn input_dims(&self, input: usize, rank: usize) -> Result<&'a [Dim], GraphError> {
        let dims = self.dims(input);
        if dims.len() == rank {
            return Ok(dims);
        }
        Err(self.wrong("rank", dims.len().to_string(), rank.to_string()))
    }

    fn weight_dims(&self, weight: usize, rank: usize) -> Result<&'a [usize], GraphError> {
        let dims = &self.graph.weight(self.weights[weight]).dims;
        if dims.len() == rank {
            return Ok(dims);
        }
        Err(self.wrong("weight rank", format!("{dims:?}"), format!("{rank} dimensions")))
    }

    fn equal(&self, what: &'static str, got: Dim, wanted: Dim) -> Result<(), GraphError> {
        if got == wanted {
            return Ok(());
        }
        Err(self.wrong(what, got.to_string(), wanted.to_string()))
    }

    fn shape(&self, what: &'static str, input: usize, wanted: &[Dim]) -> Result<(), GraphError> {
        let got = self.dims(input);
        if got == wanted {
            return Ok(());
        }
        let text = |dims: &[Dim]| dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
        Err(self.wrong(what, text(got), text(wanted)))
    }

    fn wrong(&self, what: &'static str, got: String, wanted: String) -> GraphError {
        GraphError::Shape {
            op: self.op.name(),
            label: self.label.to_owned(),
            what,
            got,
            wanted,
        }
    }
}
