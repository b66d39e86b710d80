//! The cases of the experts: shapes that straddle the edges of tiles and row blocks, routers, what is added, every format.

use galvani_cuda::ops::experts::{Activation, RouterInput, Score, Selection};

use crate::device::random::{Kind, kinds};
use crate::experts::{Added, Case, Choice, families};

/// All of them.
pub fn all() -> Vec<Case> {
    let mut cases = shapes();
    cases.extend(routers());
    cases.extend(surroundings());
    cases.extend(formats());
    cases.extend(families::all().into_iter().map(|(_, case)| case));
    cases
}

/// NVFP4 over sizes around a tile (32), a piece (64), a row block (8, 16), and the format's limit (16).
pub fn shapes() -> Vec<Case> {
    [
        ([8, 1, 64, 16], 1),
        ([8, 2, 80, 48], 2),
        ([8, 2, 128, 32], 33),
        ([8, 8, 48, 80], 9),
        ([60, 2, 64, 16], 7),
        ([60, 8, 144, 48], 8),
        ([60, 10, 64, 64], 33),
        ([256, 1, 48, 16], 9),
        ([256, 8, 64, 48], 2),
        ([256, 10, 80, 16], 7),
        ([512, 10, 48, 16], 3),
        ([1, 1, 16, 16], 9),
        // A full tile of rows and more of one expert, several columns of blocks.
        ([2, 1, 64, 96], 131),
        ([1, 1, 160, 48], 70),
        // More pieces than warps share, with an end inside a piece.
        ([4, 1, 592, 336], 3),
    ]
    .map(|(sizes, tokens)| Case::new(sizes, tokens, Kind::Nvfp4))
    .to_vec()
}

/// Every rule of the router.
pub fn routers() -> Vec<Case> {
    let base = Case::new([64, 4, 64, 16], 9, Kind::Nvfp4);
    let with = |change: &dyn Fn(&mut Case)| {
        let mut case = base;
        change(&mut case);
        case
    };
    let groups = |case: &mut Case, kept: u32, best: u32| {
        case.stack.router.groups = 8;
        case.stack.router.groups_kept = kept;
        case.stack.router.group_best = best;
    };
    let one_for_all = |case: &mut Case, top_k: u32, tokens: u32| {
        case.choice = Choice::OneForAll;
        case.stack.router.bias = true;
        case.stack.top_k = top_k;
        case.tokens = tokens;
    };
    vec![
        with(&|case| case.stack.router.renormalise = false),
        with(&|case| case.stack.router.input = RouterInput::F16),
        with(&|case| {
            case.stack.router.input = RouterInput::F16;
            case.tokens = 3;
        }),
        with(&|case| case.stack.router.input = RouterInput::Logits),
        with(&|case| case.stack.router.score = Score::Sigmoid),
        with(&|case| {
            case.stack.router.score = Score::Sigmoid;
            case.stack.router.bias = true;
            case.stack.router.scale = 2.5;
        }),
        with(&|case| {
            case.stack.router.score = Score::SqrtSoftplus;
            case.stack.router.renormalise = false;
        }),
        with(&|case| {
            case.stack.router.score = Score::SqrtSoftplus;
            case.stack.router.bias = true;
            case.stack.router.softcap = 0.75;
        }),
        with(&|case| {
            case.stack.router.score = Score::SqrtSoftplus;
            case.stack.router.selection = Selection::Table { rows: 5 };
        }),
        with(&|case| case.stack.router.selection = Selection::Table { rows: 1 }),
        with(&|case| case.stack.top_k = 32),
        with(&|case| {
            case.stack.experts = 40;
            case.stack.top_k = 32;
            case.tokens = 2;
        }),
        with(&|case| {
            case.stack.router.bias = true;
            case.tokens = 4;
        }),
        with(&|case| case.choice = Choice::Ties),
        with(&|case| {
            case.choice = Choice::Ties;
            case.stack.experts = 512;
            case.stack.top_k = 9;
        }),
        with(&|case| one_for_all(case, 4, 33)),
        with(&|case| one_for_all(case, 1, 34)),
        with(&|case| groups(case, 2, 1)),
        with(&|case| {
            groups(case, 3, 2);
            case.stack.router.score = Score::Sigmoid;
            case.stack.router.bias = true;
        }),
    ]
}

/// Activations, biases, shared expert, residual, tokens that do not exist.
pub fn surroundings() -> Vec<Case> {
    let between = Activation::SiluBetween {
        limit: 0.5,
        alpha: 1.702,
    };
    [
        (Activation::GeluTanh, Added::Residual, None),
        (
            Activation::SiluClamped { limit: 0.25 },
            Added::SharedInPlace,
            Some(5),
        ),
        (between, Added::Nothing, Some(1)),
        (Activation::Silu, Added::SharedInPlace, Some(0)),
        (Activation::Silu, Added::Residual, Some(100)),
    ]
    .map(|(activation, added, live)| {
        let mut case = Case::new([16, 3, 64, 48], 10, Kind::Nvfp4);
        case.stack.activation = activation;
        case.added = added;
        case.live = live;
        case.expert_bias = true;
        case.stack.router.shared_gate = added == Added::SharedInPlace;
        case
    })
    .to_vec()
}

/// Every kind of weights, past a tile and, where the format's blocks allow it, just past a piece.
pub fn formats() -> Vec<Case> {
    kinds()
        .into_iter()
        .map(|kind| {
            let block = match kind {
                Kind::Rows(format) => format.block_len() as u32,
                Kind::Ints { .. } | Kind::Fp8(_) | Kind::Nvfp4 | Kind::Mxfp4 => 1,
            };
            let step = Case::new([6, 2, 256, 256], 17, kind).stack.gated.k_multiple;
            let step = step.max(block).max(16);
            let width = if step <= 64 { (64 / step + 1) * step } else { step };
            Case::new([6, 2, width, width], 17, kind)
        })
        .collect()
}
