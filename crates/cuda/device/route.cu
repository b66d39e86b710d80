// Router: logits, scores, the best experts of each token with their weights, and the table of row blocks, in one launch.
//
// 1. A block owns EXPERTS experts a warp (grid x) and TOKENS tokens (grid y). A lane takes eight k of every 256, so the order of a
//    logit's sum does not depend on how many tokens or experts there are. Products and sums are f32. (The logits are here
//    and not in a linear of their own: one launch less on the longest path of a token, and routers are often stored in f32.)
// 2. The last block to arrive of a row of the grid has all logits of its tokens: a warp a token makes scores and takes the best
//    top_k, best first, the lower id where ranks are equal. A lane holds neighbouring experts, so the lowest lane with the
//    best rank has the lowest id.
// 3. The last of those blocks has all tokens' experts and sorts the slots by expert: each warp counts its own tokens (a token's
//    experts differ, so a warp's lanes never count the same one), the counts are summed over warps and experts, and
//    each slot finds its place from them: by expert, then token. The counters only say who goes on; no number depends on it.
// Ranks that are not numbers come last; ids are always in range and differ.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, ROUTER (element type of the router's matrix), TOKENS, EXPERTS.
#include "common.cuh"

constexpr int kWarps = THREADS / 32;
constexpr int kLaneExperts = 16;  // 512 experts at most
#define kInfinity __int_as_float(0x7F800000)
enum Score { kSoftmax = 0, kSigmoid = 1 };
constexpr u32 kNoSlot = 0xFFFFFFFFu;

__device__ __forceinline__ void load_eight(float (&w)[8], const __half* p) {
  const uint4 v = __ldg(reinterpret_cast<const uint4*>(p));
  const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 pair = __half22float2(as_half2(words[i]));
    w[2 * i] = pair.x;
    w[2 * i + 1] = pair.y;
  }
}
__device__ __forceinline__ void load_eight(float (&w)[8], const float* p) {
  const float4 a = __ldg(reinterpret_cast<const float4*>(p)), b = __ldg(reinterpret_cast<const float4*>(p) + 1);
  w[0] = a.x; w[1] = a.y; w[2] = a.z; w[3] = a.w;
  w[4] = b.x; w[5] = b.y; w[6] = b.z; w[7] = b.w;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}
__device__ __forceinline__ u32 warp_max(u32 v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v = max(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}

struct Rule {
  const float* bias;  // [experts] or null: moves the choice, not the weights
  u32 experts, top_k, score, groups, groups_kept, group_best, renormalise;
  float scale;
};

// Whether this block is the last of `parts` that come here. What the others wrote before is then visible to it, past the
// first-level cache. The counter wraps to zero by itself, ready for the next launch.
__device__ __forceinline__ bool arrive_last(u32* counter, u32 parts) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(counter, parts - 1) == parts - 1;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// This block's logits. logits // [tokens, rows]
__device__ __forceinline__ void block_logits(const __half* x, u32 x_stride, u32 count, const ROUTER* router, const ROUTER* gate_row, u32 experts, u32 rows, u32 hidden, float* logits) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 first = (blockIdx.x * kWarps + warp) * EXPERTS, token_first = blockIdx.y * TOKENS;
  if (first >= rows || token_first >= count) return;
  const ROUTER* w_rows[EXPERTS];
#pragma unroll
  for (int e = 0; e < EXPERTS; e++) {
    const u32 row = min(first + e, rows - 1);
    w_rows[e] = row < experts ? router + (size_t)row * hidden : gate_row;
  }
  float acc[TOKENS][EXPERTS] = {};
#pragma unroll(TOKENS == 1 ? 4 : 1)
  for (u32 k = 8 * lane; k < hidden; k += 256) {
    float w[EXPERTS][8];
#pragma unroll
    for (int e = 0; e < EXPERTS; e++) load_eight(w[e], w_rows[e] + k);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      float v[8];
      load_eight(v, x + (size_t)min(token_first + t, count - 1) * x_stride + k);
#pragma unroll
      for (int e = 0; e < EXPERTS; e++)
#pragma unroll
        for (int j = 0; j < 8; j++) acc[t][e] = fmaf(v[j], w[e][j], acc[t][e]);
    }
  }
#pragma unroll
  for (int t = 0; t < TOKENS; t++)
#pragma unroll
    for (int e = 0; e < EXPERTS; e++) {
      const float sum = warp_sum(acc[t][e]);
      if (lane == 0 && token_first + t < count && first + e < rows) logits[(size_t)(token_first + t) * rows + first + e] = sum;
    }
}

