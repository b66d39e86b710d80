// Q4_K: four-bit codes, w = d scale code - dmin min, scales and minima of six bits for each 32, d and dmin halves for each 256.
//
// A stripe, 256 k: eight units of 4-bit cells (512 bytes each), then [slot] 16 bytes: d, -dmin; a word for each half of the stripe
// with a byte a unit, scale in bits 7..2, the minimum's low bits below; a word with the minima's upper bits, low nibbles for the
// first half. A scale's byte under 0x5C is the half 256 + scale.
#pragma once
#include "integer.cuh"

// d, scales and minima of a piece: what Q4_K and Q5_K share.
struct ScalesMinima {
  u32 d;       // d, -dmin
  u32 scales;  // a byte a unit: scale << 2
  u32 minima;  // a byte a unit

  // `side`: the slot's.
  __device__ __forceinline__ void load(const u8* side, int piece) {
    const uint4 v = load_stream<uint4>(side);
    const int half = half_of(piece), up = up_of(piece);
    const u32 word = (half ? v.z : v.y) >> up, upper = v.w >> (up + 4 * half);
    d = v.x;
    scales = word & 0xFCFCFCFCu;
    minima = (word & 0x03030303u) | ((upper << 2) & 0x3C3C3C3Cu);
  }
  __device__ __forceinline__ u32 scale(int unit) const {
    const u32 factor = half_twice(d, 0);
    return fma2(byte_twice_below(scales, unit, 0x5C), factor, mul2(factor, 0xDC00DC00u));
  }
  __device__ __forceinline__ u32 offset(int unit) const { return mul2(byte_twice(minima, unit), half_twice(d, 1)); }
};

struct Q4K {
  static constexpr int kStripeBytes = 4608, kStripePieces = 4;
  typedef ScalesMinima Head;
  typedef CellWords<4> Codes;

  typedef Places<1, 1> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = stripe_of(tile, piece, kStripeBytes);
    at.set_codes<16>(0, quarter_plane(stripe, piece, 512), 512, unit, slot, bank_group<Q4K>(piece));
    at.set_side(0, stripe + 4096 + 16 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int piece, int slots) {
    Head h;
    h.load(at.side(0) + 16 * slots, piece);
    return h;
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_cells<4>(at.codes(0, units) + 16 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    expand_nibbles(pairs, codes.w[octet][0], head.scale(unit), head.offset(unit));
  }
};
