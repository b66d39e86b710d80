// IQ4_NL and IQ4_XS: four bits that pick one of 16 uneven steps, under a half for each 32, or, XS, under six-bit scales times a
// half for each 256.
//
// A piece: units of 4-bit cells (512 bytes each), then NL [slot][2] halves; XS, a stripe of 256, [slot] {half d, two high bits of
// eight scales, four low bits of them}. A cell's nibbles are selectors of a byte permutation: bits 2..0 pick one of eight
// magnitudes, bit 3 tells which of two tables. A permutation gives zero (the sign of a byte below 128) where bit 3 is set, so that
// the two tables' results, the second with bit 3 turned over, only need to be subtracted: step + 128 = 128 + above - below.
#pragma once
#include "integer.cuh"

// Not __byte_perm, which need not take bit 3 of a selector as the machine does.
__device__ __forceinline__ u32 permute(u32 low, u32 high, u32 selectors) {
  u32 out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selectors));
  return out;
}

// Four codes in the low 16 bits (and, bit 3 turned over, of `turned`) to bytes step + 128.
__device__ __forceinline__ u32 steps(u32 codes, u32 turned) {
  const u32 below = permute(0x4153687Fu, 0x0A162331u, codes);   // 127 104 83 65, 49 35 22 10
  const u32 above = permute(0x26190D01u, 0x71594535u, turned);  // 1 13 25 38, 53 69 89 113
  return above - below + 0x80808080u;
}

__device__ __forceinline__ void expand_steps(u32 (&pairs)[4], u32 word, u32 scale) {
  const u32 turned = word ^ 0x88888888u;
  expand_bytes(pairs, steps(word, turned), steps(word >> 16, turned >> 16), scale, mul2(scale, kMinus2Pow17));
}

struct Iq4Nl {
  static constexpr int kStripeBytes = 1152, kStripePieces = 1;
  struct Head { u32 scales; };  // a half a unit
  typedef CellWords<4> Codes;

  typedef Places<1, 1> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = tile + (size_t)piece * kStripeBytes;
    at.set_codes<16>(0, stripe, 512, unit, slot, bank_group<Iq4Nl>(piece));
    at.set_side(0, stripe + 1024 + 4 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int, int slots) {
    return {load_stream<u32>(at.side(0) + 4 * slots)};
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_cells<4>(at.codes(0, units) + 16 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    expand_steps(pairs, codes.w[octet][0], half_twice(head.scales, unit));
  }
};

struct Iq4Xs {
  static constexpr int kStripeBytes = 4352, kStripePieces = 4;
  struct Head {
    u32 d;       // in the low half
    u32 scales;  // a byte a unit, 32 more than the scale
  };
  typedef CellWords<4> Codes;

  typedef Places<1, 1> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = stripe_of(tile, piece, kStripeBytes);
    at.set_codes<16>(0, quarter_plane(stripe, piece, 512), 512, unit, slot, bank_group<Iq4Xs>(piece));
    at.set_side(0, stripe + 4096 + 8 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int piece, int slots) {
    const uint2 v = load_stream<uint2>(at.side(0) + 8 * slots);
    const int half = half_of(piece), up = up_of(piece);
    const u32 high = v.x >> (16 + 8 * half + 4 * (piece & 1));
    return {v.x, ((v.y >> (4 * half + up)) & 0x0F0Fu) | ((high << 4) & 0x30u) | ((high << 10) & 0x3000u)};
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_cells<4>(at.codes(0, units) + 16 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    // 1024 + byte as a half, less 1056.
    const u32 integer = add2(byte_twice_below(head.scales, unit, 0x64), 0xE420E420u);
    expand_steps(pairs, codes.w[octet][0], mul2(integer, half_twice(head.d, 0)));
  }
};
