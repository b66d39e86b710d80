// out[m, n] = column_scale[n] * sum_k x[m, k] w[n, k] (+ bias[n]) (+ residual[m, n]) for dozens to hundreds of tokens.
//
// Idea: here the tensor cores are the work. Each warp expands a unit of weights once, into registers, and multiplies it with many
// tokens; the activations, which all warps share, are staged in shared memory.
// 1. A block owns 64 tokens (grid x) and 128 columns (grid y), two by two warps with 32 tokens x 64 columns each: four token
//    tiles by two column tiles, 64 sums a thread. Blocks that differ in tokens alone run side by side, so that the weights
//    come from memory once and from the second-level cache then. Grid z cuts k where the blocks are too few.
// 2. k goes in stages of 64. While one stage's activations are multiplied, the next one's are on their way, first to registers,
//    then to the other half of the shared memory: one barrier a stage.
// 3. A stage of a token is eight octets of 16 bytes, octet o at place o ^ (token & 7): eight tokens' octets of one number lie in
//    all banks once, and so do one token's eight octets.
// 4. Parts of k meet as in linear_skinny.cu: sums in `partial`, added in the order of the parts by the block that is last.
// 5. Sums go through shared memory once more, so that stores are rows.
//
// Macros: SYMBOL, THREADS (128), MIN_BLOCKS, FORMAT (type), FORMAT_HEADER.
#include FORMAT_HEADER
#include "epilogue.cuh"
#include "product.cuh"

constexpr int kStage = 64;                     // k
constexpr int kBlockTokens = 64;
constexpr int kTokenTiles = 4, kColumnTiles = 2;  // of a warp
constexpr int kStageOctets = kBlockTokens * kStage / 8;
constexpr int kOctetsThread = kStageOctets / THREADS;

__device__ __forceinline__ int staged(int token, int octet) { return token * (kStage / 8) + (octet ^ (token & 7)); }

// A thread's share of one stage's activations: octet (i * THREADS + thread) of the stage, eight threads a token.
struct Share {
  u32 x[kOctetsThread][4];
  __device__ __forceinline__ void load(const __half* x_all, u32 stride, int token_first, int m, int k_first, int k_end) {
#pragma unroll
    for (int i = 0; i < kOctetsThread; i++) {
      const int at = i * THREADS + threadIdx.x;
      const int token = min(token_first + (at >> 3), m - 1), k = k_first + (at & 7) * 8;
      load_octet_tail(x[i], x_all + (size_t)token * stride + k, k_end - k);
    }
  }
  __device__ __forceinline__ void store(uint4* stage) const {
#pragma unroll
    for (int i = 0; i < kOctetsThread; i++) {
      const int at = i * THREADS + threadIdx.x;
      stage[staged(at >> 3, at & 7)] = make_uint4(x[i][0], x[i][1], x[i][2], x[i][3]);
    }
  }
};

// What a token's row of sums is twisted by, so that the sums that a warp holds at one time lie in 32 banks, on Volta (columns
// that differ in bits 1, 3, 4; tokens in bits 0, 2) and later (columns in bits 0 to 2; tokens in bits 1, 2).
__device__ __forceinline__ int twist(int token) { return (token & 1) | (token & 4) | (token & 2) << 2 | (token & 4) << 2; }

typedef float Sums[kColumnTiles][kTokenTiles][8];

// One unit of each column tile.
__device__ __forceinline__ void multiply_unit(Sums& acc, const FORMAT::Head (&heads)[kColumnTiles], const FORMAT::Codes (&codes)[kColumnTiles],
                                              int unit, const uint4* stage, int token_first, int lane) {
  u32 w[kColumnTiles][4][4];
#pragma unroll
  for (int c = 0; c < kColumnTiles; c++) FORMAT::expand(w[c], codes[c], heads[c], unit, lane);
#pragma unroll
  for (int t = 0; t < kTokenTiles; t++) {
    u32 x[kActOctets][4];
#pragma unroll
    for (int o = 0; o < kActOctets; o++) {
      const uint4 v = stage[staged(token_first + 8 * t + token_of_lane(lane), 4 * (unit & 1) + act_octet_first(lane) + o)];
      x[o][0] = v.x; x[o][1] = v.y; x[o][2] = v.z; x[o][3] = v.w;
    }
#pragma unroll
    for (int c = 0; c < kColumnTiles; c++) mma_unit(acc[c][t], w[c], x);
  }
}

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
  const int block_token = blockIdx.x * kBlockTokens;
  const int warp_token = (warp & 1) * 8 * kTokenTiles;
  const int first_tile = blockIdx.y * 4 + (warp >> 1) * kColumnTiles;
  const int last_tile = ((int)n + 31) / 32 - 1;
  const int part = blockIdx.z, parts = gridDim.z;

  // A column tile that does not exist is the last one again; what it gives is thrown away.
  const u8* tiles[kColumnTiles];
