// out[token, h] = sum_slot weight * rows[slot, h] (+ shared expert) (+ residual), slots in their order.
//
// One thread four columns (grid x), grid y tokens. The slots' loads do not depend on each other: all are in flight together.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS.
#include "experts.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const float* __restrict__ rows,       // [slots, rows_stride], 16-byte aligned rows
    u32 rows_stride,                      // a multiple of 4
    const u32* __restrict__ token_count,  // [1] or null
    const float* __restrict__ routes,     // [tokens, 2 top_k]
    u32 top_k,
    const float* __restrict__ shared, u32 shared_stride, const float* __restrict__ shared_weight, const float* residual, float* out,
    u32 out_stride, u32 n) {              // see Combine; n is a multiple of 4
  const u32 token = blockIdx.y, column = 4 * (blockIdx.x * THREADS + threadIdx.x);
  if (column >= n || (token_count && token >= __ldg(token_count))) return;
  const float* weights = routes + ((size_t)token * 2 + 1) * top_k;
  const float* first = rows + (size_t)token * top_k * rows_stride + column;
  float total[4] = {};
#pragma unroll 4
  for (u32 slot = 0; slot < top_k; slot++) {
    const float weight = __ldg(&weights[slot]);
    const float4 row = __ldcs(reinterpret_cast<const float4*>(first + (size_t)slot * rows_stride));
    total[0] = fmaf(weight, row.x, total[0]);
    total[1] = fmaf(weight, row.y, total[1]);
    total[2] = fmaf(weight, row.z, total[2]);
    total[3] = fmaf(weight, row.w, total[3]);
  }
  const Combine combine = {shared, shared_weight, residual, out, shared_stride, out_stride};
  float4 result;
  result.x = combine.finish(total[0], token, column);
  result.y = combine.finish(total[1], token, column + 1);
  result.z = combine.finish(total[2], token, column + 2);
  result.w = combine.finish(total[3], token, column + 3);
  *reinterpret_cast<float4*>(out + (size_t)token * out_stride + column) = result;
}
