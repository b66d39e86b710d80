//! The CPU as a [`Backend`].

use std::sync::Arc;

use galvani_graph::{Backend, BackendError, Compiled, Graph, LimitsSpec, StepInput, WeightSource};

use crate::error::CpuError;
use crate::isa::Isa;
use crate::pack::CpuMath;
use crate::pool::Pool;
use crate::program::{CpuProgram, Target, compile};

/// Most threads a pool takes.
const THREADS_MAX: usize = 512;

/// How the CPU is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the caller of `run` included; best the number of processors.
    pub threads: usize,
    /// Arithmetic of products, and type of the cache (f32 for exact).
    pub math: CpuMath,
    /// Kernels to use; `None` takes the best of this machine.
    pub isa: Option<Isa>,
}

/// Runs graphs on this machine's processor.
pub struct CpuBackend {
    target: Target,
}

impl CpuBackend {
    /// Chooses the kernels and starts the threads.
    ///
    /// # Errors
    /// When the thread count is outside 1..=512, the instruction set is not available, or a thread cannot be started.
    pub fn new(options: CpuOptions) -> Result<Self, CpuError> {
        let threads = options.threads;
        if !(1..=THREADS_MAX).contains(&threads) {
            return Err(CpuError::Threads {
                threads,
                most: THREADS_MAX,
            });
        }
        let isa = match options.isa {
            Some(isa) => isa.require()?,
            None => Isa::detect(),
        };
        let pool = Pool::new(threads).map_err(|source| CpuError::Spawn { threads, source })?;
        Ok(CpuBackend {
            target: Target {
                pool: Arc::new(pool),
                isa,
                math: options.math,
            },
        })
    }

    /// Kernels, arithmetic and threads, in a line.
    pub fn describe(&self) -> String {
        let Target { pool, isa, math } = &self.target;
        let math = match math {
            CpuMath::Exact => "exact f32 math",
            CpuMath::Fast => "int8 activations, f16 cache",
        };
        format!("cpu: {isa} kernels, {math}, {} threads", pool.count())
    }
}

impl Backend for CpuBackend {
    type Program = CpuProgram;

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        limits: LimitsSpec,
    ) -> Result<CpuProgram, BackendError> {
        compile(&self.target, graph, weights, limits)
    }

    fn compiled<'p>(&self, program: &'p CpuProgram) -> &'p Compiled {
        program.compiled()
    }

    fn run(
        &self,
        program: &mut CpuProgram,
        step: &StepInput<'_>,
        logits: &mut [f32],
    ) -> Result<(), BackendError> {
        program.run(step, logits)
    }
}
