// Products of queries with keys in bfloat16, and of softmax weights with values, both rounded to bfloat16.
//
// A panel of queries has a row for each, QUERY_STRIDE apart.  Keys and values lie in pairs (see cache.h).  Query: what a
// query and a weight are kept as: as pairs where the processor multiplies pairs; elsewhere as floats, since a float is
// broadcast on the way to a product.
#pragma once
#include "activations.h"
#include "elementwise.h"

namespace {

// Numbers from a query to the next one: fixed, so that rows' addresses are parts of instructions, and a few cache lines
// more than a multiple of 4 KiB, so that rows of a panel don't all have the same sets of the nearest cache.
constexpr int QUERY_STRIDE = pk::MAX_HEAD_DIM + 32;

#if defined(PK_BF16_UNITS)

struct Halves16 {
  using Query = uint16_t;
  static inline void put_query(uint16_t* to, const float* query, int dim) {
    for (int d = 0; d < dim; d += 16) store_bf16(to + d, load(query + d));
  }
  template <int R, int P> static inline void scores(const uint16_t* panel, const uint16_t* const* pages, int dim, V (*dots)[P]) {
    for (int d = 0; d < dim; d += 2) {
      Pairs keys[P];
      PK_UNROLLED
      for (int p = 0; p < P; p++) keys[p] = load_pairs(pages[p] + 16 * d);
      PK_UNROLLED
      for (int r = 0; r < R; r++) {
        const uint16_t* by = panel + r * QUERY_STRIDE + d;
        if constexpr (P == 1) dots[r][0] = dot2_bf16(dots[r][0], keys[0], by);
        else dot2_all<P>(keys, set1_pair(by), dots[r]);
      }
    }
  }
  // sums[i] += pairs[i] . by
  template <int COUNT> static inline void dot2_all(const Pairs* pairs, Pairs by, V* sums) {
    PK_UNROLLED
    for (int i = 0; i < COUNT; i++) sums[i] = dot2_bf16(sums[i], pairs[i], by);
  }
  static inline V two_to(V x) { return rough_power_of_two(x); }
  // Stores 16 weights; returns them as they are multiplied.
  static inline V round_weights(uint16_t* out, V weights) { return store_bf16(out, weights); }
  // sums[r][c] += the values of two tokens, or of the first only, times their weights.  pairs: [C][16][2].
  template <int R, int C> static inline void add_pairs(const uint16_t* pairs, const uint16_t* weights, bool both, V (*sums)[C]) {
    Pairs values[C];
    PK_UNROLLED
    for (int c = 0; c < C; c++) values[c] = both ? load_pairs(pairs + 32 * c) : first_of_pairs(pairs + 32 * c);
    PK_UNROLLED
    for (int r = 0; r < R; r++) {
      const uint16_t* by = weights + r * pk::KEY_SPLIT;
      dot2_all<C>(values, both ? set1_pair(by) : set1_first(by), sums[r]);
    }
  }
};

#else

struct Halves16 {
  using Query = float;
  static inline void put_query(float* to, const float* query, int dim) {
    for (int d = 0; d < dim; d += 16) round_weights(to + d, load(query + d));
  }
  template <int R, int P> static inline void scores(const float* panel, const uint16_t* const* pages, int dim, V (*dots)[P]) {
    for (int d = 0; d < dim; d += 2) {
      V keys[P];
      PK_UNROLLED
      for (int p = 0; p < P; p++) keys[p] = load_even(pages[p] + 16 * d);
      add_times<R, P, QUERY_STRIDE>(keys, panel + d, dots);
      PK_UNROLLED
      for (int p = 0; p < P; p++) keys[p] = load_odd(pages[p] + 16 * d);
      add_times<R, P, QUERY_STRIDE>(keys, panel + d + 1, dots);
    }
  }
  static inline V two_to(V x) { return power_of_two(x); }
  static inline V round_weights(float* out, V weights) {
    const V rounded = round_bf16(weights);
    store(out, rounded);
    return rounded;
  }
  // sums[r] += values times the number of row r. STRIDE: from a row's number to the next row's.
  template <int R, int C, int STRIDE> static inline void add_times(const V* values, const float* numbers, V (*sums)[C]) {
    PK_UNROLLED
    for (int r = 0; r < R; r++) {
      const V by = set1(numbers[r * STRIDE]);
      PK_UNROLLED
      for (int c = 0; c < C; c++) sums[r][c] = fma(values[c], by, sums[r][c]);
    }
  }
  template <int R, int C> static inline void add_pairs(const uint16_t* pairs, const float* weights, bool both, V (*sums)[C]) {
    V value[C];
    for (int c = 0; c < C; c++) value[c] = load_even(pairs + 32 * c);
    add_times<R, C, pk::KEY_SPLIT>(value, weights, sums);
    if (!both) return;
    for (int c = 0; c < C; c++) value[c] = load_odd(pairs + 32 * c);
    add_times<R, C, pk::KEY_SPLIT>(value, weights + 1, sums);
  }
};

#endif

}  // namespace