// Which groups of experts may be chosen from, one bit each: those with the largest sum of their best `group_best` ranks.
__device__ __forceinline__ u32 kept_groups(const Rule& rule, const float (&rank)[kLaneExperts], int per, float* ranks, int lane) {
#pragma unroll
  for (int j = 0; j < kLaneExperts; j++)
    if (j < per && lane * per + j < (int)rule.experts) ranks[lane * per + j] = rank[j];
  __syncwarp();
  const int size = rule.experts / rule.groups;
  float best = -kInfinity, second = -kInfinity;
  for (int e = lane * size; e < (lane + 1) * size && lane < (int)rule.groups; e++) {
    const float v = ranks[e];
    if (v > best) { second = best; best = v; }
    else if (v > second) second = v;
  }
  const float mine = rule.group_best == 2 ? __fadd_rn(best, second) : best;
  u32 better = 0;
  for (int g = 0; g < (int)rule.groups; g++) {
    const float other = __shfl_sync(0xFFFFFFFFu, mine, g);
    better += other > mine || (other == mine && g < lane);
  }
  return __ballot_sync(0xFFFFFFFFu, lane < (int)rule.groups && better < rule.groups_kept);
}

// One token by one warp: scores, choice, weights. routes // [2 top_k], shared // [experts]
__device__ __forceinline__ void choose(const Rule& rule, const float* logits, float* routes, float* shared, int lane) {
  const int per = (rule.experts + 31) / 32, first = lane * per;
  float score[kLaneExperts];
  float top = -kInfinity;
#pragma unroll
  for (int j = 0; j < kLaneExperts; j++) {
    score[j] = -kInfinity;
    if (j < per && first + j < (int)rule.experts) score[j] = __ldcg(&logits[first + j]);
    top = fmaxf(top, score[j]);
  }
  if (rule.score == kSoftmax) {
    top = warp_max(top);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kLaneExperts; j++)
      if (j < per && first + j < (int)rule.experts) {
        score[j] = exp_exact(__fsub_rn(score[j], top));
        sum = __fadd_rn(sum, score[j]);
      }
    sum = warp_sum(sum);
#pragma unroll
    for (int j = 0; j < kLaneExperts; j++) score[j] = __fdiv_rn(score[j], sum);
  } else {
#pragma unroll
    for (int j = 0; j < kLaneExperts; j++)
      if (j < per) score[j] = sigmoid(score[j]);
  }
  float rank[kLaneExperts];
#pragma unroll
  for (int j = 0; j < kLaneExperts; j++) {
    rank[j] = score[j];
    if (rule.bias && j < per && first + j < (int)rule.experts) rank[j] = __fadd_rn(rank[j], __ldg(&rule.bias[first + j]));
  }
  const u32 groups = rule.groups > 1 ? kept_groups(rule, rank, per, shared, lane) : 0;

  // Keys in the order of the ranks; 0 is nothing (left), 1 not a number.
  u32 key[kLaneExperts];
