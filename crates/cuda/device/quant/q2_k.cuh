// Q2_K: two-bit codes, w = d scale code - dmin min, scales and minima of four bits for each 16, d and dmin halves for each 256.
//
// A stripe, 256 k: eight units of 2-bit cells (256 bytes each), then [slot][16] bytes with a scale in the high and a minimum in the
// low nibble, then [slot] d, -dmin. Pair j's codes lie at bits 2 j of a cell's bytes. A scale's byte under 0x54 is the half
// 64 + scale.
#pragma once
#include "integer.cuh"

struct Q2K {
  static constexpr int kPiece = 64;
  static constexpr int kUnits = 2;
  static constexpr int kStripeBytes = 2688;
  struct Head {
    u32 scales[kLaneColumns];  // a byte for each 16 k
    u32 d[kLaneColumns];  // d, -dmin
  };
  typedef NarrowCells<2> Codes;

  __device__ static __forceinline__ Head head(const u8* tile, int piece, int lane) {
    const u8* side = stripe_of(tile, piece, kStripeBytes) + 2048;
    const u32 slot = lane_slot(lane);
    Head h;
#pragma unroll
    for (int c = 0; c < kLaneColumns; c++) {
      h.scales[c] = load_stream<u32>(side + 16 * slot + 4 * (piece & 3) + 16 * kSlotStep * c);
      h.d[c] = load_stream<u32>(side + 512 + 4 * slot + 4 * kSlotStep * c);
    }
    return h;
  }
  __device__ static __forceinline__ Codes codes(const u8* tile, int piece, int unit, int lane) {
    return load_narrow_cells<2>(quarter_plane(stripe_of(tile, piece, kStripeBytes), piece, 256) + 256 * unit, lane);
  }
  __device__ static __forceinline__ void expand(u32 (&w)[4][4], const Codes& codes, const Head& head, int unit, int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int c = cell_column(i), at = 2 * unit + (cell_octet(lane, i) >> 1);
      const u32 bytes = head.scales[c];
      const u32 d = __byte_perm(head.d[c], 0, 0x1010);
      const u32 scale = fma2(byte_twice_below(bytes & 0xF0F0F0F0u, at, 0x54), d, mul2(d, 0xD400D400u));
      const u32 offset = mul2(byte_twice(bytes & 0x0F0F0F0Fu, at), __byte_perm(head.d[c], 0, 0x3232));
      const u32 codes_i = spread(codes, i);
      w[i][0] = fma2(codes_i & 0x00030003u, scale, offset);
      w[i][1] = fma2(codes_i & 0x000C000Cu, mul2(scale, k2PowMinus2), offset);
      w[i][2] = fma2(codes_i & 0x00300030u, mul2(scale, k2PowMinus4), offset);
      w[i][3] = fma2(codes_i & 0x00C000C0u, mul2(scale, k2PowMinus6), offset);
    }
  }
};
