"""Writes the fixtures of this folder: for each format random blocks and the f32 numbers that the `gguf` package reads.

Needs: pip install numpy==2.4.6 gguf==0.19.0 libgguf==0.2.2
Run:   python make.py

FORMAT.bin   = u32 block count n, n blocks, then their numbers as f32. Blocks are of random bytes with finite f16 scales;
               among the scales are zeros of both signs, the smallest and the largest finite ones.
encode.bin   = u32 count n, n x f32, then the encodings of these numbers as Q8_0, Q4_0, Q4_1, F16, BF16, one after the other,
               as the `gguf` package makes them. Q8_0, Q4_0, Q4_1 are checked here to be those of ggml's own code (libgguf).
"""
import pathlib

import libgguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
import gguf.quants as quants

HERE = pathlib.Path(__file__).resolve().parent
# format: (blocks, places of f16 scales in a block)
FORMATS = {
    T.F32: (256, []), T.F16: (0, []), T.BF16: (0, []),
    T.Q4_0: (64, [0]), T.Q4_1: (64, [0, 2]), T.Q5_0: (64, [0]), T.Q5_1: (64, [0, 2]), T.Q8_0: (64, [0]),
    T.Q2_K: (14, [80, 82]), T.Q3_K: (14, [108]), T.Q4_K: (14, [0, 2]), T.Q5_K: (14, [0, 2]), T.Q6_K: (14, [208]),
    T.IQ1_S: (64, [0]), T.IQ1_M: (14, None), T.IQ2_XXS: (14, [0]), T.IQ2_XS: (16, [0]), T.IQ2_S: (32, [0]),
    T.IQ3_XXS: (14, [0]), T.IQ3_S: (20, [0]), T.IQ4_NL: (64, [0]), T.IQ4_XS: (14, [0]),
    T.TQ1_0: (14, [52]), T.TQ2_0: (14, [64]), T.MXFP4: (256, []), T.NVFP4: (64, []),
}
EXTREMES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00], dtype=np.uint16)


def finite_f16(rng, n):
    bits = rng.integers(0, 65536, n, dtype=np.uint16)
    bits = np.where((bits & 0x7C00) == 0x7C00, bits & 0xBFFF, bits).astype(np.uint16)
    bits[: len(EXTREMES)] = EXTREMES[:n]
    return rng.permutation(bits)


def use_all_points(kind, raw, rng):
    """Sets the codebook indices so that each point of the codebook is used (in the larger codebooks just once)."""
    count = len(raw)
    if kind in (T.IQ2_XXS, T.IQ3_XXS):
        places = [2 + 8 * (i // 4) + i % 4 for i in range(32)] if kind == T.IQ2_XXS else range(2, 66)
        for place in places:
            raw[:, place] = rng.integers(0, 256, count)
        flat = rng.permutation(256).astype(np.uint8)
        need = -(-256 // len(places))
        raw[:need, places] = np.resize(flat, (need, len(places)))
    elif kind == T.IQ2_XS:
        words = raw[:, 2:66].copy().view(np.uint16)
        raw[:, 2:66] = ((words & 0xFE00) | rng.permutation(512).reshape(16, 32).astype(np.uint16)).view(np.uint8)
    elif kind == T.IQ2_S:
        index = rng.permutation(1024).reshape(32, 32)
        raw[:, 2:34] = index & 255
        for i in range(8):
            raw[:, 66 + i] = sum((index[:, 4 * i + j] >> 8) << (2 * j) for j in range(4))
    elif kind == T.IQ3_S:
        index = np.resize(rng.permutation(512), (count, 64))
        raw[:, 2:66] = index & 255
        for i in range(8):
            raw[:, 66 + i] = sum((index[:, 8 * i + j] >> 8) << j for j in range(8))
    elif kind == T.IQ1_S:
        index = rng.permutation(2048).reshape(64, 32)
        raw[:, 2:34] = index & 255
        words = raw[:, 34:].copy().view(np.uint16) & 0xF000
        for i in range(8):
            words[:, i] |= sum(((index[:, 4 * i + j] >> 8) << (3 * j)).astype(np.uint16) for j in range(4))
        raw[:, 34:] = words.view(np.uint8)


def blocks(kind, rng):
    count, scales = FORMATS[kind]
    size = GGML_QUANT_SIZES[kind][1]
    if kind in (T.F16, T.BF16):  # every number there is, but NaN, whose payload is nobody's promise
        bits = np.arange(65536, dtype=np.uint16)
        exponent = 0x7C00 if kind == T.F16 else 0x7F80
        bits = bits[(bits & 0x7FFF) <= exponent]
        return rng.permutation(bits)[:4096].view(np.uint8).reshape(-1, 2)
    raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
    use_all_points(kind, raw, rng)
    if kind == T.F32:
        raw.view(np.uint32)[:, 0] &= 0xBF7FFFFF
    elif kind == T.MXFP4:
        raw[:, 0] = np.arange(256)
        raw[0, 1:] = np.arange(16) * 17
    elif kind == T.NVFP4:
        raw[:, :4] = rng.permutation(256).reshape(64, 4)
    elif kind == T.IQ1_M:  # the scale is spread over the top nibbles of four words
        words = raw[:, 48:].copy().view(np.uint16)
        d = finite_f16(rng, count)
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0FFF) | (((d >> (4 * i)) & 15) << 12)
        raw[:, 48:] = words.view(np.uint8)
    else:
        for place in scales:
            raw[:, place : place + 2] = finite_f16(rng, count).view(np.uint8).reshape(-1, 2)
    return raw


def write_format(kind):
    rng = np.random.default_rng(1000 + int(kind))
    raw = blocks(kind, rng)
    with np.errstate(all="ignore"):
        numbers = quants.dequantize(np.ascontiguousarray(raw), kind).astype(np.float32).reshape(-1)
    assert not np.isnan(numbers).any(), kind
    head = np.array([len(raw)], dtype="<u4").tobytes()
    (HERE / f"{kind.name}.bin").write_bytes(head + raw.tobytes() + numbers.astype("<f4").tobytes())


def write_encode():
    rng = np.random.default_rng(7)
    rows = [rng.normal(0, s, 32) for s in (1e-6, 1e-3, 0.02, 1.0, 30.0, 5000.0) for _ in range(8)]
    rows += [np.zeros(32), np.full(32, -0.5), np.arange(32) - 15.5, np.arange(32) * -1.0, np.tile([1.0, -1.0], 16)]
    x = np.array(rows, dtype=np.float32)
    out = np.array([x.size], dtype="<u4").tobytes() + x.tobytes()
    for kind in (T.Q8_0, T.Q4_0, T.Q4_1, T.F16, T.BF16):
        raw = quants.quantize(x, kind)
        if kind in (T.Q8_0, T.Q4_0, T.Q4_1):
            theirs = libgguf.quantize_rows(x, libgguf.GGMLQuantizationType[kind.name])
            assert np.asarray(theirs).tobytes() == raw.tobytes(), kind
        out += raw.tobytes()
    (HERE / "encode.bin").write_bytes(out)


if __name__ == "__main__":
    for kind in FORMATS:
        write_format(kind)
    write_encode()
