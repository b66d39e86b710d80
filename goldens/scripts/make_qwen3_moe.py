"""The tiny qwen3_moe checkpoint: random weights, a forward pass in plain numpy (float64), both containers.

Needs numpy and gguf (both on PyPI). Run from goldens/: python scripts/make_qwen3_moe.py
The forward pass follows the published description of the architecture (Qwen3 technical report, 2025): RMS norm, grouped
queries with a norm on each head, rotary halves, softmax router over all experts, the best few renormalised.
"""
import json, shutil, struct
from pathlib import Path
import numpy as np
from gguf import GGUFWriter

V, H, L, HEADS, KV, D, E, K, I = 512, 64, 3, 4, 2, 32, 8, 2, 32
EPS, THETA = 1e-6, 10000.0
OUT = Path("tiny/qwen3_moe")
rng = np.random.default_rng(7)

def normal(*shape, std=0.08):
    return (rng.standard_normal(shape) * std).astype(np.float32)

def norm_weight(n):
    return (1 + rng.standard_normal(n) * 0.1).astype(np.float32)

W = {"model.embed_tokens.weight": normal(V, H), "model.norm.weight": norm_weight(H), "lm_head.weight": normal(V, H)}
for l in range(L):
    p = f"model.layers.{l}."
    W |= {
        p + "input_layernorm.weight": norm_weight(H), p + "post_attention_layernorm.weight": norm_weight(H),
        p + "self_attn.q_proj.weight": normal(HEADS * D, H), p + "self_attn.k_proj.weight": normal(KV * D, H),
        p + "self_attn.v_proj.weight": normal(KV * D, H), p + "self_attn.o_proj.weight": normal(H, HEADS * D),
        p + "self_attn.q_norm.weight": norm_weight(D), p + "self_attn.k_norm.weight": norm_weight(D),
        p + "mlp.gate.weight": normal(E, H, std=0.3),
    }
    for e in range(E):
        q = f"{p}mlp.experts.{e}."
        W |= {q + "gate_proj.weight": normal(I, H, std=0.2), q + "up_proj.weight": normal(I, H, std=0.2),
              q + "down_proj.weight": normal(H, I, std=0.2)}

