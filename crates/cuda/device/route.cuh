// From a token's logits to its experts: scores, ranks, groups, the best top_k, weights. One warp a token.
//
// 1. A lane holds the experts lane, lane + 32, ..: 512 at most.
// 2. The best are not taken one after another (a maximum over the warp is 150 cycles). The top_k-th largest of the lanes' maxima is a
//    bar that at least top_k ranks reach; those that do are listed in the order of their ids, and each counts how many of the
//    list come before it: that is its place. A list is hardly longer than top_k; equal ranks only make it longer.
// 3. Ranks that are not numbers come last; ids are always in range and differ.
// 4. No approximate instruction, as in common.cuh.
#pragma once
#include "common.cuh"

constexpr int kLaneExperts = 16;
#define kInfinity __int_as_float(0x7F800000)
enum Score { kSoftmax = 0, kSigmoid = 1, kSqrtSoftplus = 2 };

// ln(1 + u) for u of 0 to 1, within 3 units in the last place: 2 artanh(s) with s = u / (2 + u), at most 1/3, by its series to
// the 15th power (what is left out is below 2^-29 of the result).
__device__ __forceinline__ float log1p_unit(float u) {
  const float s = __fdiv_rn(u, __fadd_rn(2.0f, u)), q = __fmul_rn(s, s), t = __fadd_rn(s, s);
  float p = 1.0f / 15.0f;
  p = fmaf(p, q, 1.0f / 13.0f);
  p = fmaf(p, q, 1.0f / 11.0f);
  p = fmaf(p, q, 1.0f / 9.0f);
  p = fmaf(p, q, 1.0f / 7.0f);
  p = fmaf(p, q, 1.0f / 5.0f);
  p = fmaf(p, q, 1.0f / 3.0f);
  return fmaf(__fmul_rn(t, q), p, t);
}
// ln(1 + e^x), within 5 units in the last place from -87 on; below it stays at what it is there, 1.6e-38.
__device__ __forceinline__ float softplus(float x) { return __fadd_rn(fmaxf(x, 0.0f), log1p_unit(exp_exact(-fabsf(x)))); }

// tanh within 5 units in the last place: e^2|y| - 1 = 2^n (e^r - 1) + (2^n - 1) without cancellation near 0, then t / (t + 2).
__device__ __forceinline__ float tanh_exact(float y) {
  float x = 2.0f * fabsf(y);
  x = x > 20.0f ? 20.0f : x;
  const ExpParts e(x);
  const float t = fmaf(__fmul_rn(e.p, e.r), e.power, __fsub_rn(e.power, 1.0f));
  return copysignf(__fdiv_rn(t, __fadd_rn(t, 2.0f)), y);
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}

struct Rule {
  const float* bias;     // [experts] or null: moves the choice, not the weights
  const u32* choices;    // [choice_rows, top_k] experts that are not chosen by rank but stand in a table, or null
  const u32* choice_of;  // [tokens] the table's row of each token
  u32 choice_rows, experts, top_k, score, groups, groups_kept, group_best, renormalise;
  float scale, softcap;  // softcap: 0 is none
};

// A warp's shared memory, in words: 32 maxima, then [width] keys, [width] scores, [width] ids of 16 bits.
__device__ __forceinline__ u32 choice_width(u32 experts) { return (experts + 7) & ~7u; }
__device__ __forceinline__ u32 choice_words(u32 experts) { return 32 + choice_width(experts) / 2 * 5; }

