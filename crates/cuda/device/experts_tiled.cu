// Gate and up with the activation, or down, for dozens of slots of each expert (a prefill): what linear_tiled.cu is to linear_skinny.cu.
//
// Idea: a row block is 64 slots of one expert, so that the expert's weights are expanded once for 64 rows, and the activations,
// which all warps share, are staged in shared memory.
// 1. Two by two warps with 32 slots each: of the gate's and up's product a warp owns the same 32 columns of both (kGated), so that
//    both sums of a number are in one register's place and the activation costs no traffic; of the down product 64 columns.
// 2. Grid x is the row blocks of the table (experts.cuh): blocks past the count have nothing to do. Grid y is columns.
// 3. k goes in stages of 64, as in linear_tiled.cu: one barrier a stage, octet o of a row at place o ^ (row & 7).
// 4. A sum has one order, pieces ascending. The other paths add parts of k that warps share, so their bits are others; both are
//    inside one bound. A row of this kernel's results does not depend on its neighbours or on how many there are.
// 5. Sums go through shared memory once more, so that stores are rows.
//
// Macros: SYMBOL, THREADS (128), MIN_BLOCKS, FORMAT (type), FORMAT_HEADER, GATED (1: gate and up, 0: down).
#include FORMAT_HEADER
#include "experts.cuh"
#include "experts_activate.cuh"

constexpr bool kGated = GATED;
constexpr int kStage = 64;  // k
constexpr int kBlockRows = 64;
constexpr int kRowTiles = 4, kColumnTiles = 2;  // of a warp
constexpr int kStageOctets = kBlockRows * kStage / 8;
constexpr int kOctetsThread = kStageOctets / THREADS;

__device__ __forceinline__ int staged(int row, int octet) { return row * (kStage / 8) + (octet ^ (row & 7)); }

// What a row of sums is twisted by, so that what a warp holds at one time lies in 32 banks (see linear_tiled.cu).
__device__ __forceinline__ int twist(int row) { return (row & 1) | (row & 4) | (row & 2) << 2 | (row & 4) << 2; }

