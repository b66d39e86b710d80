//! The experts' kernels in the PTX interpreter, checked access by access. (`optest experts ptx` runs every format.)

use std::sync::LazyLock;

use galvani_cuda::pack::build::{Blob, build};
use galvani_cuda::pack::file::Pack;
use galvani_cuda::pack::nvrtc::Compiler;
use galvani_cuda::{Arch, KernelRow, rows};
use galvani_optest::device::interpreter::Interpreter;
use galvani_optest::device::random::Kind;
use galvani_optest::experts::{Case, cases, check, run};
use galvani_ptx::MmaOrder;

/// The experts' kernels for NVFP4, compiled once; none where nothing compiles.
static KERNELS: LazyLock<Option<(String, Vec<Blob>)>> = LazyLock::new(|| compile("nvfp4"));

fn compile(format: &str) -> Option<(String, Vec<Blob>)> {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) => {
            println!("skipped, nothing compiles here: {error}");
            return None;
        }
    };
    let rows = rows();
    let part = format!("_{format}_");
    let wanted = |row: &&KernelRow| {
        row.symbol.starts_with("route_")
            || row.symbol == "experts_combine"
            || (row.symbol.starts_with("experts_") && row.symbol.contains(&part))
    };
    let jobs: Vec<_> = rows
        .iter()
        .filter(wanted)
        .map(|row| (row, Arch::Compute70))
        .collect();
    let built = build(&compiler, &jobs, &|_, _, _| None);
    assert!(built.faults.is_empty(), "{:?}", built.faults);
    Some((compiler.version.clone(), built.blobs))
}

fn interpreter(mma: MmaOrder) -> Option<Interpreter> {
    let (version, blobs) = KERNELS.as_ref()?;
    let pack = Pack::new(version, &rows(), blobs).expect("the blobs are the rows'");
    Some(Interpreter::new(pack, mma, 2))
}

fn check_all(on: &mut Interpreter, cases: &[Case]) {
    let mut faults = Vec::new();
    for case in cases {
        match check::check(on, case) {
            Ok(worst) => println!("{worst:.3} of the bound: {}", case.name()),
            Err(fault) => faults.push(format!("{}: {fault}", case.name())),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn shapes_straddle_every_edge() {
    let Some(mut on) = interpreter(MmaOrder::EmulatedF32) else {
        return;
    };
    check_all(&mut on, &cases::shapes());
}

#[test]
fn routers_choose_as_they_should() {
    let Some(mut on) = interpreter(MmaOrder::EmulatedF32) else {
        return;
    };
    check_all(&mut on, &cases::routers());
}

#[test]
fn everything_around_the_sum() {
    let Some(mut on) = interpreter(MmaOrder::EmulatedF32) else {
        return;
    };
    check_all(&mut on, &cases::surroundings());
}

/// The other order of sums that hardware may have stays inside the same bound.
#[test]
fn volta_sums_stay_inside_the_bound() {
    let Some(mut on) = interpreter(MmaOrder::Volta) else {
        return;
    };
    check_all(&mut on, &[Case::new([8, 2, 192, 80], 9, Kind::Nvfp4)]);
}

/// A token's result does not depend on who else is in the bucket.
#[test]
fn a_token_alone_is_the_same_bits() {
    let Some(mut on) = interpreter(MmaOrder::EmulatedF32) else {
        return;
    };
    let many = Case::new([16, 4, 80, 48], 19, Kind::Nvfp4);
    let data = galvani_optest::experts::Data::new(&many).expect("packs");
    let hidden = many.stack.hidden as usize;
    let mut result = |tokens: u32| {
        let case = Case { tokens, ..many };
        let plan = case.stack.plan(tokens).expect("fits");
        run(&mut on, &case, &data, &plan, 1).expect("runs").out
    };
    let all = result(19);
    for tokens in [1, 2, 8, 9] {
        assert_eq!(result(tokens), all[..tokens as usize * hidden], "{tokens} tokens");
    }
}

/// The check can fail: an expert that is read where it should not be shows as numbers that are none.
#[test]
fn a_poisoned_expert_shows() {
    let Some(mut on) = interpreter(MmaOrder::EmulatedF32) else {
        return;
    };
    let case = Case::new([8, 2, 64, 48], 9, Kind::Nvfp4);
    let mut data = galvani_optest::experts::Data::new(&case).expect("packs");
    let chosen = galvani_optest::experts::oracle::wanted(&case, &data).routes[3].ids[1];
    let mut used = [true; 8];
    used[chosen] = false;
    data.poison(&case, &used);
    for plan in check::plans(&case).expect("fits") {
        let out = run(&mut on, &case, &data, &plan, 1).expect("runs").out;
        let row = &out[3 * 64..][..64];
        assert!(
            row.iter().all(|bits| f32::from_bits(*bits).is_nan()),
            "{:?}",
            plan.path
        );
    }
}
