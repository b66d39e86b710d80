// Weights as their file has them to packed tiles, with the same bytes as the host's `repack`.
//
// A launch packs some whole tiles; the file's bytes of their rows lie in a scratch that the next launch's rows overwrite.
// 1. A block owns a tile of 32 columns. Each warp finds the largest scale of four columns, and from it the column's power of two.
// 2. Then each thread takes cells and sides, the 32 columns of one octet side by side, so that what is written is one run.
// A number that no kernel can multiply by is reported by place, the lowest first; so are losses, and counted.
//
// Macros: SYMBOL, THREADS, MIN_BLOCKS, SOURCE (type), SOURCE_HEADER.
#include SOURCE_HEADER

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(
    const u8* __restrict__ codes, const u8* __restrict__ scales, const u8* __restrict__ extra,  // of the rows from row_first on
    u8* __restrict__ tiles,               // [grid x][tile_bytes]
    float* __restrict__ column_scales,    // [32 grid x]
    Report* __restrict__ report,
    u32 row_first, u32 n, u32 k, u32 group, u32 tile_bytes) {
  const Input in = {codes, scales, extra, row_first, k, group};
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u32 row_tile = blockIdx.x * 32;
  const u32 rows = min(32u, n - row_first - row_tile);
  __shared__ Column columns[32];

  for (u32 c = warp; c < 32; c += THREADS / 32) {
    Column column = {0, 0.0f};
    if (c < rows) {
      Largest largest = {0, 0};
      for (u32 g = lane; g < SOURCE::groups(in); g += 32) SOURCE::scan(in, row_tile + c, g, largest, report);
#pragma unroll
      for (int step = 16; step; step >>= 1) {
        largest.scale = max(largest.scale, __shfl_xor_sync(0xFFFFFFFFu, largest.scale, step));
        largest.min = max(largest.min, __shfl_xor_sync(0xFFFFFFFFu, largest.min, step));
      }
      column = SOURCE::column(in, row_tile + c, largest);
      if (lane == 0 && !finite(column.scale)) fault(report, place(in, row_tile + c, 0));
    }
    if (lane == 0) {
      columns[c] = column;
      column_scales[row_tile + c] = column.scale;
    }
  }
  // Padded columns are zeros.
  if (rows < 32)
    for (u32 i = 4 * threadIdx.x; i < tile_bytes; i += 4 * THREADS) put_word(tiles + (size_t)blockIdx.x * tile_bytes + i, 0);
  __syncthreads();

  const u32 stripe = SOURCE::stripe(in), stripe_bytes = SOURCE::stripe_bytes(in);
  const u32 cells = stripe / 8, stripes = (k + stripe - 1) / stripe;
  // A warp's 32 lanes are 32 columns; the last turn of a stripe writes its sides.
  for (u32 turn = warp; turn < stripes * (cells + 1); turn += THREADS / 32) {
    const u32 s = turn / (cells + 1), at = turn % (cells + 1);
    const u32 c = column_of_slot(lane);
    const Slot out = {tiles + (size_t)blockIdx.x * tile_bytes + (size_t)s * stripe_bytes, (u32)lane, (u32)bank_group(stripe / kPiece, stripe_bytes, s * (stripe / kPiece))};
    if (c >= rows) continue;
    if (at < cells) SOURCE::cell(in, row_tile + c, s * stripe + 8 * at, at, columns[c], out, report);
    else SOURCE::side(in, row_tile + c, s, columns[c], out, report);
  }
}
