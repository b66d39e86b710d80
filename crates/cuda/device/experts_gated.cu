// out[slot, i] = act(G_e x)[i] * (U_e x)[i] for each slot's expert e and token's activations x.
//
// Idea: few rows an expert, so the experts' bytes are the work; each expert that was chosen is read once a row block.
// 1. A block owns 32 columns of the intermediate (grid x) and a row block (grid y, see experts.cuh). The gate's tile and the up's
//    lie one after the other in memory: one run of bytes.
// 2. Half of the warps multiply with the gate, half with the up; PARTS warps take turns at the spans of k of each. (Both in one
//    warp took twice the registers and spilled.)
// 3. Activations are not copied to slots: row `slot` reads x[slot / top_k].
// 4. The warps' sums meet in shared memory, a row tile at a time, and are added in the order of the warps; the thread that adds a
//    gate's number adds the up's number too, so the activation costs no traffic.
//
// 5. AHEAD spans of a warp are in flight.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, FORMAT (type), FORMAT_HEADER, ROW_TILES, AHEAD, EARLY, PARTS (THREADS = 64 PARTS, 256 or more).
#include FORMAT_HEADER
#include "experts.cuh"
#include "experts_activate.cuh"

constexpr bool kEarly = loads_early(EARLY);

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const __half* __restrict__ x,            // [tokens, x_stride], 16-byte aligned rows
    u32 x_stride,                            // in halves, a multiple of 8
    const u32* __restrict__ token_count, const float* __restrict__ routes, const u32* __restrict__ block_count,
    const u32* __restrict__ block_expert, const u32* __restrict__ block_slots, u32 tokens, u32 top_k,  // see RowTable
    const u8* __restrict__ weights,          // [experts][grid x][gate, up][tile_bytes]
    u32 tile_bytes,
    const float* __restrict__ column_scale,  // [experts][grid x][gate, up][32]
    const float* __restrict__ bias,          // the same, or null
    __half* __restrict__ out,                // [slots, out_stride]
    u32 out_stride, u32 n, u32 k, u32 activation, float limit, float alpha) {
  extern __shared__ float sums[];  // [2 PARTS][256]
  const RowTable table = {token_count, routes, block_count, block_expert, block_slots, tokens, top_k};
  const u32 row_block = blockIdx.y;
  if (!table.has(row_block)) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const size_t pair = (size_t)table.expert(row_block) * gridDim.x + blockIdx.x;

  const __half* rows[ROW_TILES];
  slot_rows<ROW_TILES>(rows, table, row_block, x, x_stride, top_k, lane);
  float acc[ROW_TILES][Lanes::kAcc] = {};
  const u8* tile = weights + (pair * 2 + warp / PARTS) * tile_bytes;
  Finish gate = {}, up = {};
  if (kEarly) {
    const int tile_column = number_column(threadIdx.x & 255);
    gate.load(column_scale, bias, pair * 64 + tile_column);
    up.load(column_scale, bias, pair * 64 + 32 + tile_column);
  }
  accumulate_ahead<FORMAT, ROW_TILES, AHEAD, kStep>(acc, rows, k, tile, Share(warp % PARTS, PARTS), lane);

  // The first eight warps finish: thread e has number e of each row tile.
#pragma unroll
  for (int t = 0; t < ROW_TILES; t++) {
    if (t > 0) __syncthreads();
    share_sums(sums, acc[t]);
    __syncthreads();
    for (int e = threadIdx.x; e < 256; e += THREADS) {
      const int tile_column = number_column(e);
      const u32 slot = table.slot<ROW_TILES>(row_block, t * 8 + number_token(e));
      const u32 column = blockIdx.x * 32 + tile_column;
      if (slot == kNoSlot || column >= n) continue;
      if (!kEarly) {
        gate.load(column_scale, bias, pair * 64 + tile_column);
        up.load(column_scale, bias, pair * 64 + 32 + tile_column);
      }
      const float g = gate.of(add_parts<PARTS>(sums, 0, e)), u = up.of(add_parts<PARTS>(sums, PARTS, e));
      out[(size_t)slot * out_stride + column] = __float2half_rn(activate(activation, g, u, limit, alpha));
    }
  }
}
