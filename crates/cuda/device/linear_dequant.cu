// Weights of some columns as plain f16 rows, for a library's product: rows[column - first][k padded] (without the column's factor).
//
// One warp a piece of a tile (grid x: pieces over the warps, grid y: tiles); each lane stores a column, octets of 16 bytes. k
// that the padding holds is written too (zeros), nothing past it.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, FORMAT (type), FORMAT_HEADER.
#include FORMAT_HEADER
#include "fragment.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const u8* __restrict__ weights,  // the first tile of those wanted
    u32 tile_bytes,
    u32 pieces,                      // of a tile
    u32 row_stride,                  // in halves, a multiple of 8, at least the pieces' k
    __half* __restrict__ rows) {     // [32 grid y, row_stride], 16-byte aligned
  const int lane = threadIdx.x & 31;
  const int piece = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5);
  if (piece >= (int)pieces) return;
  const u8* tile = weights + (size_t)blockIdx.y * tile_bytes;
  FORMAT::At place;
  FORMAT::place(place, tile, piece, 0, lane);
  const FORMAT::Head head = FORMAT::head(place, piece, 0);
  __half* at = rows + (size_t)(blockIdx.y * 32 + column_of_slot(lane)) * row_stride + piece * kPiece;
#pragma unroll
  for (int u = 0; u < kPieceUnits; u++) {
    FORMAT::place(place, tile, piece, u, lane);
    const FORMAT::Codes codes = FORMAT::codes(place, 0, 0);
#pragma unroll
    for (int o = 0; o < 4; o++) {
      u32 w[4];
      FORMAT::expand(w, codes, head, u, o);
      *reinterpret_cast<uint4*>(at + u * 32 + o * 8) = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}
