// How a warp's 32 lanes hold a 32 x 32 unit of weights, and how the tensor cores take it.
//
// A *cell* is eight consecutive k of one column (an output row of the matrix). A *unit* is 32 columns x 32 k: 128 cells, four
// for each lane. Which four depends on the tensor core, and this file is the only one that knows:
//
//   Volta (mma.m8n8k4): a lane owns all four octets of one column. The four quad-pairs of the warp multiply the same eight
//   rows of activations with eight columns each, so a warp-wide product is 8 tokens x 32 columns x 4 k.
//   Turing and later (mma.m16n8k8, m16n8k16): the weights are the left operand (16 columns as its rows), the tokens the
//   right one; four lanes share a column and own one octet each, in four columns. The order of k inside a product is free
//   as long as both operands agree, so an octet feeds the fragment's k slots without any shuffle.
//
// Bytes are stored in Volta's order (slot = Volta's lane), so there one 16-byte load brings a lane's four 4-bit cells; the
// others read the same bytes as four 4-byte loads.
#pragma once
#include "common.cuh"

// The column (0..31) that a slot of the packed layout holds: quad-pair q = (slot >> 2) & 3, row of the quad-pair below it.
__device__ __forceinline__ int column_of_slot(int slot) { return ((slot >> 2) & 3) * 8 + (slot & 3) + ((slot >> 4) << 2); }

#if __CUDA_ARCH__ >= 750

// Slot of the lane's cell i: column 8 i + lane / 4. Everything that depends on the lane is in the first term, so that the
// addresses of the four cells differ by constants.
__device__ __forceinline__ int cell_slot(int lane, int i) { return ((lane >> 2) & 3) + ((lane >> 4) << 4) + 4 * i; }
// Different columns among a lane's cells; the slot of the first (the others follow by kSlotStep); the one that cell i lies in.
constexpr int kLaneColumns = 4;
constexpr int kSlotStep = 4;
__device__ __forceinline__ u32 lane_slot(int lane) { return cell_slot(lane, 0); }
__device__ __forceinline__ constexpr int cell_column(int i) { return i; }
// Octet (0..3) of the lane's cell i.
__device__ __forceinline__ int cell_octet(int lane, int) { return lane & 3; }
// The token (0..7) whose activations the lane brings.
__device__ __forceinline__ int token_of_lane(int lane) { return lane >> 2; }
// Octets of activations a lane brings for a unit: this many, from this one on.
constexpr int kActOctets = 1;
__device__ __forceinline__ u32 act_octet_first(int lane) { return lane & 3; }
// Column (0..31) and token (0..7) of accumulator register i.
__device__ __forceinline__ int acc_column(int lane, int i) { return (i >> 2) * 16 + ((i >> 1) & 1) * 8 + (lane >> 2); }
__device__ __forceinline__ int acc_token(int lane, int i) { return (lane & 3) * 2 + (i & 1); }

__device__ __forceinline__ void mma_16x8(float* d, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b0));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a2), "r"(a3), "r"(b1));
#endif
}

