// From a warp-wide sum to the output: the column's scale, bias, residual, and the type.
#pragma once
#include "common.cuh"

struct Output {
  const float* __restrict__ column_scale;  // [columns, padded to 32]
  const __half* __restrict__ bias;         // [n] or null
  const float* __restrict__ residual;      // [m, stride] or null
  void* __restrict__ out;                  // [m, stride], f32 or f16
  u32 stride, f32, m, n;

  // Tokens and columns past the end are not written.
  __device__ __forceinline__ void store(int token, int column, float sum) const {
    if (token >= (int)m || column >= (int)n) return;
    sum *= column_scale[column];
    if (bias) sum += __half2float(bias[column]);
    const size_t at = (size_t)token * stride + column;
    if (residual) sum += residual[at];
    if (f32) ((float*)out)[at] = sum;
    else ((__half*)out)[at] = __float2half_rn(sum);
  }
};

// Whether this block is the last of `parts` that come here. What each block wrote before is then visible to the last one, which
// reads it past the first-level cache. The counter wraps to zero by itself, ready for the next launch.
__device__ __forceinline__ bool arrive_last(u32* counter, u32 parts) {
  __threadfence();
  __syncthreads();
  const bool last = __syncthreads_or(threadIdx.x == 0 && atomicInc(counter, parts - 1) == parts - 1);
  if (last) __threadfence();
  return last;
}
