// What every kernel shares: loads with a hint, half-precision pairs as 32-bit registers, exact conversions.
#pragma once
#include <cuda_fp16.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

// A load of data that is read once a step: kept out of the way of what is reused (activations).
template <typename T> __device__ __forceinline__ T load_stream(const void* p);
template <> __device__ __forceinline__ u8 load_stream<u8>(const void* p) { return (u8)__ldcs((const unsigned char*)p); }
template <> __device__ __forceinline__ u16 load_stream<u16>(const void* p) { return __ldcs((const unsigned short*)p); }
template <> __device__ __forceinline__ u32 load_stream<u32>(const void* p) { return __ldcs((const unsigned*)p); }
template <> __device__ __forceinline__ uint2 load_stream<uint2>(const void* p) { return __ldcs((const uint2*)p); }
template <> __device__ __forceinline__ uint4 load_stream<uint4>(const void* p) { return __ldcs((const uint4*)p); }

__device__ __forceinline__ __half2 as_half2(u32 v) { return *reinterpret_cast<__half2*>(&v); }
__device__ __forceinline__ u32 as_u32(__half2 v) { return *reinterpret_cast<u32*>(&v); }
// The same 16 bits in both halves.
__device__ __forceinline__ u32 twice(u32 half_bits) { return half_bits * 0x10001u; }
__device__ __forceinline__ u32 mul2(u32 a, u32 b) { return as_u32(__hmul2(as_half2(a), as_half2(b))); }
__device__ __forceinline__ u32 add2(u32 a, u32 b) { return as_u32(__hadd2(as_half2(a), as_half2(b))); }
__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) { return as_u32(__hfma2(as_half2(a), as_half2(b), as_half2(c))); }
// A half's bits as a float, exactly.
__device__ __forceinline__ float half_to_float(u32 bits) { return __half2float(__ushort_as_half((u16)bits)); }
__device__ __forceinline__ u32 float_to_half(float v) { return __half_as_ushort(__float2half_rn(v)); }

// e^x = 2^n (1 + r p) in f32 by fused operations only, so that every machine gives the same bits (no approximate instruction). The same
// steps as on the CPU: x = n ln 2 + r with ln 2 in two parts, e^r by its Taylor series to the seventh power.
struct ExpParts {
  float r, p, power;  // 2^n
  __device__ __forceinline__ explicit ExpParts(float x) {
    const float n = rintf(x * 1.44269504f);
    r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    p = 1.0f / 5040.0f;
    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    power = __int_as_float(((int)n + 127) << 23);
  }
};
// Within 2 units in the last place; x is held to -87 .. 88; not a number stays so.
__device__ __forceinline__ float exp_exact(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const ExpParts e(x);
  return fmaf(e.p, e.r, 1.0f) * e.power;
}
__device__ __forceinline__ float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + exp_exact(-x)); }
