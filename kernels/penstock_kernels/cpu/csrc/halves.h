// Products of queries with keys in bfloat16, and of softmax weights with values, both rounded to bfloat16.
//
// Keys and values lie in pairs (see cache.h).  Query: what a query and a weight are kept as: as pairs where the
// processor multiplies pairs; elsewhere as floats, since a float is broadcast on the way to a product.
#pragma once
#include "activations.h"

namespace {

#if defined(PK_BF16_UNITS)

struct Halves16 {
  using Query = uint16_t;
  // Row r of the panel of queries, [dim / 2][rows][2].
  static inline void put_query(uint16_t* panel, int r, int rows, const float* query, int dim) {
    for (int d = 0; d < dim; d += 16) {
      uint16_t cells[16];
      store_bf16(cells, load(query + d));
      for (int i = 0; i < 16; i += 2) __builtin_memcpy(panel + (d + i) * rows + 2 * r, cells + i, 2 * sizeof *cells);
    }
  }
  static inline const uint16_t* column(const uint16_t* panel, int r) { return panel + 2 * r; }
  template <int R> static inline void scores(const uint16_t* panel, ptrdiff_t rows, const uint16_t* page, int dim, V* dots) {
    for (int d = 0; d < dim; d += 2, page += 32, panel += 2 * rows)
      PK_UNROLLED
      for (int r = 0; r < R; r++) dots[r] = dot2_bf16(dots[r], page, panel + 2 * r);
  }
  // Stores 16 weights; returns them as they are multiplied.
  static inline V round_weights(uint16_t* out, V weights) {
    store_bf16(out, weights);
    return load_bf16(out);
  }
  // sums[r][c] += the values of two tokens, or of the first only, times their weights.  pairs: [C][16][2].
  template <int R, int C> static inline void add_pairs(const uint16_t* pairs, const uint16_t* weights, bool both, V (*sums)[C]) {
    PK_UNROLLED
    for (int r = 0; r < R; r++)
      PK_UNROLLED
      for (int c = 0; c < C; c++) {
        const uint16_t* by = weights + r * pk::KEY_SPLIT;
        sums[r][c] = both ? dot2_bf16(sums[r][c], pairs + 32 * c, by) : dot1_bf16(sums[r][c], pairs + 32 * c, by);
      }
  }
};

#else

struct Halves16 {
  using Query = float;
  // Row r of the panel of queries, [dim][rows].
  static inline void put_query(float* panel, int r, int rows, const float* query, int dim) {
    for (int d = 0; d < dim; d += 16) {
      float rounded[16];
      round_weights(rounded, load(query + d));
      for (int i = 0; i < 16; i++) panel[(d + i) * rows + r] = rounded[i];
    }
  }
  static inline const float* column(const float* panel, int r) { return panel + r; }
  template <int R> static inline void scores(const float* panel, ptrdiff_t rows, const uint16_t* page, int dim, V* dots) {
    const float* next = panel + rows;
    for (int d = 0; d < dim; d += 2, page += 32, panel += 2 * rows, next += 2 * rows) {
      const V even = load_even(page), odd = load_odd(page);
      PK_UNROLLED
      for (int r = 0; r < R; r++) dots[r] = fma(even, set1(panel[r]), dots[r]);
      PK_UNROLLED
      for (int r = 0; r < R; r++) dots[r] = fma(odd, set1(next[r]), dots[r]);
    }
  }
  static inline V round_weights(float* out, V weights) {
    const V rounded = round_bf16(weights);
    store(out, rounded);
    return rounded;
  }
  template <int R, int C> static inline void add_times(const V* value, const float* weights, V (*sums)[C]) {
    PK_UNROLLED
    for (int r = 0; r < R; r++) {
      const V by = set1(weights[r * pk::KEY_SPLIT]);
      PK_UNROLLED
      for (int c = 0; c < C; c++) sums[r][c] = fma(value[c], by, sums[r][c]);
    }
  }
  template <int R, int C> static inline void add_pairs(const uint16_t* pairs, const float* weights, bool both, V (*sums)[C]) {
    V value[C];
    for (int c = 0; c < C; c++) value[c] = load_even(pairs + 32 * c);
    add_times<R, C>(value, weights, sums);
    if (!both) return;
    for (int c = 0; c < C; c++) value[c] = load_odd(pairs + 32 * c);
    add_times<R, C>(value, weights + 1, sums);
  }
};

#endif

}  // namespace
