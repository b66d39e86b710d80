// A library's product to the linears' result: out[m, first + c] = column_scale * product[m, c] (+ bias) (+ residual).
//
// One thread a number, a block's threads along the columns (grid x), grid y tokens with a stride.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS.
#include "epilogue.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const float* __restrict__ product,       // [m, columns]
    u32 first, u32 columns,                  // of the matrix
    const float* __restrict__ column_scale,  // [n padded to 32]
    const __half* __restrict__ bias,         // [n] or null
    const float* __restrict__ residual,      // [m, out_stride] or null
    void* __restrict__ out,                  // [m, out_stride], f16 or f32
    u32 out_stride, u32 out_f32, u32 m, u32 n) {
  const u32 column = blockIdx.x * THREADS + threadIdx.x;
  if (column >= columns) return;
  const Output output = {column_scale, bias, residual, out, out_stride, out_f32, m, n};
  for (u32 token = blockIdx.y; token < m; token += gridDim.y)
    output.store(token, first + column, product[(size_t)token * columns + column]);
}