#pragma unroll
  for (int j = 0; j < kLaneExperts; j++) {
    const u32 expert = first + j;
    if (rule.groups > 1 && !(groups >> (expert / (rule.experts / rule.groups)) & 1)) rank[j] = -kInfinity;
    const int bits = __float_as_int(__fadd_rn(rank[j], 0.0f));
    key[j] = rank[j] != rank[j] ? 1u : (u32)bits ^ ((u32)(bits >> 31) | 0x80000000u);
    if (j >= per || expert >= rule.experts) key[j] = 0;
  }
  // The chosen ones' scores are looked up at the end.
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kLaneExperts; j++)
    if (j < per && first + j < (int)rule.experts) shared[first + j] = score[j];
  __syncwarp();
  u32 mine_id = 0;
  for (int r = 0; r < (int)rule.top_k; r++) {
    u32 most[kLaneExperts / 4];
#pragma unroll
    for (int j = 0; j < kLaneExperts / 4; j++) most[j] = max(max(key[4 * j], key[4 * j + 1]), max(key[4 * j + 2], key[4 * j + 3]));
    const u32 mine = max(max(most[0], most[1]), max(most[2], most[3]));
    const u32 best = warp_max(mine);
    const int winner = __ffs(__ballot_sync(0xFFFFFFFFu, mine == best)) - 1;
    int at = 0;
#pragma unroll
    for (int j = kLaneExperts - 1; j >= 0; j--)
      if (key[j] == best) at = j;
#pragma unroll
    for (int j = 0; j < kLaneExperts; j++)
      if (lane == winner && j == at) key[j] = 0;
    const u32 id = __shfl_sync(0xFFFFFFFFu, first + at, winner);
    if (lane == r) mine_id = id;
  }
  const float mine_score = lane < (int)rule.top_k ? shared[mine_id] : 0.0f;
  float chosen_sum = 0.0f;
  for (int r = 0; r < (int)rule.top_k; r++) chosen_sum = __fadd_rn(chosen_sum, __shfl_sync(0xFFFFFFFFu, mine_score, r));
  if (lane < (int)rule.top_k) {
    const float divisor = rule.renormalise ? chosen_sum : 1.0f;
    routes[lane] = __uint_as_float(mine_id);
    routes[rule.top_k + lane] = __fmul_rn(__fdiv_rn(mine_score, divisor), rule.scale);
  }
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
  u32* warp_sums = shared;                             // [kWarps]
  u32* first_block = shared + kWarps;                  // [experts]
  u16* counts = (u16*)(first_block + experts);         // [kWarps][experts]
  u16* ids = counts + ((kWarps * experts + 1) & ~1u);  // [count * top_k]
  for (u32 i = threadIdx.x; i < kWarps * experts; i += THREADS) counts[i] = 0;
  for (u32 slot = threadIdx.x; slot < count * top_k; slot += THREADS)
    ids[slot] = (u16)__float_as_uint(__ldcg(&routes[(size_t)(slot / top_k) * 2 * top_k + slot % top_k]));
  __syncthreads();
  const u32 share = (count + kWarps - 1) / kWarps, end = min((warp + 1) * share, count);
  u16* mine = counts + warp * experts;
  for (u32 token = warp * share; token < end; token++) {
    if (lane < (int)top_k) mine[ids[token * top_k + lane]]++;
    __syncwarp();
  }
  __syncthreads();

  // Experts of a thread are neighbours: their blocks follow each other.
  const u32 per = (experts + THREADS - 1) / THREADS, expert_first = threadIdx.x * per, expert_end = min(expert_first + per, experts);
  u32 blocks = 0;
  for (u32 e = expert_first; e < expert_end; e++) {
    u32 slots = 0;
    for (int w = 0; w < kWarps; w++) {
      const u32 here = counts[w * experts + e];
      counts[w * experts + e] = (u16)slots;
      slots += here;
    }
    first_block[e] = slots;
    blocks += (slots + block_rows - 1) / block_rows;
  }
  u32 all;
  u32 next = sum_before(blocks, warp_sums, all);
  for (u32 e = expert_first; e < expert_end; e++) {
    const u32 slots = first_block[e], end_block = next + (slots + block_rows - 1) / block_rows;
    for (u32 i = next * block_rows + slots; i < end_block * block_rows; i++) block_slots[i] = kNoSlot;
    first_block[e] = next;
    for (; next < end_block; next++) block_expert[next] = e;
  }
  if (threadIdx.x == 0) *block_count = all;
  __syncthreads();
  for (u32 token = warp * share; token < end; token++) {
    if (lane < (int)top_k) {
      const u32 slot = token * top_k + lane, expert = ids[slot];
      block_slots[first_block[expert] * block_rows + mine[expert]++] = slot;
    }
    __syncwarp();
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
    u32 top_k, u32 score, u32 groups, u32 groups_kept, u32 group_best, u32 renormalise, float scale,  // see Rule
    float* logits,                         // [tokens, rows]
    u32* counters,                         // [grid y + 1], zero; zero again at the end
    float* routes,                         // [tokens, 2 top_k]: ids as bits, then weights
    float* __restrict__ shared_weight,     // [tokens] sigmoid of the shared expert's gate, if rows say so
    u32 block_rows, u32* __restrict__ block_count, u32* __restrict__ block_expert, u32* __restrict__ block_slots) {  // see experts.cuh; null: no table
  extern __shared__ u32 shared[];  // [kWarps][experts] f32, then what sort_slots says
  const u32 count = token_count ? min(tokens, __ldg(token_count)) : tokens;
  if (router) block_logits(x, x_stride, count, router, gate_row, experts, rows, hidden, logits);
  if (!arrive_last(&counters[blockIdx.y], gridDim.x)) return;

  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const Rule rule = {bias, experts, top_k, score, groups, groups_kept, group_best, renormalise, scale};
  for (int t = warp; t < TOKENS; t += kWarps) {
    const u32 token = blockIdx.y * TOKENS + t;
    if (token >= count) break;
    choose(rule, logits + (size_t)token * rows, routes + (size_t)token * 2 * top_k, (float*)shared + warp * experts, lane);
    if (rows > experts && lane == 0) shared_weight[token] = sigmoid(__ldcg(&logits[(size_t)token * rows + experts]));
  }
  if (!block_count || !arrive_last(&counters[gridDim.y], gridDim.y)) return;
  sort_slots(routes, count, top_k, experts, block_rows, block_count, block_expert, block_slots, shared);
}
