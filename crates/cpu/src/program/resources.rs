//! What a program owns: packed weights, buffers, caches.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use galvani_graph::{BackendError, Compiled, ValueId, WeightId};
use galvani_weights::quant;

use super::barriers::place_barriers;
use super::compile::{Acts, Compiler, LINE, unsupported};
use super::stage::{Input, Kernel, MatrixId, VectorId};
use super::{CpuProgram, Rope, Shared};
use crate::lanes::Set;
use crate::ops::cache::{CacheType, KvPool};
use crate::ops::route::Groups;
use crate::pack::{AlignedBytes, CpuMath, PackSpec, PackedMatrix};
use crate::quantise::ActRows;
use crate::step::vocabulary;

impl Compiler<'_> {
    /// An input of products, quantised first unless the buffer holds it already.
    pub(super) fn input(
        &mut self,
        id: ValueId,
        rows_each: usize,
        readers: &[MatrixId],
    ) -> Result<Input, BackendError> {
        let place = self.place(id);
        let k = place.len / rows_each;
        let rows_max = place.outer.resolve(self.extent) * rows_each;
        for &reader in readers {
            let bytes = self.matrices[reader].scratch_bytes(rows_max);
            self.scratch_product = self.scratch_product.max(bytes);
        }
        if rows_each > 1 && place.stride != place.len {
            let label = self.graph.value(id).name.clone();
            return Err(unsupported(
                "experts_down",
                &label,
                "its input is not dense".into(),
            ));
        }
        if !readers.iter().any(|&reader| self.matrices[reader].wants_int8()) {
            return Ok(Input {
                place,
                rows_each,
                acts: None,
            });
        }
        let acts = self.acts.iter().position(|acts| acts.k == k).unwrap_or_else(|| {
            self.acts.push(Acts {
                k,
                rows_max,
                holds: None,
            });
            self.acts.len() - 1
        });
        let buffer = &mut self.acts[acts];
        buffer.rows_max = buffer.rows_max.max(rows_max);
        // A value is written once, and its place names it: the same place still holds the same rows.
        if buffer.holds != Some(place) {
            self.acts[acts].holds = Some(place);
            self.push(
                "quantise",
                Kernel::Quantise {
                    place,
                    rows_each,
                    acts,
                },
            );
        }
        Ok(Input {
            place,
            rows_each,
            acts: Some(acts),
        })
    }

    pub(super) fn matrix(&mut self, id: WeightId) -> Result<MatrixId, BackendError> {
        if let Some(&index) = self.matrix_ids.get(&id) {
            return Ok(index);
        }
        let weight = self.graph.weight(id);
        let parts = if weight.dims.len() == 3 { weight.dims[0] } else { 1 };
        let spec = PackSpec {
            isa: self.target.isa,
            math: self.target.math,
            name: &weight.name,
            format: weight.format,
            parts,
            rows: weight.row_count() / parts.max(1),
            k: weight.row_len(),
        };
        let source = |rows| self.weights.rows(weight, rows);
        let matrix = PackedMatrix::pack(&self.target.pool, &spec, &source)?;
        self.matrices.push(matrix);
        self.matrix_ids.insert(id, self.matrices.len() - 1);
        Ok(self.matrices.len() - 1)
    }

    pub(super) fn vector(&mut self, id: WeightId) -> Result<VectorId, BackendError> {
        let weight = self.graph.weight(id);
        let wrong = |reason: String| BackendError::Weight {
            name: weight.name.clone(),
            reason,
        };
        let bytes = self.weights.rows(weight, 0..weight.row_count())?;
        let wanted = weight
            .format
            .row_bytes(weight.row_len())
            .map_err(|e| wrong(e.to_string()))?;
        if bytes.len() != wanted {
            return Err(wrong(format!(
                "{} bytes, {} numbers take {wanted}",
                bytes.len(),
                weight.row_len()
            )));
        }
        let mut numbers = vec![0.0; weight.row_len()];
        quant::dequantize(weight.format, &bytes, &mut numbers).map_err(|e| wrong(e.to_string()))?;
        self.vectors.push(numbers);
        Ok(self.vectors.len() - 1)
    }

    pub(super) fn finish(mut self) -> Result<CpuProgram, BackendError> {
        place_barriers(&mut self.stages, self.extent);
        let pool = Arc::clone(&self.target.pool);
        pool.reserve_scratch(self.scratch_product)?;
        let kind = match self.target.math {
            CpuMath::Exact => CacheType::F32,
            CpuMath::Fast => CacheType::F16,
        };
        let caches: Vec<KvPool> = self
            .graph
            .caches
            .iter()
            .map(|spec| KvPool::new(spec, &self.limits, kind))
            .collect::<Result<_, _>>()?;
        let acts: Vec<ActRows> = self
            .acts
            .iter()
            .map(|acts| ActRows::new(self.target.isa, acts.rows_max, acts.k))
            .collect::<Result<_, _>>()?;
        // One line of slack: a vector load of the last row's last numbers stays inside.
        let arena = AlignedBytes::zeroed((self.numbers + LINE) * size_of::<f32>(), "activations")?;
        let scratch: Vec<AlignedBytes> = (0..pool.count())
            .map(|_| AlignedBytes::zeroed(self.scratch, "operation scratch"))
            .collect::<Result<_, _>>()?;
        let output = self.graph.output.expect("checked: the graph has logits");
        let compiled = Compiled {
            census: self.census,
            weight_bytes: self.matrices.iter().map(PackedMatrix::bytes).sum::<usize>()
                + self
                    .vectors
                    .iter()
                    .map(|v| v.len() * size_of::<f32>())
                    .sum::<usize>(),
            arena_bytes: arena.len() + acts.iter().map(ActRows::bytes).sum::<usize>(),
            cache_bytes: caches.iter().map(KvPool::bytes).sum(),
        };
        let tokens = self.extent.tokens;
        Ok(CpuProgram {
            pool,
            set: Set::of(self.target.isa),
            limits: self.limits,
            vocabulary: vocabulary(self.graph),
            logits_len: self.graph.value(output).row_len(),
            stages: self.stages,
            arena,
            matrices: self.matrices,
            vectors: self.vectors,
            ropes: self.graph.ropes.iter().map(Rope::new).collect(),
            caches,
            acts,
            work: self.work,
            counters: (0..self.counters).map(|_| AtomicUsize::new(0)).collect(),
            groups: self
                .groups
                .map(|(experts, top_k)| Shared::new(Groups::new(experts, tokens, top_k))),
            scratch,
            times: None,
            compiled,
        })
    }
}
