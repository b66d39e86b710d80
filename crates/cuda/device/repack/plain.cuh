// Floats, FP8, and integers with a scale a group, to packed tiles.
//
// A source has: `stripe` and `stripe_bytes`; `groups`, how many scales a row has, and `scan`, which takes one of them into the
// column's largest; `column`; `cell`, which writes eight codes, and `side`, which writes a stripe's scales.
#pragma once
#include "repack/cells.cuh"

enum FloatKind { kF16, kBf16, kF32 };

template <int KIND>
struct Floats {
  __device__ static u32 stripe(const Input&) { return 64; }
  __device__ static u32 stripe_bytes(const Input&) { return 4096; }
  __device__ static u32 groups(const Input& in) { return in.k; }
  __device__ static float number(const Input& in, u32 row, u32 position) {
    const size_t at = (size_t)row * in.k + position;
    if (KIND == kF32) return reinterpret_cast<const float*>(in.codes)[at];
    const u32 bits = reinterpret_cast<const u16*>(in.codes)[at];
    return KIND == kF16 ? half_to_float(bits) : __uint_as_float(bits << 16);
  }
  __device__ static void scan(const Input& in, u32 row, u32 group, Largest& largest, Report* report) {
    const float v = number(in, row, group);
    if (!finite(v)) fault(report, place(in, row, group));
    largest.scale = max(largest.scale, magnitude(v));
  }
  __device__ static Column column(const Input&, u32, const Largest& largest) {
    return KIND == kF16 ? column_of(0, 0) : column_of(room(largest.scale, 15), 0);
  }
  __device__ static void cell(const Input& in, u32 row, u32 first, u32 at, const Column& column, const Slot& out, Report* report) {
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const u32 position = first + i;
      if (position < in.k) words[i >> 1] |= scaled_half(number(in, row, position), column.exponent, report, place(in, row, position)) << (16 * (i & 1));
    }
    *reinterpret_cast<uint4*>(out.cell<16>(0, at)) = make_uint4(words[0], words[1], words[2], words[3]);
  }
  __device__ static void side(const Input&, u32, u32, const Column&, const Slot&, Report*) {}
};

// e4m3 codes; scales: a float a row, or (BLOCK) one for each 128 x 128 of the whole weight.
template <bool BLOCK>
struct Fp8Codes {
  __device__ static u32 stripe(const Input&) { return BLOCK ? 128 : 64; }
  __device__ static u32 stripe_bytes(const Input&) { return BLOCK ? 4160 : 2048; }
  __device__ static u32 groups(const Input& in) { return BLOCK ? (in.k + 127) / 128 : 1; }
  __device__ static float scale(const Input& in, u32 row, u32 group) {
    const float* scales = reinterpret_cast<const float*>(in.scales);
    return BLOCK ? scales[(size_t)((in.row_first + row) / 128) * groups(in) + group] : scales[row];
  }
  __device__ static void scan(const Input& in, u32 row, u32 group, Largest& largest, Report* report) {
    const float v = scale(in, row, group);
    if (!finite(v)) fault(report, place(in, row, 128 * group));
    largest.scale = max(largest.scale, magnitude(v));
  }
  __device__ static Column column(const Input& in, u32 row, const Largest& largest) {
    if (BLOCK) return column_of(room(largest.scale, 14), 8);
    return {0, scale(in, row, 0) * 256.0f};
  }
  __device__ static void cell(const Input& in, u32 row, u32 first, u32 at, const Column&, const Slot& out, Report* report) {
    Octet codes;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const u32 position = first + i;
      codes[i] = position < in.k ? in.codes[(size_t)row * in.k + position] : 0;
      if ((codes[i] & 0x7F) == 0x7F) fault(report, place(in, row, position));
    }
    *reinterpret_cast<uint2*>(out.cell<8>(0, at)) = pack_e4m3(codes);
  }
  __device__ static void side(const Input& in, u32 row, u32 stripe, const Column& column, const Slot& out, Report* report) {
    if (BLOCK) put_half(out.side(4096, 2), scaled_half(scale(in, row, stripe), column.exponent, report, place(in, row, 128 * stripe)));
  }
};

