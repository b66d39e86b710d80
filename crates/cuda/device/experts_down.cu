// out[slot, h] = (D_e x_slot)[h] for each slot's expert e: the grouped down product, not yet weighted.
//
// A block owns 32 columns (grid x) and a row block (grid y, see experts.cuh); its PARTS warps take turns at the pieces of k, and their
// sums meet as in experts_gated.cu. Every slot has its own row of the result, so nothing is added by several blocks.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, FORMAT (type), FORMAT_HEADER, ROW_TILES, EARLY, PARTS (THREADS = 32 PARTS).
#include FORMAT_HEADER
#include "experts.cuh"

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
  const int pieces = ((int)k + FORMAT::kPiece - 1) / FORMAT::kPiece;
  float acc[ROW_TILES][8] = {};
  // A thread's numbers of each row tile, and what finishes them.
  constexpr int kMine = 256 / THREADS;
  Finish finish[kMine] = {};
#pragma unroll
  for (int m = 0; m < kMine; m++)
    if (EARLY) finish[m].load(column_scale, bias, tile * 32 + acc_column(lane, warp + m * PARTS));
  accumulate<FORMAT, ROW_TILES>(acc, rows, k, weights + tile * tile_bytes, warp, pieces, PARTS, lane);

#pragma unroll
  for (int t = 0; t < ROW_TILES; t++) {
    if (t > 0) __syncthreads();
    share_sums(sums, acc[t]);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kMine; m++) {
      const int i = warp + m * PARTS;
      const u32 slot = table.slot<ROW_TILES>(row_block, t * 8 + acc_token(lane, i));
      const u32 column = blockIdx.x * 32 + acc_column(lane, i);
      if (slot == kNoSlot || column >= n) continue;
      if (!EARLY) finish[m].load(column_scale, bias, tile * 32 + acc_column(lane, i));
      out[(size_t)slot * out_stride + column] = finish[m].of(add_parts<PARTS>(sums, 0, 32 * i + lane));
    }
  }
}
