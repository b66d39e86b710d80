"""Writes the files of this folder: small sound checkpoints, and files that must be refused. Needs nothing but Python.

expected.tsv has a line for each file to refuse: its name, and words that the message must contain.
tiny.gguf, tiny.safetensors, split/ and shards/ are sound.
"""
import json
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).resolve().parent
LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
refused = []


# ---- GGUF ----


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    if kind == STRING:
        return string(content)
    if kind == ARRAY:
        inner, items = content
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack("<" + PACK[kind], content)


def key(name, kind, content):
    return string(name) + struct.pack("<I", kind) + value(kind, content)


def info(name, ne, kind, offset):
    return string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, offset)


def gguf(keys=(), tensors=(), data=b"", version=3, counts=None, align=32):
    tensor_count, key_count = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % align) + data if data else head


def refuse(name, data, *words):
    (HERE / name).write_bytes(data)
    for word in words:
        refused.append((name, word))


def noise(seed, count):
    return random.Random(seed).randbytes(count)


ARCH = key("general.architecture", STRING, "llama")


def gguf_shapes():
    refuse("zero-dimension.gguf", gguf(tensors=[info("t", [8, 0], 0, 0)]), "tensor `t`", "dimension 1", "0")
    refuse("zero-only.gguf", gguf(tensors=[info("t", [0], 0, 0)]), "tensor `t`", "dimension 0")
    refuse("no-dimensions.gguf", gguf(tensors=[info("t", [], 0, 0)]), "tensor `t`", "0 dimensions")
    refuse("five-dimensions.gguf", gguf(tensors=[info("t", [1] * 5, 0, 0)]), "tensor `t`", "5 dimensions", "1 to 4")
    refuse("huge-dimensions.gguf", gguf(tensors=[info("t", [2**40, 2**40], 0, 0)]), "tensor `t`", "more than any file")
    refuse("dimension-2-63.gguf", gguf(tensors=[info("t", [2**63], 0, 0)]), "tensor `t`", "dimension 0")
    refuse("part-of-a-block.gguf", gguf(tensors=[info("t", [33], 2, 0)], data=bytes(64)), "tensor `t`", "33", "multiple of 32")
    past = [info("t", [1024, 1024], 1, 0)]
    refuse("past-the-end.gguf", gguf(tensors=past, data=noise(1, 16)), "tensor `t`", "2097152", "16 bytes")
    refuse("offset-2-63.gguf", gguf(tensors=[info("t", [8], 0, 2**63)], data=bytes(32)), "tensor `t`", "9223372036854775808")
    refuse("offset-not-aligned.gguf", gguf(tensors=[info("t", [4], 0, 16)], data=bytes(64)), "tensor `t`", "16", "alignment, 32")
    two = [info("a", [16], 0, 0), info("b", [16], 0, 32)]
    refuse("overlap.gguf", gguf(tensors=two, data=bytes(128)), "tensor `b`", "inside of tensor `a`")
    twice = [info("a", [8], 0, 0), info("a", [8], 0, 32)]
    refuse("tensor-twice.gguf", gguf(tensors=twice, data=bytes(64)), "tensor `a`", "twice")
    for kind, word in ((4, "Q4_2"), (9, "Q8_1"), (15, "Q8_K"), (31, "Q4_0_4_4"), (41, "Q1_0"), (255, "unknown")):
        refuse(f"type-{kind}.gguf", gguf(tensors=[info("t", [256], kind, 0)], data=bytes(1024)), f"type {kind}", word, "Q4_K")
    refuse("no-name.gguf", gguf(tensors=[info("", [8], 0, 0)], data=bytes(32)), "tensor 0", "empty name")


def gguf_keys():
    refuse("key-twice.gguf", gguf([ARCH, ARCH]), "general.architecture", "twice")
    refuse("key-without-name.gguf", gguf([key("", U32, 1)]), "key 0", "empty name")
    refuse("key-not-utf8.gguf", gguf([key(b"a\xff", U32, 1)]), "key 0", "UTF-8")
    refuse("value-not-utf8.gguf", gguf([key("name", STRING, b"\xc3\x28")]), "`name`", "UTF-8")
    refuse("key-type-13.gguf", gguf([string("k") + struct.pack("<II", 13, 0)]), "`k`", "type 13", "0 to 12")
    refuse("truth-2.gguf", gguf([key("k", BOOL, 2)]), "`k`", "truth value of 2")
    refuse("array-of-arrays.gguf", gguf([key("k", ARRAY, (ARRAY, [(U8, [1])]))]), "`k`", "array of arrays")
    refuse("array-type-99.gguf", gguf([string("k") + struct.pack("<IIQ", ARRAY, 99, 0)]), "`k`", "array of type 99")
    refuse("array-2-60.gguf", gguf([string("k") + struct.pack("<IIQQ", ARRAY, U64, 2**60, 1)]), "`k`", str(2**60), "8 bytes follow")
    refuse("strings-2-40.gguf", gguf([string("k") + struct.pack("<IIQQ", ARRAY, STRING, 2**40, 1)]), "`k`", str(2**40))
    refuse("string-2-63.gguf", gguf([string("k") + struct.pack("<IQ", STRING, 2**63)]), "`k`", str(2**63))
    refuse("string-2-20.gguf", gguf([string("k") + struct.pack("<IQ", STRING, 2**20)]), "`k`", str(2**20), "only 0 bytes")
    refuse("key-name-2-40.gguf", gguf([struct.pack("<Q", 2**40) + b"kkkkkkkk"], counts=(0, 1)), "key 0", str(2**40))
    for align in (0, 3, 2**21):
        refuse(f"alignment-{align}.gguf", gguf([key("general.alignment", U32, align)]), "general.alignment", str(align), "power of two")
    refuse("alignment-text.gguf", gguf([key("general.alignment", STRING, "32")]), "general.alignment", '"32"')


