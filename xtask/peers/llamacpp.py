#!/usr/bin/env python3
"""llama.cpp as a peer: the prebuilt CPU libraries of the npm package `@node-llama-cpp/linux-x64` (3.21.1, llama.cpp v0.4.0),
called through ctypes, so that nothing lies between the measurement and the library.

usage: llamacpp.py LIB_DIR MODEL.gguf THREADS COMMAND [ARG..]     one JSON object a line
  pp N REPS          prefill of N tokens, tok/s
  tg N REPS          N tokens decoded one by one from an empty cache, tok/s
  batch S N REPS     S sequences decoding N tokens each in common batches, tok/s over all
  greedy N FILE      for each line of FILE (JSON: {"ids": [..]}) N greedy tokens with the gap between the two best logits
  tokens FILE        token ids of each line of FILE (JSON: {"text": ..}), special tokens parsed
  ppl CTX FILE       perplexity of the token ids in FILE (JSON list), windows of CTX, second half scored
"""
import ctypes as c
import json
import math
import os
import resource
import sys
import time


class ModelParams(c.Structure):
    _fields_ = [("devices", c.c_void_p), ("buffers", c.c_void_p), ("gpu_layers", c.c_int32), ("split", c.c_int32),
                ("load_mode", c.c_int32), ("lazy_mode", c.c_int32), ("main_gpu", c.c_int32), ("tensor_split", c.c_void_p),
                ("progress", c.c_void_p), ("progress_data", c.c_void_p), ("overrides", c.c_void_p), ("flags", c.c_bool * 8)]


class ContextParams(c.Structure):
    _fields_ = [("n_ctx", c.c_uint32), ("n_batch", c.c_uint32), ("n_ubatch", c.c_uint32), ("n_seq_max", c.c_uint32),
                ("unused", c.c_uint32 * 3), ("threads", c.c_int32), ("threads_batch", c.c_int32), ("kinds", c.c_int32 * 4),
                ("flash_attention", c.c_int32), ("rope", c.c_float * 6), ("yarn_context", c.c_uint32), ("defrag", c.c_float),
                ("eval", c.c_void_p), ("eval_data", c.c_void_p), ("type_k", c.c_int32), ("type_v", c.c_int32),
                ("abort", c.c_void_p), ("abort_data", c.c_void_p), ("embeddings", c.c_bool), ("offload_kqv", c.c_bool),
                ("no_perf", c.c_bool), ("op_offload", c.c_bool), ("swa_full", c.c_bool), ("kv_unified", c.c_bool),
                ("samplers", c.c_void_p), ("n_samplers", c.c_size_t), ("other", c.c_void_p)]


class Batch(c.Structure):
    _fields_ = [("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.c_void_p),
                ("pos", c.POINTER(c.c_int32)), ("n_seq_id", c.POINTER(c.c_int32)),
                ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8))]


class Peer:
    def __init__(self, lib_dir, model, threads, context=4096, sequences=1):
        find = lambda stem: os.path.join(lib_dir, next(f for f in sorted(os.listdir(lib_dir)) if f.startswith(stem)))
        load = lambda stem: c.CDLL(find(stem), mode=c.RTLD_GLOBAL)
        load("libggml-base")
        ggml = load("libggml.v")
        self.l = l = load("libllama.v")
        log = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
        self.quiet = log(lambda level, text, data: None)
        l.llama_log_set(self.quiet, None)
        ggml.ggml_log_set(self.quiet, None)
        ggml.ggml_backend_load_all_from_path(lib_dir.encode())
        l.llama_backend_init()
        for name, result, args in (
            ("llama_model_default_params", ModelParams, []), ("llama_context_default_params", ContextParams, []),
            ("llama_model_load_from_file", c.c_void_p, [c.c_char_p, ModelParams]),
            ("llama_init_from_model", c.c_void_p, [c.c_void_p, ContextParams]),
            ("llama_batch_init", Batch, [c.c_int32, c.c_int32, c.c_int32]), ("llama_decode", c.c_int32, [c.c_void_p, Batch]),
            ("llama_get_logits_ith", c.POINTER(c.c_float), [c.c_void_p, c.c_int32]),
            ("llama_model_get_vocab", c.c_void_p, [c.c_void_p]), ("llama_vocab_n_tokens", c.c_int32, [c.c_void_p]),
            ("llama_get_memory", c.c_void_p, [c.c_void_p]), ("llama_memory_clear", None, [c.c_void_p, c.c_bool]),
            ("llama_synchronize", None, [c.c_void_p]),
            ("llama_tokenize", c.c_int32, [c.c_void_p, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32, c.c_bool, c.c_bool]),
        ):
            f = getattr(l, name)
            f.restype, f.argtypes = result, args
        start = time.perf_counter()
        self.model = l.llama_model_load_from_file(model.encode(), l.llama_model_default_params())
        assert self.model, f"{model} does not load"
        p = l.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = context, 2048, 512, sequences
        p.threads = p.threads_batch = threads
        p.flash_attention = 1
        self.context = l.llama_init_from_model(self.model, p)
        assert self.context
        self.vocab = l.llama_vocab_n_tokens(l.llama_model_get_vocab(self.model))
        self.batch = l.llama_batch_init(2048, 0, 1)
        self.load_seconds = time.perf_counter() - start

    def tokens(self, text):
        raw = text.encode()
        ids = (c.c_int32 * (len(raw) + 8))()
        vocab = self.l.llama_model_get_vocab(self.model)
        count = self.l.llama_tokenize(vocab, raw, len(raw), ids, len(ids), True, True)
        assert count >= 0, count
        return ids[:count]

    def clear(self):
        self.l.llama_memory_clear(self.l.llama_get_memory(self.context), True)

    def decode(self, tokens, positions, sequences, wanted):
        b = self.batch
        b.n_tokens = len(tokens)
        for i, t in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = t, positions[i], 1, sequences[i], wanted[i]
        code = self.l.llama_decode(self.context, b)
        assert code == 0, code
        self.l.llama_synchronize(self.context)

    def logits(self, i):
        import numpy as np
        return np.ctypeslib.as_array(self.l.llama_get_logits_ith(self.context, i), shape=(self.vocab,))


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(reps, run):
    run()
    rates = []
    for _ in range(reps):
        rates.append(run())
    return sorted(rates)


