// One warp's product: MT tiles of eight tokens with one tile of 32 columns, over some of its pieces.
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

// What a warp holds of one piece of weights.
template <typename F>
struct Piece {
  typename F::Head head;
  typename F::Codes codes[F::kUnits];
  __device__ __forceinline__ void load(const u8* tile, int piece, int lane) {
    head = F::head(tile, piece, lane);
#pragma unroll
    for (int u = 0; u < F::kUnits; u++) codes[u] = F::codes(tile, piece, u, lane);
  }
};

// acc[t] += x[t] times the piece: x[t] points at what the lane brings first (its token's row at the piece's first k, plus its
// octet). `left` is how many activations the row has from there on; with TAIL it may be less than the piece.
template <typename F, int MT, bool TAIL>
__device__ __forceinline__ void multiply(float (&acc)[MT][8], const Piece<F>& piece, const __half* const (&x)[MT], int left, int lane) {
#pragma unroll
  for (int u = 0; u < F::kUnits; u++) {
    u32 w[4][4];
    F::expand(w, piece.codes[u], piece.head, u, lane);
#pragma unroll
    for (int t = 0; t < MT; t++) {
      u32 octets[kActOctets][4];
#pragma unroll
      for (int o = 0; o < kActOctets; o++) {
        const int at = u * 32 + 8 * o;
        if (TAIL) load_octet_tail(octets[o], x[t] + at, left - at);
        else load_octet(octets[o], x[t] + at);
      }
      mma_unit(acc[t], w, octets);
    }
  }
}

// acc[t] += the activations of this lane's token of tile t (rows[t]: always a readable row; what it gives for a token that does
// not exist is thrown away later, and no row of the product reads another) times the tile's columns, over the pieces first,
// first + step, .. below end, in this order. A piece's loads are in flight together; other warps fill the wait (holding two
// pieces a warp was slower: the registers cost more warps than the overlap brought).
template <typename F, int MT>
__device__ __forceinline__ void accumulate(float (&acc)[MT][8], const __half* const (&rows)[MT], int k_end, const u8* tile, int first, int end, int step, int lane) {
  const int whole = min(end, k_end / F::kPiece);
  const int lane_k = 8 * act_octet_first(lane);
  const __half* x[MT];
#pragma unroll
  for (int t = 0; t < MT; t++) x[t] = rows[t] + first * F::kPiece + lane_k;
  Piece<F> piece;
  int p = first;
  for (; p < whole; p += step) {
    piece.load(tile, p, lane);
    multiply<F, MT, false>(acc, piece, x, 0, lane);
#pragma unroll
    for (int t = 0; t < MT; t++) x[t] += step * F::kPiece;
  }
  // The piece that the row's end cuts is the last one, and one warp's.
  if (p < end && p * F::kPiece < k_end) {
    piece.load(tile, p, lane);
    multiply<F, MT, true>(acc, piece, x, k_end - p * F::kPiece - lane_k, lane);
  }
}
