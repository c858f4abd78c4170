// What adapters add to products: B times (A times the input), with a row's own A and B, by floats.  A row's sums have
// their own order: the even inputs and the odd ones each by themselves, from zero, then both together.  Other rows
// and tiles only share the reading of weights.  Where rows of W + B A have lengths of their own (DoRA), a product is
// multiplied by an output's factor before that.
//
// A factor's tiles lie by twos: of the first two inputs the weights of one tile and then those of the other, and so on;
// a last tile without a neighbour lies by itself.  Inputs end with the last pair.  So whatever takes two tiles at a time
// reads memory in its order.
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

// Products of a factor's neighbouring tiles with rows of floats.  The last two are factor_product's.  pairs: of inputs,
// rounded up.  ahead: bytes from a weight to the one that is asked for when it is read.
struct PairProduct {
  const float* x;
  size_t stride;
  float* out;
  size_t out_next, out_stride;  // floats between tiles of the result, and between its rows
  bool adds;
  int pairs;
  size_t ahead;
};

// `step`: bytes from a tile's pair of inputs to its next one; T tiles lie side by side.
template <class Pairs, int T, int M> inline void pair_sums(const PairProduct& p, const uint8_t* weights, size_t step, float* out, int row) {
  V even[T][M], odd[T][M];
  PK_UNROLLED
  for (int t = 0; t < T; t++) {
    PK_UNROLLED
    for (int m = 0; m < M; m++) even[t][m] = odd[t][m] = zero();
  }
  const size_t stride = p.stride, ahead = p.ahead;
  const float* x = p.x + row * stride;
  for (int i = p.pairs; i > 0; i--, weights += step, x += 2) {
    PK_UNROLLED
    for (int t = 0; t < T; t++) {
      pk::prefetch(weights + t * Pairs::BYTES + ahead, Pairs::BYTES);
      V first, second;
      Pairs::read(weights + t * Pairs::BYTES, first, second);
      PK_UNROLLED
      for (int m = 0; m < M; m++) {
        even[t][m] = fma(first, set1(x[m * stride]), even[t][m]);
        odd[t][m] = fma(second, set1(x[m * stride + 1]), odd[t][m]);
      }
    }
  }
  const size_t next = p.out_next, out_stride = p.out_stride;
  const bool adds = p.adds;
  out += row * out_stride;
  PK_UNROLLED
  for (int t = 0; t < T; t++) {
    PK_UNROLLED
    for (int m = 0; m < M; m++) {
      float* at = out + t * next + m * out_stride;
      const V sum = add(even[t][m], odd[t][m]);
      store(at, adds ? add(load(at), sum) : sum);
    }
  }
}

template <class Pairs, int T> inline void pair_rows(const PairProduct& p, const uint8_t* weights, size_t step, float* out, int rows) {
  for (int row = 0; row < rows;) {
    const int left = rows - row, count = left < PAIR_ROWS ? left : PAIR_ROWS;
    switch (count) {
      case 1: pair_sums<Pairs, T, 1>(p, weights, step, out, row); break;
      case 2: pair_sums<Pairs, T, 2>(p, weights, step, out, row); break;
      case 3: pair_sums<Pairs, T, 3 <= PAIR_ROWS ? 3 : 1>(p, weights, step, out, row); break;
      case 4: pair_sums<Pairs, T, 4 <= PAIR_ROWS ? 4 : 1>(p, weights, step, out, row); break;
      case 5: pair_sums<Pairs, T, 5 <= PAIR_ROWS ? 5 : 1>(p, weights, step, out, row); break;
      default: pair_sums<Pairs, T, PAIR_ROWS>(p, weights, step, out, row);
    }
    row += count;
  }
}

// With the tiles from `tile` to `end`, of `all` that the factor has.
template <class Pairs> inline void pair_tiles(const PairProduct& p, const uint8_t* tiles, int tile, int end, int all, int rows) {
  const size_t size = Pairs::BYTES * static_cast<size_t>(p.pairs);
  for (float* out = p.out; tile < end;) {
    const uint8_t* weights = tiles + (tile & ~1) * size + (tile & 1) * Pairs::BYTES;
    const size_t step = (tile | 1) < all ? 2 * Pairs::BYTES : Pairs::BYTES;
    const bool both = PAIR_TILES == 2 && tile % 2 == 0 && tile + 2 <= end;
    if (both) pair_rows<Pairs, PAIR_TILES>(p, weights, step, out, rows);
    else pair_rows<Pairs, 1>(p, weights, step, out, rows);
    tile += both ? 2 : 1;
    out += (both ? 2 : 1) * p.out_next;
  }
}