#pragma unroll
  for (int c = 0; c < kColumnTiles; c++) tiles[c] = weights + (size_t)min(first_tile + c, last_tile) * tile_bytes;

  constexpr int kHalves = FORMAT::kPiece / kStage;
  const int pieces = ((int)k + FORMAT::kPiece - 1) / FORMAT::kPiece;
  const int part_pieces = (pieces + parts - 1) / parts;
  const int first = part * part_pieces, end = min(first + part_pieces, pieces);

  Sums acc = {};
  Share share;
  if (first < end) {
    share.load(x, x_stride, block_token, m, first * FORMAT::kPiece, k);
    share.store(stages[0]);
  }
  __syncthreads();
  int now = 0;
  for (int p = first; p < end; p++) {
    FORMAT::Head heads[kColumnTiles];
#pragma unroll
    for (int c = 0; c < kColumnTiles; c++) heads[c] = FORMAT::head(tiles[c], p, lane);
#pragma unroll
    for (int h = 0; h < kHalves; h++) {
      FORMAT::Codes codes[2][kColumnTiles];
#pragma unroll
      for (int u = 0; u < 2; u++)
#pragma unroll
        for (int c = 0; c < kColumnTiles; c++) codes[u][c] = FORMAT::codes(tiles[c], p, 2 * h + u, lane);
      const bool more = h + 1 < kHalves || p + 1 < end;
      multiply_unit(acc, heads, codes[0], 2 * h, stages[now], warp_token, lane);
      // Only now: before, the registers hold the codes of both units.
      if (more) share.load(x, x_stride, block_token, m, p * FORMAT::kPiece + (h + 1) * kStage, k);
      multiply_unit(acc, heads, codes[1], 2 * h + 1, stages[now], warp_token, lane);
      now ^= 1;
      if (more) share.store(stages[now]);
      __syncthreads();
    }
  }

  const Output output = {column_scale, bias, residual, out, out_stride, out_f32, m, n};
  const size_t place = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
  float* sums = partial + place * parts * 64 * THREADS;
  if (parts > 1) {
    float* mine = sums + (size_t)part * 64 * THREADS;
#pragma unroll
    for (int c = 0; c < kColumnTiles; c++)
#pragma unroll
      for (int t = 0; t < kTokenTiles; t++)
#pragma unroll
        for (int i = 0; i < 8; i++) mine[((c * kTokenTiles + t) * 8 + i) * THREADS + threadIdx.x] = acc[c][t][i];
    if (!arrive_last(&counters[place], parts)) return;
#pragma unroll 1
    for (int q = 0; q < parts; q++)
#pragma unroll
      for (int c = 0; c < kColumnTiles; c++)
#pragma unroll
        for (int t = 0; t < kTokenTiles; t++)
#pragma unroll
          for (int i = 0; i < 8; i++) {
            const float sum = __ldcg(&sums[((size_t)q * 64 + (c * kTokenTiles + t) * 8 + i) * THREADS + threadIdx.x]);
            acc[c][t][i] = q ? acc[c][t][i] + sum : sum;
          }
  }
  // Through shared memory, a column tile at a time, so that a warp stores rows of 32 columns. No warp reads another's part.
  float* rows = reinterpret_cast<float*>(stages) + warp * 32 * 32;
#pragma unroll
  for (int c = 0; c < kColumnTiles; c++) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; t++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int token = 8 * t + acc_token(lane, i);
        rows[token * 32 + (acc_column(lane, i) ^ twist(token))] = acc[c][t][i];
      }
    __syncwarp();
#pragma unroll 4
    for (int token = 0; token < 8 * kTokenTiles; token++)
      output.store(block_token + warp_token + token, (first_tile + c) * 32 + lane, rows[token * 32 + (lane ^ twist(token))]);
    __syncwarp();
  }
}
