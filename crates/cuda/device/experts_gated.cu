// out[slot, i] = act(G_e x)[i] * (U_e x)[i] for each slot's expert e and token's activations x.
//
// Idea: few rows an expert, so the experts' bytes are the work; each expert that was chosen is read once a row block.
// 1. A block owns 32 columns of the intermediate (grid x) and a row block (grid y, see experts.cuh). The gate's tile and the up's
//    lie one after the other in memory: one run of bytes.
// 2. Half of the warps multiply with the gate, half with the up; PARTS warps take turns at the pieces of k of each. (Both in one
//    warp took twice the registers and spilled.)
// 3. Activations are not copied to slots: row `slot` reads x[slot / top_k].
// 4. The warps' sums meet in shared memory, a row tile at a time, and are added in the order of the warps; the thread that adds a
//    gate's number adds the up's number too, so the activation costs no traffic.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, FORMAT (type), FORMAT_HEADER, ROW_TILES, PARTS (THREADS = 64 PARTS).
#include FORMAT_HEADER
#include "experts.cuh"

enum Activation { kSilu = 0, kGeluTanh = 1, kSiluClamped = 2, kSiluBetween = 3 };

// kSiluClamped: silu(min(g, limit)) * clamp(u), as DeepSeek V4 has it. kSiluBetween: g sigmoid(alpha g) (clamp(u) + 1) with g at most
// the limit, as gpt-oss has it. tanh is the sigmoid of twice its argument: x/2 (1 + tanh y) = x sigmoid(2 y).
__device__ __forceinline__ float activate(u32 kind, float g, float u, float limit, float alpha) {
  if (kind == kGeluTanh) {
    const float inner = __fmul_rn(g, fmaf(__fmul_rn(0.07135481627f, g), g, 1.5957691216f));
    return __fmul_rn(__fmul_rn(g, sigmoid(inner)), u);
  }
  if (kind >= kSiluClamped) {
    g = g > limit ? limit : g;
    u = u > limit ? limit : (u < -limit ? -limit : u);
  }
  if (kind == kSiluBetween) return __fmul_rn(__fmul_rn(g, sigmoid(__fmul_rn(alpha, g))), __fadd_rn(u, 1.0f));
  return __fmul_rn(__fmul_rn(g, sigmoid(g)), u);
}

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
  float acc[ROW_TILES][8] = {};
  const u8* tile = weights + (pair * 2 + warp / PARTS) * tile_bytes;
  const int pieces = ((int)k + FORMAT::kPiece - 1) / FORMAT::kPiece;
  accumulate<FORMAT, ROW_TILES>(acc, rows, k, tile, warp % PARTS, pieces, PARTS, lane);

#pragma unroll
  for (int t = 0; t < ROW_TILES; t++) {
    if (t > 0) __syncthreads();
    share_sums(sums, acc[t]);
    __syncthreads();
    for (int e = threadIdx.x; e < 256; e += THREADS) {
      const int i = e >> 5, tile_column = acc_column(lane, i);
      const u32 slot = table.slot<ROW_TILES>(row_block, t * 8 + acc_token(lane, i));
      const u32 column = blockIdx.x * 32 + tile_column;
      if (slot == kNoSlot || column >= n) continue;
      const float g = finish_sum(add_parts<PARTS>(sums, 0, e), column_scale, bias, pair * 64 + tile_column);
      const float u = finish_sum(add_parts<PARTS>(sums, PARTS, e), column_scale, bias, pair * 64 + 32 + tile_column);
      out[(size_t)slot * out_stride + column] = __float2half_rn(activate(activation, g, u, limit, alpha));
    }
  }
}
