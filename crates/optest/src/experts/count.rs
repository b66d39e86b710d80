//! What the router does, counted in the interpreter: the chain that a token waits for before any expert is read.

use galvani_cuda::ops::experts::{ExpertStack, Operands, RouterInput};
use galvani_cuda::{CudaError, DeviceBuffer, Launcher};
use galvani_ptx::{Counters, PIPES};

use crate::device::interpreter::Interpreter;
use crate::device::random::Kind;
use crate::experts::{Case, bench};
use crate::weights::Random;

/// Tokens of the buckets that are counted.
const TOKENS: [u32; 6] = [1, 4, 8, 16, 32, 64];

/// Prints a line for each model and bucket: the whole router, and (with the logits given) the choice and the table alone.
///
/// # Errors
/// The interpreter's.
pub fn print(on: &mut Interpreter) -> Result<(), CudaError> {
    println!("instructions are those of PTX, a warp each; `waits` are barriers a warp");
    for shape in bench::SHAPES {
        for tokens in TOKENS {
            for input in [RouterInput::F32, RouterInput::Logits] {
                let mut stack = Case::new(shape.sizes, tokens, Kind::Nvfp4).stack;
                stack.router.input = input;
                let (symbol, grid, counters) = one(on, &stack, tokens)?;
                println!(
                    "{} N={tokens} {symbol} {input:?} grid {grid:?}: {}",
                    shape.name,
                    line(&counters)
                );
            }
        }
    }
    Ok(())
}

fn line(counters: &Counters) -> String {
    let issued: u64 = counters.issued.iter().sum();
    let pipes: Vec<String> = PIPES
        .iter()
        .zip(counters.issued)
        .filter(|(_, count)| *count > 0)
        .map(|(pipe, count)| format!("{pipe:?} {count}"))
        .collect();
    format!(
        "{issued} instructions in {} warps, {:.1} waits, {} sectors, {} conflicts ({})",
        counters.warps,
        counters.barrier_waits as f64 / counters.warps as f64,
        counters.global_loads.sectors,
        counters.shared_loads.wavefronts + counters.shared_stores.wavefronts
            - counters.shared_loads.wavefronts_ideal
            - counters.shared_stores.wavefronts_ideal,
        pipes.join(", ")
    )
}

/// The router's launch alone; what it does not touch has no memory.
fn one(
    on: &mut Interpreter,
    stack: &ExpertStack,
    tokens: u32,
) -> Result<(String, [u32; 3], Counters), CudaError> {
    on.reset()?;
    let plan = stack.plan(tokens)?;
    let numbers = tokens as usize * stack.hidden as usize;
    let mut random = Random(u64::from(tokens) + 1);
    let mut put = |bytes: &[u8]| {
        let buffer = on.alloc(bytes.len())?;
        on.upload(&buffer, 0, bytes)?;
        Ok::<DeviceBuffer, CudaError>(buffer)
    };
    let rows = match stack.router.input {
        RouterInput::F16 | RouterInput::F32 => stack.experts as usize * stack.hidden as usize,
        RouterInput::Logits => tokens as usize * stack.experts as usize,
    };
    let x = put(&random.halves(numbers))?;
    let router = put(&random.floats(rows))?;
    let workspace = put(&vec![0; plan.workspace().bytes])?;
    let nowhere = DeviceBuffer::new(1 << 60, 1 << 40);
    let launches = plan.launches(&Operands {
        x,
        x_stride: stack.hidden,
        token_count: None,
        router,
        shared_gate: None,
        router_bias: None,
        choices: None,
        gated: nowhere,
        gated_scale: nowhere,
        gated_bias: None,
        down: nowhere,
        down_scale: nowhere,
        down_bias: None,
        shared: None,
        residual: None,
        out: nowhere,
        out_stride: stack.hidden,
        workspace,
    })?;
    let route = launches.first().expect("a stack begins with its router");
    on.run(route)?;
    let (_, counters) = on.launched.remove(&route.symbol).expect("it ran");
    Ok((route.symbol.clone(), route.grid, counters))
}
