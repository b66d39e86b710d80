"""Makes the small vocabularies of this folder from large ones.

    reduce_vocab.py NAME VOCAB.gguf VOCAB.gguf.inp VOCAB.gguf.out

Input: vocabulary-only GGUF files with test texts and the ids that the models' own tokenizers give, as the llama.cpp project
ships them (models/ggml-vocab-*). A token or merge is kept if its spelling occurs in one of the texts: no other can take part
in encoding them, so the ids are the large vocabulary's, renumbered.
"""

import json
import struct
import sys

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def metadata(path):
    data = open(path, "rb").read()
    at = 4

    def number(form):
        nonlocal at
        (value,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize(form)
        return value

    def text():
        nonlocal at
        size = number("Q")
        at += size
        return data[at - size : at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, count = number("I"), number("Q")
            return [value(inner) for _ in range(count)]
        return number(FORMATS[kind])

    number("I"), number("Q")
    out = {}
    for _ in range(number("Q")):
        key = text()
        out[key] = value(number("I"))
    return {k.removeprefix("tokenizer.ggml."): v for k, v in out.items()}


def byte_level(text):
    shown = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    hidden = [b for b in range(256) if b not in shown]
    table = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return "".join(table[b] for b in text.encode())


def main():
    name, vocab, inp, out = sys.argv[1:]
    meta = metadata(vocab)
    texts = open(inp, encoding="utf-8", newline="").read().split("\n__ggml_vocab_test__\n")
    ids = [[int(i) for i in line.split()] for line in open(out).read().split("\n")]
    cases = list(zip(texts, ids[: len(texts)]))
    cases = [(t, i) for t, i in cases if i or not t]
    spell = byte_level if meta["model"] == "gpt2" else lambda t: ("\u2581" + t).replace(" ", "\u2581")
    spelled = "\0".join(spell(t) for t, _ in cases)
    used = {i for _, case in cases for i in case}
    named = {k: meta.get(k) for k in ("bos_token_id", "eos_token_id", "unknown_token_id")}
    tokens, types = meta["tokens"], meta["token_type"]
    keep = [
        i
        for i, token in enumerate(tokens)
        if i in used or i in named.values() or types[i] == 6 or len(token) == 1 and token in spelled or len(token) > 1 and token in spelled
    ]
    new = {old: i for i, old in enumerate(keep)}
    kept = {tokens[i] for i in keep}
    merges = []
    for merge in meta.get("merges", []):
        left, right = merge.split(" ")
        if left + right in kept and left in kept and right in kept:
            merges.append(merge)
    result = {
        "source": vocab.split("/")[-1],
        "model": meta["model"],
        "pre": meta.get("pre"),
        "tokens": [tokens[i] for i in keep],
        "token_types": [types[i] for i in keep],
        "merges": merges,
        "scores": [meta["scores"][i] for i in keep] if meta["model"] == "llama" else [],
        "bos": new.get(named["bos_token_id"]),
        "eos": new.get(named["eos_token_id"]),
        "unk": new.get(named["unknown_token_id"]),
        "cases": [[t, [new[i] for i in case]] for t, case in cases],
    }
    with open(f"vocab-{name}.json", "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=False, indent=None, separators=(",", ":"))
        file.write("\n")
    print(name, len(keep), "tokens", len(merges), "merges", len(cases), "cases")


main()
