// Gate and up with the activation, or down, for dozens of slots of each expert (a prefill): what linear_tiled.cu is to linear_skinny.cu.
//
// Idea: a row block is 64 slots of one expert, so that the expert's weights are expanded once for 64 rows, and the activations,
// which all warps share, are staged in shared memory.
// 1. Two by two warps with 32 slots each: of the gate's and up's product a warp owns the same 32 columns of both (kGated), so that
//    both sums of a number are in one register's place and the activation costs no traffic; of the down product 64 columns.
// 2. Grid x is the row blocks of the table (experts.cuh): blocks past the count have nothing to do. Grid y is columns.
// 3. How activations are staged and multiplied is in tiled.cuh.
// 4. A sum has one order, spans ascending. The other paths add parts of k that warps share, so their bits are others; both are
//    inside one bound. A row of this kernel's results does not depend on its neighbours or on how many there are.
// 5. Sums go through shared memory once more, so that stores are rows.
//
// Macros: SYMBOL, THREADS (128), MIN_BLOCKS, FORMAT (type), FORMAT_HEADER, GATED (1: gate and up, 0: down).
#include FORMAT_HEADER
#include "experts.cuh"
#include "experts_activate.cuh"
#include "tiled.cuh"

constexpr bool kGated = GATED;

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
  const int row_first = (warp & 1) * 8 * kRowTiles;
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
    u32 slot = table.slot<kBlockRows / 8>(row_block, row_of_octet(i));
    if (slot == kNoSlot) slot = table.slot<kBlockRows / 8>(row_block, 0);
    rows[i] = (kGated ? slot / top_k : slot) * (x_stride / 8);
  }

  const int spans = ((int)k + Wide::kSpan - 1) / Wide::kSpan;
  Sums acc = {};
  multiply_spans(acc, tile, 0, spans, stages, [&](int i) { return x + (size_t)rows[i] * 8; }, row_first, k, lane);

  // No warp reads another's part.
  float* mine = reinterpret_cast<float*>(stages) + warp * 32 * 32;
#pragma unroll
  for (int c = 0; c < (kGated ? 1 : kColumnTiles); c++) {
#pragma unroll
    for (int t = 0; t < kRowTiles; t++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int row = 8 * t + Wide::sum_token(lane, i), column = Wide::sum_column(lane, i, 0);
        float value = finish_sum(acc[c][t][i], column_scale, bias, (size_t)tile_of[c] * 32 + column);
        if (kGated) value = activate(activation, value, finish_sum(acc[1][t][i], column_scale, bias, (size_t)tile_of[1] * 32 + column), limit, alpha);
        mine[row * 32 + (column ^ twist(row))] = value;
      }
    __syncwarp();
    const u32 column = (column_tile + c) * 32 + lane;
    if (kGated) store_tile((__half*)out, out_stride, mine, table, row_block, row_first, column, column < n, lane, [](float v) { return __float2half_rn(v); });
    else store_tile((float*)out, out_stride, mine, table, row_block, row_first, column, column < n, lane, [](float v) { return v; });
    __syncwarp();
  }
}
