// One warp's product: MT tiles of eight tokens with WIDTH columns of a tile, over some of its spans (fragment.cuh).
#pragma once
#include "fragment.cuh"

// Eight consecutive activations, 16-byte aligned.
__device__ __forceinline__ void load_octet(u32 (&x)[4], const __half* p) {
  const uint4 v = __ldg(reinterpret_cast<const uint4*>(p));
  x[0] = v.x; x[1] = v.y; x[2] = v.z; x[3] = v.w;
}

// The same where the row may end inside or before the octet: `left` numbers are left, the rest is zero.
__device__ __forceinline__ void load_octet_tail(u32 (&x)[4], const __half* p, int left) {
  x[0] = x[1] = x[2] = x[3] = 0;
  if (left >= 8) return load_octet(x, p);
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (i < left) x[i >> 1] |= (u32)__half_as_ushort(p[i]) << (16 * (i & 1));
}

// What a lane holds of one span of weights, with the octets of a pair turned where lanes do so (TURN).
template <typename F, int WIDTH, bool TURN>
struct Span {
  typedef Fragment<WIDTH> Lanes;
  typename F::Head head[Lanes::kColumns];
  typename F::Codes codes[Lanes::kColumns][Lanes::kUnits];

  // `at`: where the lane's first column has its first unit of the piece.
  __device__ __forceinline__ void load(const typename F::At& at, int piece, int lane) {
#pragma unroll
    for (int c = 0; c < Lanes::kColumns; c++) {
      head[c] = F::head(at, piece, Lanes::kColumnSlots * c);
#pragma unroll
      for (int u = 0; u < Lanes::kUnits; u++) {
        codes[c][u] = F::codes(at, u, Lanes::kColumnSlots * c);
        if (TURN && Lanes::kTurns) codes[c][u].turn(Lanes::turned(lane));
      }
    }
  }
};

// Where a lane's weights of a span are.
template <typename F, int WIDTH, bool SETTLE>
__device__ __forceinline__ void place(typename F::At& at, const u8* tile, int piece, int half, int lane) {
  F::place(at, tile, piece, Fragment<WIDTH>::unit(lane, 0), Fragment<WIDTH>::slot(lane, 0, half));
  if (SETTLE) at.settle();
}

// acc[t] += x[t] times the span: x[t] points at what the lane brings first (its token's row at the span's first k, plus k_first).
// `left` is how many activations the row has from there on; with TAIL it may be less than what the lane brings. With TURN
// octet o of the span's codes is octet o ^ turned of the lane's.
template <typename F, int WIDTH, int MT, bool TURN, bool TAIL>
__device__ __forceinline__ void multiply(float (&acc)[MT][Fragment<WIDTH>::kAcc], const Span<F, WIDTH, TURN>& span, const __half* const (&x)[MT], int left, int lane) {
  typedef Fragment<WIDTH> Lanes;
#pragma unroll
  for (int u = 0; u < Lanes::kUnits; u++)
#pragma unroll
    for (int first = 0; first < 4; first += Lanes::kOctets) {
      u32 w[Lanes::kOctets][Lanes::kColumns][4];
#pragma unroll
      for (int o = 0; o < Lanes::kOctets; o++)
#pragma unroll
        for (int c = 0; c < Lanes::kColumns; c++) F::expand(w[o][c], span.codes[c][u], span.head[c], Lanes::unit(lane, u), first + o);
#pragma unroll
      for (int t = 0; t < MT; t++) {
        u32 octets[Lanes::kOctets][4];
#pragma unroll
        for (int o = 0; o < Lanes::kOctets; o++) {
          const int at = u * 32 + 8 * ((first + o) ^ (TURN ? Lanes::turned(lane) : 0));
          if (TAIL) load_octet_tail(octets[o], x[t] + at, left - at);
          else load_octet(octets[o], x[t] + at);
        }
#pragma unroll
        for (int o = 0; o < Lanes::kOctets; o++) Lanes::multiply(acc[t], w[o], octets[o]);
      }
    }
}

// acc[t] += the activations of this lane's token of tile t (rows[t]: always a readable row; what it gives for a token that does
// not exist is thrown away later, and no row of the product reads another) times the columns, over the spans first,
// first + step, .. below end, in this order. With STEP the places of the first span move on by `step` spans' bytes, which are whole stripes of
// the format, and pairs of pieces, if there is more than one span: few instructions, and some more registers than finding each span's places anew.
// A span's loads are in flight together; other warps fill the wait (holding two a warp was slower: the registers cost more warps than the
// overlap brought; so was fetching the next one into the second-level cache).
template <typename F, int WIDTH, int MT, bool TURN, bool STEP>
__device__ __forceinline__ void accumulate(float (&acc)[MT][Fragment<WIDTH>::kAcc], const __half* const (&rows)[MT], int k_end, const u8* tile, int half, int first, int end, int step, int lane) {
  typedef Fragment<WIDTH> Lanes;
  constexpr int kSpan = Lanes::kSpan;
  const int whole = min(end, k_end / kSpan);
  const int lane_k = Lanes::k_first(lane);
  const __half* x[MT];
#pragma unroll
  for (int t = 0; t < MT; t++) x[t] = rows[t] + first * kSpan + lane_k;
  const u32 bytes = (u32)(step * (kSpan / kPiece) / F::kStripePieces) * F::kStripeBytes;
  int piece;
  typename F::At at;
  const auto find = [&](int span) {
    piece = Lanes::piece_of_span(span, lane);
    place<F, WIDTH, STEP>(at, tile, piece, half, lane);
  };
  find(first);
  Span<F, WIDTH, TURN> span;
  int s = first;
  for (; s < whole; s += step) {
    if (!STEP) find(s);
    span.load(at, piece, lane);
    multiply<F, WIDTH, MT, TURN, false>(acc, span, x, 0, lane);
    if (STEP) at.base += bytes;
#pragma unroll
    for (int t = 0; t < MT; t++) x[t] += step * kSpan;
  }
  // The span that the row's end cuts is the last one, and one warp's.
  if (s < end && s * kSpan < k_end) {
    if (!STEP) find(s);
    // A piece past the row's end, which the tile need not have: the one before it takes the place, and zeros are what it is multiplied by.
    if (F::kStripePieces == 1 && Lanes::piece_of_span(s, lane) * kPiece >= k_end) at.base -= F::kStripeBytes;
    span.load(at, piece, lane);
    multiply<F, WIDTH, MT, TURN, true>(acc, span, x, k_end - s * kSpan - lane_k, lane);
  }
}
