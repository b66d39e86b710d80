// MXFP4: e2m1 codes, a power of two for each 32.
//
// A piece, 64 k: two units of 4-bit cells (1024 bytes), then [slot][2] bytes. A word's codes lie as in NVFP4. A scale byte is the
// exponent of a half, so that a shift by ten makes a half of it: 2^(byte - 15), the column's largest at 30, zero for what is
// more than 2^29 times smaller. Weights come out as value * 2^(1 - largest exponent); the column scale takes that back.
#pragma once
#include "nvfp4.cuh"

struct Mxfp4 {
  static constexpr int kStripeBytes = 1088, kStripePieces = 1;
  struct Head { u32 scales; };  // a byte a unit
  typedef CellWords<4> Codes;

  typedef Places<1, 1> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = tile + (size_t)piece * kStripeBytes;
    at.set_codes<16>(0, stripe, 512, unit, slot, bank_group<Mxfp4>(piece));
    at.set_side(0, stripe + 1024 + 2 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int, int slots) {
    return {load_stream<u16>(at.side(0) + 2 * slots)};
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_cells<4>(at.codes(0, units) + 16 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    const u32 scale = byte_twice(head.scales, unit) << 10;
    expand_e2m1(pairs, codes.w[octet][0]);
#pragma unroll
    for (int j = 0; j < 4; j++) pairs[j] = mul2(pairs[j], scale);
  }
};
