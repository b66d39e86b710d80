// GGUF's blocks of 256 to packed tiles. Members as in plain.cuh; where the block has what is in `weights::quant`, and what the
// packed sides look like in quant/.
#pragma once
#include "repack/cells.cuh"

enum KQuantKind { kQ2K, kQ3K, kQ4K, kQ5K, kQ6K, kIq4Xs };

// Bytes of a block; where its halves d and dmin are (no dmin: -1); the top that d goes below; bytes of a stripe and of its planes.
struct KQuantRow { u32 block, d; int dmin, top; u32 stripe, planes; };

template <int KIND>
constexpr KQuantRow k_quant_row() {
  return KIND == kQ2K ? KQuantRow{84, 80, 82, 10, 2688, 2048}
       : KIND == kQ3K ? KQuantRow{110, 108, -1, 10, 3520, 3072}
       : KIND == kQ4K ? KQuantRow{144, 0, 2, 8, 4608, 4096}
       : KIND == kQ5K ? KQuantRow{176, 0, 2, 8, 5632, 5120}
       : KIND == kQ6K ? KQuantRow{210, 208, -1, 8, 6720, 6144}
                      : KQuantRow{136, 0, -1, 10, 4352, 4096};
}

template <int KIND>
struct KQuants {
  static constexpr KQuantRow kRow = k_quant_row<KIND>();
  __device__ static u32 stripe(const Input&) { return 256; }
  __device__ static u32 stripe_bytes(const Input&) { return kRow.stripe; }
  __device__ static u32 groups(const Input& in) { return in.k / 256; }
  __device__ static const u8* block(const Input& in, u32 row, u32 index) { return in.codes + ((size_t)row * groups(in) + index) * kRow.block; }

  __device__ static void scan(const Input& in, u32 row, u32 group, Largest& largest, Report* report) {
    const u8* bytes = block(in, row, group);
    const float d = half_at(bytes + kRow.d), dmin = kRow.dmin >= 0 ? half_at(bytes + kRow.dmin) : 0.0f;
    if (!finite(d) || !finite(dmin)) fault(report, place(in, row, 256 * group));
    largest.scale = max(largest.scale, magnitude(d));
    largest.min = max(largest.min, magnitude(dmin));
  }
  __device__ static Column column(const Input&, u32, const Largest& largest) {
    const int d = room(largest.scale, kRow.top), dmin = room(largest.min, 15);
    return column_of(!largest.min ? d : !largest.scale ? dmin : min(d, dmin), 24);
  }

  // Code e of a block.
  __device__ static u32 code(const u8* bytes, u32 e) {
    const u32 s = e / 32, l = e % 32, h = e / 128;
    if (KIND == kQ2K) return two_bits(bytes + 16, e);
    if (KIND == kQ3K) return two_bits(bytes + 32, e) | (bytes[l] >> s & 1) << 2;
    if (KIND == kQ4K) return nibble(bytes + 16, s, l);
    if (KIND == kQ5K) return nibble(bytes + 48, s, l) | (bytes[16 + l] >> s & 1) << 4;
    if (KIND == kQ6K) return (bytes[64 * h + s % 2 * 32 + l] >> (s % 4 / 2 * 4) & 15) | two_bits(bytes + 128, e) << 4;
    return bytes[8 + 16 * s + l % 16] >> (l / 16 * 4) & 15;
  }
  __device__ static u32 two_bits(const u8* plane, u32 e) { return plane[e / 128 * 32 + e % 32] >> (e / 32 % 4 * 2) & 3; }
  __device__ static u32 nibble(const u8* qs, u32 s, u32 l) { return qs[s / 2 * 32 + l] >> (s % 2 * 4) & 15; }

