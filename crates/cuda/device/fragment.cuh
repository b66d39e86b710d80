// How a warp's 32 lanes hold weights, and how the tensor cores take them.
//
// A *cell* is eight consecutive k of one column (an output row of the matrix). A *unit* is 32 columns x 32 k, a *piece* two units one
// after the other in k. A lane always holds whole rows of units: four cells of one column, which share what scales them and lie
// side by side in memory (formats give them by slot, piece and unit: see quant/). What a warp takes at one time, a *span*, is WIDTH
// columns x kSpan k. Which slots, pieces and units of it are a lane's depends on the tensor core, and this file is the only one that knows:
//
//   Volta (mma.m8n8k4): the four quad-pairs of the warp multiply the same eight rows of activations with eight columns each. A wide
//   span (32 columns) is one piece, each lane has both units of one column. Of a narrow one (16), quad-pairs 2 and 3 have the columns of
//   0 and 1 again, in the next piece.
//   Turing and later (mma.m16n8k8, m16n8k16): the weights are the left operand (16 columns as its rows), the tokens the right one;
//   four lanes share a column. The order of k inside a product is free as long as both operands agree, so the four lanes have one
//   unit each of two pieces, in four columns (wide) or two (narrow), and an octet of activations feeds the fragment's k slots without
//   any shuffle.
#pragma once
#include "common.cuh"

constexpr int kPiece = 64;  // k
constexpr int kPieceUnits = 2;

// The column (0..31) that a slot of the packed layout holds: quad-pair q = (slot >> 2) & 3, row of the quad-pair below it.
__device__ __forceinline__ int column_of_slot(int slot) { return ((slot >> 2) & 3) * 8 + (slot & 3) + ((slot >> 4) << 2); }

#if __CUDA_ARCH__ >= 750

template <int WIDTH>
struct Fragment {
  static constexpr int kSpan = 128;           // k
  static constexpr int kColumns = WIDTH / 8;  // of a lane
  static constexpr int kColumnSlots = 256 / WIDTH;  // from one of them to the next
  static constexpr int kUnits = 1;            // of a lane in a column
  static constexpr int kAcc = WIDTH / 4;      // sums of a lane for eight tokens
  static constexpr int kTerms = 1;            // lanes that hold sums of one number
  static constexpr int kOctets = 1;           // expanded at one time: what registers hold
  static constexpr bool kTurns = true;        // whether lanes may begin with different octets

  // Four lanes read the activations of one token 64 bytes apart: half of them in the same banks. With several tiles of tokens, where that
  // binds, the upper two lanes take the octets of a pair the other way round.
  __device__ static __forceinline__ int turned(int lane) { return (lane >> 1) & 1; }

  // Slot of the lane's column c (of the tile's half `half`, if narrow).
  __device__ static __forceinline__ int slot(int lane, int c, int half) { return (lane >> 2) + kColumnSlots * c + (WIDTH == 32 ? 0 : 8 * half); }
  // The lane's piece of the span, its unit there, and where these begin in the span. A row may end inside a span: of pieces past the
  // row's k, which a tile need not have, the last one takes the place, and zeros are what it is multiplied by.
  __device__ static __forceinline__ int piece(int lane) { return (lane >> 1) & 1; }
  __device__ static __forceinline__ int piece_of_span(int span, int lane) { return 2 * span + piece(lane); }
  __device__ static __forceinline__ int piece_of_span(int span, int k, int lane) { return min(piece_of_span(span, lane), (k - 1) / kPiece); }
  __device__ static __forceinline__ int unit(int lane, int) { return lane & 1; }
  __device__ static __forceinline__ int k_first(int lane) { return 32 * (lane & 3); }
  // The token (0..7) whose activations the lane brings.
  __device__ static __forceinline__ int token(int lane) { return lane >> 2; }

  // Column (0..31 of the tile) and token (0..7) of sum i.
  __device__ static __forceinline__ int sum_column(int lane, int i, int half) { return column_of_slot(slot(lane, (i >> 2) * 2 + ((i >> 1) & 1), half)); }
  __device__ static __forceinline__ int sum_token(int lane, int i) { return (lane & 3) * 2 + (i & 1); }