def gguf_starts():
    refuse("empty.gguf", b"", "0 bytes")
    refuse("three-bytes.gguf", b"GGU", "not a GGUF file")
    refuse("other-magic.gguf", b"GGML" + bytes(32), "not a GGUF file")
    refuse("lfs-pointer.gguf", LFS, "Git LFS pointer", "download the real file")
    refuse("web-page.gguf", b"<!DOCTYPE html><html><body>Not found</body></html>", "web page")
    refuse("version-1.gguf", gguf(version=1), "version 1", "2 and 3")
    refuse("version-4.gguf", gguf(version=4), "version 4", "2 and 3")
    refuse("big-endian.gguf", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian")
    refuse("magic-only.gguf", b"GGUF", "the version", "0 present")
    refuse("tensors-2-64.gguf", gguf(counts=(2**64 - 1, 0)), "tensor count", str(2**64 - 1))
    refuse("tensors-1000.gguf", gguf(counts=(1000, 0)), "tensor count", "1000", "0 bytes follow")
    refuse("keys-2-64.gguf", gguf(counts=(0, 2**64 - 1)), "key count", str(2**64 - 1))
    refuse("keys-1000.gguf", gguf(counts=(0, 1000)), "key count", "1000", "0 bytes follow")
    split = [ARCH, key("split.no", U16, 0), key("split.count", U16, 2), key("split.tensors.count", I32, 1)]
    refuse("split-without-number.gguf", gguf(split), "shard of a split", "-00001-of-00002.gguf")
    refuse("alone-00001-of-00002.gguf", gguf(split), "missing", "alone-00002-of-00002.gguf")
    refuse("split-no-number.gguf", gguf([key("split.count", U16, 2)]), "split.no", "missing")
    refuse("split-no-9.gguf", gguf([key("split.count", U16, 2), key("split.no", U16, 9)]), "split.no", "9")
    refuse("split-count-2-16.gguf", gguf([key("split.count", U32, 2**16)]), "split.count", "65536")


def gguf_sound():
    keys = [
        ARCH,
        key("general.alignment", U32, 64),
        key("k.u8", U8, 200), key("k.i8", I8, -5), key("k.u16", U16, 40000), key("k.i16", I16, -2), key("k.i32", I32, -70000),
        key("k.f32", F32, 1.5), key("k.bool", BOOL, 1), key("k.u64", U64, 2**40), key("k.i64", I64, -(2**40)), key("k.f64", F64, 0.1),
        key("k.words", ARRAY, (STRING, ["", "a", "é", "long word"])), key("k.types", ARRAY, (I32, [1, -1, 3])),
        key("k.scores", ARRAY, (F32, [0.5, -2.0])), key("k.flags", ARRAY, (BOOL, [1, 0])), key("k.none", ARRAY, (U8, [])),
    ]
    tensors = [info("token_embd.weight", [8, 3], 0, 0), info("blk.0.ffn.weight", [32, 2, 2], 2, 128), info("norm", [5], 30, 256)]
    data = noise(2, 96) + bytes(32) + noise(3, 72) + bytes(56) + noise(4, 10)
    (HERE / "tiny.gguf").write_bytes(gguf(keys, tensors, data, align=64))
    (HERE / "split").mkdir(exist_ok=True)
    for i in range(3):
        own = [key("split.no", U16, i), key("split.count", U16, 3), key("split.tensors.count", I32, 4)]
        own = [ARCH, key("k.only-first", U32, 7), *own] if i == 0 else own
        tensors = [info(f"t{i}", [4, 2], 0, 0)] + ([info("last", [4], 0, 32)] if i == 2 else [])
        data = noise(10 + i, 32) + (noise(20, 16) if i == 2 else b"")
        (HERE / "split" / f"m-{i + 1:05}-of-00003.gguf").write_bytes(gguf(own, tensors, data))


# ---- safetensors ----


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin, end, shape=None, dtype="U8", **more):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end], **more}


