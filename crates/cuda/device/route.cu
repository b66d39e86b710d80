// Router: logits, scores, the best experts of each token with their weights, and the table of row blocks, in one launch.
//
// 1. A block owns kRows rows of the router's matrix (grid x) and TOKENS tokens (grid y). SPLIT warps share a row: a lane of warp p
//    takes eight k of every 256, of every SPLIT-th 256 from the p-th on, and the warps' sums are added in their order. So the order of
//    a logit's sum does not depend on how many tokens there are. Products and sums are f32. (The logits are here and not in a linear
//    of their own: one launch less on the longest path of a token, and routers are often stored in f32. SPLIT keeps few loads
//    one after the other, and makes blocks enough for all multiprocessors.)
// 2. The last block to arrive of a row of the grid has all logits of its tokens: a warp a token chooses (route.cuh).
// 3. The last of those blocks has all tokens' experts and sorts the slots by expert: each warp counts its own tokens (a token's
//    experts differ, so a warp's lanes never count the same one) and notes each slot's number among them, the counts are
//    summed over warps and experts, and each slot finds its place from them: by expert, then token. The counters only say who
//    goes on; no number depends on it.
//
// Barriers before the first expert may be read: one where one token is chosen for alone (the sums of SPLIT warps), two more of a
// block that has a table to write, six in the table.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, ROUTER (element type of the router's matrix), TOKENS, EXPERTS (rows of a warp), SPLIT.
#include "route.cuh"

constexpr int kWarps = THREADS / 32;
constexpr int kRows = kWarps / SPLIT * EXPERTS;
constexpr int kSums = TOKENS * EXPERTS;  // of a warp
constexpr u32 kNoSlot = 0xFFFFFFFFu;
static_assert(kSums <= 32 && TOKENS * kRows <= 32, "one warp finishes a block's logits");

// Eight numbers as they lie in memory, and as f32.
template <typename T> struct Eight;
template <> struct Eight<__half> {
  uint4 v;
  __device__ __forceinline__ void load(const __half* p) { v = __ldg(reinterpret_cast<const uint4*>(p)); }
  __device__ __forceinline__ void expand(float (&w)[8]) const {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 pair = __half22float2(as_half2(words[i]));
      w[2 * i] = pair.x;
      w[2 * i + 1] = pair.y;
    }
  }
};
template <> struct Eight<float> {
  float4 a, b;
  __device__ __forceinline__ void load(const float* p) {
    a = __ldg(reinterpret_cast<const float4*>(p));
    b = __ldg(reinterpret_cast<const float4*>(p) + 1);
  }
  __device__ __forceinline__ void expand(float (&w)[8]) const {
    w[0] = a.x; w[1] = a.y; w[2] = a.z; w[3] = a.w;
    w[4] = b.x; w[5] = b.y; w[6] = b.z; w[7] = b.w;
  }
};

// Sums of N numbers over the warp, N a power of two: the lane gets number lane / (32 / N). Each step halves the numbers that a
// lane still adds; which are added with which is the same for every N.
template <int N, int STEP = 16, int M>
__device__ __forceinline__ float spread_sum(float (&v)[M], int lane) {
  if constexpr (N > 1) {
    const bool upper = lane & STEP;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const float send = upper ? v[i] : v[i + N / 2], keep = upper ? v[i + N / 2] : v[i];
      v[i] = __fadd_rn(keep, __shfl_xor_sync(0xFFFFFFFFu, send, STEP));
    }
    return spread_sum<N / 2, STEP / 2>(v, lane);
  } else {
    float sum = v[0];
#pragma unroll
    for (int step = STEP; step > 0; step >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, step));
    return sum;
  }
}

// This warp's part of its rows' logits, to sums // [kWarps][EXPERTS][TOKENS]
__device__ __forceinline__ void part_logits(const __half* x, u32 x_stride, u32 count, const ROUTER* router, const ROUTER* gate_row, u32 experts, u32 rows, u32 hidden, float* sums) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 first = blockIdx.x * kRows + warp / SPLIT * EXPERTS, token_first = blockIdx.y * TOKENS;
  const ROUTER* w_rows[EXPERTS];
#pragma unroll
  for (int e = 0; e < EXPERTS; e++) {
    const u32 row = min(first + e, rows - 1);
    w_rows[e] = row < experts ? router + (size_t)row * hidden : gate_row;
  }
  u32 x_rows[TOKENS];  // in octets
#pragma unroll
  for (int t = 0; t < TOKENS; t++) x_rows[t] = min(token_first + t, count - 1) * (x_stride / 8);
  float acc[kSums] = {};
