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
  static constexpr int kPiece = 64;
  static constexpr int kUnits = 2;
  static constexpr int kPieceBytes = 1152;
  struct Head { u32 scales[kLaneColumns]; };
  typedef CellWords<4> Codes;

  __device__ static __forceinline__ Head head(const u8* tile, int piece, int lane) {
    const u8* scales = tile + (size_t)piece * kPieceBytes + 1024 + 4 * lane_slot(lane);
    Head h;
#pragma unroll
    for (int c = 0; c < kLaneColumns; c++) h.scales[c] = load_stream<u32>(scales + 4 * kSlotStep * c);
    return h;
  }
  __device__ static __forceinline__ Codes codes(const u8* tile, int piece, int unit, int lane) {
    return load_cells<4>(tile + (size_t)piece * kPieceBytes + 512 * unit, lane);
  }
  __device__ static __forceinline__ void expand(u32 (&w)[4][4], const Codes& codes, const Head& head, int unit, int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      // 0x00bb00bb, shifted into both halves.
      const u32 scale = __byte_perm(head.scales[cell_column(i)], 0, 0x4040 + 0x0101 * (2 * unit + (cell_octet(lane, i) >> 1))) << 7;
      expand_e2m1(w[i], codes.w[i][0]);
#pragma unroll
      for (int j = 0; j < 4; j++) w[i][j] = mul2(w[i][j], scale);
    }
  }
};