  __device__ static void cell(const Input& in, u32 row, u32 first, u32 at, const Column&, const Slot& out, Report*) {
    const u8* bytes = block(in, row, first / 256);
    Octet codes, high;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      codes[i] = code(bytes, first % 256 + i);
      high[i] = codes[i] >> (KIND == kQ3K ? 2 : 4);
    }
    if (KIND == kQ2K || KIND == kQ3K) put_half(out.cell<2>(0, at), pack_two_bits<0, 1, 2, 3>(codes));
    if (KIND == kQ3K) *out.cell<1>(2048, at) = (u8)pack_one_bit<3, 0, 1, 2>(high);
    if (KIND == kQ4K || KIND == kQ5K || KIND == kQ6K) put_word(out.cell<4>(0, at), pack_nibbles(codes));
    if (KIND == kQ5K) *out.cell<1>(4096, at) = (u8)pack_one_bit<1, 3, 0, 2>(high);
    if (KIND == kQ6K) put_half(out.cell<2>(4096, at), pack_two_bits<1, 3, 0, 2>(high));
    if (KIND == kIq4Xs) put_word(out.cell<4>(0, at), pack_selectors(codes));
  }

  __device__ static void side(const Input& in, u32 row, u32 stripe, const Column& column, const Slot& out, Report* report) {
    const u8* bytes = block(in, row, stripe);
    const u64 at = place(in, row, 256 * stripe);
    const u32 d = scaled_half(half_at(bytes + kRow.d), column.exponent, report, at);
    const u32 dmin = kRow.dmin >= 0 ? scaled_half(-half_at(bytes + kRow.dmin), column.exponent, report, at) : 0;
    if (KIND == kQ4K || KIND == kQ5K) {
      u8* side = out.side(kRow.planes, 16);
      put_word(side, d | dmin << 16);
      scales_minima(bytes + 4, side + 4);
    }
    if (KIND == kQ6K) {
      for (int i = 0; i < 16; i++) out.side(kRow.planes, 16)[i] = bytes[192 + i] ^ 0x80;
      put_half(out.side(kRow.planes + 512, 2), d);
    }
    if (KIND == kQ3K) {
      q3_scales(bytes + 96, out);
      put_half(out.side(kRow.planes + 384, 2), d);
    }
    if (KIND == kQ2K) {
      for (int i = 0; i < 16; i++) out.side(kRow.planes, 16)[i] = (u8)(bytes[i] << 4 | bytes[i] >> 4);
      put_word(out.side(kRow.planes + 512, 4), d | dmin << 16);
    }
    if (KIND == kIq4Xs) {
      u8* side = out.side(kRow.planes, 8);
      put_half(side, d);
      iq4_scales(bytes + 2, side + 2);
    }
  }

  __device__ static void scales_minima(const u8* packed, u8* out) {
    u32 upper[4] = {0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < 8; s++) {
      u32 scale, min;
      if (s < 4) {
        scale = packed[s] & 63;
        min = packed[s + 4] & 63;
      } else {
        scale = (packed[s + 4] & 15) | packed[s - 4] >> 6 << 4;
        min = packed[s + 4] >> 4 | packed[s] >> 6 << 4;
      }
      out[s] = (u8)(scale << 2 | (min & 3));
      upper[s % 4] |= min >> 2 << (s / 4 * 4);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) out[8 + j] = (u8)upper[j];
  }
  __device__ static u32 q3_scale(const u8* packed, int i) { return (packed[i % 8] >> (i / 8 * 4) & 15) | (packed[8 + i % 4] >> (i / 4 * 2) & 3) << 4; }
  __device__ static void q3_scales(const u8* packed, const Slot& out) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u32 upper = 0;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 first = q3_scale(packed, 8 * half + j), last = q3_scale(packed, 8 * half + 4 + j);
        out.side(kRow.planes + 128 * half, 4)[j] = (u8)(first << 2 | (last & 3));
        upper |= last >> 2 << (4 * half);
      }
      out.side(kRow.planes + 256, 4)[j] = (u8)upper;
    }
  }
  __device__ static void iq4_scales(const u8* packed, u8* out) {
    u32 high[2] = {0, 0}, low[4] = {0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < 8; s++) {
      high[s / 4] |= (u16_at(packed) >> (2 * s) & 3) << (s % 4 * 2);
      low[s % 4] |= (packed[2 + s / 2] >> (s % 2 * 4) & 15u) << (s / 4 * 4);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) out[i] = (u8)high[i];
#pragma unroll
    for (int i = 0; i < 4; i++) out[2 + i] = (u8)low[i];
  }
};

typedef KQuants<kQ2K> FromQ2K;
typedef KQuants<kQ3K> FromQ3K;
typedef KQuants<kQ4K> FromQ4K;
typedef KQuants<kQ5K> FromQ5K;
typedef KQuants<kQ6K> FromQ6K;
typedef KQuants<kIq4Xs> FromIq4Xs;
