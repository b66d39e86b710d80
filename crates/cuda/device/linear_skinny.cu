// out[m, n] = column_scale[n] * sum_k x[m, k] w[n, k] (+ bias[n]) (+ residual[m, n]) for few tokens: up to 8 TOKEN_TILES a weight pass.
//
// Idea: with few tokens the weights' bytes are the work, so each is read once, in one run, straight into the registers that the
// tensor core takes.
// 1. A block owns a tile of 32 columns, or half of one (grid x), a part of k (grid y) and 8 TOKEN_TILES tokens (grid z). Its warps
//    take turns at the spans of k.
// 2. Each warp keeps 8 TOKEN_TILES x COLUMNS sums in f32 registers. Activations come from the first-level cache: few and shared.
// 3. The warps' sums meet once, in shared memory, and are added in the order of the warps.
// 4. With several parts of k, each part leaves its sums in `partial`, and the block that arrives last adds them in the order of
//    the parts: the result does not depend on who is last. The counter wraps to zero by itself, ready for the next launch.
//    (Equal shares of all pieces for every block, wherever tiles end, were slower than a good number of parts: the tiles
//    cut in two cost more than the last wave's idle blocks.)
//
// Macros: SYMBOL, THREADS (at most), MIN_BLOCKS, FORMAT (type), FORMAT_HEADER, TOKEN_TILES, COLUMNS (32 or 16).
#include FORMAT_HEADER
#include "epilogue.cuh"
#include "product.cuh"

typedef Fragment<COLUMNS> Lanes;
typedef WarpSums<COLUMNS> Numbers;
constexpr int kBlockSums = TOKEN_TILES * Numbers::kNumbers;

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
    float* __restrict__ partial,              // [grid z][grid x][grid y][kBlockSums], used if grid y > 1
    u32* __restrict__ counters) {             // [grid z][grid x], zero
  extern __shared__ float sums[];  // [warps][TOKEN_TILES][kTerms][kNumbers]
  const Output output = {column_scale, bias, residual, out, out_stride, out_f32, m, n};
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const int tile = blockIdx.x / (32 / COLUMNS), half = blockIdx.x % (32 / COLUMNS), part = blockIdx.y, parts = gridDim.y;
  const int token_first = blockIdx.z * 8 * TOKEN_TILES;

  const __half* rows[TOKEN_TILES];
#pragma unroll
  for (int t = 0; t < TOKEN_TILES; t++) {
    const int token = token_first + 8 * t + Lanes::token(lane);
    rows[t] = x + (size_t)min(token, (int)m - 1) * x_stride;
  }
  float acc[TOKEN_TILES][Lanes::kAcc] = {};
  const int spans = (int)((k + Lanes::kSpan - 1) / Lanes::kSpan);
  const int part_spans = (int)((u32)(spans + parts - 1) / (u32)parts);
  const int first = part * part_spans, end = min(first + part_spans, spans);
  accumulate<FORMAT, COLUMNS, TOKEN_TILES, (TOKEN_TILES > 1), true>(acc, rows, k, weights + (size_t)tile * tile_bytes, half, first + warp, end, warps, lane);

#pragma unroll
  for (int t = 0; t < TOKEN_TILES; t++) Numbers::put(&sums[(warp * TOKEN_TILES + t) * Lanes::kTerms * Numbers::kNumbers], acc[t], lane);
  // A number's terms: those of each warp, in their order.
  const auto block_sum = [&](int e) {
    const float* first = &sums[e / Numbers::kNumbers * Lanes::kTerms * Numbers::kNumbers + e % Numbers::kNumbers];
    float sum = 0.0f;
    for (int w = 0; w < warps; w++)
#pragma unroll
      for (int i = 0; i < Lanes::kTerms; i++) sum += first[(w * TOKEN_TILES * Lanes::kTerms + i) * Numbers::kNumbers];
    return sum;
  };
  __syncthreads();

  const size_t place = (size_t)blockIdx.z * gridDim.x + blockIdx.x;
  if (parts > 1) {
    float* mine = partial + (place * parts + part) * kBlockSums;
    for (int e = threadIdx.x; e < kBlockSums; e += blockDim.x) mine[e] = block_sum(e);
    if (!arrive_last(&counters[place], parts)) return;
  }
  const float* all = partial + place * parts * kBlockSums;
  for (int e = threadIdx.x; e < kBlockSums; e += blockDim.x) {
    const int number = e % Numbers::kNumbers;
    float sum = 0.0f;
    if (parts > 1)
      for (int p = 0; p < parts; p++) sum += __ldcg(&all[(size_t)p * kBlockSums + e]);
    else sum = block_sum(e);
    output.store(token_first + e / Numbers::kNumbers * 8 + Numbers::token(number), tile * 32 + Numbers::column(number, half), sum);
  }
}
