// What adapters add to products: B times (A times the input), with a row's own A and B, by floats.  A row's sums have
// their own order: the even inputs and the odd ones each by themselves, from zero, then both together.  Other rows
// and tiles only share the reading of weights.  Where rows of W + B A have lengths of their own (DoRA), a product is
// multiplied by an output's factor before that.
#pragma once
#include "thread.h"

namespace {

// Of 16 outputs, the weights of two inputs that follow one another.
struct HalfPairs {
  static constexpr size_t BYTES = 64;
  static void read(const uint8_t* at, V& even, V& odd) {
    even = load_even(reinterpret_cast<const uint16_t*>(at));
    odd = load_odd(reinterpret_cast<const uint16_t*>(at));
  }
};
struct FloatPairs {
  static constexpr size_t BYTES = 128;
  static void read(const uint8_t* at, V& even, V& odd) {
    even = load(reinterpret_cast<const float*>(at));
    odd = load(reinterpret_cast<const float*>(at) + 16);
  }
};

// Rows and tiles whose sums the registers hold, two for each.
constexpr int PAIR_ROWS = FLOAT_ROWS / 2 > 2 ? FLOAT_ROWS / 2 : 2, PAIR_TILES = FLOAT_ROWS < 12 ? 1 : 2;
// Rows of a run that one unit of LOWER takes.
constexpr int LOWERED_ROWS = 24;
// Bytes of A that are asked for in front of those that are read: little is computed with each.
constexpr size_t LOWERED_AHEAD = 4096;

// Products of a factor's neighbouring tiles with rows of floats.  pairs: of inputs; those that only fill a group up
// are not read.  ahead: bytes from a weight to the one that is asked for when it is read; 0: to the next tiles'.
struct PairProduct {
  const uint8_t* tiles;
  size_t next;
  int pairs;
  size_t ahead;
  const float* x;
  size_t stride;
  float* out;
  size_t out_next, out_stride;  // floats between tiles of the result, and between its rows
  bool adds;
};

template <class Pairs, int T, int M> inline void pair_sums(const PairProduct& p, int row) {
  V even[T][M], odd[T][M];
  for (int t = 0; t < T; t++)
    for (int m = 0; m < M; m++) even[t][m] = odd[t][m] = zero();
  const float* x = p.x + row * p.stride;
  const size_t stride = p.stride, next = p.next;
  const uint8_t* weights = p.tiles;
  for (int i = 0; i < p.pairs; i++, weights += Pairs::BYTES) {
    for (int t = 0; t < T; t++) {
      const uint8_t* at = weights + t * next;
      pk::prefetch(at + p.ahead, Pairs::BYTES);
      V first, second;
      Pairs::read(at, first, second);
      for (int m = 0; m < M; m++) {
        even[t][m] = fma(first, set1(x[m * stride + 2 * i]), even[t][m]);
        odd[t][m] = fma(second, set1(x[m * stride + 2 * i + 1]), odd[t][m]);
      }
    }
  }
  for (int t = 0; t < T; t++)
    for (int m = 0; m < M; m++) {
      float* out = p.out + t * p.out_next + (row + m) * p.out_stride;
      const V sum = add(even[t][m], odd[t][m]);
      store(out, p.adds ? add(load(out), sum) : sum);
    }
}

template <class Pairs, int T> inline void pair_rows(const PairProduct& p, int rows) {
  for (int row = 0; row < rows;) {
    const int left = rows - row, count = left < PAIR_ROWS ? left : PAIR_ROWS;
    switch (count) {
      case 1: pair_sums<Pairs, T, 1>(p, row); break;
      case 2: pair_sums<Pairs, T, 2>(p, row); break;
      case 3: pair_sums<Pairs, T, 3 <= PAIR_ROWS ? 3 : 1>(p, row); break;
      case 4: pair_sums<Pairs, T, 4 <= PAIR_ROWS ? 4 : 1>(p, row); break;
      case 5: pair_sums<Pairs, T, 5 <= PAIR_ROWS ? 5 : 1>(p, row); break;
      default: pair_sums<Pairs, T, PAIR_ROWS>(p, row);
    }
    row += count;
  }
}

template <class Pairs> inline void pair_tiles(PairProduct p, int tiles, int rows) {
  int tile = 0;
  for (; PAIR_TILES == 2 && tile + 2 <= tiles; tile += 2, p.tiles += 2 * p.next, p.out += 2 * p.out_next) pair_rows<Pairs, PAIR_TILES>(p, rows);
  for (; tile < tiles; tile++, p.tiles += p.next, p.out += p.out_next) pair_rows<Pairs, 1>(p, rows);
}

// With `tiles` tiles of the factor, from `tile` on.
inline void factor_product(const PkMatrix& factor, PairProduct p, int tile, int tiles, int rows) {
  const int groups = pk::padded(factor.inputs, pk::GROUP) / pk::GROUP;
  p.next = pk::tile_bytes(factor.kind, groups);
  p.tiles = factor.tiles + tile * p.next;
  p.pairs = (factor.inputs + 1) / 2;
  if (!p.ahead) p.ahead = tiles * p.next;
  if (factor.kind == PK_F32) pair_tiles<FloatPairs>(p, tiles, rows);
  else pair_tiles<HalfPairs>(p, tiles, rows);
}

// A unit is a pair of A's tiles of one of the phase's matrices, for some rows of a run.
inline void lower(Thread& t, const PkPhase& p) {
  const PkBatch& b = t.batch;
  const int tiles = t.program.low_rank / 16, each = 3 * (tiles / 2);
  const Activations a = t.input(p.source, p.width);
  int pieces = 0;
  for (int64_t i = 0; i < b.num_runs; i++) pieces += (b.runs[i].rows + LOWERED_ROWS - 1) / LOWERED_ROWS;
  int at = 0, before = 0;  // the present run, and pieces of those in front of it
  t.share_out(pieces * each, [&](int unit) {
    const int piece = unit / each, which = unit % each % 3, tile = 2 * (unit % each / 3);
    if (piece < before) at = before = 0;  // Of another thread's share.
    for (;; at++) {
      const int own = (b.runs[at].rows + LOWERED_ROWS - 1) / LOWERED_ROWS;
      if (piece < before + own) break;
      before += own;
    }
    const PkRun& run = b.runs[at];
    const PkMatrix& down = run.adapter[p.low_rank + which].down;
    const int given = pk::padded(down.outputs, 16) / 16 - tile;
    if (!down.tiles || given < 1) return;
    const int first = LOWERED_ROWS * (piece - before), left = run.rows - first, rows = left < LOWERED_ROWS ? left : LOWERED_ROWS;
    const size_t width = t.program.low_rank, row = run.first + first;
    PairProduct product{};
    product.x = a.floats + row * a.stride;
    product.stride = a.stride;
    product.out = t.scratch.low[which] + row * width + 16 * tile;
    product.out_next = 16;
    product.out_stride = width;
    product.ahead = LOWERED_AHEAD;
    factor_product(down, product, tile, given < 2 ? given : 2, rows);
  });
}

// What the adapter of a row does to the phase's matrix number `which`; null for nothing.
inline const PkLowRank* adapter_of(const Thread& t, const PkPhase& p, int which, int row) {
  if (p.low_rank < 0 || !t.batch.num_runs || t.batch.run_of[row] < 0) return nullptr;
  return &t.batch.runs[t.batch.run_of[row]].adapter[p.low_rank + which];
}

// Multiplies and adds what DoRA does, to so many rows of a tile, [rows][16].
inline void rescale(const PkLowRank& own, int tile, int rows, float* out) {
  const V factors = load(own.factors + 16 * tile), added = load(own.added + 16 * tile);
  for (int r = 0; r < rows; r++) store(out + 16 * r, fma(load(out + 16 * r), factors, added));
}

// Adds to out, [tiles][pk::ROWS][16], which are so many tiles from `tile` on of the phase's matrix number `which`.
inline void add_raised(const Thread& t, const PkPhase& p, int which, int tile, int tiles, int row, int rows, float* out) {
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
    const PkLowRank& own = run.adapter[p.low_rank + which];
    const PkMatrix& up = own.up;
    for (int i = 0; own.factors && i < tiles; i++) rescale(own, tile + i, end - r, out + 16 * (i * pk::ROWS + r - row));
    if (up.tiles) {
      PairProduct product{};
      product.x = t.scratch.low[which] + static_cast<size_t>(r) * t.program.low_rank;
      product.stride = t.program.low_rank;
      product.out = out + 16 * (r - row);
      product.out_next = 16 * pk::ROWS;
      product.out_stride = 16;
      product.adds = true;
      factor_product(up, product, tile, tiles, end - r);
    }
    r = end;
  }
}

}  // namespace
