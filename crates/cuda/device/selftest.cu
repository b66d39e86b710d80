// The driver layer's self-test: does this device run our code, address memory as we do, and multiply as Volta does?
//
// 1. Every thread writes pattern words with a grid stride: pattern[i] = i * 2654435761 + seed.
// 2. The first warp does one mma.m8n8k4: four independent 8x8x4 products, one a quad-pair, of small integers, so that
//    every order of sums gives the same exact result:
//        A[q][r][k] = r + 2k + q,   B[q][k][c] = c + q - k,   C[q][r][c] = (8r + c) / 16
// 3. It stores D as product // [quad-pair 4, row 8, column 8], where the fragment layout says each value is.

#include <cuda_fp16.h>

static __device__ __forceinline__ unsigned pair(int low, int high) {
    return static_cast<unsigned>(__half_as_ushort(__int2half_rn(low))) |
           static_cast<unsigned>(__half_as_ushort(__int2half_rn(high))) << 16;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    SYMBOL(unsigned *pattern, float *product, unsigned count, unsigned seed) {
    unsigned stride = gridDim.x * THREADS;
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        pattern[i] = i * 2654435761u + seed;
    }
    if (blockIdx.x != 0 || threadIdx.x >= 32) {
        return;
    }
    int lane = threadIdx.x;
    int quad_pair = (lane & 15) >> 2;
    // This lane's row of A and column of B.
    int own = (lane & 3) + 4 * (lane >> 4);
    unsigned a[2], b[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int k = 2 * half;
        a[half] = pair(own + 2 * k + quad_pair, own + 2 * (k + 1) + quad_pair);
        b[half] = pair(own + quad_pair - k, own + quad_pair - (k + 1));
    }
    float d[8];
    int row[8], column[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        row[i] = (lane & 1) + (i & 2) + 4 * (lane >> 4);
        column[i] = (i & 4) + (lane & 2) + (i & 1);
        d[i] = static_cast<float>(8 * row[i] + column[i]) * 0.0625f;
    }
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%0,%1,%2,%3,%4,%5,%6,%7};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        product[(quad_pair * 8 + row[i]) * 8 + column[i]] = d[i];
    }
}
