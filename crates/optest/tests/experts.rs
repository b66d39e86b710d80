//! The experts' kernels in the PTX interpreter, checked access by access. (`optest experts ptx` runs every format.)

use std::sync::LazyLock;

use galvani_cuda::ops::experts::{RouterInput, Score};
use galvani_cuda::pack::build::{Blob, build};
use galvani_cuda::pack::file::Pack;
use galvani_cuda::pack::nvrtc::Compiler;
use galvani_cuda::{Arch, KernelRow, rows};
use galvani_optest::device::interpreter::Interpreter;
use galvani_optest::device::random::Kind;
use galvani_optest::experts::{Case, cases, check, families, run};
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
fn every_family_has_its_router() {
    let Some(mut on) = interpreter(MmaOrder::EmulatedF32) else {
        return;
    };
    let families = families::all();
    assert!(families.len() >= 16);
    let mut faults = Vec::new();
    for (name, case) in families {
        match check::check(&mut on, &case) {
            Ok(worst) => println!("{worst:.3} of the bound: {name}"),
            Err(fault) => faults.push(format!("{name}: {fault}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Scores of logits over all the range of their functions, to units in the last place. (Every expert is chosen, so that every
/// score comes out; squared, one is the softplus.)
#[test]
fn scores_are_exact_over_their_range() {
    let Some(mut on) = interpreter(MmaOrder::EmulatedF32) else {
        return;
    };
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let (experts, hidden, tokens) = (32, 16, 16);
    for (score, softcap, units) in [
        (Score::SqrtSoftplus, 0.0, 3.0),
        (Score::Sigmoid, 0.0, 4.0),
        // A cap that leaves the logits in the range: 30 tanh(x / 30) is off by units of 30 at most, near 0 by units of x.
        (Score::SqrtSoftplus, 30.0, 64.0),
    ] {
        let mut worst = 0.0f64;
        for pass in 0..8 {
            let mut case = Case::new([experts, experts, hidden, 16], tokens, Kind::Nvfp4);
            case.stack.router.input = RouterInput::Logits;
            case.stack.router.score = score;
            case.stack.router.softcap = softcap;
            case.stack.router.renormalise = false;
            let mut data = galvani_optest::experts::Data::new(&case).expect("packs");
            // Token t's logits are the t-th number of each row: -86 to 87, denser around 0, 4096 in all.
            let (width, count) = (hidden as usize, experts as usize * tokens as usize * 8);
            for (at, number) in data.router.iter_mut().enumerate() {
                let step = ((at % (width * experts as usize)) * 8 + pass) as f64 / count as f64 * 2.0 - 1.0;
                *number = (86.5 * step * step * step + 0.5) as f32;
            }
            for (at, number) in data.x.iter_mut().enumerate() {
                *number = f32::from(u8::from(at % width == at / width));
            }
            let plan = case.stack.plan(tokens).expect("fits");
            let found = run(&mut on, &case, &data, &plan, 1).expect("runs").routes;
            let row_of = 2 * experts as usize;
            for (token, row) in found.chunks_exact(row_of).enumerate() {
                let (ids, scores) = row.split_at(experts as usize);
                for (id, bits) in ids.iter().zip(scores) {
                    let x = f64::from(data.router[*id as usize * width + token]);
                    let cap = f64::from(softcap);
                    let x = if softcap > 0.0 { cap * (x / cap).tanh() } else { x };
                    let want = match score {
                        Score::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                        Score::SqrtSoftplus => softplus(x).sqrt(),
                        Score::Softmax => panic!("not of one logit"),
                    };
                    let got = f64::from(f32::from_bits(*bits));
                    worst = worst.max((got - want).abs() / want * f64::from(1u32 << 23));
                }
            }
        }
        println!("{score:?} cap {softcap}: {worst:.2} units in the last place");
        assert!(
            worst <= units && worst > 0.0,
            "{score:?} cap {softcap}: {worst:.2} units"
        );
    }
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
