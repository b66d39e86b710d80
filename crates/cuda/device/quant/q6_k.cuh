// Q6_K: six-bit codes, w = d scale (code - 32), scales of eight bits for each 16, a half d for each 256.
//
// A stripe, 256 k: eight units of 4-bit cells (512 bytes each), eight of 2-bit cells (256 bytes each), then [slot][16] bytes
// scale + 128, then [slot] d. The high bits of pairs 1, 3, 0, 2 lie at bits 0, 2, 4, 6 of a cell's two bytes (lower codes, upper
// codes), as in Q5_K. A scale's byte under 0x64 is the half 1024 + byte.
#pragma once
#include "integer.cuh"

struct Q6K {
  static constexpr int kStripeBytes = 6720, kStripePieces = 4;
  struct Head {
    u32 scales;  // a byte for each 16 k
    u32 d;
  };
  struct Codes {
    CellWords<4> low;
    NarrowCells<2> high;
    __device__ __forceinline__ void turn(int turned) {
      low.turn(turned);
      high.turn(turned);
    }
  };

  typedef Places<2, 2> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = stripe_of(tile, piece, kStripeBytes);
    at.set_codes<16>(0, quarter_plane(stripe, piece, 512), 512, unit, slot, bank_group<Q6K>(piece));
    at.set_codes<8>(1, quarter_plane(stripe, piece, 256) + 4096, 256, unit, slot, bank_group<Q6K>(piece));
    at.set_side(0, stripe + 6144 + 16 * slot + 4 * (piece & 3));
    at.set_side(1, stripe + 6656 + 2 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int, int slots) {
    return {load_stream<u32>(at.side(0) + 16 * slots), load_stream<u16>(at.side(1) + 2 * slots)};
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return {load_cells<4>(at.codes(0, units) + 16 * slots), load_narrow_cells<2>(at.codes(1, units) + 8 * slots)};
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    const u32 integer = add2(byte_twice_below(head.scales, 2 * unit + (octet >> 1), 0x64), 0xE480E480u);  // less 1152
    const u32 scale = mul2(integer, half_twice(head.d, 0));
    expand_nibbles_high<0x00300030u>(pairs, codes.low.w[octet][0], spread(codes.high, octet), scale, mul2(scale, kMinus2Pow19));
  }
};
