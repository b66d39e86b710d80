// Integers of four or eight bits, w = (code - zero) scale, a scale for each 32, 64 or 128 k; also Q8_0 and Q4_0 (32).
//
// A stripe (64 k, or 128 for groups of 128): units of cells, [slot][groups] half scales, then, where zero points are stored,
// [slot][groups] bytes. A code masked out of the low bits of a half is the half code * 2^-24 (below the normal numbers), four bits
// further up code * 2^-20: with scales near 2^15 one fused operation makes the weight, with one rounding. Where the zero point is
// the middle (8, 128), its product with the scale is exact; others are taken off first, exactly.
// Four bits: pair j at bits 4 j of each half. Eight bits: a pair in the low bytes of a word's halves, the next in the high ones.
#pragma once
#include "integer.cuh"

template <int BITS, int GROUP, bool ZERO>
struct GroupInt {
  static constexpr int kStripePieces = GROUP == 128 ? 2 : 1;
  static constexpr int kGroups = kStripePieces * kPiece / GROUP;
  static constexpr int kPlaneBytes = 4 * BITS * kStripePieces * kPiece;
  static constexpr int kStripeBytes = kPlaneBytes + 64 * kGroups + (ZERO ? 32 * kGroups : 0);
  struct Head {
    u32 scales;  // one half, or two
    u32 zeros;   // one byte, or two
  };
  typedef CellWords<BITS> Codes;

  typedef Places<1, ZERO ? 2 : 1> At;

  __device__ static __forceinline__ void place(At& at, const u8* tile, int piece, int unit, int slot) {
    at.base = tile;
    const u8* stripe = tile + (size_t)(piece / kStripePieces) * kStripeBytes;
    at.template set_codes<16>(0, stripe + 256 * BITS * (piece % kStripePieces), 128 * BITS, unit, slot, bank_group<GroupInt>(piece));
    at.set_side(0, stripe + kPlaneBytes + 2 * kGroups * slot);
    if constexpr (ZERO) at.set_side(1, stripe + kPlaneBytes + 64 * kGroups + kGroups * slot);
  }
  __device__ static __forceinline__ Head head(const At& at, int, int slots) {
    Head h = {};
    if (kGroups == 2) h.scales = load_stream<u32>(at.side(0) + 4 * slots);
    else h.scales = load_stream<u16>(at.side(0) + 2 * slots);
    if constexpr (ZERO && kGroups == 2) h.zeros = load_stream<u16>(at.side(1) + 2 * slots);
    if constexpr (ZERO && kGroups == 1) h.zeros = load_stream<u8>(at.side(1) + slots);
    return h;
  }
  __device__ static __forceinline__ Codes codes(const At& at, int units, int slots) {
    return load_cells<BITS>(at.codes(0, units) + 16 * slots);
  }
  __device__ static __forceinline__ void expand(u32 (&pairs)[4], const Codes& codes, const Head& head, int unit, int octet) {
    const int group = kGroups == 2 ? unit : 0;
    const u32 (&words)[BITS / 4] = codes.w[octet];
    const u32 scale = half_twice(head.scales, group);
    const u32 zero = ZERO ? byte_twice(head.zeros, group) : 0;
    if constexpr (BITS == 4 && ZERO) expand_nibbles_less(pairs, words[0], scale, zero);
    else if constexpr (BITS == 4) expand_nibbles(pairs, words[0], scale, mul2(scale, kMinus2Pow21));
    else if constexpr (ZERO) {
      expand_bytes(pairs, words[0], words[1], 0x3C003C00u, zero | kSigns);
#pragma unroll
      for (int j = 0; j < 4; j++) pairs[j] = mul2(pairs[j], scale);
    } else expand_bytes(pairs, words[0], words[1], scale, mul2(scale, kMinus2Pow17));
  }
};

typedef GroupInt<4, 32, false> Int4G32;
typedef GroupInt<4, 64, false> Int4G64;
typedef GroupInt<4, 128, false> Int4G128;
typedef GroupInt<4, 32, true> Int4G32Zero;
typedef GroupInt<4, 64, true> Int4G64Zero;
typedef GroupInt<4, 128, true> Int4G128Zero;
typedef GroupInt<8, 32, false> Int8G32;
typedef GroupInt<8, 64, false> Int8G64;
typedef GroupInt<8, 128, false> Int8G128;
typedef GroupInt<8, 32, true> Int8G32Zero;
typedef GroupInt<8, 64, true> Int8G64Zero;
typedef GroupInt<8, 128, true> Int8G128Zero;