// Which groups of neighbouring experts may be chosen from, one bit each: those with the largest sum of their best `group_best` ranks.
__device__ __forceinline__ u32 kept_groups(const Rule& rule, const float* ranks, int lane) {
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

// The best top_k: lane r gets the r-th one's id and score. key[j] is 0 where there is no expert.
__device__ __forceinline__ void best(u32& id, float& my_score, const u32 (&key)[kLaneExperts], const float (&score)[kLaneExperts], u32 experts, u32 top_k, u32* shared, int lane) {
  const u32 width = choice_width(experts);
  u32* maxima = shared;
  u32* keys = shared + 32;
  float* scores = (float*)(keys + width);
  u16* ids = (u16*)(scores + width);

  u32 most = 0;
#pragma unroll
  for (int j = 0; j < kLaneExperts; j++)
    if (32 * j < (int)experts) most = max(most, key[j]);
  maxima[lane] = most;
  __syncwarp();
  u32 better = 0;
#pragma unroll
  for (int l = 0; l < 32; l += 4) {
    const uint4 other = *reinterpret_cast<const uint4*>(&maxima[l]);
    better += (other.x > most || (other.x == most && l < lane)) + (other.y > most || (other.y == most && l + 1 < lane)) +
              (other.z > most || (other.z == most && l + 2 < lane)) + (other.w > most || (other.w == most && l + 3 < lane));
  }
  const int at = __ffs(__ballot_sync(0xFFFFFFFFu, better == top_k - 1)) - 1;
  const u32 bar = max(__shfl_sync(0xFFFFFFFFu, most, at), 1u);

  u32 length = 0;
#pragma unroll
  for (int j = 0; j < kLaneExperts; j++)
    if (32 * j < (int)experts) {
      const u32 reach = __ballot_sync(0xFFFFFFFFu, key[j] >= bar);
      if (key[j] >= bar) {
        const u32 place = length + __popc(reach & ((1u << lane) - 1));
        keys[place] = key[j];
        scores[place] = score[j];
        ids[place] = (u16)(32 * j + lane);
      }
      length += __popc(reach);
    }
  if (lane < (int)(-length & 3u)) keys[length + lane] = 0;
  __syncwarp();
  for (u32 c = lane; c < length; c += 32) {
    const u32 mine = keys[c];
    u32 before = 0;
    for (u32 i = 0; i < length; i += 4) {
      const uint4 other = *reinterpret_cast<const uint4*>(&keys[i]);
      before += (other.x > mine || (other.x == mine && i < c)) + (other.y > mine || (other.y == mine && i + 1 < c)) +
                (other.z > mine || (other.z == mine && i + 2 < c)) + (other.w > mine || (other.w == mine && i + 3 < c));
    }
    if (before < top_k) maxima[before] = c;
  }
  __syncwarp();
  if (lane < (int)top_k) {
    const u32 place = maxima[lane];
    id = ids[place];
    my_score = scores[place];
  }
}

// A logit's score, or (softmax) the logit itself: what a softmax ranks by.
__device__ __forceinline__ float score_of(const Rule& rule, float logit) {
  if (rule.softcap > 0.0f) logit = __fmul_rn(rule.softcap, tanh_exact(__fdiv_rn(logit, rule.softcap)));
  if (rule.score == kSigmoid) return sigmoid(logit);
  if (rule.score == kSqrtSoftplus) return __fsqrt_rn(softplus(logit));
  return logit;
}

// A softmax over the experts, in place. by_expert // [experts] logits, then scores
__device__ __forceinline__ void softmax(float* by_expert, int experts, int lane) {
  float top = -kInfinity, sum = 0.0f;
  for (int e = lane; e < experts; e += 32) top = fmaxf(top, by_expert[e]);
  top = warp_max(top);
#pragma unroll 1
  for (int e = lane; e < experts; e += 32) sum = __fadd_rn(sum, by_expert[e] = exp_exact(__fsub_rn(by_expert[e], top)));
  sum = warp_sum(sum);
#pragma unroll 1
  for (int e = lane; e < experts; e += 32) by_expert[e] = __fdiv_rn(by_expert[e], sum);
}

// One token. scores // [experts], by score_of or (raw) before it; routes // [2 top_k], shared // [choice_words]
__device__ __forceinline__ void choose(const Rule& rule, u32 token, const float* scores, bool raw, float* routes, u32* shared, int lane) {
  const int experts = rule.experts, top_k = rule.top_k;
  float* by_expert = (float*)(shared + 32 + choice_width(experts));
  // A softmax that only weighs what is chosen, against each other, needs the logits of these alone.
  const bool logits = rule.score == kSoftmax && rule.renormalise && !rule.bias && rule.groups <= 1;
  const bool whole = rule.score == kSoftmax && !logits;
  float score[kLaneExperts];
#pragma unroll
  for (int j = 0; j < kLaneExperts; j++) score[j] = 32 * j + lane < experts ? __ldcg(&scores[32 * j + lane]) : -kInfinity;
  if (raw || whole || rule.choices) {
#pragma unroll
    for (int j = 0; j < kLaneExperts; j++)
      if (32 * j + lane < experts) by_expert[32 * j + lane] = score[j];
    __syncwarp();
    if (raw) {
#pragma unroll 1
      for (int e = lane; e < experts; e += 32) by_expert[e] = score_of(rule, by_expert[e]);
    }
    if (whole) softmax(by_expert, experts, lane);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kLaneExperts; j++)
      if (32 * j + lane < experts) score[j] = by_expert[32 * j + lane];
  }

  u32 id = 0;
  float my_score = -kInfinity;
  if (rule.choices) {
    if (lane < top_k) {
      const u32 row = min(__ldg(&rule.choice_of[token]), rule.choice_rows - 1);
      id = min(__ldg(&rule.choices[(size_t)row * top_k + lane]), (u32)experts - 1);
      my_score = by_expert[id];
    }
  } else {
    float rank[kLaneExperts];
#pragma unroll
    for (int j = 0; j < kLaneExperts; j++) {
      rank[j] = score[j];
      if (rule.bias && 32 * j + lane < experts) rank[j] = __fadd_rn(rank[j], __ldg(&rule.bias[32 * j + lane]));
    }
    if (rule.groups > 1) {
#pragma unroll
      for (int j = 0; j < kLaneExperts; j++)
        if (32 * j + lane < experts) by_expert[32 * j + lane] = rank[j];
      __syncwarp();
      const u32 groups = kept_groups(rule, by_expert, lane);
      const u32 size = experts / rule.groups;
#pragma unroll
      for (int j = 0; j < kLaneExperts; j++)
        if (32 * j + lane < experts && !(groups >> ((32 * j + lane) / size) & 1)) rank[j] = -kInfinity;
      __syncwarp();
    }
    // Keys in the order of the ranks; 0 is nothing, 1 not a number.
    u32 key[kLaneExperts];
#pragma unroll
    for (int j = 0; j < kLaneExperts; j++) {
      const int bits = __float_as_int(__fadd_rn(rank[j], 0.0f));
      key[j] = rank[j] != rank[j] ? 1u : (u32)bits ^ ((u32)(bits >> 31) | 0x80000000u);
      if (32 * j + lane >= experts) key[j] = 0;
    }
    best(id, my_score, key, score, experts, top_k, shared, lane);
  }

  if (logits) {
    const float top = rule.choices ? warp_max(my_score) : __shfl_sync(0xFFFFFFFFu, my_score, 0);
    my_score = exp_exact(__fsub_rn(my_score, top));
  }
  // What is chosen sums up in its order. 1e-20, as several families have it, changes a sum below 1e-13 alone, and keeps scores that
  // all are 0 from giving what is no number.
  float divisor = 1.0f;
  if (rule.renormalise) {
    divisor = 0.0f;
    for (int r = 0; r < top_k; r++) divisor = __fadd_rn(divisor, __shfl_sync(0xFFFFFFFFu, my_score, r));
    divisor = __fadd_rn(divisor, 1e-20f);
  }
  if (lane < top_k) {
    routes[lane] = __uint_as_float(id);
    routes[top_k + lane] = __fmul_rn(__fdiv_rn(my_score, divisor), rule.scale);
  }
  __syncwarp();
}
