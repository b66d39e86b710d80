// What a device can do at best: reading memory, and launching nothing.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, READS (loads in flight a thread; 0: nothing is done).
#include "common.cuh"

// Every byte is loaded and used: the words' sum goes to `sink` (it is stored if it is a number that no fill here sums to, which
// the compiler cannot know). `words` is a multiple of READS * THREADS.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(const uint4* __restrict__ from, u32 words, u32* __restrict__ sink) {
#if READS > 0
  u32 sum = 0;
  for (size_t at = (size_t)blockIdx.x * THREADS * READS + threadIdx.x; at < words; at += (size_t)gridDim.x * THREADS * READS) {
    uint4 v[READS];
#pragma unroll
    for (int i = 0; i < READS; i++) v[i] = load_stream<uint4>(from + at + i * THREADS);
#pragma unroll
    for (int i = 0; i < READS; i++) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (sum == 0x9E3779B9u) *sink = sum;
#endif
}
