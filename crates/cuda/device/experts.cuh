// What the experts' kernels share: which slots a block of rows holds, and how sums are finished.
//
// A *slot* is one choice of one token: slot = token * top_k + rank. A *row block* is up to 8 ROW_TILES slots of one expert, the
// rows of one weight pass. Two routes name row blocks:
//   grouped: the table that route.cu wrote, slots sorted by expert; blocks past the count on the device have nothing to do;
//   direct (block_count is null): row block b is slot b alone, and its expert stands in the routes.
// A row of a tensor core's product reads no other row, and both routes run the same pieces of k in the same warps and finish in
// the same steps: their results are the same bits.
#pragma once
#include "product.cuh"

typedef Fragment<kExpertWidth> Lanes;
constexpr int kHalves = 32 / kExpertWidth;
// Whether what finishes the sums is loaded before the products, where a row says so: a span of later tensor cores leaves no registers.
#if __CUDA_ARCH__ >= 750
constexpr bool loads_early(bool) { return false; }
#else
constexpr bool loads_early(bool row) { return row; }
#endif
typedef WarpSums<kExpertWidth> Numbers;


constexpr u32 kNoSlot = 0xFFFFFFFFu;

struct RowTable {
  const u32* token_count;   // [1] tokens that exist, or null: all
  const float* routes;      // [tokens, 2 top_k]: ids as bits, then weights
  const u32* block_count;   // [1], or null: direct
  const u32* block_expert;  // [blocks]
  const u32* block_slots;   // [blocks, 8 ROW_TILES], kNoSlot where a block is not full
  u32 tokens, top_k;

  // Whether row block `b` has anything to do.
  __device__ __forceinline__ bool has(u32 b) const {
    if (block_count) return b < __ldg(block_count);
    return b / top_k < (token_count ? min(tokens, __ldg(token_count)) : tokens);
  }
  __device__ __forceinline__ u32 expert(u32 b) const {
    if (block_count) return __ldg(&block_expert[b]);
    return __float_as_uint(__ldg(&routes[(size_t)(b / top_k) * 2 * top_k + b % top_k]));
  }
  // The slot in a row of the block, or kNoSlot.
  template <int ROW_TILES_>
  __device__ __forceinline__ u32 slot(u32 b, int row) const {
    if (block_count) return __ldg(&block_slots[(size_t)b * 8 * ROW_TILES_ + row]);
    return row == 0 ? b : kNoSlot;
  }
};

// The activations that a lane brings for its row of each row tile: rows without a slot bring the first row's, unread by others.
template <int ROW_TILES_>
__device__ __forceinline__ void slot_rows(const __half* (&rows)[ROW_TILES_], const RowTable& table, u32 b, const __half* x, u32 x_stride, u32 slots_a_row, int lane) {
#pragma unroll
  for (int t = 0; t < ROW_TILES_; t++) {
    u32 slot = table.slot<ROW_TILES_>(b, 8 * t + Lanes::token(lane));
    if (slot == kNoSlot) slot = table.slot<ROW_TILES_>(b, 0);
    rows[t] = x + (size_t)(slot / slots_a_row) * x_stride;
  }
}

// The warps that share a k: warp p of them has half p % kHalves of the tile's columns, and every (PARTS / kHalves)th span.
struct Share {
  int half, first, step;
  __device__ __forceinline__ Share(int warp, int parts) : half(warp % kHalves), first(warp / kHalves), step(parts / kHalves) {}
};

// Number e of a row tile's 256: the half of the columns that it belongs to, its column and its token.
__device__ __forceinline__ int half_of_number(int e) { return e / Numbers::kNumbers; }
__device__ __forceinline__ int number_column(int e) { return Numbers::column(e % Numbers::kNumbers, half_of_number(e)); }
__device__ __forceinline__ int number_token(int e) { return Numbers::token(e % Numbers::kNumbers); }

