// out[slot, h] = (D_e x_slot)[h] for each slot's expert e: the grouped down product, not yet weighted.
//
// A block owns 32 columns (grid x) and a row block (grid y, see experts.cuh); its PARTS warps take turns at the spans of k, and their
// sums meet as in experts_gated.cu. Every slot has its own row of the result, so nothing is added by several blocks.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, FORMAT (type), FORMAT_HEADER, ROW_TILES, EARLY, PARTS (THREADS = 32 PARTS).
#include FORMAT_HEADER
#include "experts.cuh"

constexpr bool kEarly = loads_early(EARLY);

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const __half* __restrict__ x,            // [slots, x_stride], 16-byte aligned rows
    u32 x_stride,                            // in halves, a multiple of 8
    const u32* __restrict__ token_count, const float* __restrict__ routes, const u32* __restrict__ block_count,
    const u32* __restrict__ block_expert, const u32* __restrict__ block_slots, u32 tokens, u32 top_k,  // see RowTable
    const u8* __restrict__ weights,          // [experts][grid x][tile_bytes]
    u32 tile_bytes,
    const float* __restrict__ column_scale,  // [experts][grid x][32]
    const float* __restrict__ bias,          // the same, or null
    float* __restrict__ out,                 // [slots, out_stride]
    u32 out_stride, u32 n, u32 k) {
  extern __shared__ float sums[];  // [PARTS][256]
  const RowTable table = {token_count, routes, block_count, block_expert, block_slots, tokens, top_k};
  const u32 row_block = blockIdx.y;
  if (!table.has(row_block)) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const size_t tile = (size_t)table.expert(row_block) * gridDim.x + blockIdx.x;

  const __half* rows[ROW_TILES];
  slot_rows<ROW_TILES>(rows, table, row_block, x, x_stride, 1, lane);
  float acc[ROW_TILES][Lanes::kAcc] = {};
  // A thread's numbers of each row tile, and what finishes them.
  constexpr int kMine = 256 / THREADS;
  Finish finish[kMine] = {};
#pragma unroll
  for (int m = 0; m < kMine; m++)
    if (kEarly) finish[m].load(column_scale, bias, tile * 32 + number_column(m * THREADS + threadIdx.x));
  accumulate_ahead<FORMAT, ROW_TILES, 1, kStep>(acc, rows, k, weights + tile * tile_bytes, Share(warp, PARTS), lane);

#pragma unroll
  for (int t = 0; t < ROW_TILES; t++) {
    if (t > 0) __syncthreads();
    share_sums(sums, acc[t]);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kMine; m++) {
      const int e = m * THREADS + threadIdx.x, tile_column = number_column(e);
      const u32 slot = table.slot<ROW_TILES>(row_block, t * 8 + number_token(e));
      const u32 column = blockIdx.x * 32 + tile_column;
      if (slot == kNoSlot || column >= n) continue;
      if (!kEarly) finish[m].load(column_scale, bias, tile * 32 + tile_column);
      out[(size_t)slot * out_stride + column] = finish[m].of(add_parts<PARTS>(sums, 0, e));
    }
  }
}
