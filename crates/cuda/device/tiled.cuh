// What the tiled kernels share: a block's 64 rows of activations staged in shared memory, two by two warps of 32 rows, four row tiles
// by two column tiles each, 64 sums a thread.
//
// k goes in stages of 64. A stage of a row is eight octets of 16 bytes, octet o at place o ^ (row & 7): eight rows' octets of one number
// lie in all banks once, and so do one row's eight octets.
//
// Macros: THREADS (128), FORMAT (type).
#pragma once
#include "product.cuh"

constexpr int kStage = 64;  // k
constexpr int kBlockRows = 64;
constexpr int kRowTiles = 4, kColumnTiles = 2;  // of a warp
constexpr int kStageOctets = kBlockRows * kStage / 8;
constexpr int kOctetsThread = kStageOctets / THREADS;

__device__ __forceinline__ int staged(int row, int octet) { return row * (kStage / 8) + (octet ^ (row & 7)); }

// What a row of sums is twisted by, so that the sums that a warp holds at one time lie in 32 banks, on Volta (columns that differ in
// bits 1, 3, 4; rows in bits 0, 2) and later (columns in bits 0 to 2; rows in bits 1, 2).
__device__ __forceinline__ int twist(int row) { return (row & 1) | (row & 4) | (row & 2) << 2 | (row & 4) << 2; }

// The row of the block that a thread's octet i of a stage is of; eight threads a row.
__device__ __forceinline__ int row_of_octet(int i) { return (i * THREADS + (int)threadIdx.x) >> 3; }

// A thread's share of one stage's activations: octet (i * THREADS + thread) of the stage.
struct Share {
  u32 x[kOctetsThread][4];
  // row(i): the activations of row `row_of_octet(i)`.
  template <typename Row> __device__ __forceinline__ void load(const Row& row, int k_first, int k_end) {
#pragma unroll
    for (int i = 0; i < kOctetsThread; i++) {
      const int k = k_first + (threadIdx.x & 7) * 8;
      load_octet_tail(x[i], row(i) + k, k_end - k);
    }
  }
  __device__ __forceinline__ void store(uint4* stage) const {
#pragma unroll
    for (int i = 0; i < kOctetsThread; i++)
      stage[staged(row_of_octet(i), threadIdx.x & 7)] = make_uint4(x[i][0], x[i][1], x[i][2], x[i][3]);
  }
};

typedef float Sums[kColumnTiles][kRowTiles][8];

// One unit of each column tile.
__device__ __forceinline__ void multiply_unit(Sums& acc, const FORMAT::Head (&heads)[kColumnTiles], const FORMAT::Codes (&codes)[kColumnTiles],
                                              int unit, const uint4* stage, int row_first, int lane) {
  u32 w[kColumnTiles][4][4];
#pragma unroll
  for (int c = 0; c < kColumnTiles; c++) FORMAT::expand(w[c], codes[c], heads[c], unit, lane);
#pragma unroll
  for (int t = 0; t < kRowTiles; t++) {
    u32 x[kActOctets][4];
#pragma unroll
    for (int o = 0; o < kActOctets; o++) {
      const uint4 v = stage[staged(row_first + 8 * t + token_of_lane(lane), 4 * (unit & 1) + act_octet_first(lane) + o)];
      x[o][0] = v.x; x[o][1] = v.y; x[o][2] = v.z; x[o][3] = v.w;
    }
#pragma unroll
    for (int c = 0; c < kColumnTiles; c++) mma_unit(acc[c][t], w[c], x);
  }
}

// acc += the pieces first .. end of the warp's column tiles times its rows. While one stage's activations are multiplied, the next one's
// are on their way, first to registers, then to the other half of the shared memory: one barrier a stage.
template <typename Row>
__device__ __forceinline__ void multiply_pieces(Sums& acc, const u8* const (&tiles)[kColumnTiles], int first, int end, uint4 (&stages)[2][kStageOctets],
                                                const Row& row, int row_first, int k, int lane) {
  constexpr int kHalves = FORMAT::kPiece / kStage;
  Share share;
  if (first < end) {
    share.load(row, first * FORMAT::kPiece, k);
    share.store(stages[0]);
  }
  __syncthreads();
  int now = 0;
  for (int p = first; p < end; p++) {
    FORMAT::Head heads[kColumnTiles];
#pragma unroll
    for (int c = 0; c < kColumnTiles; c++) heads[c] = FORMAT::head(tiles[c], p, lane);
#pragma unroll
    for (int h = 0; h < kHalves; h++) {
      FORMAT::Codes codes[2][kColumnTiles];
#pragma unroll
      for (int u = 0; u < 2; u++)
#pragma unroll
        for (int c = 0; c < kColumnTiles; c++) codes[u][c] = FORMAT::codes(tiles[c], p, 2 * h + u, lane);
      const bool more = h + 1 < kHalves || p + 1 < end;
      multiply_unit(acc, heads, codes[0], 2 * h, stages[now], row_first, lane);
      // Only now: before, the registers hold the codes of both units.
      if (more) share.load(row, p * FORMAT::kPiece + (h + 1) * kStage, k);
      multiply_unit(acc, heads, codes[1], 2 * h + 1, stages[now], row_first, lane);
      now ^= 1;
      if (more) share.store(stages[now]);
      __syncthreads();
    }
  }
}
