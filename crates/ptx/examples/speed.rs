//! Warp instructions a second on one core, over the fixtures' kernels; an argument names one of them.

use std::time::Instant;

use galvani_ptx::{Approximate, Arg, Launch, Memory, MmaOrder, Module, Options, run};

fn main() {
    let rows: [(&str, &str, [u32; 3], [u32; 3]); 6] = [
        ("mma", "mma_row_col", [4096, 1, 1], [32, 1, 1]),
        ("gemv", "gemv", [256, 1, 1], [128, 1, 1]),
        ("transpose", "transpose_padded", [32, 32, 1], [32, 8, 1]),
        ("control", "collatz", [64, 1, 1], [256, 1, 1]),
        ("vector_add", "axpy4", [128, 1, 1], [256, 1, 1]),
        ("histogram", "histogram", [64, 1, 1], [256, 1, 1]),
    ];
    let only = std::env::args().nth(1);
    for (file, kernel, grid, block) in rows {
        if only.as_ref().is_some_and(|only| only != kernel) {
            continue;
        }
        let path = format!("{}/tests/fixtures/{file}.ptx", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).expect("fixtures lie beside the crate");
        let module = Module::parse(&text).expect("fixtures parse");
        let mut memory = Memory::new(1 << 30);
        let mut buffer = |bytes: usize| {
            let address = memory.alloc("buffer", bytes).expect("it fits");
            let values: Vec<u8> = (0..bytes)
                .map(|at| if at % 2 == 0 { at as u8 } else { 0x1 })
                .collect();
            memory.write(address, &values).expect("inside");
            Arg::Ptr(address)
        };
        let args = match kernel {
            "gemv" => vec![
                buffer(1024 * 4096 * 2),
                buffer(8192),
                buffer(2048),
                Arg::I32(1024),
                Arg::I32(512),
            ],
            "transpose_padded" => vec![buffer(1 << 22), buffer(1 << 22), Arg::I32(1024), Arg::I32(1024)],
            "mma_row_col" => vec![buffer(256), buffer(256), buffer(1024), buffer(1024)],
            "collatz" => vec![buffer(1 << 16), buffer(1 << 16), Arg::I32(3)],
            "axpy4" => vec![buffer(1 << 22), buffer(1 << 22), Arg::F32(1.0), Arg::I32(1 << 18)],
            _ => vec![buffer(1 << 20), buffer(64), Arg::I32(1 << 20)],
        };
        let params = module
            .kernel(kernel)
            .expect("it is there")
            .params(&args)
            .expect("they fit");
        let launch = Launch {
            grid,
            block,
            shared_bytes: 0,
            params,
        };
        for races in [false, true] {
            let options = Options {
                mma: MmaOrder::EmulatedF32,
                approximate: Approximate::Refuse,
                threads: 1,
                steps_max: u64::MAX,
                races,
            };
            let start = Instant::now();
            let counters = run(&module, kernel, &launch, &mut memory, &options)
                .unwrap_or_else(|fault| panic!("{fault}"));
            let seconds = start.elapsed().as_secs_f64();
            let millions = counters.instructions() as f64 / seconds / 1e6;
            println!(
                "{kernel:18} races {races:5}: {:9} warp instructions, {millions:6.1} M/s",
                counters.instructions()
            );
        }
    }
}