// acc += the unit's weights (w[cell][pair]) times eight tokens (x[octet][pair]).
__device__ __forceinline__ void mma_unit(float (&acc)[8], const unsigned (&w)[4][4], const unsigned (&x)[kActOctets][4]) {
#pragma unroll
  for (int g = 0; g < 2; g++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      mma_16x8(&acc[4 * g], w[2 * g][2 * h], w[2 * g + 1][2 * h], w[2 * g][2 * h + 1], w[2 * g + 1][2 * h + 1], x[0][2 * h], x[0][2 * h + 1]);
}

#else

__device__ __forceinline__ int cell_slot(int lane, int) { return lane; }
constexpr int kLaneColumns = 1;
constexpr int kSlotStep = 0;
__device__ __forceinline__ u32 lane_slot(int lane) { return lane; }
__device__ __forceinline__ constexpr int cell_column(int) { return 0; }
__device__ __forceinline__ int cell_octet(int, int i) { return i; }
__device__ __forceinline__ int token_of_lane(int lane) { return (lane & 3) + ((lane >> 4) << 2); }
constexpr int kActOctets = 4;
__device__ __forceinline__ u32 act_octet_first(int) { return 0; }
__device__ __forceinline__ int acc_column(int lane, int i) { return ((lane >> 2) & 3) * 8 + (i & 4) + (lane & 2) + (i & 1); }
__device__ __forceinline__ int acc_token(int lane, int i) { return (lane & 1) + (i & 2) + ((lane >> 4) << 2); }

__device__ __forceinline__ void mma_8x8x4(float (&d)[8], unsigned a0, unsigned a1, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9},{%10,%11},{%0,%1,%2,%3,%4,%5,%6,%7};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_unit(float (&acc)[8], const unsigned (&w)[4][4], const unsigned (&x)[kActOctets][4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    mma_8x8x4(acc, x[i][0], x[i][1], w[i][0], w[i][1]);
    mma_8x8x4(acc, x[i][2], x[i][3], w[i][2], w[i][3]);
  }
}

#endif

// The bytes of a lane's four cells in one plane of B bits a code, B = 4, 8 or 16: `plane` is the unit's first byte of that plane.
// Planes up to 4 bits: [slot][octet][B bytes]. Wider ones: [16-byte chunk][slot][16 bytes], so that every load of a warp is
// one run of 512 bytes.
template <int B>
struct CellWords {
  static constexpr int kWords = B / 4;  // 32-bit words a cell
  unsigned w[4][kWords];
};

template <int B>
constexpr int plane_unit_bytes() { return 128 * B; }

// Offset of the lane's first cell in a unit's plane, and from each of its cells to the next where they are loaded one by one.
template <int B>
__device__ __forceinline__ u32 cell_offset(int lane) {
  const u32 slot = cell_slot(lane, 0), octet = cell_octet(lane, 0);
  if (B <= 4) return (slot * 4 + octet) * B;
  if (B == 8) return (octet >> 1) * 512 + slot * 16 + (octet & 1) * 8;
  return octet * 512 + slot * 16;
}
template <int B>
constexpr u32 cell_step() { return B <= 4 ? 16 * B : 64; }

template <int B>
__device__ __forceinline__ CellWords<B> load_cells(const unsigned char* plane, int lane) {
  CellWords<B> out;
#if __CUDA_ARCH__ >= 750
  const unsigned char* first = plane + cell_offset<B>(lane);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const unsigned char* p = first + i * cell_step<B>();
    if constexpr (B == 4) out.w[i][0] = load_stream<unsigned>(p);
    if constexpr (B == 8) { const uint2 v = load_stream<uint2>(p); out.w[i][0] = v.x; out.w[i][1] = v.y; }
    if constexpr (B == 16) { const uint4 v = load_stream<uint4>(p); out.w[i][0] = v.x; out.w[i][1] = v.y; out.w[i][2] = v.z; out.w[i][3] = v.w; }
  }
#else
  if constexpr (B == 4) {
    const uint4 v = load_stream<uint4>(plane + lane * 16);
    out.w[0][0] = v.x; out.w[1][0] = v.y; out.w[2][0] = v.z; out.w[3][0] = v.w;
  }
  if constexpr (B == 8) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const uint4 v = load_stream<uint4>(plane + c * 512 + lane * 16);
      out.w[2 * c][0] = v.x; out.w[2 * c][1] = v.y; out.w[2 * c + 1][0] = v.z; out.w[2 * c + 1][1] = v.w;
    }
  }
  if constexpr (B == 16) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const uint4 v = load_stream<uint4>(plane + c * 512 + lane * 16);
      out.w[c][0] = v.x; out.w[c][1] = v.y; out.w[c][2] = v.z; out.w[c][3] = v.w;
    }
  }
#endif
  return out;
}

// The same for planes of one or two bits. On Volta a word has several cells; they are taken apart by `spread`.
template <int B>
struct NarrowCells {
#if __CUDA_ARCH__ >= 750
  unsigned w[4];
#else
  unsigned w[B];
#endif
};

template <int B>
__device__ __forceinline__ NarrowCells<B> load_narrow_cells(const unsigned char* plane, int lane) {
  NarrowCells<B> out;
#if __CUDA_ARCH__ >= 750
  const unsigned char* first = plane + cell_offset<B>(lane);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (B == 1) out.w[i] = load_stream<unsigned char>(first + i * cell_step<B>());
    else out.w[i] = load_stream<unsigned short>(first + i * cell_step<B>());
  }
#else
  if constexpr (B == 1) out.w[0] = load_stream<unsigned>(plane + lane * 4);
  else { const uint2 v = load_stream<uint2>(plane + lane * 8); out.w[0] = v.x; out.w[1] = v.y; }
#endif
  return out;
}

// A cell of two bits a code: its first byte (the lower codes of the pairs) twice in the lower half, its second in the upper one.
__device__ __forceinline__ unsigned spread(const NarrowCells<2>& cells, int i) {
#if __CUDA_ARCH__ >= 750
  return __byte_perm(cells.w[i], 0, 0x1100);
#else
  return __byte_perm(cells.w[i >> 1], 0, i & 1 ? 0x3322 : 0x1100);
#endif
}
// A cell of one bit a code: its byte twice in the lower half (lower codes at even bits), and in the upper half one bit further
// down (upper codes at even bits).
__device__ __forceinline__ unsigned spread(const NarrowCells<1>& cells, int i) {
#if __CUDA_ARCH__ >= 750
  return __byte_perm(cells.w[i], cells.w[i] >> 1, 0x4400);
#else
  return __byte_perm(cells.w[0], cells.w[0] >> 1, 0x4400 + 0x1111 * i);
#endif
}
