// Weights of some columns as plain f16 rows, for a library's product: rows[column - first][k padded] (without the column's factor).
//
// One warp a piece of a tile (grid x: pieces over the warps, grid y: tiles); each lane stores its cells as octets of 16 bytes. k
// that the padding holds is written too (zeros), nothing past it.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, FORMAT (type), FORMAT_HEADER.
#include FORMAT_HEADER
#include "product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const u8* __restrict__ weights,  // the first tile of those wanted
    u32 tile_bytes,
    u32 pieces,                      // of a tile
    u32 row_stride,                  // in halves, a multiple of 8, at least the pieces' k
    __half* __restrict__ rows) {     // [32 grid y, row_stride], 16-byte aligned
  const int lane = threadIdx.x & 31;
  const int piece = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5);
  if (piece >= (int)pieces) return;
  Piece<FORMAT> held;
  held.load(weights + (size_t)blockIdx.y * tile_bytes, piece, lane);
#pragma unroll
  for (int u = 0; u < FORMAT::kUnits; u++) {
    u32 w[4][4];
    FORMAT::expand(w, held.codes[u], held.head, u, lane);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int column = blockIdx.y * 32 + column_of_slot(cell_slot(lane, i));
      __half* at = rows + (size_t)column * row_stride + piece * FORMAT::kPiece + u * 32 + cell_octet(lane, i) * 8;
      *reinterpret_cast<uint4*>(at) = make_uint4(w[i][0], w[i][1], w[i][2], w[i][3]);
    }
  }
}
