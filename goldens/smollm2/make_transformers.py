#!/usr/bin/env python3
"""Writes transformers.jsonl: the greedy tokens of transformers in f32 on the dequantised weights of the GGUF, for the prompts
of llamacpp.jsonl, with the gap between the two largest logits at each pick.

usage: make_transformers.py SmolLM2-135M-Instruct.Q4_1.gguf     needs: torch==2.15.0 transformers==5.24.0 gguf==0.19.0 accelerate
"""
import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM

folder, name = os.path.split(os.path.abspath(sys.argv[1]))
here = os.path.dirname(os.path.abspath(__file__))
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
with torch.no_grad(), open(os.path.join(here, "transformers.jsonl"), "w") as out:
    for line in open(os.path.join(here, "llamacpp.jsonl")):
        ids = json.loads(line)["ids"]
        step, cache, greedy, gaps = torch.tensor([ids]), None, [], []
        for _ in range(64):
            result = model(step, past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            top = result.logits[0, -1].topk(2)
            greedy.append(int(top.indices[0]))
            gaps.append(round(float(top.values[0] - top.values[1]), 4))
            step = torch.tensor([[greedy[-1]]])
        out.write(json.dumps({"ids": ids, "greedy": greedy, "gaps": gaps}, separators=(",", ":")) + "\n")
        out.flush()
