// out[m, n] = column_scale[n] * sum_k x[m, k] w[n, k] (+ bias[n]) (+ residual[m, n]) for few tokens: up to 8 TOKEN_TILES a weight pass.
//
// Idea: with few tokens the weights' bytes are the work, so each is read once, in one run, straight into the registers that the
// tensor core takes.
// 1. A block owns a tile of 32 columns (grid x), a part of k (grid y) and 8 TOKEN_TILES tokens (grid z). Its warps take turns at
//    the pieces of k.
// 2. Each warp keeps 8 TOKEN_TILES x 32 sums in f32 registers. Activations come from the first-level cache: few and shared.
// 3. The warps' sums meet once, in shared memory, and are added in the order of the warps.
// 4. With several parts of k, each part leaves its sums in `partial`, and the block that arrives last adds them in the order of
//    the parts: the result does not depend on who is last. The counter wraps to zero by itself, ready for the next launch.
//    (Equal shares of all pieces for every block, wherever tiles end, were slower than a good number of parts: the tiles
//    cut in two cost more than the last wave's idle blocks.)
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, FORMAT (type), FORMAT_HEADER, TOKEN_TILES.
#include FORMAT_HEADER
#include "epilogue.cuh"
#include "product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const __half* __restrict__ x,             // [m, x_stride], 16-byte aligned rows
    u32 x_stride,                             // in halves, a multiple of 8
    const u8* __restrict__ weights,           // [tiles][tile_bytes], see quant/
    const float* __restrict__ column_scale,   // [32 tiles]
    const __half* __restrict__ bias,          // [n] or null
    const float* __restrict__ residual,       // [m, out_stride] or null
    void* __restrict__ out,                   // [m, out_stride], f16 or f32
    u32 out_stride, u32 out_f32, u32 m, u32 n, u32 k,
    u32 tile_bytes,                           // bytes of one tile of 32 columns
    float* __restrict__ partial,              // [grid z][tiles][grid y][TOKEN_TILES * 256], used if grid y > 1
    u32* __restrict__ counters) {             // [grid z][tiles], zero
  extern __shared__ float sums[];  // [warps][TOKEN_TILES * 256]
  const Output output = {column_scale, bias, residual, out, out_stride, out_f32, m, n};
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const int tile = blockIdx.x, part = blockIdx.y, parts = gridDim.y;
  const int token_first = blockIdx.z * 8 * TOKEN_TILES;

  const __half* rows[TOKEN_TILES];
#pragma unroll
  for (int t = 0; t < TOKEN_TILES; t++) {
    const int token = token_first + 8 * t + token_of_lane(lane);
    rows[t] = x + (size_t)min(token, (int)m - 1) * x_stride;
  }
  float acc[TOKEN_TILES][8] = {};
  const int pieces = ((int)k + FORMAT::kPiece - 1) / FORMAT::kPiece;
  const int part_pieces = (pieces + parts - 1) / parts;
  const int first = part * part_pieces, end = min(first + part_pieces, pieces);
  accumulate<FORMAT, TOKEN_TILES>(acc, rows, k, weights + (size_t)tile * tile_bytes, first + warp, end, warps, lane);

#pragma unroll
  for (int t = 0; t < TOKEN_TILES; t++)
#pragma unroll
    for (int i = 0; i < 8; i++) sums[(warp * TOKEN_TILES * 8 + t * 8 + i) * 32 + lane] = acc[t][i];
  __syncthreads();

  float* mine = partial + (((size_t)blockIdx.z * gridDim.x + tile) * parts + part) * TOKEN_TILES * 256;
  if (parts > 1) {
    for (int e = threadIdx.x; e < TOKEN_TILES * 256; e += blockDim.x) {
      float sum = sums[e];
      for (int w = 1; w < warps; w++) sum += sums[w * TOKEN_TILES * 256 + e];
      mine[e] = sum;
    }
    if (!arrive_last(&counters[blockIdx.z * gridDim.x + tile], parts)) return;
  }
  const float* all = parts > 1 ? partial + ((size_t)blockIdx.z * gridDim.x + tile) * parts * TOKEN_TILES * 256 : sums;
  const int terms = parts > 1 ? parts : warps;
  for (int e = threadIdx.x; e < TOKEN_TILES * 256; e += blockDim.x) {
    const int i = (e >> 5) & 7, l = e & 31;
    const int token = token_first + (e >> 8) * 8 + acc_token(l, i);
    const int column = tile * 32 + acc_column(l, i);
    float sum = 0.0f;
    for (int w = 0; w < terms; w++) sum += parts > 1 ? __ldcg(&all[(size_t)w * TOKEN_TILES * 256 + e]) : sums[w * TOKEN_TILES * 256 + e];
    output.store(token, column, sum);
  }
}
