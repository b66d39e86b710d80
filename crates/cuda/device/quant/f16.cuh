// F16: halves as they are. A piece, 64 k: two units of 16-bit cells (2048 bytes each).
#pragma once
#include "fragment.cuh"

struct F16 {
  static constexpr int kPiece = 64;
  static constexpr int kUnits = 2;
  struct Head {};
  typedef CellWords<16> Codes;

  __device__ static __forceinline__ Head head(const u8*, int, int) { return {}; }
  __device__ static __forceinline__ Codes codes(const u8* tile, int piece, int unit, int lane) {
    return load_cells<16>(tile + (size_t)piece * 4096 + 2048 * unit, lane);
  }
  __device__ static __forceinline__ void expand(u32 (&w)[4][4], const Codes& codes, const Head&, int, int) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) w[i][j] = codes.w[i][j];
  }
};
