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
  template <int R> static inline void scores(const uint16_t* panel, int rows, const uint16_t* page, int dim, V* dots) {
    for (int d = 0; d < dim; d += 2)
      for (int r = 0; r < R; r++) dots[r] = dot2_bf16(dots[r], page + 16 * d, panel + d * rows + 2 * r);
  }
  // Stores 16 weights; returns them as they are multiplied.
  static inline V round_weights(uint16_t* out, V weights) {
    store_bf16(out, weights);
    return load_bf16(out);
  }
  // sums[r][c] += the values of two tokens, or of the first only, times their weights.  pairs: [C][16][2].
  template <int R, int C> static inline void add_pairs(const uint16_t* pairs, const uint16_t* weights, bool both, V (*sums)[C]) {
    for (int r = 0; r < R; r++)
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
  template <int R> static inline void scores(const float* panel, int rows, const uint16_t* page, int dim, V* dots) {
    for (int d = 0; d < dim; d += 2) {
      const V even = load_even(page + 16 * d), odd = load_odd(page + 16 * d);
      for (int r = 0; r < R; r++) dots[r] = fma(even, set1(panel[d * rows + r]), dots[r]);
      for (int r = 0; r < R; r++) dots[r] = fma(odd, set1(panel[(d + 1) * rows + r]), dots[r]);
    }
  }
  static inline V round_weights(float* out, V weights) {
    uint16_t cells[16];
    store_bf16(cells, weights);
    const V rounded = load_bf16(cells);
    store(out, rounded);
    return rounded;
  }
  template <int R, int C> static inline void add_pairs(const uint16_t* pairs, const float* weights, bool both, V (*sums)[C]) {
    for (int c = 0; c < C; c++) {
      const V even = load_even(pairs + 32 * c), odd = load_odd(pairs + 32 * c);
      for (int r = 0; r < R; r++) sums[r][c] = fma(even, set1(weights[r * pk::KEY_SPLIT]), sums[r][c]);
      for (int r = 0; both && r < R; r++) sums[r][c] = fma(odd, set1(weights[r * pk::KEY_SPLIT + 1]), sums[r][c]);
    }
  }
};

#endif

}  // namespace
