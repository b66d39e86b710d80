// out[token, h] = sum_slot weight * (D_e x_slot)[h] (+ shared expert) (+ residual): the down product and the combination for a
// few tokens, in one launch.
//
// 1. A block owns 32 columns (grid x) of one token (grid y). Its work is slots x PARTS, where PARTS is the number of warps that
//    share a k in experts_down.cu; its warps take turns at it. So the sums of a part are the same bits there and here.
// 2. Only the first of the eight rows is real: 32 sums a part go to shared memory.
// 3. The parts are added in their order, finished as in experts_down.cu, then the slots are added in theirs, as in
//    experts_combine.cu.
// 4. What finishes the sums is loaded before the products where registers are left (EARLY); AHEAD spans of a warp are in flight.
//
// Macros: SYMBOL, THREADS (at most), MIN_BLOCKS, FORMAT (type), FORMAT_HEADER, AHEAD, EARLY, PARTS.
#include FORMAT_HEADER
#include "experts.cuh"

constexpr bool kEarly = loads_early(EARLY);
// A thread of the largest block has 64 registers, where two spans of later tensor cores do not fit.
#if __CUDA_ARCH__ >= 750
constexpr int kAhead = 1;
#else
constexpr int kAhead = AHEAD;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const __half* __restrict__ x,            // [slots, x_stride], 16-byte aligned rows
    u32 x_stride,                            // in halves, a multiple of 8
    const u32* __restrict__ token_count,     // [1] or null
    const float* __restrict__ routes,        // [tokens, 2 top_k]
    u32 top_k,
    const u8* __restrict__ weights,          // [experts][grid x][tile_bytes]
    u32 tile_bytes,
    const float* __restrict__ column_scale,  // [experts][grid x][32]
    const float* __restrict__ bias,          // the same, or null
    const float* __restrict__ shared, u32 shared_stride, const float* __restrict__ shared_weight, const float* residual, float* out,
    u32 out_stride, u32 n, u32 k) {          // see Combine
  constexpr int kParts = PARTS / kHalves;
  extern __shared__ float sums[];  // [top_k][kParts][32], then [top_k][32]
  const u32 token = blockIdx.y;
  if (token_count && token >= __ldg(token_count)) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const u32* ids = reinterpret_cast<const u32*>(routes) + (size_t)token * 2 * top_k;

  // The first finished number of this thread (there are more of them than threads where blocks are small).
  const auto column_of = [&](u32 slot) { return ((size_t)__ldg(&ids[slot]) * gridDim.x + blockIdx.x) * 32 + lane; };
  const u32 column = blockIdx.x * 32 + threadIdx.x;
  const bool last = threadIdx.x < 32 && column < n;
  const Combine combine = {shared, shared_weight, residual, out, shared_stride, out_stride};
  Finish first = {};
  if (kEarly && threadIdx.x < top_k * 32) first.load(column_scale, bias, column_of(threadIdx.x >> 5));

  for (int work = warp; work < (int)top_k * PARTS; work += warps) {
    const u32 slot = work / PARTS;
    const __half* rows[1] = {x + ((size_t)token * top_k + slot) * x_stride};
    const size_t tile = (size_t)__ldg(&ids[slot]) * gridDim.x + blockIdx.x;
    float acc[1][Lanes::kAcc] = {};
    const Share share(work % PARTS, PARTS);
    accumulate_ahead<FORMAT, 1, kAhead, kStep && FORMAT::kStripePieces != 1>(acc, rows, k, weights + tile * tile_bytes, share, lane);
#pragma unroll
    for (int i = 0; i < Lanes::kAcc; i++)
      if (Lanes::sum_token(lane, i) == 0) sums[(slot * kParts + share.first) * 32 + Lanes::sum_column(lane, i, share.half)] = acc[0][i];
  }
  __syncthreads();
  float* finished = sums + top_k * kParts * 32;
  for (int e = threadIdx.x; e < (int)top_k * 32; e += blockDim.x) {
    const u32 slot = e >> 5;
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < kParts; part++) sum = __fadd_rn(sum, sums[(slot * kParts + part) * 32 + lane]);
    finished[e] = kEarly && e == (int)threadIdx.x ? first.of(sum) : finish_sum(sum, column_scale, bias, column_of(slot));
  }
  __syncthreads();
  if (!last) return;
  float total = 0.0f;
  for (u32 slot = 0; slot < top_k; slot++)
    total = fmaf(__ldg(&routes[((size_t)token * 2 + 1) * top_k + slot]), finished[slot * 32 + lane], total);
  out[(size_t)token * out_stride + column] = combine.finish(total, token, column);
}
