// What all ways from a file's weights to packed tiles share: see `layout.rs` and `repack/` of the crate, whose steps these are.
#pragma once
#include "fragment.cuh"

typedef unsigned long long u64;

// The rows that a launch packs, as their file has them. What scales and extra are is the source's matter.
struct Input {
  const u8* codes;
  const u8* scales;
  const u8* extra;
  u32 row_first;  // of the whole weight; the pointers are for this row, but for scales that rows share
  u32 k, group;
};

// What the host reads afterwards: places are row << 32 | position, counts are of numbers.
struct Report { u64 fault_first, loss_first, subnormal, flushed; };

__device__ __forceinline__ u64 place(const Input& in, u32 row, u32 position) { return (u64)(in.row_first + row) << 32 | position; }
__device__ __forceinline__ void fault(Report* report, u64 at) { atomicMin(&report->fault_first, at); }
__device__ __forceinline__ void lost(Report* report, u64 at, bool all) {
  atomicMin(&report->loss_first, at);
  atomicAdd(all ? &report->flushed : &report->subnormal, 1ull);
}

// The largest magnitudes of a column's scales (and minima), as bits of floats, which order as they do.
struct Largest { u32 scale, min; };
struct Column { int exponent; float scale; };

__device__ __forceinline__ u32 magnitude(float v) { return __float_as_uint(v) & 0x7FFFFFFFu; }
__device__ __forceinline__ bool finite(float v) { return magnitude(v) < 0x7F800000u; }
// floor(log2) of a magnitude that is not zero.
__device__ __forceinline__ int exponent_of(u32 magnitude) {
  return magnitude >> 23 ? (int)(magnitude >> 23) - 127 : 31 - __clz(magnitude) - 149;
}
// 2^e, infinite from 2^128 on; e >= -126.
__device__ __forceinline__ float power(int e) { return e > 127 ? __uint_as_float(0x7F800000u) : __uint_as_float((u32)(e + 127) << 23); }

// The largest scale goes below 2^top, and 2^(factor - exponent) is left for the sums.
__device__ __forceinline__ Column column_of(int exponent, int factor) {
  exponent = min(exponent, 120);
  return {exponent, power(factor - exponent)};
}
__device__ __forceinline__ int room(u32 largest, int top) { return largest ? top - 1 - exponent_of(largest) : 0; }

// The bits of v 2^exponent as a half; what it loses is reported.
__device__ __forceinline__ u32 scaled_half(float v, int exponent, Report* report, u64 at) {
  const float exact = v * power(exponent);
  const u32 bits = float_to_half(exact);
  const float stored = half_to_float(bits);
  const bool gone = stored == 0.0f && v != 0.0f;
  if (gone || (fabsf(stored) < 6.103515625e-5f && stored != exact)) lost(report, at, gone);
  return bits;
}

// Numbers in blocks lie at any byte.
__device__ __forceinline__ u32 u16_at(const u8* p) { return p[0] | (u32)p[1] << 8; }
__device__ __forceinline__ float half_at(const u8* p) { return half_to_float(u16_at(p)); }
__device__ __forceinline__ u32 nibble_at(const u8* bytes, size_t index) { return bytes[index >> 1] >> (4 * (index & 1)) & 15; }

// One column's place in a stripe.
struct Slot {
  u8* stripe;
  u32 slot;
  u32 group;  // bank_group of the stripe's first piece
  // Octet `cell` of the stripe, in a plane of B bits from byte `plane` on.
  template <int B>
  __device__ __forceinline__ u8* cell(u32 plane, u32 cell) const {
    const u32 octet = cell & 3;
    const u32 unit = cell >> 2;
    u8* at = stripe + plane + unit * 128 * B + staggered<B < 4 ? 4 * B : 16>(slot, group + unit);
    if (B == 16) return at + octet * 512;
    if (B == 8) return at + (octet >> 1) * 512 + (octet & 1) * 8;
    return at + octet * B;
  }
  // A side of so many bytes a slot, from byte `offset` on.
  __device__ __forceinline__ u8* side(u32 offset, u32 width) const { return stripe + offset + slot * width; }
};
__device__ __forceinline__ void put_half(u8* p, u32 bits) { *reinterpret_cast<u16*>(p) = (u16)bits; }
__device__ __forceinline__ void put_word(u8* p, u32 word) { *reinterpret_cast<u32*>(p) = word; }

// Where the bits of eight codes lie in a cell: `repack/cell.rs`.
typedef u32 Octet[8];

__device__ __forceinline__ u32 pack_nibbles(const Octet& codes) {
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) word |= (codes[i] & 15) << (16 * (i & 1) + 4 * (i >> 1));
  return word;
}
__device__ __forceinline__ uint2 pack_bytes(const Octet& codes) {
  return make_uint2(codes[0] | codes[2] << 8 | codes[1] << 16 | codes[3] << 24, codes[4] | codes[6] << 8 | codes[5] << 16 | codes[7] << 24);
}
__device__ __forceinline__ u32 pack_selectors(const Octet& codes) {
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) word |= (codes[(i & 4) + ((i & 1) << 1) + (i >> 1 & 1)] & 15) << (4 * i);
  return word;
}
__device__ __forceinline__ u32 pack_e2m1(const Octet& codes) {
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int sign[4] = {15, 12, 14, 13}, pair = i >> 1;
    word |= ((codes[i] >> 3 & 1) << sign[pair] | (codes[i] & 7) << (9 - 3 * pair)) << (16 * (i & 1));
  }
  return word;
}
__device__ __forceinline__ uint2 pack_e4m3(const Octet& codes) {
  u32 words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 a = codes[4 * (i >> 1) + (i & 1)], b = codes[4 * (i >> 1) + 2 + (i & 1)];
    words[i >> 1] |= ((a & 0x80) << 8 | (a & 0x7F) << 7 | (b & 0x80) << 7 | (b & 0x7F)) << (16 * (i & 1));
  }
  return make_uint2(words[0], words[1]);
}
// Fields 0 to 3 of a cell's bytes hold the pairs A, B, C, D.
template <int A, int B, int C, int D>
__device__ __forceinline__ u32 pack_two_bits(const Octet& codes) {
  const int order[4] = {A, B, C, D};
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) word |= (codes[2 * order[i]] & 3) << (2 * i) | (codes[2 * order[i] + 1] & 3) << (8 + 2 * i);
  return word;
}
template <int A, int B, int C, int D>
__device__ __forceinline__ u32 pack_one_bit(const Octet& codes) {
  const int order[4] = {A, B, C, D};
  u32 byte = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) byte |= (codes[2 * order[i]] & 1) << (2 * i) | (codes[2 * order[i] + 1] & 1) << (2 * i + 1);
  return byte;
}
