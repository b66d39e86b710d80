// F16: halves as they are. A piece, 64 k: two units of 16-bit cells (2048 bytes each).
#pragma once
#include "fragment.cuh"

struct F16 {
  struct Head {};
  typedef CellWords<16> Codes;

  __device__ static __forceinline__ Head head(const u8*, int, int) { return {}; }
  __device__ static __forceinline__ Codes codes(const u8* tile, int piece, int unit, int slot) {
    return load_cells<16>(tile + (size_t)piece * 4096 + 2048 * unit, slot);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head&, int, int octet) {
#pragma unroll
    for (int j = 0; j < 4; j++) pairs[j] = codes.w[octet][j];
  }
};
