#!/usr/bin/env python3
"""Synthetic GGUF checkpoints for speed measurements: real shapes, random weights, any quantisation.

usage: make_models.py SHAPE QUANT OUT.gguf        needs: numpy, gguf==0.19.0, libgguf==0.2.2

The text such a model writes is noise; the work it costs is that of a real one. Weights are normal with variance
1 / fan-in, so that activations keep their size and sampling never meets a number that is not finite.
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as Q, GGUFWriter, TokenType
import libgguf

SHAPES = {
    # hidden, layers, heads, kv heads, head dim, ffn, vocabulary, experts, experts a token, expert ffn
    "qwen3-0.6b": dict(hidden=1024, layers=28, heads=16, kv=8, dim=128, ffn=3072, vocab=151936),
    "moe-64x8": dict(hidden=1024, layers=24, heads=16, kv=8, dim=128, ffn=3072, vocab=151936, experts=64, top=8, expert_ffn=384),
    "smoke": dict(hidden=256, layers=2, heads=4, kv=2, dim=64, ffn=512, vocab=2048),
}


def tensor_type(quant, name, layer, layers):
    """The type that the usual quantiser gives this tensor in a file of kind `quant` (tied head = the embedding)."""
    head = name.startswith("token_embd")
    if quant == "Q4_0":
        return Q.Q6_K if head else Q.Q4_0
    if quant == "Q4_K_M":
        more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        sensitive = "attn_v" in name or "ffn_down" in name
        return Q.Q6_K if head or (sensitive and more) else Q.Q4_K
    if quant == "NVFP4":
        return Q.Q8_0 if head else Q.NVFP4
    return Q[quant]


def byte_alphabet():
    """The printable stand-ins of byte-level BPE for the 256 bytes, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def main():
    shape_name, quant, out = sys.argv[1:4]
    s = SHAPES[shape_name]
    experts = s.get("experts")
    rng = np.random.default_rng(7)
    w = GGUFWriter(out, "qwen3moe" if experts else "qwen3")
    w.add_name(f"{shape_name} {quant}, random")
    w.add_context_length(40960)
    w.add_embedding_length(s["hidden"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv"])
    w.add_key_length(s["dim"])
    w.add_value_length(s["dim"])
    w.add_rope_freq_base(1e6)
    w.add_layer_norm_rms_eps(1e-6)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(s["top"])
        w.add_expert_feed_forward_length(s["expert_ffn"])
    tokens = byte_alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    fill = [f"<unused{i}>" for i in range(s["vocab"] - len(tokens) - len(special) - 1)]
    merged = tokens[ord("t")] + tokens[ord("h")]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens + [merged] + fill + special)
    kinds = [TokenType.NORMAL] * 257 + [TokenType.UNUSED] * len(fill) + [TokenType.CONTROL] * 3
    w.add_token_types(kinds)
    w.add_token_merges(["t h"])
    w.add_file_type({"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "NVFP4": 39}.get(quant, 1))
    w.add_quantization_version(2)
    w.add_eos_token_id(s["vocab"] - 1)
    w.add_bos_token_id(s["vocab"] - 3)
    w.add_pad_token_id(s["vocab"] - 3)
    w.add_add_bos_token(False)
    w.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )

    def put(name, shape, layer=0):
        a = rng.standard_normal(shape, dtype=np.float32)
        a *= 1.0 if name.startswith("token_embd") else shape[-1] ** -0.5
        kind = tensor_type(quant, name, layer, s["layers"])
        if kind in (Q.F16, Q.F32):
            w.add_tensor(name, a.astype(np.float16 if kind == Q.F16 else np.float32))
            return
        packed = libgguf.quantize_rows(a.reshape(-1, shape[-1]), kind)
        packed = np.frombuffer(packed, dtype=np.uint8) if not isinstance(packed, np.ndarray) else packed.view(np.uint8)
        w.add_tensor(name, packed.reshape(*shape[:-1], -1), raw_dtype=kind)

    one = lambda name, n: w.add_tensor(name, np.ones(n, np.float32))
    put("token_embd.weight", (s["vocab"], s["hidden"]))
    one("output_norm.weight", s["hidden"])
    for i in range(s["layers"]):
        p = f"blk.{i}."
        for norm, n in (("attn_norm", s["hidden"]), ("attn_q_norm", s["dim"]), ("attn_k_norm", s["dim"]), ("ffn_norm", s["hidden"])):
            one(f"{p}{norm}.weight", n)
        put(f"{p}attn_q.weight", (s["heads"] * s["dim"], s["hidden"]), i)
        put(f"{p}attn_k.weight", (s["kv"] * s["dim"], s["hidden"]), i)
        put(f"{p}attn_v.weight", (s["kv"] * s["dim"], s["hidden"]), i)
        put(f"{p}attn_output.weight", (s["hidden"], s["heads"] * s["dim"]), i)
        if experts:
            router = rng.standard_normal((experts, s["hidden"]), dtype=np.float32) * s["hidden"] ** -0.5
            w.add_tensor(f"{p}ffn_gate_inp.weight", router)
            for part, shape in (("gate", (experts, s["expert_ffn"], s["hidden"])), ("up", (experts, s["expert_ffn"], s["hidden"])),
                                ("down", (experts, s["hidden"], s["expert_ffn"]))):
                put(f"{p}ffn_{part}_exps.weight", shape, i)
        else:
            put(f"{p}ffn_gate.weight", (s["ffn"], s["hidden"]), i)
            put(f"{p}ffn_up.weight", (s["ffn"], s["hidden"]), i)
            put(f"{p}ffn_down.weight", (s["hidden"], s["ffn"]), i)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
