// NVFP4 and MXFP4, as the hub's containers and as GGUF's blocks have them, to packed tiles. Members as in plain.cuh.
#pragma once
#include "repack/cells.cuh"

// The half e4m3 * 2^7 without its low seven bits, which are zero.
__device__ __forceinline__ u32 e5m3(u32 e4m3) {
  if (e4m3 >= 8) return e4m3 + 120;
  if (e4m3 == 0) return 0;
  const int top = 31 - __clz(e4m3);
  return (top + 13) << 3 | (e4m3 << (3 - top) & 7);
}

// Eight codes of a row; in GGUF's blocks of LEN numbers after HEAD bytes, byte j of a run of RUN has number j low, j + RUN / 2 high.
template <bool GGUF, int LEN, int HEAD, int RUN>
__device__ __forceinline__ void e2m1_octet(Octet& codes, const Input& in, u32 row, u32 first) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const u32 position = first + i;
    if (!GGUF) codes[i] = nibble_at(in.codes, (size_t)row * in.k + position);
    else {
      const u8* block = in.codes + ((size_t)row * (in.k / LEN) + position / LEN) * (HEAD + LEN / 2) + HEAD;
      const u32 within = position % LEN, j = within % RUN;
      codes[i] = block[within / RUN * (RUN / 2) + j % (RUN / 2)] >> (j / (RUN / 2) * 4) & 15;
    }
  }
}

// scales: e4m3 [rows, k / 16]; extra: a float a row.
template <bool GGUF>
struct Nvfp4Codes {
  __device__ static u32 stripe(const Input&) { return 64; }
  __device__ static u32 stripe_bytes(const Input&) { return 1152; }
  __device__ static u32 groups(const Input& in) { return in.k / 16; }
  // Without sign.
  __device__ static u32 scale(const Input& in, u32 row, u32 group) {
    if (!GGUF) return in.scales[(size_t)row * groups(in) + group];
    const u32 byte = in.codes[((size_t)row * (in.k / 64) + group / 4) * 36 + group % 4];
    return byte == 0x7F ? 0 : byte & 0x7F;
  }
  __device__ static void scan(const Input& in, u32 row, u32 group, Largest&, Report* report) {
    const u32 byte = scale(in, row, group);
    if (!GGUF && (byte == 0x7F || byte > 0x80)) fault(report, place(in, row, 16 * group));
  }
  __device__ static Column column(const Input& in, u32 row, const Largest&) {
    return {0, GGUF ? 128.0f : reinterpret_cast<const float*>(in.extra)[row] * 128.0f};
  }
  __device__ static void cell(const Input& in, u32 row, u32 first, u32 at, const Column&, const Slot& out, Report*) {
    Octet codes = {0, 0, 0, 0, 0, 0, 0, 0};
    if (first < in.k) e2m1_octet<GGUF, 64, 4, 16>(codes, in, row, first);
    put_word(out.cell<4>(0, at), pack_e2m1(codes));
  }
  __device__ static void side(const Input& in, u32 row, u32 stripe, const Column&, const Slot& out, Report*) {
    for (u32 i = 0; i < 4; i++) {
      const u32 group = 4 * stripe + i;
      out.side(1024, 4)[i] = group < groups(in) ? (u8)e5m3(scale(in, row, group) & 0x7F) : 0;
    }
  }
};

// scales: e8m0 [rows, k / 32].
template <bool GGUF>
struct Mxfp4Codes {
  __device__ static u32 stripe(const Input&) { return 64; }
  __device__ static u32 stripe_bytes(const Input&) { return 1088; }
  __device__ static u32 groups(const Input& in) { return in.k / 32; }
  __device__ static u32 scale(const Input& in, u32 row, u32 group) {
    return GGUF ? in.codes[((size_t)row * groups(in) + group) * 17] : in.scales[(size_t)row * groups(in) + group];
  }
  __device__ static void scan(const Input& in, u32 row, u32 group, Largest& largest, Report* report) {
    const u32 e = scale(in, row, group);
    if (e == 0xFF) fault(report, place(in, row, 32 * group));
    largest.scale = max(largest.scale, e);
  }
  // The exponent is what the scales' exponents are shifted by: the largest becomes 30.
  __device__ static Column column(const Input&, u32, const Largest& largest) {
    const int e = max((int)largest.scale, 2);
    return {30 - e, power(e - 128)};
  }
  __device__ static void cell(const Input& in, u32 row, u32 first, u32 at, const Column&, const Slot& out, Report*) {
    Octet codes = {0, 0, 0, 0, 0, 0, 0, 0};
    if (first < in.k) e2m1_octet<GGUF, 32, 1, 32>(codes, in, row, first);
    put_word(out.cell<4>(0, at), pack_e2m1(codes));
  }
  __device__ static void side(const Input& in, u32 row, u32 stripe, const Column& column, const Slot& out, Report* report) {
    for (u32 i = 0; i < 2; i++) {
      const u32 group = 2 * stripe + i;
      int relative = 0;
      if (group < groups(in)) {
        relative = (int)scale(in, row, group) + column.exponent;
        if (relative <= 0 && any(in, row, 32 * group)) lost(report, place(in, row, 32 * group), true);
      }
      out.side(1024, 2)[i] = (u8)max(relative, 0);
    }
  }
  // Whether any of 32 codes is not zero.
  __device__ static bool any(const Input& in, u32 row, u32 first) {
    u32 used = 0;
#pragma unroll 1
    for (u32 octet = 0; octet < 4; octet++) {
      Octet codes;
      e2m1_octet<GGUF, 32, 1, 32>(codes, in, row, first + 8 * octet);
#pragma unroll
      for (int i = 0; i < 8; i++) used |= codes[i] & 7;
    }
    return used != 0;
  }
};

typedef Nvfp4Codes<false> FromNvfp4;
typedef Nvfp4Codes<true> FromNvfp4Blocks;
typedef Mxfp4Codes<false> FromMxfp4;
typedef Mxfp4Codes<true> FromMxfp4Blocks;
