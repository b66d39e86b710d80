// The function on the gate, times the up.
#pragma once
#include "common.cuh"

enum Activation { kSilu = 0, kGeluTanh = 1, kSiluClamped = 2, kSiluBetween = 3 };

// kSiluClamped: silu(min(g, limit)) * clamp(u), as DeepSeek V4 has it. kSiluBetween: g sigmoid(alpha g) (clamp(u) + 1) with g at most
// the limit, as gpt-oss has it. tanh is the sigmoid of twice its argument: x/2 (1 + tanh y) = x sigmoid(2 y).
__device__ __forceinline__ float activate(u32 kind, float g, float u, float limit, float alpha) {
  if (kind == kGeluTanh) {
    const float inner = __fmul_rn(g, fmaf(__fmul_rn(0.07135481627f, g), g, 1.5957691216f));
    return __fmul_rn(__fmul_rn(g, sigmoid(inner)), u);
  }
  if (kind >= kSiluClamped) {
    g = g > limit ? limit : g;
    u = u > limit ? limit : (u < -limit ? -limit : u);
  }
  if (kind == kSiluBetween) return __fmul_rn(__fmul_rn(g, sigmoid(__fmul_rn(alpha, g))), __fadd_rn(u, 1.0f));
  return __fmul_rn(__fmul_rn(g, sigmoid(g)), u);
}
