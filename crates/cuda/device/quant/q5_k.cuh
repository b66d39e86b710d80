// Q5_K: as Q4_K, with a fifth bit a code.
//
// A stripe, 256 k: eight units of 4-bit cells (512 bytes each), eight of 1-bit cells (128 bytes each), then Q4_K's 16 bytes a slot.
// The fifth bits of pairs 1, 3, 0, 2 lie at bits 0, 2, 4, 6 of a cell's byte (the upper codes' one further up), so that, the byte
// taken twice, each pair's is where its four bits need it, as it is or two bits further down.
#pragma once
#include "q4_k.cuh"

struct Q5K {
  static constexpr int kStripeBytes = 5632, kStripePieces = 4;
  typedef ScalesMinima Head;
  struct Codes {
    CellWords<4> low;
    NarrowCells<1> high;
    __device__ __forceinline__ void turn(int turned) {
      low.turn(turned);
      high.turn(turned);
    }
  };

  typedef Places<2, 1> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = stripe_of(tile, piece, kStripeBytes);
    at.set_codes<16>(0, quarter_plane(stripe, piece, 512), 512, unit, slot, bank_group<Q5K>(piece));
    at.set_codes<4>(1, quarter_plane(stripe, piece, 128) + 4096, 128, unit, slot, bank_group<Q5K>(piece));
    at.set_side(0, stripe + 5120 + 16 * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int piece, int slots) {
    Head h;
    h.load(at.side(0) + 16 * slots, piece);
    return h;
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return {load_cells<4>(at.codes(0, units) + 16 * slots), load_narrow_cells<1>(at.codes(1, units) + 4 * slots)};
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    expand_nibbles_high<0x00100010u>(pairs, codes.low.w[octet][0], spread(codes.high, octet), head.scale(unit), head.offset(unit));
  }
};
