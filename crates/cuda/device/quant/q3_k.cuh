// Q3_K: three-bit codes, w = d scale (code - 4), scales of six bits for each 16, a half d for each 256.
//
// A stripe, 256 k: eight units of 2-bit cells (256 bytes each), eight of 1-bit cells (128 bytes each), then three [slot] words and
// [slot] d. Pair j's two bits lie at bits 2 j of a cell's bytes; the top bits of pairs 3, 0, 1, 2 at bits 0, 2, 4, 6 of theirs, so
// that, the byte taken twice, each is just above its two. The first two words are for the stripe's halves: bits 7..2 of a byte are
// one of the first four scales, below them the low bits of one of the last four, whose upper bits are nibbles of the third word.
// A byte with a scale in bits 7..2, under 0x5C, is the half 256 + scale; 32 more than the scale is stored.
#pragma once
#include "integer.cuh"

struct Q3K {
  static constexpr int kStripeBytes = 3520, kStripePieces = 4;
  struct Head {
    u32 scales;  // a byte for each 16 k: scale << 2
    u32 d;
  };
  struct Codes {
    NarrowCells<2> low;
    NarrowCells<1> top;
    __device__ __forceinline__ void turn(int turned) {
      low.turn(turned);
      top.turn(turned);
    }
  };

  typedef Places<2, 2> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = stripe_of(tile, piece, kStripeBytes);
    at.set_codes<8>(0, quarter_plane(stripe, piece, 256), 256, unit, slot, bank_group<Q3K>(piece));
    at.set_codes<4>(1, quarter_plane(stripe, piece, 128) + 2048, 128, unit, slot, bank_group<Q3K>(piece));
    at.set_side(0, stripe + 3072 + 4 * slot);
    at.set_side(1, stripe + 3456 + 2 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int piece, int slots) {
    const int half = half_of(piece);
    const u32 last = 0u - (piece & 1);  // a mask: the compiler would branch
    const u32 word = load_stream<u32>(at.side(0) + 4 * slots + 128 * half), upper = load_stream<u32>(at.side(0) + 4 * slots + 256);
    const u32 of_last = ((word << 2) & 0x0C0C0C0Cu) | ((upper << (half ? 0 : 4)) & 0xF0F0F0F0u);
    return {(of_last & last) | (word & 0xFCFCFCFCu & ~last), load_stream<u16>(at.side(1) + 2 * slots)};
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return {load_narrow_cells<2>(at.codes(0, units) + 8 * slots), load_narrow_cells<1>(at.codes(1, units) + 4 * slots)};
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    const u32 integer = add2(byte_twice_below(head.scales, 2 * unit + (octet >> 1), 0x5C), 0xDC80DC80u);  // less 288
    const u32 scale = mul2(integer, half_twice(head.d, 0));
    const u32 offset = mul2(scale, kMinus2Pow22);
    const u32 low = spread(codes.low, octet), top = spread(codes.top, octet);
    pairs[0] = fma2((low & 0x00030003u) | (top & 0x00040004u), scale, offset);
    pairs[1] = fma2((low & 0x000C000Cu) | (top & 0x00100010u), mul2(scale, k2PowMinus2), offset);
    pairs[2] = fma2((low & 0x00300030u) | (top & 0x00400040u), mul2(scale, k2PowMinus4), offset);
    pairs[3] = fma2((low & 0x00C000C0u) | (top & 0x01000100u), mul2(scale, k2PowMinus6), offset);
  }
};
