#!/usr/bin/env python3
"""OpenVINO GenAI (2026.4.1) as a peer: it reads the GGUF itself.

usage: genai.py MODEL.gguf THREADS pp|tg N REPS      one JSON object
  pp  prefill of N tokens (one token generated), tok/s
  tg  N tokens after a short prompt, tok/s of the tokens after the first
"""
import json
import resource
import sys
import time

import numpy as np
import openvino
import openvino_genai


def main():
    model, threads, command, n, reps = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    start = time.perf_counter()
    pipe = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
    load_s = time.perf_counter() - start
    prompt_len = n if command == "pp" else 4
    new = 1 if command == "pp" else n + 1

    def run(shift):
        ids = np.array([[100 + (i * 7919 + shift) % 1500 for i in range(prompt_len)]], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        metrics = pipe.generate(inputs, config).perf_metrics
        if command == "pp":
            return n / (metrics.get_ttft().mean / 1000)
        return 1000 / metrics.get_tpot().mean

    run(0)
    rates = sorted(run(1 + i) for i in range(reps))
    print(json.dumps({"peer": "openvino", "case": command, "n": n, "threads": threads, "tok_s": rates[len(rates) // 2],
                      "best": rates[-1], "load_s": load_s, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


main()