// With `tiles` tiles of the factor, from `tile` on.  ahead: as in PairProduct; 0: to the tiles that follow.  p is
// changed instead of copied: reading at once what was just written in pieces takes longer than a short product.
inline void factor_product(const PkMatrix& factor, PairProduct& p, int tile, int tiles, int rows, size_t ahead = 0) {
  const int all = (factor.outputs + 15) / 16;
  p.pairs = (factor.inputs + 1) / 2;
  p.ahead = ahead ? ahead : tiles * p.pairs * (factor.kind == PK_F32 ? FloatPairs::BYTES : HalfPairs::BYTES);
  if (factor.kind == PK_F32) pair_tiles<FloatPairs>(p, factor.tiles, tile, tile + tiles, all, rows);
  else pair_tiles<HalfPairs>(p, factor.tiles, tile, tile + tiles, all, rows);
}

// Asks for `tiles` tiles of a factor, from `tile` on, or for the first `most` bytes of them.
inline void ask_for(const PkMatrix& factor, int tile, int tiles, size_t most = SIZE_MAX) {
  if (!factor.tiles) return;
  const size_t size = (factor.inputs + 1) / 2 * (factor.kind == PK_F32 ? FloatPairs::BYTES : HalfPairs::BYTES);
  pk::prefetch(factor.tiles + (tile & ~1) * size, tiles * size < most ? tiles * size : most);
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
    const int piece = unit / each, which = unit % each / (tiles / 2), tile = 2 * (unit % each % (tiles / 2));
    if (piece < before) at = before = 0;  // Of another thread's share.
    for (;; at++) {
      const int own = (b.runs[at].rows + LOWERED_ROWS - 1) / LOWERED_ROWS;
      if (piece < before + own) break;
      before += own;
    }
    const PkRun& run = b.runs[at];
    const PkMatrix& down = run.adapter[p.low_rank + which].down;
    // An adapter's factors follow one another in memory, but the next run's are elsewhere.
    if (unit % each == 0 && at + 1 < b.num_runs) ask_for(b.runs[at + 1].adapter[p.low_rank].down, 0, 2, LOWERED_AHEAD);
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
    factor_product(down, product, tile, given < 2 ? given : 2, rows, LOWERED_AHEAD);
  });
}

// What the adapter of a row does to the phase's matrix number `which`; null for nothing.
inline const PkLowRank* adapter_of(const Thread& t, const PkPhase& p, int which, int row) {
  if (p.low_rank < 0 || !t.batch.num_runs || t.batch.run_of[row] < 0) return nullptr;
  return &t.batch.runs[t.batch.run_of[row]].adapter[p.low_rank + which];
}

// Asks for what will be added to the first tiles that the thread computes in a phase: so it comes meanwhile.  What is
// added to later ones is asked for one unit ahead.
inline void ask_for_raised(const Thread& t, const PkPhase& p, int which, int tile, int tiles) {
  if (p.low_rank < 0) return;
  for (int64_t i = 0; i < t.batch.num_runs; i++) ask_for(t.batch.runs[i].adapter[p.low_rank + which].up, tile, tiles);
}

// Multiplies and adds what DoRA does, to so many rows of a tile, [rows][16].
inline void rescale(const PkLowRank& own, int tile, int rows, float* out) {
  const V factors = load(own.factors + 16 * tile), added = load(own.added + 16 * tile);
  for (int r = 0; r < rows; r++) store(out + 16 * r, fma(load(out + 16 * r), factors, added));
}

// What adapters add to: their targets from `first` on, or nothing below 0.  run_of: of each row, as in PkBatch.
struct Raised { int first; const int32_t* run_of; };

inline Raised raised_by(const Thread& t, const PkPhase& p) { return {t.batch.num_runs ? p.low_rank : -1, t.batch.run_of}; }

// Adds to out, [tiles][pk::ROWS][16], which are so many tiles from `tile` on of the phase's matrix number `which`.
inline void add_raised(const Thread& t, const Raised& raised, int which, int tile, int tiles, int row, int rows, float* out) {
  if (raised.first < 0) return;
  PairProduct product{};
  product.stride = t.program.low_rank;
  product.out_next = 16 * pk::ROWS;
  product.out_stride = 16;
  product.adds = true;
  for (int r = row; r < row + rows;) {
    const int at = raised.run_of[r];
    int end = r + 1;
    while (end < row + rows && raised.run_of[end] == at) end++;
    if (at < 0) {
      r = end;
      continue;
    }
    const PkLowRank& own = t.batch.runs[at].adapter[raised.first + which];
    const PkMatrix& up = own.up;
    for (int i = 0; own.factors && i < tiles; i++) rescale(own, tile + i, end - r, out + 16 * (i * pk::ROWS + r - row));
    if (up.tiles) {
      product.x = t.scratch.low[which] + static_cast<size_t>(r) * product.stride;
      product.out = out + 16 * (r - row);
      factor_product(up, product, tile, tiles, end - r);
    }
    r = end;
  }
}

}  // namespace
