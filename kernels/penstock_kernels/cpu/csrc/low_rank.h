// What adapters add to products: B times (A times the input), with a row's own A and B.  A row's sums are those of
// `tile_product`, in the same order whatever other rows there are.
#pragma once
#include "thread.h"

namespace {

// The rows' products with their A, for a matrix of B with so many inputs.
inline Activations lowered(const Thread& t, int which, int inputs) {
  Activations low = t.scratch.low[which];  // rows are as far apart as the highest rank needs
  low.groups = pk::padded(inputs, pk::GROUP) / pk::GROUP;
  return low;
}

// A unit is a tile of A of one of the phase's matrices, for a run of rows.
inline void lower(Thread& t, const PkPhase& p) {
  const PkBatch& b = t.batch;
  const int tiles = t.program.low_rank / 16;
  const Activations a = t.input(p.source, p.width);
  t.share_out(static_cast<int>(b.num_runs) * 3 * tiles, [&](int unit) {
    const PkRun& run = b.runs[unit / (3 * tiles)];
    const int which = unit / tiles % 3, tile = unit % tiles;
    const PkMatrix &down = run.adapter[p.low_rank + which].down, &up = run.adapter[p.low_rank + which].up;
    // B reads whole groups: what A doesn't give of its last one becomes zeros.
    if (!down.tiles || 16 * tile >= pk::padded(up.inputs, pk::GROUP)) return;
    const Activations low = lowered(t, which, up.inputs);
    const bool given = 16 * tile < down.outputs;
    for (int row = run.first; row < run.first + run.rows; row += pk::ROWS) {
      alignas(64) float out[16 * pk::ROWS];
      const int left = run.first + run.rows - row, rows = left < pk::ROWS ? left : pk::ROWS;
      if (given) tile_product(down, tile, a, row, rows, out);
      else __builtin_memset(out, 0, sizeof out);
      for (int r = 0; r < rows; r++) {
        const size_t cell = static_cast<size_t>(row + r) * low.stride + 16 * tile;
        store(low.floats + cell, load(out + 16 * r));
        store_bf16(low.halves + cell, load(out + 16 * r));
      }
    }
  });
}

// Adds to out, [rows, 16], which is tile `tile` of the phase's matrix number `which`.
inline void add_raised(const Thread& t, const PkPhase& p, int which, int tile, int row, int rows, float* out) {
  const PkBatch& b = t.batch;
  if (p.low_rank < 0 || !b.num_runs) return;
  for (int r = row; r < row + rows;) {
    const int at = b.run_of[r];
    if (at < 0) {
      r++;
      continue;
    }
    const PkRun& run = b.runs[at];
    const int end = run.first + run.rows < row + rows ? run.first + run.rows : row + rows;
    const PkMatrix& up = run.adapter[p.low_rank + which].up;
    if (up.tiles) {
      alignas(64) float added[16 * pk::ROWS];
      tile_product(up, tile, lowered(t, which, up.inputs), r, end - r, added);
      for (int i = 0; i < end - r; i++) {
        float* sums = out + 16 * (r - row + i);
        store(sums, add(load(sums), load(added + 16 * i)));
      }
    }
    r = end;
  }
}

}  // namespace
