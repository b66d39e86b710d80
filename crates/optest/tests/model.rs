//! What the model of kernel times takes for granted, counted by the interpreter: bytes from memory, and that one pass of the main
//! loop is one piece of weights.

mod common;

use galvani_cuda::model::skinny_loop;
use galvani_cuda::ops::linear::divide::Device;
use galvani_cuda::ops::linear::rows::SHAPES;
use galvani_cuda::ops::linear::{FORMATS, Linear};
use galvani_optest::device::cases::{Division, LinearCase, linear_cases};
use galvani_optest::device::check::Filled;
use galvani_ptx::MmaOrder;

const SECTOR: u64 = 32;

#[test]
fn bytes_and_passes_are_those_that_the_interpreter_counts() {
    let Some(mut interpreter) = common::interpreter(MmaOrder::EmulatedF32) else {
        return;
    };
    let cases = linear_cases().expect("the table is good");
    for format in FORMATS {
        let of_format = cases.iter().find(|case| case.linear.format.name == format.name);
        for (m, shape) in [1, 1, 16, 32].into_iter().zip(SHAPES) {
            let linear = Linear::plain(*format, 64, 1024);
            let mut ways = linear.skinny_ways(m, Device::V100).into_iter();
            let way = ways.position(|way| way.shape == shape && way.parts == 1);
            let case = LinearCase {
                kind: of_format.expect("every format has cases").kind,
                m,
                linear,
                division: Division::Way(way.expect("one part is always valid") as u32),
                x_gap: 0,
                out_gap: 0,
                seed: 9,
            };
            interpreter.launched.clear();
            let filled = Filled::new(case).expect("the case is good");
            filled.run(&mut interpreter, Device::V100).expect("it runs");
            let (symbol, (launches, counters)) = interpreter.launched.first_key_value().expect("one launch");
            assert_eq!((interpreter.launched.len(), *launches), (1, 1), "{symbol}");

            let weights = format.weight_bytes(linear.n, linear.k) as u64;
            let read = counters.global_loads.sectors_first * SECTOR;
            let rest = u64::from(linear.n * 4 + m * linear.k * 2);
            assert!(
                (weights + rest..=weights + rest + 2 * SECTOR).contains(&read),
                "{symbol}: {read} bytes are read first, {weights} are weights, {rest} the rest"
            );
            let steps = skinny_loop(true, format.name, shape).pass.volta_steps;
            let passes = u64::from(linear.blocks(shape) * linear.k.div_ceil(shape.span(true)));
            assert_eq!(counters.mma, passes * u64::from(steps / 4), "{symbol}");
        }
    }
}