def main():
    lib_dir, model, threads, command, *args = sys.argv[1:]
    if command in ("pp", "tg", "batch"):
        numbers = list(map(int, args))
        streams = numbers[0] if command == "batch" else 1
        n, reps = numbers[-2], numbers[-1]
        peer = Peer(lib_dir, model, int(threads), sequences=streams, context=max(4096, streams * (n + 32)))
        token = lambda i: 100 + (i * 7919) % 1500

        def prefill():
            peer.clear()
            start = time.perf_counter()
            for at in range(0, n, 512):
                m = min(512, n - at)
                peer.decode([token(at + i) for i in range(m)], range(at, at + m), [0] * m, [0] * (m - 1) + [1])
            return n / (time.perf_counter() - start)

        def generate():
            peer.clear()
            peer.decode([token(0)] * streams, [0] * streams, range(streams), [1] * streams)
            start = time.perf_counter()
            for i in range(n):
                peer.decode([token(i)] * streams, [i + 1] * streams, range(streams), [1] * streams)
            return n * streams / (time.perf_counter() - start)

        rates = timed(reps, prefill if command == "pp" else generate)
        print(json.dumps({"peer": "llama.cpp", "case": command, "n": n, "streams": streams, "threads": int(threads),
                          "tok_s": rates[len(rates) // 2], "best": rates[-1], "load_s": peer.load_seconds, "peak_mib": peak_mib()}))
    elif command == "greedy":
        n = int(args[0])
        peer = Peer(lib_dir, model, int(threads))
        for line in open(args[1]):
            ids = json.loads(line)["ids"]
            peer.clear()
            peer.decode(ids, range(len(ids)), [0] * len(ids), [0] * (len(ids) - 1) + [1])
            out, gaps, row = [], [], len(ids) - 1
            for step in range(n):
                logits = peer.logits(row)
                best = int(logits.argmax())
                top = float(logits[best])
                second = float(max(logits[:best].max(initial=-1e30), logits[best + 1:].max(initial=-1e30)))
                out.append(best)
                gaps.append(top - second)
                peer.decode([best], [len(ids) + step], [0], [1])
                row = 0
            print(json.dumps({"ids": out, "gaps": gaps}), flush=True)
    elif command == "tokens":
        peer = Peer(lib_dir, model, int(threads))
        for line in open(args[0]):
            print(json.dumps({"ids": peer.tokens(json.loads(line)["text"])}))
    elif command == "ppl":
        import numpy as np
        context = int(args[0])
        ids = json.load(open(args[1]))
        peer = Peer(lib_dir, model, int(threads), context=context)
        total, count = 0.0, 0
        for at in range(0, len(ids) - context + 1, context):
            window = ids[at:at + context]
            peer.clear()
            peer.decode(window, range(context), [0] * context, [1] * context)
            for i in range(context // 2, context - 1):
                row = peer.logits(i).astype(np.float64)
                row = row - row.max()
                total -= row[window[i + 1]] - math.log(np.exp(row).sum())
                count += 1
        print(json.dumps({"peer": "llama.cpp", "ppl": math.exp(total / count), "tokens": count}))
    else:
        sys.exit(__doc__)


main()