// Codes without sign, a float scale a group of `group`, a zero point each in `extra` or none.
template <int BITS, bool NIBBLES>
struct GroupInts {
  __device__ static u32 stripe(const Input& in) { return in.group == 128 ? 128 : 64; }
  __device__ static u32 planes(const Input& in) { return 4 * BITS * stripe(in); }
  __device__ static u32 stripe_groups(const Input& in) { return in.group == 32 ? 2 : 1; }
  __device__ static u32 stripe_bytes(const Input& in) { return planes(in) + stripe_groups(in) * (in.extra ? 96 : 64); }
  __device__ static u32 groups(const Input& in) { return in.k / in.group; }
  __device__ static float scale(const Input& in, u32 row, u32 group) {
    return reinterpret_cast<const float*>(in.scales)[(size_t)row * groups(in) + group];
  }
  __device__ static void scan(const Input& in, u32 row, u32 group, Largest& largest, Report* report) {
    const float v = scale(in, row, group);
    const bool zero_bad = BITS == 4 && in.extra && in.extra[(size_t)row * groups(in) + group] > 16;
    if (!finite(v) || zero_bad) fault(report, place(in, row, group * in.group));
    largest.scale = max(largest.scale, magnitude(v));
  }
  __device__ static Column column(const Input&, u32, const Largest& largest) { return column_of(room(largest.scale, 15), 24); }
  __device__ static void cell(const Input& in, u32 row, u32 first, u32 at, const Column&, const Slot& out, Report* report) {
    Octet codes;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const size_t index = (size_t)row * in.k + first + i;
      codes[i] = first >= in.k ? 0 : NIBBLES ? nibble_at(in.codes, index) : in.codes[index];
      if (codes[i] >> BITS) fault(report, place(in, row, first + i));
    }
    if (BITS == 4) put_word(out.cell<4>(0, at), pack_nibbles(codes));
    else *reinterpret_cast<uint2*>(out.cell<8>(0, at)) = pack_bytes(codes);
  }
  __device__ static void side(const Input& in, u32 row, u32 stripe_index, const Column& column, const Slot& out, Report* report) {
    const u32 count = stripe_groups(in);
    for (u32 i = 0; i < count; i++) {
      const u32 group = stripe_index * count + i;
      const bool inside = group < groups(in);
      const u32 bits = inside ? scaled_half(scale(in, row, group), column.exponent, report, place(in, row, group * in.group)) : 0;
      put_half(out.side(planes(in), 2 * count) + 2 * i, bits);
      if (in.extra) out.side(planes(in) + 64 * count, count)[i] = inside ? in.extra[(size_t)row * groups(in) + group] : 0;
    }
  }
};

enum BlockKind { kQ8_0, kQ4_0, kIq4Nl };

// GGUF's blocks of 32: a half, then codes.
template <int KIND>
struct Blocks32 {
  static constexpr u32 kBlock = KIND == kQ8_0 ? 34 : 18, kPlane = KIND == kQ8_0 ? 2048 : 1024;
  __device__ static u32 stripe(const Input&) { return 64; }
  __device__ static u32 stripe_bytes(const Input&) { return kPlane + 128; }
  __device__ static u32 groups(const Input& in) { return in.k / 32; }
  __device__ static const u8* block(const Input& in, u32 row, u32 group) { return in.codes + ((size_t)row * groups(in) + group) * kBlock; }
  __device__ static void scan(const Input& in, u32 row, u32 group, Largest& largest, Report* report) {
    const float v = half_at(block(in, row, group));
    if (!finite(v)) fault(report, place(in, row, 32 * group));
    largest.scale = max(largest.scale, magnitude(v));
  }
  __device__ static Column column(const Input&, u32, const Largest& largest) { return column_of(room(largest.scale, 15), 24); }
  __device__ static void cell(const Input& in, u32 row, u32 first, u32 at, const Column&, const Slot& out, Report*) {
    Octet codes = {0, 0, 0, 0, 0, 0, 0, 0};
    if (first < in.k) {
      const u8* bytes = block(in, row, first / 32) + 2;
      const u32 within = first % 32;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (KIND == kQ8_0) codes[i] = bytes[within + i] ^ 0x80;
        else codes[i] = bytes[within % 16 + i] >> (within / 16 * 4) & 15;
      }
    }
    if (KIND == kQ8_0) *reinterpret_cast<uint2*>(out.cell<8>(0, at)) = pack_bytes(codes);
    else put_word(out.cell<4>(0, at), KIND == kQ4_0 ? pack_nibbles(codes) : pack_selectors(codes));
  }
  __device__ static void side(const Input& in, u32 row, u32 stripe, const Column& column, const Slot& out, Report* report) {
    for (u32 i = 0; i < 2; i++) {
      const u32 group = 2 * stripe + i;
      const u32 bits = group < groups(in) ? scaled_half(half_at(block(in, row, group)), column.exponent, report, place(in, row, 32 * group)) : 0;
      put_half(out.side(kPlane, 4) + 2 * i, bits);
    }
  }
};

typedef Floats<kF16> FromF16;
typedef Floats<kBf16> FromBf16;
typedef Floats<kF32> FromF32;
typedef Fp8Codes<false> FromFp8;
typedef Fp8Codes<true> FromFp8Block;
typedef GroupInts<4, false> FromInt4Bytes;
typedef GroupInts<4, true> FromInt4Nibbles;
typedef GroupInts<8, false> FromInt8;
typedef Blocks32<kQ8_0> FromQ8_0;
typedef Blocks32<kQ4_0> FromQ4_0;
typedef Blocks32<kIq4Nl> FromIq4Nl;
