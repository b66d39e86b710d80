//! The backends behind one type, so that what is chosen by a flag is one program from there on.

use galvani_cpu::reference::{Reference, ReferenceProgram};
use galvani_cpu::{CpuBackend, CpuMath, CpuOptions, CpuProgram, Isa};
use galvani_graph::{Backend, BackendError, Compiled, Graph, LimitsSpec, StepInput, WeightSource};

use crate::error::CliError;
use crate::flags::{ComputeArgs, MathFlag};

/// A backend.
pub enum Compute {
    /// SIMD kernels on a thread pool.
    Cpu(Box<CpuBackend>),
    /// Plain loops.
    Reference(Reference),
}

/// A program of the backend of the same name.
pub enum Program {
    /// Of the SIMD backend.
    Cpu(Box<CpuProgram>),
    /// Of the plain one.
    Reference(Box<ReferenceProgram>),
}

impl Compute {
    /// The backend that the flags mean.
    ///
    /// # Errors
    /// When the instruction set is unknown or absent, or threads cannot be had.
    pub fn new(arguments: &ComputeArgs) -> Result<Self, CliError> {
        let isa = arguments.isa.as_deref().map(str::parse::<Isa>).transpose();
        let isa = isa.and_then(|isa| isa.map(Isa::require).transpose());
        let isa = isa.map_err(|error| CliError::Usage(format!("--isa: {error}")))?;
        let math = match arguments.cpu_math {
            MathFlag::Fast => CpuMath::Fast,
            MathFlag::Exact => CpuMath::Exact,
            MathFlag::Reference => return Ok(Compute::Reference(Reference)),
        };
        let options = CpuOptions {
            threads: threads(arguments)?,
            math,
            isa,
        };
        let backend = CpuBackend::new(options).map_err(|error| CliError::Failed(error.to_string()))?;
        Ok(Compute::Cpu(Box::new(backend)))
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        match self {
            Compute::Cpu(backend) => backend.describe(),
            Compute::Reference(_) => "reference: plain loops in f32, 1 thread".to_owned(),
        }
    }
}

/// Threads of the pool: as asked for, else one a core.
///
/// # Errors
/// When 0 or absurdly many are asked for.
pub fn threads(arguments: &ComputeArgs) -> Result<usize, CliError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match arguments.threads {
        None => Ok(cores),
        Some(count @ 1..=1024) => Ok(count),
        Some(count) => Err(CliError::Usage(format!(
            "--threads: got {count}, allowed: 1 to 1024"
        ))),
    }
}

impl Backend for Compute {
    type Program = Program;

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        limits: LimitsSpec,
    ) -> Result<Program, BackendError> {
        Ok(match self {
            Compute::Cpu(backend) => Program::Cpu(Box::new(backend.compile(graph, weights, limits)?)),
            Compute::Reference(backend) => {
                Program::Reference(Box::new(backend.compile(graph, weights, limits)?))
            }
        })
    }

    fn compiled<'p>(&self, program: &'p Program) -> &'p Compiled {
        match (self, program) {
            (Compute::Cpu(backend), Program::Cpu(program)) => backend.compiled(program),
            (Compute::Reference(backend), Program::Reference(program)) => backend.compiled(program),
            (Compute::Cpu(_), Program::Reference(_)) | (Compute::Reference(_), Program::Cpu(_)) => {
                panic!("a program runs on the backend that compiled it")
            }
        }
    }

    fn run(
        &self,
        program: &mut Program,
        step: &StepInput<'_>,
        logits: &mut [f32],
    ) -> Result<(), BackendError> {
        match (self, program) {
            (Compute::Cpu(backend), Program::Cpu(program)) => backend.run(program, step, logits),
            (Compute::Reference(backend), Program::Reference(program)) => backend.run(program, step, logits),
            (Compute::Cpu(_), Program::Reference(_)) | (Compute::Reference(_), Program::Cpu(_)) => {
                panic!("a program runs on the backend that compiled it")
            }
        }
    }
}