  __device__ static __forceinline__ void mma_16x8(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
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
  // acc += one cell of each of the lane's columns (w[column][pair]) times the same octet of eight tokens (x[pair]).
  __device__ static __forceinline__ void multiply(float (&acc)[kAcc], const u32 (&w)[kColumns][4], const u32 (&x)[4]) {
#pragma unroll
    for (int g = 0; g < kColumns / 2; g++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        mma_16x8(&acc[4 * g], w[2 * g][2 * h], w[2 * g + 1][2 * h], w[2 * g][2 * h + 1], w[2 * g + 1][2 * h + 1], x[2 * h], x[2 * h + 1]);
  }
};

#else

template <int WIDTH>
struct Fragment {
  static constexpr bool kNarrow = WIDTH == 16;
  static constexpr int kSpan = kNarrow ? 128 : 64;
  static constexpr int kColumns = 1;
  static constexpr int kColumnSlots = 0;
  static constexpr int kUnits = 2;
  static constexpr int kAcc = 8;
  static constexpr int kTerms = kNarrow ? 2 : 1;
  static constexpr int kOctets = 2;
  static constexpr bool kTurns = false;
  __device__ static __forceinline__ int turned(int) { return 0; }

  __device__ static __forceinline__ int slot(int lane, int, int half) { return kNarrow ? (lane & 0x17) | half << 3 : lane; }
  __device__ static __forceinline__ int piece(int lane) { return kNarrow ? (lane >> 3) & 1 : 0; }
  __device__ static __forceinline__ int piece_of_span(int span, int lane) { return kNarrow ? 2 * span + piece(lane) : span; }
  __device__ static __forceinline__ int piece_of_span(int span, int k, int lane) { return kNarrow ? min(piece_of_span(span, lane), (k - 1) / kPiece) : span; }
  __device__ static __forceinline__ int unit(int, int u) { return u; }
  __device__ static __forceinline__ int k_first(int lane) { return kPiece * piece(lane); }
  __device__ static __forceinline__ int token(int lane) { return (lane & 3) + ((lane >> 4) << 2); }

  __device__ static __forceinline__ int sum_column(int lane, int i, int half) { return (slot(lane, 0, half) >> 2 & 3) * 8 + (i & 4) + (lane & 2) + (i & 1); }
  __device__ static __forceinline__ int sum_token(int lane, int i) { return (lane & 1) + (i & 2) + ((lane >> 4) << 2); }

  __device__ static __forceinline__ void mma_8x8x4(float (&d)[8], u32 a0, u32 a1, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9},{%10,%11},{%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
  }
  __device__ static __forceinline__ void multiply(float (&acc)[8], const u32 (&w)[1][4], const u32 (&x)[4]) {
    mma_8x8x4(acc, x[0], x[1], w[0][0], w[0][1]);
    mma_8x8x4(acc, x[2], x[3], w[0][2], w[0][3]);
  }
};

#endif

typedef Fragment<32> Wide;

// A warp's sums of eight tokens, put where others find them: `place` is [kTerms][8 WIDTH], to be added over the first. Number e
// is of column column(e) and token token(e).
template <int WIDTH>
struct WarpSums {
  typedef Fragment<WIDTH> Lanes;
  static constexpr int kNumbers = 8 * WIDTH;
  // On Volta, lanes l and l ^ 8 hold the same eight numbers of a narrow span: four of them are counted as one lane's, four as the other's.
  static constexpr bool kTwins = Lanes::kTerms == 2;
  static constexpr int kEach = kNumbers / 32;

  __device__ static __forceinline__ void put(float* place, const float (&acc)[Lanes::kAcc], int lane) {
#pragma unroll
    for (int i = 0; i < Lanes::kAcc; i++) {
      if (kTwins) place[Lanes::piece(lane) * kNumbers + (i & 3) * 32 + ((lane & 0x17) | (i & 4) << 1)] = acc[i];
      else place[i * 32 + lane] = acc[i];
    }
  }
  __device__ static __forceinline__ int sum(int e) { return (e >> 5) % kEach + (kTwins ? (e & 8) >> 1 : 0); }
  __device__ static __forceinline__ int column(int e, int half) { return Lanes::sum_column(e & 31, sum(e), half); }
  __device__ static __forceinline__ int token(int e) { return Lanes::sum_token(e & 31, sum(e)); }
};

// A slot's place in a plane of a unit, BYTES a slot. The four units of 128 k, which later tensor cores load together, lie at the same places of
// the memory's banks: so the groups of 32 bytes of each 128 change places, by xor with 0 to 3. Both units of even pieces have 0 and 1, of odd
// ones 2 and 3, unless pieces are a stripe each whose size moves odd ones by half of the banks anyway.
// Only what eight slots do not reach may change, as a lane's columns lie so far apart: of eight bytes a slot one bit, of four none.
template <int BYTES> __device__ __forceinline__ int staggered(int slot, int group) { return (BYTES * slot) ^ (32 * (group & (BYTES / 4 - 1))); }
// The group of a piece's first unit, of stripes of so many pieces and bytes.
__device__ __forceinline__ int bank_group(int stripe_pieces, int stripe_bytes, int piece) { return stripe_pieces == 1 && stripe_bytes % 128 == 64 ? 0 : 2 * (piece & 1); }
template <typename F> __device__ __forceinline__ int bank_group(int piece) { return bank_group(F::kStripePieces, F::kStripeBytes, piece); }

// What a warp of the experts' kernels takes: two narrow spans where a wide one would fill too many registers.
#if __CUDA_ARCH__ >= 750
constexpr int kExpertWidth = 16;
#else
constexpr int kExpertWidth = 32;
#endif

// Where a lane's codes and sides of a span are: from `base` on, a number of bytes for each plane of codes (and unit of the lane's) and each side.
// The next span's are as many bytes further on, all of them.
template <int CODES, int SIDES>
struct Places {
  static constexpr int kUnits = Wide::kUnits;
  const u8* base;
  u32 code_at[CODES][kUnits], side_at[SIDES ? SIDES : 1];

  // Plane p, BYTES a slot, whose bytes for the piece begin at `first`: `unit` and, if the lane has two, the next one.
  template <int BYTES>
  __device__ __forceinline__ void set_codes(int p, const u8* first, int unit_bytes, int unit, int slot, int group) {
#pragma unroll
    for (int u = 0; u < kUnits; u++) code_at[p][u] = (u32)(first - base) + unit_bytes * (unit + u) + staggered<BYTES>(slot, group + unit + u);
  }
  __device__ __forceinline__ void set_side(int i, const u8* first) { side_at[i] = (u32)(first - base); }
  __device__ __forceinline__ const u8* codes(int p, int unit) const { return base + code_at[p][unit]; }
  __device__ __forceinline__ const u8* side(int i) const { return base + side_at[i]; }
  // The compiler must see one number a plane: what it knows to be a sum it would add up again for every load.
  __device__ __forceinline__ void settle() {
#pragma unroll
    for (int p = 0; p < CODES; p++)
#pragma unroll
      for (int u = 0; u < kUnits; u++) asm("" : "+r"(code_at[p][u]));
#pragma unroll
    for (int i = 0; i < SIDES; i++) asm("" : "+r"(side_at[i]));
  }
};

// The four cells of one column of a unit, in one plane of B bits a code, B = 4, 8 or 16: `first` is where the column's begin.
// Planes up to 4 bits: [slot][octet][B bytes]. Wider ones: [16-byte chunk][slot][16 bytes]. Loads of a warp are in runs of
// 128 bytes at least.
template <int B>
struct CellWords {
  u32 w[4][B / 4];  // [octet][32-bit words of a cell]
  // Octets 1, 0, 3, 2 if `turned`.
  __device__ __forceinline__ void turn(int turned) {
#pragma unroll
    for (int o = 0; o < 4; o += 2)
#pragma unroll
      for (int i = 0; i < B / 4; i++) {
        const u32 first = w[o][i], second = w[o + 1][i];
        w[o][i] = turned ? second : first;
        w[o + 1][i] = turned ? first : second;
      }
  }
};

template <int B>
__device__ __forceinline__ CellWords<B> load_cells(const u8* first) {
  CellWords<B> out;
  if constexpr (B == 4) {
    const uint4 v = load_stream<uint4>(first);
    out.w[0][0] = v.x; out.w[1][0] = v.y; out.w[2][0] = v.z; out.w[3][0] = v.w;
  }
  if constexpr (B == 8) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const uint4 v = load_stream<uint4>(first + c * 512);
      out.w[2 * c][0] = v.x; out.w[2 * c][1] = v.y; out.w[2 * c + 1][0] = v.z; out.w[2 * c + 1][1] = v.w;
    }
  }
  if constexpr (B == 16) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const uint4 v = load_stream<uint4>(first + c * 512);
      out.w[c][0] = v.x; out.w[c][1] = v.y; out.w[c][2] = v.z; out.w[c][3] = v.w;
    }
  }
  return out;
}