def safetensors_refused():
    sound = {"a": entry(0, 4), "b": entry(4, 8)}
    refuse("empty.safetensors", b"", "0 bytes")
    refuse("seven-bytes.safetensors", bytes(7), "7 bytes", "too short")
    refuse("length-2-64.safetensors", b"\xff" * 8 + b"{}", "10 bytes", str(2**64 - 1))
    refuse("length-beyond.safetensors", safetensors(sound, bytes(8), length=4096), "4096", "cut short")
    refuse("not-utf8.safetensors", safetensors(b'{"\xff":{}}'), "UTF-8 at byte 2")
    refuse("not-json.safetensors", safetensors(b"hello, world"), "not sound JSON")
    refuse("one-byte-short.safetensors", safetensors(sound, bytes(7)), "tensor `b`", "byte 8", "7 bytes of data", "cut short")
    refuse("lfs-pointer.safetensors", LFS, "Git LFS pointer", "download the real file")
    refuse("web-page.safetensors", b"<html><body>Sign in</body></html>", "web page")
    refuse("really-gguf.safetensors", gguf([ARCH]), "GGUF")
    refuse("zip.safetensors", b"PK\x03\x04" + bytes(64), "ZIP")
    refuse("one-byte-over.safetensors", safetensors(sound, bytes(9)), "end at byte 8", "9 bytes")
    refuse("hole.safetensors", safetensors({"a": entry(0, 4), "b": entry(5, 9)}, bytes(9)), "holes", "8 of 9")
    refuse("overlap.safetensors", safetensors({"a": entry(0, 5), "b": entry(4, 8)}, bytes(8)), "tensor `b`", "inside of tensor `a`")
    refuse("backwards.safetensors", safetensors({"a": {**sound["a"], "data_offsets": [4, 0]}}, bytes(4)), "tensor `a`", "[4, 0]")
    refuse("wrong-size.safetensors", safetensors({"a": entry(0, 4, [1], "F64")}, bytes(4)), "tensor `a`", "takes 8 bytes")
    refuse("offset-2-64.safetensors", safetensors({"a": entry(2**64 - 4, 2**64, [3])}, bytes(4)), "not sound JSON")
    refuse("offset-beyond.safetensors", safetensors({"a": entry(2**64 - 5, 2**64 - 1)}, bytes(4)), "tensor `a`", "cut short")
    refuse("unknown-dtype.safetensors", safetensors({"a": entry(0, 4, dtype="F4")}, bytes(4)), "tensor `a`", "`F4`", "F8_E4M3")
    refuse("huge-shape.safetensors", safetensors({"a": entry(0, 4, [2**40, 2**40])}, bytes(4)), "tensor `a`", "more than any file")
    refuse("negative-shape.safetensors", safetensors({"a": entry(0, 4, [-4])}, bytes(4)), "not sound JSON", "-4")
    refuse("deep-shape.safetensors", safetensors({"a": entry(0, 1, [1] * 9)}, bytes(1)), "more than 8 dimensions")
    twice = b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}'
    refuse("tensor-twice.safetensors", safetensors(twice, bytes(4)), "tensor `a`", "twice")
    refuse("metadata-twice.safetensors", safetensors(b'{"__metadata__":{},"__metadata__":{}}'), "__metadata__", "twice")
    refuse("metadata-number.safetensors", safetensors({"__metadata__": {"format": 3}}), "not sound JSON", "string")
    refuse("no-shape.safetensors", safetensors({"a": {"dtype": "U8", "data_offsets": [0, 4]}}, bytes(4)), "missing field", "shape")
    refuse("more-fields.safetensors", safetensors({"a": entry(0, 4, strides=[1])}, bytes(4)), "unknown field", "strides")
    refuse("list.safetensors", safetensors(b"[]"), "not sound JSON", "object of tensors")
    refuse("text-behind.safetensors", safetensors(b"{} {}"), "not sound JSON", "trailing")
    refuse("deep.safetensors", safetensors(b'{"a":' + b"[" * 100000), "not sound JSON")


def safetensors_sound():
    first = {
        "__metadata__": {"format": "pt"},
        "w": entry(0, 24, [2, 3], "F32"),
        "s": entry(24, 26, [], "F16"),
        "none": entry(26, 26, [0, 4], "I32"),
        "q": entry(26, 31, [5], "F8_E4M3"),
    }
    (HERE / "tiny.safetensors").write_bytes(safetensors(first, noise(30, 31)))
    folder = HERE / "shards"
    folder.mkdir(exist_ok=True)
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    (folder / names[0]).write_bytes(safetensors({"a": entry(0, 8, [2], "F32")}, noise(31, 8)))
    (folder / names[1]).write_bytes(safetensors({"b": entry(0, 4, [2], "BF16"), "c": entry(4, 5)}, noise(32, 5)))
    index = {"metadata": {"total_size": 13}, "weight_map": {"a": names[0], "b": names[1], "c": names[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def main():
    for make in (gguf_shapes, gguf_keys, gguf_starts, gguf_sound, safetensors_refused, safetensors_sound):
        make()
    (HERE / "expected.tsv").write_text("".join(f"{name}\t{word}\n" for name, word in refused))


main()
