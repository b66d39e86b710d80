// Not a kernel of ours: one of every instruction that the decoder counts, so that it is held against nvdisasm.

#include <cuda_fp16.h>

struct __align__(16) Quad {
    unsigned x, y, z, w;
};

static __device__ __noinline__ unsigned generic(unsigned *where) {
    unsigned old = *where;
    *where = old + 1;
    return old;
}

static __device__ __noinline__ float called(float x) { return x / (x + 3.0f) + sqrtf(x); }

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    SYMBOL(Quad *quads, uint2 *pairs, unsigned *words, unsigned short *halves, unsigned char *bytes, float *floats,
           __half2 *packed, int count) {
    __shared__ Quad shared_quads[THREADS];
    __shared__ uint2 shared_pairs[THREADS];
    __shared__ unsigned shared_words[THREADS];
    __shared__ unsigned char shared_bytes[THREADS];
    int t = threadIdx.x, i = blockIdx.x * THREADS + t;
    unsigned spilled[64];
    for (int k = 0; k < 64; k++) {
        spilled[k] = words[k * 3 + t];
    }
    shared_quads[t] = quads[i];
    shared_pairs[t] = pairs[i];
    shared_words[t] = words[i] + halves[i];
    shared_bytes[t] = bytes[i];
    __syncthreads();
    Quad q = shared_quads[t ^ 1];
    uint2 p = shared_pairs[t ^ 2];
    float sum = 0.0f;
    __half2 acc = packed[i];
    for (int k = 0; k < count; k++) {
        Quad a = quads[i + k * 64];
        sum = fmaf(__uint_as_float(a.x), __uint_as_float(q.y), sum);
        acc = __hfma2(acc, *reinterpret_cast<__half2 *>(&a.z), packed[k]);
        p.x = __byte_perm(p.x, a.w, 0x5410 + k) ^ (a.y & q.z | p.y);
        sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        sum += __expf(sum) + rsqrtf(sum);
    }
    sum += called(sum) + called(floats[i]);
    atomicAdd(floats + 1, sum);
    unsigned old = atomicAdd(words + 1, p.x);
    unsigned swapped = atomicCAS(words + 2, old, p.y);
    atomicMax(&shared_words[old & 31], swapped);
    unsigned vote = __ballot_sync(0xffffffffu, sum > 1.0f);
    __syncthreads();
    __threadfence();
    sum += generic(t & 1 ? words + 4 : shared_words + 4);
    float d[8] = {sum, 1, 2, 3, 4, 5, 6, 7};
    unsigned a[2] = {p.x, p.y}, b[2] = {q.x, q.w};
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%0,%1,%2,%3,%4,%5,%6,%7};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]));
#if __CUDA_ARCH__ >= 750
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    unsigned m[4];
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(&shared_quads[t]));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
    d[3] += m[0] + m[1] + m[2] + m[3];
#endif
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(m[0]), "r"(m[1]));
#endif
    quads[i] = shared_quads[(t + p.x) & 31];
    pairs[i] = make_uint2(vote + spilled[p.x & 63], shared_words[t] + spilled[vote & 63]);
    words[i] = shared_bytes[t ^ 5] + __popc(vote) + __dp4a(p.x, p.y, vote);
    halves[i] = static_cast<unsigned short>(old);
    bytes[i] = static_cast<unsigned char>(swapped);
    packed[i] = acc;
    for (int k = 0; k < 8; k++) {
        floats[i * 8 + k] = d[k] * d[7 - k] + 1.0f;
    }
}