// The same for planes of one or two bits: a word has several cells, which `spread` takes apart.
template <int B>
struct NarrowCells {
  u32 w[B];
  __device__ __forceinline__ void turn(int turned) {
#pragma unroll
    for (int i = 0; i < B; i++) w[i] = __byte_perm(w[i], 0, !turned ? 0x3210 : B == 1 ? 0x2301 : 0x1032);
  }
};

template <int B>
__device__ __forceinline__ NarrowCells<B> load_narrow_cells(const u8* first) {
  NarrowCells<B> out;
  if constexpr (B == 1) out.w[0] = load_stream<u32>(first);
  else { const uint2 v = load_stream<uint2>(first); out.w[0] = v.x; out.w[1] = v.y; }
  return out;
}

// A cell of two bits a code: its first byte (the lower codes of the pairs) twice in the lower half, its second in the upper one.
__device__ __forceinline__ u32 spread(const NarrowCells<2>& cells, int octet) { return __byte_perm(cells.w[octet >> 1], 0, octet & 1 ? 0x3322 : 0x1100); }
// A cell of one bit a code: its byte twice in the lower half (lower codes at even bits), and in the upper half one bit further
// down (upper codes at even bits).
__device__ __forceinline__ u32 spread(const NarrowCells<1>& cells, int octet) { return __byte_perm(cells.w[0], cells.w[0] >> 1, 0x4400 + 0x1111 * octet); }

// Byte b of a word in the low byte of both halves, with zero, or `high`, above it; half h of a word twice.
__device__ __forceinline__ u32 byte_twice(u32 word, int b) { return __byte_perm(word, 0, 0x4040 + 0x0101 * b); }
__device__ __forceinline__ u32 byte_twice_below(u32 word, int b, u32 high) { return __byte_perm(word, high, 0x4040 + 0x0101 * b); }
__device__ __forceinline__ u32 half_twice(u32 word, int h) { return __byte_perm(word, 0, h ? 0x3232 : 0x1010); }
