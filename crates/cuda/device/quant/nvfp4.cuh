// NVFP4: e2m1 codes, an e4m3 scale (without sign) for each 16, f32 factors in the column scale.
//
// A piece, 64 k: two units of 4-bit cells (1024 bytes), then [slot][4] scale bytes. A word holds eight codes so that a shift and
// a mask give a pair of halves with the value times 2^-14 (sign to bit 15, exponent and mantissa to bits 11..9): the pairs lie at
// sign 15 / 12 / 14 / 13, magnitude 11..9 / 8..6 / 5..3 / 2..0 of each half. A scale byte is the scale times 2^7 with five bits of
// exponent (repacked from e4m3, whose exponents are fewer), so that a shift by seven makes a half of it. The product is exact in
// f16: both factors together have at most six significant bits, and the exponents fit. Weights come out as value * 2^-7; the
// column scale holds the factor 2^7.
#pragma once
#include "fragment.cuh"

__device__ __forceinline__ void expand_e2m1(u32 (&pairs)[4], u32 w) {
  pairs[0] = w & 0x8E008E00u;
  pairs[1] = (w << 3) & 0x8E008E00u;
  pairs[2] = ((w << 6) & 0x0E000E00u) | ((w << 1) & 0x80008000u);
  pairs[3] = ((w << 9) & 0x0E000E00u) | ((w << 2) & 0x80008000u);
}

struct Nvfp4 {
  static constexpr int kStripeBytes = 1152, kStripePieces = 1;
  struct Head { u32 scales; };  // a byte for each 16 k
  typedef CellWords<4> Codes;

  typedef Places<1, 1> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = tile + (size_t)piece * kStripeBytes;
    at.set_codes<16>(0, stripe, 512, unit, slot, bank_group<Nvfp4>(piece));
    at.set_side(0, stripe + 1024 + 4 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int, int slots) {
    return {load_stream<u32>(at.side(0) + 4 * slots)};
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_cells<4>(at.codes(0, units) + 16 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    const u32 scale = byte_twice(head.scales, 2 * unit + (octet >> 1)) << 7;  // shifted into both halves
    expand_e2m1(pairs, codes.w[octet][0]);
#pragma unroll
    for (int j = 0; j < 4; j++) pairs[j] = mul2(pairs[j], scale);
  }
};
