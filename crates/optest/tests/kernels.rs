//! Every kernel of this machine against the reference.

use std::sync::OnceLock;

use galvani_cpu::{CpuBackend, CpuMath, CpuOptions, Isa};

use galvani_optest::{Case, Closeness, Outcome, cases, check, wanted};

/// The table with what the reference gives, which is slow to compute.
fn table() -> &'static [(Case, Vec<f32>)] {
    static TABLE: OnceLock<Vec<(Case, Vec<f32>)>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let with_wanted = |case: Case| {
            let wanted = wanted(&case).expect("the reference runs every case");
            (case, wanted)
        };
        cases().into_iter().map(with_wanted).collect()
    })
}

/// Runs the whole table; all failures are listed.
fn hold(isa: Isa, math: CpuMath, threads: usize) {
    let backend = CpuBackend::new(CpuOptions {
        threads,
        math,
        isa: Some(isa),
    })
    .expect("an available set");
    let closeness = match math {
        CpuMath::Exact => Closeness::Exact,
        CpuMath::Fast => Closeness::Fast,
    };
    let cases = table();
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|(case, wanted)| match check(&backend, case, wanted, closeness) {
            Outcome::Passed(_) => None,
            Outcome::Unsupported(reason) => Some(format!("{}: unsupported: {reason}", case.name)),
            Outcome::Failed(reason) => Some(format!("{}: {reason}", case.name)),
        })
        .collect();
    let (failed, all) = (failures.len(), cases.len());
    assert!(
        failures.is_empty(),
        "{isa} {math:?}: {failed} of {all}\n{}",
        failures.join("\n")
    );
}

#[test]
fn fast_kernels_equal_the_reference_on_every_instruction_set() {
    for (index, isa) in Isa::available().into_iter().enumerate() {
        hold(isa, CpuMath::Fast, 1 + index % 2);
    }
}

#[test]
fn exact_kernels_equal_the_reference_on_every_instruction_set() {
    for isa in Isa::available() {
        hold(isa, CpuMath::Exact, 1);
    }
}
