// Q2_K: two-bit codes, w = d scale code - dmin min, scales and minima of four bits for each 16, d and dmin halves for each 256.
//
// A stripe, 256 k: eight units of 2-bit cells (256 bytes each), then [slot][16] bytes with a scale in the high and a minimum in the
// low nibble, then [slot] d, -dmin. Pair j's codes lie at bits 2 j of a cell's bytes. A scale's byte under 0x54 is the half
// 64 + scale.
#pragma once
#include "integer.cuh"

struct Q2K {
  static constexpr int kStripeBytes = 2688, kStripePieces = 4;
  struct Head {
    u32 scales;  // a byte for each 16 k
    u32 d;       // d, -dmin
  };
  typedef NarrowCells<2> Codes;

  typedef Places<1, 2> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = stripe_of(tile, piece, kStripeBytes);
    at.set_codes<8>(0, quarter_plane(stripe, piece, 256), 256, unit, slot, bank_group<Q2K>(piece));
    at.set_side(0, stripe + 2048 + 16 * slot + 4 * (piece & 3));
    at.set_side(1, stripe + 2560 + 4 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int, int slots) {
    return {load_stream<u32>(at.side(0) + 16 * slots), load_stream<u32>(at.side(1) + 4 * slots)};
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_narrow_cells<2>(at.codes(0, units) + 8 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    const int at = 2 * unit + (octet >> 1);
    const u32 d = half_twice(head.d, 0);
    const u32 scale = fma2(byte_twice_below(head.scales & 0xF0F0F0F0u, at, 0x54), d, mul2(d, 0xD400D400u));
    const u32 offset = mul2(byte_twice(head.scales & 0x0F0F0F0Fu, at), half_twice(head.d, 1));
    const u32 word = spread(codes, octet);
    pairs[0] = fma2(word & 0x00030003u, scale, offset);
    pairs[1] = fma2(word & 0x000C000Cu, mul2(scale, k2PowMinus2), offset);
    pairs[2] = fma2(word & 0x00300030u, mul2(scale, k2PowMinus4), offset);
    pairs[3] = fma2(word & 0x00C000C0u, mul2(scale, k2PowMinus6), offset);
  }
};
