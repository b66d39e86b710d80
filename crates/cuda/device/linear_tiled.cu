// out[m, n] = column_scale[n] * sum_k x[m, k] w[n, k] (+ bias[n]) (+ residual[m, n]) for dozens to hundreds of tokens.
//
// Idea: here the tensor cores are the work. Each warp expands a unit of weights once, into registers, and multiplies it with many
// tokens; the activations, which all warps share, are staged in shared memory.
// 1. A block owns 64 tokens (grid x) and 128 columns (grid y), two by two warps with 32 tokens x 64 columns each. Blocks that differ in tokens alone run side by
//    side, so that the weights come from memory once and from the second-level cache then. Grid z cuts k where the blocks are too few.
// 2. How activations are staged and multiplied is in tiled.cuh.
// 3. Parts of k meet as in linear_skinny.cu: sums in `partial`, added in the order of the parts by the block that is last.
// 4. Sums go through shared memory once more, so that stores are rows.
//
// Macros: SYMBOL, THREADS (128), MIN_BLOCKS, FORMAT (type), FORMAT_HEADER.
#include FORMAT_HEADER
#include "epilogue.cuh"
#include "tiled.cuh"

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
    float* __restrict__ partial,              // [grid y][grid x][grid z][64][THREADS], used if grid z > 1
    u32* __restrict__ counters) {             // [grid y][grid x], zero
  __shared__ uint4 stages[2][kStageOctets];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int block_token = blockIdx.x * kBlockRows;
  const int warp_token = (warp & 1) * 8 * kRowTiles;
  const int first_tile = blockIdx.y * 4 + (warp >> 1) * kColumnTiles;
  const int last_tile = ((int)n + 31) / 32 - 1;
  const int part = blockIdx.z, parts = gridDim.z;

  // A column tile that does not exist is the last one again; what it gives is thrown away.
  const u8* tiles[kColumnTiles];
#pragma unroll
  for (int c = 0; c < kColumnTiles; c++) tiles[c] = weights + (size_t)min(first_tile + c, last_tile) * tile_bytes;

  const int spans = ((int)k + Wide::kSpan - 1) / Wide::kSpan;
  const int part_spans = (spans + parts - 1) / parts;
  const int first = part * part_spans, end = min(first + part_spans, spans);

  Sums acc = {};
  const auto row = [&](int i) { return x + (size_t)min(block_token + row_of_octet(i), (int)m - 1) * x_stride; };
  multiply_spans(acc, tiles, first, end, stages, row, warp_token, k, lane);

  const Output output = {column_scale, bias, residual, out, out_stride, out_f32, m, n};
  const size_t place = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
  float* sums = partial + place * parts * 64 * THREADS;
  if (parts > 1) {
    float* mine = sums + (size_t)part * 64 * THREADS;
#pragma unroll
    for (int c = 0; c < kColumnTiles; c++)
#pragma unroll
      for (int t = 0; t < kRowTiles; t++)
#pragma unroll
        for (int i = 0; i < 8; i++) mine[((c * kRowTiles + t) * 8 + i) * THREADS + threadIdx.x] = acc[c][t][i];
    if (!arrive_last(&counters[place], parts)) return;
#pragma unroll 1
    for (int q = 0; q < parts; q++)
#pragma unroll
      for (int c = 0; c < kColumnTiles; c++)
#pragma unroll
        for (int t = 0; t < kRowTiles; t++)
#pragma unroll
          for (int i = 0; i < 8; i++) {
            const float sum = __ldcg(&sums[((size_t)q * 64 + (c * kRowTiles + t) * 8 + i) * THREADS + threadIdx.x]);
            acc[c][t][i] = q ? acc[c][t][i] + sum : sum;
          }
  }
  // Through shared memory, a column tile at a time, so that a warp stores rows of 32 columns. No warp reads another's part.
  float* rows = reinterpret_cast<float*>(stages) + warp * 32 * 32;
#pragma unroll
  for (int c = 0; c < kColumnTiles; c++) {
#pragma unroll
    for (int t = 0; t < kRowTiles; t++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int token = 8 * t + Wide::sum_token(lane, i);
        rows[token * 32 + (Wide::sum_column(lane, i, 0) ^ twist(token))] = acc[c][t][i];
      }
    __syncwarp();
#pragma unroll 4
    for (int token = 0; token < 8 * kRowTiles; token++)
      output.store(block_token + warp_token + token, (first_tile + c) * 32 + lane, rows[token * 32 + (lane ^ twist(token))]);
    __syncwarp();
  }
}