def forward(ids):
    w = {k: v.astype(np.float64) for k, v in W.items()}
    T = len(ids)
    rms = lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * g
    angle = np.arange(T)[:, None] * THETA ** (-np.arange(0, D, 2) / D)[None]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    def rope(x):
        a, b = x[..., : D // 2], x[..., D // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    x = w["model.embed_tokens.weight"][ids]
    for l in range(L):
        p = f"model.layers.{l}."
        h = rms(x, w[p + "input_layernorm.weight"])
        q = (h @ w[p + "self_attn.q_proj.weight"].T).reshape(T, HEADS, D)
        k = (h @ w[p + "self_attn.k_proj.weight"].T).reshape(T, KV, D)
        v = (h @ w[p + "self_attn.v_proj.weight"].T).reshape(T, KV, D)
        q = rope(rms(q, w[p + "self_attn.q_norm.weight"]))
        k = rope(rms(k, w[p + "self_attn.k_norm.weight"]))
        out = np.zeros((T, HEADS, D))
        for head in range(HEADS):
            s = q[:, head] @ k[:, head * KV // HEADS].T * D ** -0.5
            s[np.triu_indices(T, 1)] = -np.inf
            s = np.exp(s - s.max(-1, keepdims=True))
            out[:, head] = s / s.sum(-1, keepdims=True) @ v[:, head * KV // HEADS]
        x = x + out.reshape(T, -1) @ w[p + "self_attn.o_proj.weight"].T
        h = rms(x, w[p + "post_attention_layernorm.weight"])
        r = h @ w[p + "mlp.gate.weight"].T
        r = np.exp(r - r.max(-1, keepdims=True)); r /= r.sum(-1, keepdims=True)
        for t in range(T):
            best = np.argsort(-r[t], kind="stable")[:K]
            share = r[t, best] / r[t, best].sum()
            for e, s in zip(best, share):
                q = f"{p}mlp.experts.{e}."
                g = w[q + "gate_proj.weight"] @ h[t]
                x[t] += s * (w[q + "down_proj.weight"] @ (g / (1 + np.exp(-g)) * (w[q + "up_proj.weight"] @ h[t])))
    return rms(x, w["model.norm.weight"]) @ w["lm_head.weight"].T

def save(path, tensors):
    names = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64"}
    header, at = {}, 0
    for k, v in tensors.items():
        header[k] = {"dtype": names[v.dtype], "shape": list(v.shape), "data_offsets": [at, at + v.nbytes]}
        at += v.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))

OUT.mkdir(parents=True, exist_ok=True)
ids = rng.integers(3, 500, 37)
save(OUT / "golden.safetensors", {"ids": ids[None].astype(np.int64), "logits": forward(ids)[None].astype(np.float32)})
save(OUT / "model.safetensors", dict(sorted(W.items())))
(OUT / "config.json").write_text(json.dumps({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
    "decoder_sparse_step": 1, "eos_token_id": None, "head_dim": D, "hidden_act": "silu", "hidden_size": H,
    "initializer_range": 0.02, "intermediate_size": 128, "max_position_embeddings": 32768, "max_window_layers": 3,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": I, "norm_topk_prob": True,
    "num_attention_heads": HEADS, "num_experts": E, "num_experts_per_tok": K, "num_hidden_layers": L,
    "num_key_value_heads": KV, "output_router_logits": False, "rms_norm_eps": EPS, "rope_scaling": None,
    "rope_theta": THETA, "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "float32", "use_cache": True, "use_sliding_window": False, "vocab_size": V}, indent=2))
for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
    shutil.copy(Path("tiny/qwen3") / name, OUT / name)

g = GGUFWriter(OUT / "model-f32.gguf", "qwen3moe")
g.add_name("Qwen3_Moe"); g.add_file_type(0); g.add_block_count(L); g.add_context_length(32768); g.add_embedding_length(H)
g.add_feed_forward_length(128); g.add_head_count(HEADS); g.add_head_count_kv(KV); g.add_key_length(D); g.add_value_length(D)
g.add_rope_freq_base(THETA); g.add_layer_norm_rms_eps(EPS); g.add_expert_count(E); g.add_expert_used_count(K)
g.add_expert_feed_forward_length(I)
tok = json.loads((OUT / "tokenizer.json").read_text())
vocab = {i: t for t, i in tok["model"]["vocab"].items()} | {t["id"]: t["content"] for t in tok["added_tokens"]}
special = {t["id"] for t in tok["added_tokens"]}
g.add_tokenizer_model("gpt2"); g.add_tokenizer_pre("qwen2"); g.add_token_list([vocab[i] for i in range(V)])
g.add_token_types([3 if i in special else 1 for i in range(V)])
g.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in tok["model"]["merges"]])
g.add_bos_token_id(506); g.add_eos_token_id(508); g.add_pad_token_id(511)
g.add_tensor("token_embd.weight", W["model.embed_tokens.weight"]); g.add_tensor("output.weight", W["lm_head.weight"])
g.add_tensor("output_norm.weight", W["model.norm.weight"])
for l in range(L):
    p, b = f"model.layers.{l}.", f"blk.{l}."
    for short, name in [("attn_norm", "input_layernorm"), ("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"),
                        ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"), ("attn_q_norm", "self_attn.q_norm"),
                        ("attn_k_norm", "self_attn.k_norm"), ("ffn_norm", "post_attention_layernorm"), ("ffn_gate_inp", "mlp.gate")]:
        g.add_tensor(f"{b}{short}.weight", W[f"{p}{name}.weight"])
    for part in ("gate", "up", "down"):
        g.add_tensor(f"{b}ffn_{part}_exps.weight", np.stack([W[f"{p}mlp.experts.{e}.{part}_proj.weight"] for e in range(E)]))
g.write_header_to_file(); g.write_kv_data_to_file(); g.write_tensors_to_file(); g.close()