// Puts a warp's sums of one row tile where the others find them: shared // [warps][kNumbers]
__device__ __forceinline__ void share_sums(float* shared, const float (&acc)[Lanes::kAcc]) {
  Numbers::put(shared + (threadIdx.x >> 5) * Numbers::kNumbers, acc, threadIdx.x & 31);
}
// Adds the sums of one number of the PARTS warps from the first on, in the order of the warps.
template <int PARTS_>
__device__ __forceinline__ float add_parts(const float* shared, int first_warp, int number) {
  const float* mine = shared + (first_warp + half_of_number(number)) * Numbers::kNumbers + number % Numbers::kNumbers;
  float sum = 0.0f;
#pragma unroll
  for (int part = 0; part < PARTS_ / kHalves; part++) sum = __fadd_rn(sum, mine[part * kHalves * Numbers::kNumbers]);
  return sum;
}

// What finishes a sum of a column: its factor, and its bias. Loaded before the product where registers are left (EARLY), so that nobody
// waits for it after.
struct Finish {
  float scale, bias;
  bool biased;
  __device__ __forceinline__ void load(const float* column_scale, const float* biases, size_t column) {
    scale = __ldg(&column_scale[column]);
    biased = biases;
    bias = biased ? __ldg(&biases[column]) : 0.0f;
  }
  // Each step rounded, so that no compiler's fusing differs.
  __device__ __forceinline__ float of(float sum) const {
    sum = __fmul_rn(sum, scale);
    return biased ? __fadd_rn(sum, bias) : sum;
  }
};
__device__ __forceinline__ float finish_sum(float sum, const float* column_scale, const float* bias, size_t column) {
  Finish finish;
  finish.load(column_scale, bias, column);
  return finish.of(sum);
}

// How the grouped kernels go from span to span: what Volta's registers leave no room for (product.cuh).
constexpr bool kStep = Lanes::kUnits == 1;

// accumulate's sums in its order, with AHEAD spans' loads in flight: for a few tokens, where a warp has two to four spans, few warps are
// there, and each wait for memory is a good part of the launch. Lanes do not turn, so that all routes give the same bits.
template <typename F, int MT, int AHEAD_, bool STEP>
__device__ __forceinline__ void accumulate_ahead(float (&acc)[MT][Lanes::kAcc], const __half* const (&rows)[MT], int k_end, const u8* tile, const Share& share, int lane) {
  constexpr int kSpan = Lanes::kSpan;
  static_assert(PARTS / kHalves * kSpan % ((F::kStripePieces > 2 ? F::kStripePieces : 2) * kPiece) == 0, "accumulate steps by whole stripes");
  const int spans = (k_end + kSpan - 1) / kSpan, whole = k_end / kSpan;
  int s = share.first;
  if constexpr (AHEAD_ > 1) {
    const __half* x[MT];
#pragma unroll
    for (int t = 0; t < MT; t++) x[t] = rows[t] + s * kSpan + Lanes::k_first(lane);
    for (; s + (AHEAD_ - 1) * share.step < whole; s += AHEAD_ * share.step) {
      Span<F, kExpertWidth, false> ahead[AHEAD_];
#pragma unroll
      for (int a = 0; a < AHEAD_; a++) {
        const int piece = Lanes::piece_of_span(s + a * share.step, lane);
        typename F::At at;
        place<F, kExpertWidth, false>(at, tile, piece, share.half, lane);
        ahead[a].load(at, piece, lane);
      }
#pragma unroll
      for (int a = 0; a < AHEAD_; a++) {
        multiply<F, kExpertWidth, MT, false, false>(acc, ahead[a], x, 0, lane);
#pragma unroll
        for (int t = 0; t < MT; t++) x[t] += share.step * kSpan;
      }
    }
  }
  accumulate<F, kExpertWidth, MT, false, STEP>(acc, rows, k_end, tile, share.half, s, spans, share.step, lane);
}

// What is added to the sum over a token's slots.
struct Combine {
  const float* shared;         // [tokens, shared_stride] the shared expert's output, or null
  const float* shared_weight;  // [tokens], or null: one
  const float* residual;       // [tokens, out_stride], or null; may be `out`
  float* out;                  // [tokens, out_stride]
  u32 shared_stride, out_stride;

  __device__ __forceinline__ float finish(float total, u32 token, u32 column) const {
    if (shared) {
      const float value = shared[(size_t)token * shared_stride + column];
      total = shared_weight ? fmaf(shared_weight[token], value, total) : __fadd_rn(total, value);
    }
    if (residual) total = __fadd_rn(total, residual[(size_t)token * out_stride + column]);
    return total;
  }
};
