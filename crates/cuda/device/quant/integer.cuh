// Integers to halves: what the formats of integer codes share.
//
// A code masked out of the low bits of a half is the half code * 2^-24 (below the normal numbers), s bits further up
// code * 2^(s - 24). With scales near 2^15 one fused operation makes the weight: code * scale + offset, rounded once.
#pragma once
#include "fragment.cuh"

// Halves, twice: -2^-17, -2^-19, -2^-21, -2^-22 (128, 32, 8, 4 in steps of 2^-24); 2^-2, 2^-4, 2^-6; sign bits.
constexpr u32 kMinus2Pow17 = 0x80808080u, kMinus2Pow19 = 0x80208020u, kMinus2Pow21 = 0x80088008u, kMinus2Pow22 = 0x80048004u;
constexpr u32 k2PowMinus2 = 0x34003400u, k2PowMinus4 = 0x2C002C00u, k2PowMinus6 = 0x24002400u;
constexpr u32 kSigns = 0x80008000u;

// A stripe of 256 is four pieces of 64, two in each half. The bytes of a piece in one of its planes: `unit_bytes` a unit, two units.
__device__ __forceinline__ const u8* quarter_plane(const u8* stripe, int piece, int unit_bytes) { return stripe + (piece & 3) * 2 * unit_bytes; }
// The stripe that a piece lies in, the half of the stripe, and how far its bytes lie up in words of a byte a unit.
__device__ __forceinline__ const u8* stripe_of(const u8* tile, int piece, int stripe_bytes) { return tile + (size_t)(piece >> 2) * stripe_bytes; }
__device__ __forceinline__ int half_of(int piece) { return (piece >> 1) & 1; }
__device__ __forceinline__ int up_of(int piece) { return 16 * (piece & 1); }

// A cell of four-bit codes, pair j at bits 4 j of each half: code * scale + offset.
__device__ __forceinline__ void expand_nibbles(u32 (&pairs)[4], u32 word, u32 scale, u32 offset) {
  const u32 scale_up = mul2(scale, k2PowMinus4), next = word >> 8;
  pairs[0] = fma2(word & 0x000F000Fu, scale, offset);
  pairs[1] = fma2(word & 0x00F000F0u, scale_up, offset);
  pairs[2] = fma2(next & 0x000F000Fu, scale, offset);
  pairs[3] = fma2(next & 0x00F000F0u, scale_up, offset);
}

// The same codes less a zero point (0x00zz00zz, 16 at most), exactly, then times the scale.
__device__ __forceinline__ void expand_nibbles_less(u32 (&pairs)[4], u32 word, u32 scale, u32 zero) {
  const u32 scale_up = mul2(scale, k2PowMinus4), next = word >> 8;
  const u32 minus = zero | kSigns, minus_up = (zero << 4) | kSigns;
  pairs[0] = mul2(add2(word & 0x000F000Fu, minus), scale);
  pairs[1] = mul2(add2(word & 0x00F000F0u, minus_up), scale_up);
  pairs[2] = mul2(add2(next & 0x000F000Fu, minus), scale);
  pairs[3] = mul2(add2(next & 0x00F000F0u, minus_up), scale_up);
}

// Four bits and, above them, those of `MASK` (at bit 4) out of a spread cell: pairs 0 and 1 as they lie (bits 4 and 8), pairs 2
// and 3 two bits further up.
template <u32 MASK>
__device__ __forceinline__ void expand_nibbles_high(u32 (&pairs)[4], u32 word, u32 high, u32 scale, u32 offset) {
  const u32 scale_up = mul2(scale, k2PowMinus4), next = word >> 8, high_next = high >> 2;
  pairs[0] = fma2((word & 0x000F000Fu) | (high & MASK), scale, offset);
  pairs[1] = fma2((word & 0x00F000F0u) | (high & (MASK << 4)), scale_up, offset);
  pairs[2] = fma2((next & 0x000F000Fu) | (high_next & MASK), scale, offset);
  pairs[3] = fma2((next & 0x00F000F0u) | (high_next & (MASK << 4)), scale_up, offset);
}

// Eight bytes of a cell times the scale, and the offset: a pair in the low bytes of a word's halves, the next in the high ones.
__device__ __forceinline__ void expand_bytes(u32 (&pairs)[4], u32 first, u32 second, u32 scale, u32 offset) {
  pairs[0] = fma2(first & 0x00FF00FFu, scale, offset);
  pairs[1] = fma2(__byte_perm(first, 0, 0x4341), scale, offset);
  pairs[2] = fma2(second & 0x00FF00FFu, scale, offset);
  pairs[3] = fma2(__byte_perm(second, 0, 0x4341), scale, offset);
}