#pragma unroll(TOKENS == 1 ? 4 : 2)
  for (u32 k = 8 * lane + 256 * (warp % SPLIT); k < hidden; k += 256 * SPLIT) {
    Eight<ROUTER> w[EXPERTS];
    Eight<__half> v[TOKENS];
#pragma unroll
    for (int e = 0; e < EXPERTS; e++) w[e].load(w_rows[e] + k);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) v[t].load(x + (size_t)x_rows[t] * 8 + k);
    float w_f32[EXPERTS][8];
#pragma unroll
    for (int e = 0; e < EXPERTS; e++) w[e].expand(w_f32[e]);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      float x_f32[8];
      v[t].expand(x_f32);
#pragma unroll
      for (int e = 0; e < EXPERTS; e++)
#pragma unroll
        for (int j = 0; j < 8; j++) acc[e * TOKENS + t] = fmaf(x_f32[j], w_f32[e][j], acc[e * TOKENS + t]);
    }
  }
  const float sum = spread_sum<kSums>(acc, lane);
  if (lane % (32 / kSums) == 0) sums[warp * kSums + lane / (32 / kSums)] = sum;
}

// By the first warp: the block's logits from its warps' parts, then their scores (each by its own lane, so that the last block finds
// them made). scores // [tokens, rows]; shared_weight // [tokens] sigmoid of the gate's logit
__device__ __forceinline__ void finish_logits(const Rule& rule, const float* sums, u32 count, u32 rows, float* scores, float* shared_weight) {
  const u32 number = threadIdx.x / TOKENS, token = blockIdx.y * TOKENS + threadIdx.x % TOKENS;  // number: row of the block
  const u32 row = blockIdx.x * kRows + number;
  if (number >= kRows || row >= rows || token >= count) return;
  const float* first = sums + number / EXPERTS * SPLIT * kSums + number % EXPERTS * TOKENS + threadIdx.x % TOKENS;
  float sum = first[0];
#pragma unroll
  for (int part = 1; part < SPLIT; part++) sum = __fadd_rn(sum, first[part * kSums]);
  if (row < rule.experts) scores[(size_t)token * rows + row] = score_of(rule, sum);
  else shared_weight[token] = sigmoid(sum);
}

// By one thread, after what its block wrote: whether it is the last of `parts` that come here. What the others wrote before is
// then visible past the first-level cache. The counter wraps to zero by itself, ready for the next launch.
__device__ __forceinline__ bool arrive_last(u32* counter, u32 parts) {
  if (parts == 1) return true;
  __threadfence();
  const bool last = atomicInc(counter, parts - 1) == parts - 1;
  __threadfence();
  return last;
}

// Exclusive sum over the block's threads; `all` becomes the sum of all. warp_sums // [kWarps]
__device__ __forceinline__ u32 sum_before(u32 value, u32* warp_sums, u32& all) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 sum = value;
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const u32 other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  u32 before = 0;
  all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    if (w < warp) before += warp_sums[w];
    all += warp_sums[w];
  }
  return before + sum - value;
}