// A thread's share of one stage's activations: octet (i * THREADS + thread) of the stage, eight threads a row.
struct Share {
  u32 x[kOctetsThread][4];
  __device__ __forceinline__ void load(const __half* x_all, const u32 (&rows)[kOctetsThread], int k_first, int k_end) {
#pragma unroll
    for (int i = 0; i < kOctetsThread; i++) {
      const int k = k_first + (threadIdx.x & 7) * 8;
      load_octet_tail(x[i], x_all + (size_t)rows[i] * 8 + k, k_end - k);
    }
  }
  __device__ __forceinline__ void store(uint4* stage) const {
#pragma unroll
    for (int i = 0; i < kOctetsThread; i++) {
      const int at = i * THREADS + threadIdx.x;
      stage[staged(at >> 3, at & 7)] = make_uint4(x[i][0], x[i][1], x[i][2], x[i][3]);
    }
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

// One tile of finished numbers, [32 rows][32 columns] of a warp, to the rows of its slots.
template <typename T, typename Convert>
__device__ __forceinline__ void store_tile(T* out, u32 out_stride, const float* tile, const RowTable& table, u32 row_block, int row_first, u32 column, bool inside, int lane, Convert convert) {
#pragma unroll 4
  for (int row = 0; row < 8 * kRowTiles; row++) {
    const u32 slot = table.slot<kBlockRows / 8>(row_block, row_first + row);
    if (slot != kNoSlot && inside) out[(size_t)slot * out_stride + column] = convert(tile[row * 32 + (lane ^ twist(row))]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const __half* __restrict__ x,            // gated: [tokens, x_stride]; down: [slots, x_stride]; 16-byte aligned rows
    u32 x_stride,                            // in halves, a multiple of 8
    const u32* __restrict__ token_count, const float* __restrict__ routes, const u32* __restrict__ block_count,
    const u32* __restrict__ block_expert, const u32* __restrict__ block_slots, u32 tokens, u32 top_k,  // see RowTable
    const u8* __restrict__ weights,          // [experts][tiles][gate, up][tile_bytes], or [experts][tiles][tile_bytes]
    u32 tile_bytes,
    const float* __restrict__ column_scale,  // [experts][tiles][gate, up][32], or [experts][tiles][32]
    const float* __restrict__ bias,          // the same, or null
    void* __restrict__ out,                  // gated: f16, down: f32 // [slots, out_stride]
    u32 out_stride, u32 n, u32 k, u32 activation, float limit, float alpha) {
  __shared__ uint4 stages[2][kStageOctets];
  const RowTable table = {token_count, routes, block_count, block_expert, block_slots, tokens, top_k};
  const u32 row_block = blockIdx.x;
  if (!table.has(row_block)) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int warp_row = (warp & 1) * 8 * kRowTiles;
  // Tiles of an expert; this warp's first column tile of them, and where it stands in memory, gate and up counted apart.
  const u32 tiles = (n + 31) / 32;
  const u32 column_tile = kGated ? blockIdx.y * 2 + (warp >> 1) : blockIdx.y * 4 + (warp >> 1) * 2;
  const u32 expert = table.expert(row_block);
  u32 tile_of[kColumnTiles];  // a tile that does not exist is the last one again; what it gives is thrown away
#pragma unroll
  for (int c = 0; c < kColumnTiles; c++) tile_of[c] = kGated ? (expert * tiles + min(column_tile, tiles - 1)) * 2 + c : expert * tiles + min(column_tile + c, tiles - 1);
  const u8* tile[kColumnTiles];
#pragma unroll
  for (int c = 0; c < kColumnTiles; c++) tile[c] = weights + (size_t)tile_of[c] * tile_bytes;

  // Rows without a slot bring the first row's, unread by others.
  u32 rows[kOctetsThread];
#pragma unroll
  for (int i = 0; i < kOctetsThread; i++) {
    u32 slot = table.slot<kBlockRows / 8>(row_block, (i * THREADS + threadIdx.x) >> 3);
    if (slot == kNoSlot) slot = table.slot<kBlockRows / 8>(row_block, 0);
    rows[i] = (kGated ? slot / top_k : slot) * (x_stride / 8);
  }

  constexpr int kHalves = FORMAT::kPiece / kStage;
  const int pieces = ((int)k + FORMAT::kPiece - 1) / FORMAT::kPiece;
  Sums acc = {};
  Share share;
  share.load(x, rows, 0, k);
  share.store(stages[0]);
  __syncthreads();
  int now = 0;
  for (int p = 0; p < pieces; p++) {
    FORMAT::Head heads[kColumnTiles];
#pragma unroll
    for (int c = 0; c < kColumnTiles; c++) heads[c] = FORMAT::head(tile[c], p, lane);
#pragma unroll
    for (int h = 0; h < kHalves; h++) {
      FORMAT::Codes codes[2][kColumnTiles];
#pragma unroll
      for (int u = 0; u < 2; u++)
#pragma unroll
        for (int c = 0; c < kColumnTiles; c++) codes[u][c] = FORMAT::codes(tile[c], p, 2 * h + u, lane);
      const bool more = h + 1 < kHalves || p + 1 < pieces;
      multiply_unit(acc, heads, codes[0], 2 * h, stages[now], warp_row, lane);
      // Only now: before, the registers hold the codes of both units.
      if (more) share.load(x, rows, p * FORMAT::kPiece + (h + 1) * kStage, k);
      multiply_unit(acc, heads, codes[1], 2 * h + 1, stages[now], warp_row, lane);
      now ^= 1;
      if (more) share.store(stages[now]);
      __syncthreads();
    }
  }

  // No warp reads another's part.
  float* mine = reinterpret_cast<float*>(stages) + warp * 32 * 32;
#pragma unroll
  for (int c = 0; c < (kGated ? 1 : kColumnTiles); c++) {
#pragma unroll
    for (int t = 0; t < kRowTiles; t++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int row = 8 * t + acc_token(lane, i), column = acc_column(lane, i);
        float value = finish_sum(acc[c][t][i], column_scale, bias, (size_t)tile_of[c] * 32 + column);
        if (kGated) value = activate(activation, value, finish_sum(acc[1][t][i], column_scale, bias, (size_t)tile_of[1] * 32 + column), limit, alpha);
        mine[row * 32 + (column ^ twist(row))] = value;
      }
    __syncwarp();
    const u32 column = (column_tile + c) * 32 + lane;
    if (kGated) store_tile((__half*)out, out_stride, mine, table, row_block, warp_row, column, column < n, lane, [](float v) { return __float2half_rn(v); });
    else store_tile((float*)out, out_stride, mine, table, row_block, warp_row, column, column < n, lane, [](float v) { return v; });
    __syncwarp();
  }
}
