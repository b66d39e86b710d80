// F16: halves as they are. A piece, 64 k: two units of 16-bit cells (2048 bytes each).
#pragma once
#include "fragment.cuh"

struct F16 {
  static constexpr int kStripeBytes = 4096, kStripePieces = 1;
  struct Head {};
  typedef CellWords<16> Codes;

  typedef Places<1, 0> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    at.set_codes<16>(0, tile + (size_t)piece * kStripeBytes, 2048, unit, slot, bank_group<F16>(piece));
  }
  __device__ static __forceinline__ Head head(const At&, int, int) { return {}; }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_cells<16>(at.codes(0, units) + 16 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head&, int, int octet) {
#pragma unroll
    for (int j = 0; j < 4; j++) pairs[j] = codes.w[octet][j];
  }
};
