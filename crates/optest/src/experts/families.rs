//! The routers of the mission's models, with their numbers of experts, over small widths.
//!
//! From the models' configurations and their reference implementations. (Granite 4.1 is dense: it has no router.)

use galvani_cuda::ops::experts::{Activation, Router, RouterInput, Score, Selection};

use crate::device::random::Kind;
use crate::experts::{Added, Case, router};

/// A family's router: experts, experts a token, its rule, the activation, whether there is a shared expert.
type Family = (&'static str, [u32; 2], Router, Activation, bool);

fn table() -> Vec<Family> {
    // p = softmax; w = p / sum of the chosen; the shared expert times the sigmoid of its own gate.
    let qwen = Router {
        input: RouterInput::F16,
        shared_gate: true,
        ..router(Score::Softmax)
    };
    // s = sigmoid; chosen by s + bias; w = s / sum.
    let biased = Router {
        bias: true,
        ..router(Score::Sigmoid)
    };
    let laguna = Router { scale: 2.5, ..biased };
    // s = sqrt(softplus); chosen by s + bias; w = 1.5 s / sum. The first three layers choose by the token's id.
    let deepseek = Router {
        bias: true,
        scale: 1.5,
        ..router(Score::SqrtSoftplus)
    };
    let hashed = Router {
        bias: false,
        selection: Selection::Table { rows: 129 },
        ..deepseek
    };
    let capped = Router {
        softcap: 1.5,
        ..laguna
    };
    let clamped = Activation::SiluClamped { limit: 10.0 };
    vec![
        ("Qwen3.6-35B-A3B", [256, 8], qwen, Activation::Silu, true),
        ("Qwen3.5-122B-A10B", [256, 8], qwen, Activation::Silu, true),
        ("Qwen3.5-397B-A17B", [512, 10], qwen, Activation::Silu, true),
        ("Laguna-S-2.1", [256, 10], laguna, Activation::Silu, true),
        (
            "Laguna with a cap on logits",
            [256, 10],
            capped,
            Activation::Silu,
            true,
        ),
        ("MiniMax-M2.7", [256, 8], biased, Activation::Silu, false),
        (
            "Mistral-Small-4",
            [128, 4],
            router(Score::Softmax),
            Activation::Silu,
            true,
        ),
        ("MiMo-V2.5", [256, 8], biased, Activation::Silu, false),
        ("DeepSeek-V4-Flash", [256, 6], deepseek, clamped, true),
        (
            "DeepSeek-V4-Flash, layers 0 to 2",
            [256, 6],
            hashed,
            clamped,
            true,
        ),
    ]
}

/// A case of each family, one of the direct path's buckets and one of the grouped's.
pub fn all() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for (name, [experts, top_k], router, activation, shared) in table() {
        for tokens in [1, 9] {
            let mut case = Case::new([experts, top_k, 48, 16], tokens, Kind::Nvfp4);
            case.stack.router = router;
            case.stack.activation = activation;
            case.added = if shared {
                Added::SharedInPlace
            } else {
                Added::Residual
            };
            cases.push((format!("{name}, {tokens} tokens"), case));
        }
    }
    cases
}
