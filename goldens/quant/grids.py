"""Writes crates/weights/src/quant/grids.rs: the published codebooks of the IQ formats in a short printable code.

Needs: pip install numpy gguf==0.19.0
"""
import pathlib

import gguf.quants as q

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/weights/src/quant/grids.rs"
TABLES = [
    ("IQ2_XXS", "Magnitudes of IQ2_XXS: 256 points of 8 codes of 2 bits.", q.IQ2_XXS),
    ("IQ2_XS", "Magnitudes of IQ2_XS: 512 points of 8 codes of 2 bits.", q.IQ2_XS),
    ("IQ2_S", "Magnitudes of IQ2_S: 1024 points of 8 codes of 2 bits.", q.IQ2_S),
    ("IQ3_XXS", "Magnitudes of IQ3_XXS: 256 points of 4 codes of 4 bits.", q.IQ3_XXS),
    ("IQ3_S", "Magnitudes of IQ3_S: 512 points of 4 codes of 4 bits.", q.IQ3_S),
    ("IQ1_S", "Values of IQ1_S and IQ1_M: 2048 points of 8 codes of 2 bits.", q.IQ1_S),
]
HEAD = '''//! The codebooks of the IQ formats. Made by `goldens/quant/grids.py`; not for editing.
//!
//! A codebook is an ascending list of 16-bit points, each several codes from the low bits on. It is written as the
//! differences from point to point, in base 91: a symbol below 28 is a difference; a symbol 28 + h and the next one, l,
//! are the difference 91 h + l; after a symbol 90, the next two, h and l, are.

/// The number of a symbol: printable ASCII from `#` on without the backslash.
const fn symbol(byte: u8) -> u16 {
    assert!(byte >= b'#' && byte <= b'~' && byte != b'\\\\');
    if byte < b'\\\\' { byte as u16 - 35 } else { byte as u16 - 36 }
}

/// Decodes `N` points, at compile time.
const fn points<const N: usize>(text: &[u8]) -> [u16; N] {
    let mut out = [0; N];
    let (mut point, mut place, mut count) = (0, 0, 0);
    while place < text.len() {
        let mut step = symbol(text[place]);
        place += 1;
        if step == 90 {
            step = symbol(text[place]) * 91 + symbol(text[place + 1]);
            place += 2;
        } else if step >= 28 {
            step = (step - 28) * 91 + symbol(text[place]);
            place += 1;
        }
        point += step;
        out[count] = point;
        count += 1;
    }
    assert!(count == N);
    out
}
'''


def points(cls):
    raw = bytes.fromhex(bytes(cls.grid_hex).decode())
    return [int.from_bytes(raw[i : i + 2], "little") for i in range(0, len(raw), 2)]


def symbol(number):
    return chr(35 + number if 35 + number < 92 else 36 + number)


def encode(values):
    out, last = [], 0
    for value in values:
        step, last = value - last, value
        assert 0 <= step < 91 * 91, step
        high, low = divmod(step, 91)
        if step < 28:
            out.append(symbol(step))
        elif high < 62:
            out.append(symbol(28 + high) + symbol(low))
        else:
            out.append(symbol(90) + symbol(high) + symbol(low))
    return out


def main():
    text = HEAD
    for name, doc, cls in TABLES:
        values = points(cls)
        assert values == sorted(values)
        lines, line = [], ""
        for piece in encode(values):
            if len(line) + len(piece) > 96:
                lines.append(line)
                line = ""
            line += piece
        lines.append(line)
        body = "\\\n".join("      " + part for part in lines).lstrip()
        text += f"\n/// {doc}\npub(super) static {name}: [u16; {len(values)}] = points(\n    b\"{body}\",\n);\n"
    OUT.write_text(text)


main()
