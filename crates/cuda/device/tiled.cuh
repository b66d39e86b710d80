// What the tiled kernels share: a block's 64 rows of activations staged in shared memory, two by two warps of 32 rows, four row tiles
// by two column tiles each, 64 sums a thread.
//
// k goes in stages, a span of the warps each.
//
// Macros: THREADS (128), FORMAT (type).
#pragma once
#include "product.cuh"

constexpr int kBlockRows = 64;
constexpr int kRowTiles = 4, kColumnTiles = 2;  // of a warp
constexpr int kRowOctets = Wide::kSpan / 8;     // of a stage
constexpr int kStageOctets = kBlockRows * kRowOctets;
constexpr int kOctetsThread = kStageOctets / THREADS;

// Where an octet of a row lies in a stage, so that eight lanes that load or store 16 bytes each at one time meet all banks once:
//   64 k: octet o at place o ^ (row & 7); eight rows' octets of one number are met, and one row's eight octets;
//   128 k: octet 4 t + o at place 4 o + t, turned over by o and the row; t = 0..3 of two rows are met, and eight octets of one row.
__device__ __forceinline__ int staged(int row, int octet) {
  if (kRowOctets == 8) return row * 8 + (octet ^ (row & 7));
  const int o = octet & 3;
  return row * 16 + ((4 * o + (octet >> 2)) ^ (o & 2) ^ (row & 1) << 2);
}

// What a row of sums is twisted by, so that the sums that a warp holds at one time lie in 32 banks, on Volta (columns that differ in
// bits 1, 3, 4; rows in bits 0, 2) and later (columns in bits 0, 1, 3; rows in bits 1, 2).
__device__ __forceinline__ int twist(int row) { return (row & 5) | (row & 2) << 3; }

// The row of the block that a thread's octet i of a stage is of; eight or sixteen threads a row.
__device__ __forceinline__ int row_of_octet(int i) { return (i * THREADS + threadIdx.x) / kRowOctets; }

// A thread's share of one stage's activations: octet (i * THREADS + thread) of the stage.
struct StageShare {
  u32 x[kOctetsThread][4];
  // row(i): the activations of row `row_of_octet(i)`.
  template <typename Row> __device__ __forceinline__ void load(const Row& row, int k_first, int k_end) {
#pragma unroll
    for (int i = 0; i < kOctetsThread; i++) {
      const int k = k_first + (threadIdx.x % kRowOctets) * 8;
      load_octet_tail(x[i], row(i) + k, k_end - k);
    }
  }
  __device__ __forceinline__ void store(uint4* stage) const {
#pragma unroll
    for (int i = 0; i < kOctetsThread; i++)
      stage[staged(row_of_octet(i), threadIdx.x % kRowOctets)] = make_uint4(x[i][0], x[i][1], x[i][2], x[i][3]);
  }
};

typedef float Sums[kColumnTiles][kRowTiles][8];
typedef FORMAT::Head Heads[kColumnTiles][Wide::kColumns];
typedef FORMAT::Codes UnitCodes[kColumnTiles][Wide::kColumns];

// One unit of each column of the lane's, u the number of it.
__device__ __forceinline__ void multiply_unit(Sums& acc, const Heads& heads, const UnitCodes& codes, int u, const uint4* stage, int row_first, int lane) {
#pragma unroll
  for (int first = 0; first < 4; first += Wide::kOctets) {
    u32 w[kColumnTiles][Wide::kOctets][Wide::kColumns][4];
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
      for (int o = 0; o < Wide::kOctets; o++)
#pragma unroll
        for (int c = 0; c < Wide::kColumns; c++) FORMAT::expand(w[tile][o][c], codes[tile][c], heads[tile][c], Wide::unit(lane, u), first + o);
#pragma unroll
    for (int t = 0; t < kRowTiles; t++) {
      u32 x[Wide::kOctets][4];
#pragma unroll
      for (int o = 0; o < Wide::kOctets; o++) {
        const uint4 v = stage[staged(row_first + 8 * t + Wide::token(lane), Wide::k_first(lane) / 8 + 4 * u + first + o)];
        x[o][0] = v.x; x[o][1] = v.y; x[o][2] = v.z; x[o][3] = v.w;
      }
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; tile++)
#pragma unroll
        for (int o = 0; o < Wide::kOctets; o++) Wide::multiply(acc[tile][t], w[tile][o], x[o]);
    }
  }
}

// acc += the spans first .. end of the warp's column tiles times its rows. While one stage's activations are multiplied, the next one's
// are on their way, first to registers, then to the other half of the shared memory: one barrier a stage.
template <typename Row>
__device__ __forceinline__ void multiply_spans(Sums& acc, const u8* const (&tiles)[kColumnTiles], int first, int end, uint4 (&stages)[2][kStageOctets],
                                               const Row& row, int row_first, int k, int lane) {
  StageShare share;
  if (first < end) {
    share.load(row, first * Wide::kSpan, k);
    share.store(stages[0]);
  }
  __syncthreads();
  int now = 0;
  for (int s = first; s < end; s++) {
    const int piece = Wide::piece_of_span(s, k, lane);
    Heads heads;
    UnitCodes codes[Wide::kUnits];
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; tile++) {
      FORMAT::At at;
      place<FORMAT, 32, true>(at, tiles[tile], piece, 0, lane);
#pragma unroll
      for (int c = 0; c < Wide::kColumns; c++) {
        heads[tile][c] = FORMAT::head(at, piece, Wide::kColumnSlots * c);
#pragma unroll
        for (int u = 0; u < Wide::kUnits; u++) codes[u][tile][c] = FORMAT::codes(at, u, Wide::kColumnSlots * c);
      }
    }
    const bool more = s + 1 < end;
    multiply_unit(acc, heads, codes[0], 0, stages[now], row_first, lane);
    // Only now: before, the registers hold the codes of all units.
    if (more) share.load(row, (s + 1) * Wide::kSpan, k);
#pragma unroll
    for (int u = 1; u < Wide::kUnits; u++) multiply_unit(acc, heads, codes[u], u, stages[now], row_first, lane);
    now ^= 1;
    if (more) share.store(stages[now]);
    __syncthreads();
  }
}
