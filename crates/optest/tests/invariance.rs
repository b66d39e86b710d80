//! A token's logits are a bitwise function of its own sequence: not of what shares the step, of chunks, of threads.

use galvani_cpu::reference::Reference;
use galvani_cpu::{CpuBackend, CpuMath, CpuOptions, Isa};
use galvani_graph::{Format, fuse};
use galvani_optest::model::{Shape, graph};
use galvani_optest::{Machine, RandomWeights, Sequence, Step, alone, first_difference, relative_error};

/// The three sequences, and ways to run them.
fn sequences(vocabulary: usize) -> Vec<Sequence> {
    [37, 5, 83]
        .into_iter()
        .enumerate()
        .map(|(i, len)| Sequence::random(len, vocabulary, i as u64))
        .collect()
}

fn schedules() -> Vec<(&'static str, Vec<Step>)> {
    let each = |chunk: usize| -> Vec<Step> {
        let lengths = [37usize, 5, 83];
        let part = |index: usize, start: usize| (index, chunk.min(lengths[index] - start));
        (0..83)
            .step_by(chunk)
            .map(|start| {
                (0..3)
                    .filter(|&i| start < lengths[i])
                    .map(|i| part(i, start))
                    .collect()
            })
            .collect()
    };
    vec![
        ("all at once", vec![vec![(0, 37), (1, 5), (2, 83)]]),
        ("token by token", each(1)),
        ("chunks of 16", each(16)),
        ("chunks of 17 beside others", each(17)),
        (
            "decode beside prefill",
            vec![
                vec![(0, 30)],
                vec![(2, 64), (0, 1), (1, 3)],
                vec![(0, 1), (1, 1), (2, 1)],
                vec![(1, 1), (2, 18), (0, 5)],
            ],
        ),
    ]
}

fn hold(isa: Isa, math: CpuMath, format: Format) {
    let shape = Shape::tiny(format);
    let graph = fuse(graph(shape).expect("a valid shape"));
    let sequences = sequences(shape.vocabulary);
    let weights = RandomWeights::new(5);
    let mut lonely: Vec<Vec<f32>> = Vec::new();
    for threads in 1..=3 {
        let backend = CpuBackend::new(CpuOptions {
            threads,
            math,
            isa: Some(isa),
        })
        .expect("an available set");
        let mut machine = Machine::new(&backend, &graph, &weights, &sequences, 16).expect("compiles");
        if threads == 1 {
            lonely.extend(sequences.iter().map(|sequence| {
                let steps = alone(sequence.tokens.len(), sequence.tokens.len());
                machine
                    .drive(std::slice::from_ref(sequence), &steps)
                    .expect("runs")
                    .remove(0)
            }));
        }
        // More threads than processors are slow, and the splits are what counts.
        let schedules = schedules()
            .into_iter()
            .rev()
            .take(if threads == 1 { 5 } else { 2 });
        for (name, steps) in schedules {
            let together = machine.drive(&sequences, &steps).expect("runs");
            for (index, (got, wanted)) in together.iter().zip(&lonely).enumerate() {
                let difference = first_difference(got, wanted);
                assert_eq!(
                    difference.map(|at| (at / shape.vocabulary, at % shape.vocabulary)),
                    None,
                    "{isa} {math:?} {format}, {threads} threads, {name}: sequence {index}, (position, logit)"
                );
            }
        }
    }
}

#[test]
fn no_schedule_changes_a_bit() {
    for isa in Isa::available() {
        hold(isa, CpuMath::Fast, Format::Q8_0);
        hold(isa, CpuMath::Exact, Format::Q4_0);
    }
    for format in [Format::Q4_1, Format::Q4K, Format::Nvfp4, Format::F16] {
        hold(Isa::detect(), CpuMath::Fast, format);
    }
}

#[test]
fn the_whole_model_is_close_to_the_reference() {
    for (format, math, most) in [
        (Format::F32, CpuMath::Exact, 2e-5),
        (Format::Q4K, CpuMath::Exact, 2e-5),
        (Format::Q8_0, CpuMath::Fast, 8e-2),
        (Format::F16, CpuMath::Fast, 1e-2),
    ] {
        let shape = Shape::tiny(format);
        let graph = graph(shape).expect("a valid shape");
        let sequences = sequences(shape.vocabulary);
        let steps = &schedules()[0].1;
        let weights = RandomWeights::new(5);
        let mut plain = Machine::new(&Reference, &graph, &weights, &sequences, 16).expect("compiles");
        let wanted = plain.drive(&sequences, steps).expect("runs").concat();
        for graph in [graph.clone(), fuse(graph)] {
            let options = CpuOptions {
                threads: 2,
                math,
                isa: None,
            };
            let backend = CpuBackend::new(options).expect("threads");
            let mut machine = Machine::new(&backend, &graph, &weights, &sequences, 16).expect("compiles");
            let got = machine.drive(&sequences, steps).expect("runs").concat();
            let error = relative_error(&got, &wanted);
            assert!(
                error < most,
                "{format} {math:?}: relative error {error:.2e}, allowed {most:.0e}"
            );
        }
    }
}