// The table of row blocks, by one block.
__device__ __forceinline__ void sort_slots(const float* routes, u32 count, u32 top_k, u32 experts, u32 block_rows, u32* block_count, u32* block_expert, u32* block_slots, u32* shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32* warp_sums = shared;                               // [kWarps]
  u32* first_block = shared + kWarps;                    // [experts]
  u16* counts = (u16*)(first_block + experts);           // [kWarps][experts]
  u16* number = counts + ((kWarps * experts + 1) & ~1u);  // [count * top_k] the slot's expert, then its number among the warp's
  const u32 slots = count * top_k;
  const auto expert_of = [&](u32 slot) { return __float_as_uint(__ldcg(&routes[(size_t)(slot / top_k) * 2 * top_k + slot % top_k])); };
  for (u32 i = threadIdx.x; i < kWarps * experts; i += THREADS) counts[i] = 0;
  for (u32 slot = threadIdx.x; slot < slots; slot += THREADS) number[slot] = (u16)expert_of(slot);
  __syncthreads();
  const u32 share = (count + kWarps - 1) / kWarps, end = min((warp + 1) * share, count);
  u16* mine = counts + warp * experts;
  for (u32 token = warp * share; token < end; token++) {
    if (lane < (int)top_k) {
      const u32 slot = token * top_k + lane, expert = number[slot];
      number[slot] = mine[expert]++;
    }
    __syncwarp();
  }
  __syncthreads();

  // Experts of a thread are neighbours: their blocks follow each other.
  const u32 per = (experts + THREADS - 1) / THREADS, expert_first = threadIdx.x * per, expert_end = min(expert_first + per, experts);
  u32 blocks = 0;
  for (u32 e = expert_first; e < expert_end; e++) {
    u32 all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w++) {
      const u32 here = counts[w * experts + e];
      counts[w * experts + e] = (u16)all;
      all += here;
    }
    first_block[e] = all;
    blocks += (all + block_rows - 1) / block_rows;
  }
  u32 all_blocks;
  u32 next = sum_before(blocks, warp_sums, all_blocks);
  for (u32 e = expert_first; e < expert_end; e++) {
    const u32 all = first_block[e], end_block = next + (all + block_rows - 1) / block_rows;
    for (u32 i = next * block_rows + all; i < end_block * block_rows; i++) block_slots[i] = kNoSlot;
    first_block[e] = next;
    for (; next < end_block; next++) block_expert[next] = e;
  }
  if (threadIdx.x == 0) *block_count = all_blocks;
  __syncthreads();
  for (u32 slot = threadIdx.x; slot < slots; slot += THREADS) {
    const u32 expert = expert_of(slot);
    block_slots[first_block[expert] * block_rows + counts[slot / top_k / share * experts + expert] + number[slot]] = slot;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const __half* __restrict__ x,          // [tokens, x_stride], 16-byte aligned rows
    u32 x_stride,                          // in halves, a multiple of 8
    u32 tokens,
    const u32* __restrict__ token_count,   // [1] how many of them exist, or null: all
    const ROUTER* __restrict__ router,     // [experts, hidden], 16-byte aligned, or null: the logits are there already
    const ROUTER* __restrict__ gate_row,   // [hidden] the shared expert's gate, or null
    const float* __restrict__ bias,        // [experts] or null
    u32 hidden,                            // a multiple of 8
    u32 experts,
    u32 rows,                              // experts, and one more for the shared expert's gate
    u32 top_k, u32 score, u32 groups, u32 groups_kept, u32 group_best, u32 renormalise, float scale, float softcap,  // see Rule
    const u32* __restrict__ choices, const u32* __restrict__ choice_of, u32 choice_rows,                             // see Rule
    float* logits,                         // [tokens, rows]: given, or scores between the blocks
    u32* counters,                         // [grid y + 1], zero; zero again at the end
    float* routes,                         // [tokens, 2 top_k]: ids as bits, then weights
    float* __restrict__ shared_weight,     // [tokens] sigmoid of the shared expert's gate, if rows say so
    u32 block_rows, u32* __restrict__ block_count, u32* __restrict__ block_expert, u32* __restrict__ block_slots) {  // see experts.cuh; null: no table
  extern __shared__ uint4 shared_octets[];  // [kWarps][choice_words] u32, then what sort_slots says
  __shared__ float sums[kWarps * kSums];
  __shared__ bool block_goes_on;
  u32* shared = reinterpret_cast<u32*>(shared_octets);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 count = token_count ? min(tokens, __ldg(token_count)) : tokens;
  const bool has_tokens = blockIdx.y * TOKENS < count;
  if (router && has_tokens) part_logits(x, x_stride, count, router, gate_row, experts, rows, hidden, sums);
  __syncthreads();

  const Rule rule = {bias, choices, choice_of, choice_rows, experts, top_k, score, groups, groups_kept, group_best, renormalise, scale, softcap};

  // One token's choice is the first warp's alone, without a further barrier.
  const bool alone = TOKENS == 1 && !block_count;
  if (alone && warp > 0) return;
  bool goes_on = false;
  if (warp == 0) {
    if (router && has_tokens) finish_logits(rule, sums, count, rows, logits, shared_weight);
    __syncwarp();
    if (lane == 0) goes_on = arrive_last(&counters[blockIdx.y], gridDim.x);
    goes_on = __shfl_sync(0xFFFFFFFFu, goes_on, 0);
  }
  if (!alone) {
    if (threadIdx.x == 0) block_goes_on = goes_on;
    __syncthreads();
    goes_on = block_goes_on;
  }
  if (!goes_on) return;

  for (int t = warp; t < TOKENS; t += kWarps) {
    const u32 token = blockIdx.y * TOKENS + t;
    if (token >= count) break;
    if (!router && rows > experts && lane == 0) shared_weight[token] = sigmoid(__ldcg(&logits[(size_t)token * rows + experts]));
    choose(rule, token, logits + (size_t)token * rows, !router, routes + (size_t)token * 2 * top_k, shared + warp * choice_words(experts), lane);
  }
  if (!block_count) return;
  __syncthreads();
  if (threadIdx.x == 0) block_goes_on = arrive_last(&counters[gridDim.y], gridDim.y);
  __syncthreads();
  if (block_goes_on) sort_slots(routes, count, top_k, experts, block_rows, block_count, block_expert, block_slots, shared);
}
