// FP8: e4m3 codes. One scale a tensor or a column is in the column scale; one a block of 128 k is a half beside the codes.
//
// A stripe: units of 8-bit cells (1024 bytes each), Fp8Block then [slot] halves. A word holds four codes so that a mask, or a
// shift and a mask, put sign, exponent and mantissa under a half's wider exponent: value times 2^-8. Of each half, one code has
// its sign at 15 and the rest at 13..7, the other its sign at 14 and the rest at 6..0.
#pragma once
#include "fragment.cuh"

__device__ __forceinline__ void expand_e4m3(u32 (&pairs)[4], const u32 (&words)[2]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    pairs[2 * i] = words[i] & 0xBF80BF80u;
    pairs[2 * i + 1] = ((words[i] << 7) & 0x3F803F80u) | ((words[i] << 1) & 0x80008000u);
  }
}

struct Fp8 {
  static constexpr int kStripeBytes = 2048, kStripePieces = 1;
  struct Head {};
  typedef CellWords<8> Codes;

  typedef Places<1, 0> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    at.set_codes<16>(0, tile + (size_t)piece * kStripeBytes, 1024, unit, slot, bank_group<Fp8>(piece));
  }
  __device__ static __forceinline__ Head head(const At&, int, int) { return {}; }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_cells<8>(at.codes(0, units) + 16 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head&, int, int octet) { expand_e4m3(pairs, codes.w[octet]); }
};

struct Fp8Block {
  static constexpr int kStripeBytes = 4160, kStripePieces = 2;
  struct Head { u32 scale; };
  typedef CellWords<8> Codes;

  typedef Places<1, 1> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = tile + (size_t)(piece >> 1) * kStripeBytes;
    at.set_codes<16>(0, stripe + (piece & 1) * 2048, 1024, unit, slot, bank_group<Fp8Block>(piece));
    at.set_side(0, stripe + 4096 + 2 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int, int slots) {
    return {twice(load_stream<u16>(at.side(0) + 2 * slots))};
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_cells<8>(at.codes(0, units) + 16 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int, int octet) {
    expand_e4m3(pairs, codes.w[octet]);
#pragma unroll
    for (int j = 0; j < 4; j++) pairs[j] = mul2(pairs[j], head.scale);
  }
};
