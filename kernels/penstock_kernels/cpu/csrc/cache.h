// How the KV cache stores keys and values, and how they are multiplied.
//
// Cache of a layer, for every 16 tokens (a page) and KV head: in float32 keys as [head_dim][16 tokens]
// and values as [16 tokens][head_dim]; in bfloat16 pairs lie together for the dot products, keys as
// [head_dim / 2][16 tokens][2] and values as [8][head_dim][2 tokens].  In int8 the 16 tokens' scales
// (float32) come first, then the levels, ordered as in float32.
#pragma once
#include "halves.h"

namespace {

// How keys, values, queries and softmax weights are stored and multiplied. Cell: what a page is made
// of.  Query: what a query and a weight are kept as.  Open: what a page of keys that is open for multiplying is
// made of.  wide_keys, widen_values: as floats, for who multiplies them as an F32Cache's.  copy_token: token `from` of two pages becomes token `to` of two others, where a value is the end of its
// key; ask_for_token asks for what it reads.
struct F32Cache {
  using Cell = float;
  using Query = float;
  using Open = float;
  static constexpr size_t page_cells(int dim) { return static_cast<size_t>(16) * dim; }
  static inline void put_key(float* page, int token, const float* head, int dim) {
    for (int d = 0; d < dim; d++) page[16 * d + token] = head[d];
  }
  static inline void put_value(float* page, int token, const float* head, int dim) {
    for (int d = 0; d < dim; d++) page[token * dim + d] = head[d];
  }
  static inline void copy_token(const float* keys, const float* values, int from, float* to_keys, float* to_values, int to, int dim, int value_dim) {
    const int turning = dim - value_dim;
    const float* latent = values + static_cast<size_t>(from) * value_dim;
    for (int d = 0; d < turning; d++) to_keys[16 * d + to] = keys[16 * d + from];
    for (int d = 0; d < value_dim; d++) to_keys[16 * (turning + d) + to] = latent[d];
    __builtin_memcpy(to_values + static_cast<size_t>(to) * value_dim, latent, value_dim * sizeof *latent);
  }
  static inline void ask_for_token(const float* keys, const float* values, int token, int dim, int value_dim) {
    pk::prefetch(reinterpret_cast<const uint8_t*>(keys), 64 * static_cast<size_t>(dim - value_dim));
    pk::prefetch(reinterpret_cast<const uint8_t*>(values + static_cast<size_t>(token) * value_dim), value_dim * sizeof *values);
  }
  // A page's keys, ready to be multiplied, until another page is opened in its place. place: below SCORE_PAGES.
  struct Reader {
    static inline const float* keys(const float* page, int, int) { return page; }
  };
  // A page's keys as floats, [dim][16 tokens]; memory: room for as many.
  static inline const float* wide_keys(const float* page, int, float*) { return page; }
  // Sixteen numbers of a page's values, from d on, as floats. out: [16 tokens][16].
  static inline void widen_values(const float* page, int dim, int d, float* out) {
    for (int t = 0; t < 16; t++) store(out + 16 * t, load(page + t * dim + d));
  }
  static constexpr bool SCALED = false;
  static inline V scaled(V dots, const float*) { return dots; }
  static inline V two_to(V x) { return power_of_two(x); }
  // Stores 16 weights for the page of values, of tokens `first` to `last`; returns what to sum up.
  static inline V put_weights(float* out, V weights, const float*, int, int) {
    store(out, weights);
    return weights;
  }
  static inline void put_query(float* to, const float* query, int dim) {
    for (int d = 0; d < dim; d += 16) store(to + d, load(query + d));
  }
  // Scores of R queries, the first of a panel, and 16 keys of each of P pages.
  template <int R, int P> static inline void scores(const float* panel, const float* const* pages, int dim, V (*dots)[P]) {
    for (int d = 0; d < dim; d++) {
      V keys[P];
      PK_UNROLLED
      for (int p = 0; p < P; p++) keys[p] = load(pages[p] + 16 * d);
      PK_UNROLLED
      for (int r = 0; r < R; r++) {
        const V by = set1(panel[r * QUERY_STRIDE + d]);
        PK_UNROLLED
        for (int p = 0; p < P; p++) dots[r][p] = fma(by, keys[p], dots[r][p]);
      }
    }
  }
  // sums[r][c] += weights of the first `count` tokens times C vectors of their values, from d on.
  template <int R, int C> static inline void values(const float* weights, const float* page, int count, int dim, int d, V (*sums)[C]) {
    for (int t = 0; t < count; t++) {
      V value[C];
      for (int c = 0; c < C; c++) value[c] = load(page + static_cast<size_t>(t) * dim + d + 16 * c);
      PK_UNROLLED
      for (int r = 0; r < R; r++) {
        const V by = set1(weights[r * pk::KEY_SPLIT + t]);
        PK_UNROLLED
        for (int c = 0; c < C; c++) sums[r][c] = fma(by, value[c], sums[r][c]);
      }
    }
  }
};

struct Bf16Cache : Halves16 {
  using Cell = uint16_t;
  using Open = uint16_t;
  static constexpr size_t page_cells(int dim) { return static_cast<size_t>(16) * dim; }
  static inline void put_key(uint16_t* page, int token, const float* head, int dim) {
    for (int d = 0; d < dim; d += 16) {
      uint16_t cells[16];
      store_rounded(cells, load(head + d));
      for (int i = 0; i < 16; i += 2) __builtin_memcpy(page + 16 * (d + i) + 2 * token, cells + i, 2 * sizeof *cells);
    }
  }
  static inline void put_value(uint16_t* page, int token, const float* head, int dim) {
    uint16_t* out = page + static_cast<size_t>(token / 2) * dim * 2 + token % 2;
    for (int d = 0; d < dim; d += 16) {
      uint16_t cells[16];
      store_rounded(cells, load(head + d));
      for (int i = 0; i < 16; i++) out[2 * (d + i)] = cells[i];
    }
  }
  static inline void copy_token(const uint16_t* keys, const uint16_t* values, int from, uint16_t* to_keys, uint16_t* to_values, int to, int dim, int value_dim) {
    const int turning = dim - value_dim;
    const uint16_t* latent = values + static_cast<size_t>(from / 2) * value_dim * 2 + from % 2;
    uint16_t* out = to_values + static_cast<size_t>(to / 2) * value_dim * 2 + to % 2;
    for (int d = 0; d < turning; d += 2) __builtin_memcpy(to_keys + 16 * d + 2 * to, keys + 16 * d + 2 * from, 2 * sizeof *keys);
    for (int d = 0; d < value_dim; d += 2) {
      const uint16_t pair[2] = {latent[2 * d], latent[2 * d + 2]};
      __builtin_memcpy(to_keys + 16 * (turning + d) + 2 * to, pair, sizeof pair);
      out[2 * d] = pair[0];
      out[2 * d + 2] = pair[1];
    }
  }
  static inline void ask_for_token(const uint16_t* keys, const uint16_t* values, int token, int dim, int value_dim) {
    pk::prefetch(reinterpret_cast<const uint8_t*>(keys), 32 * static_cast<size_t>(dim - value_dim));
    pk::prefetch(reinterpret_cast<const uint8_t*>(values + static_cast<size_t>(token / 2) * value_dim * 2), 4 * static_cast<size_t>(value_dim));
  }
  struct Reader {
    static inline const uint16_t* keys(const uint16_t* page, int, int) { return page; }
  };
  static inline const float* wide_keys(const uint16_t* page, int dim, float* memory) {
    for (int d = 0; d < dim; d += 2) {
      store(memory + 16 * d, load_even(page + 16 * d));
      store(memory + 16 * d + 16, load_odd(page + 16 * d));
    }
    return memory;
  }
  static inline void widen_values(const uint16_t* page, int dim, int d, float* out) {
    for (int t = 0; t < 16; t += 2) {
      store(out + 16 * t, load_even(page + t * dim + 2 * d));
      store(out + 16 * t + 16, load_odd(page + t * dim + 2 * d));
    }
  }
  // N vectors of a page's values from number d on, in pairs: where they lie, or in memory of theirs.
  static constexpr bool PAIRED = true;
  template <int N> static inline const uint16_t* pairs_of_values(const uint16_t* page, int, int d, uint16_t*) { return page + 2 * d; }
  static constexpr bool SCALED = false;
  static inline V scaled(V dots, const uint16_t*) { return dots; }
  // The weights as they are used are summed up, so that they are exactly a distribution.
  static inline V put_weights(Query* out, V weights, const uint16_t*, int, int) { return round_weights(out, weights); }
  template <int R, int C> static inline void values(const Query* weights, const uint16_t* page, int count, int dim, int d, V (*sums)[C]) {
    const auto pairs = [&](int t) { return page + static_cast<size_t>(t) * dim + 2 * d; };
    int t = 0;
    for (; t + 2 <= count; t += 2) add_pairs<R, C>(pairs(t), weights + t, true, sums);
    // The token beyond an odd count is none of the row's.
    if (t < count) add_pairs<R, C>(pairs(t), weights + t, false, sums);
  }
};

// A head's vector as signed bytes in -127..127; returns their scale, largest magnitude / 127. NaN and
// infinity make it NaN.  levels: [dim].
inline float quantise_head(const float* head, int dim, int8_t* levels) {
  V peaks = zero(), poisons = zero();
  for (int d = 0; d < dim; d += 16) {
    peaks = max(peaks, abs(load(head + d)));
    poisons = fma(load(head + d), zero(), poisons);
  }
  const float peak = highest(peaks);
  const V inverse = set1(peak > 0.0f ? 127.0f / peak : 0.0f);
  for (int d = 0; d < dim; d += 16) store_i8(levels + d, mul(load(head + d), inverse));
  return peak / 127.0f + sum(poisons);
}

// A byte is a bfloat16 exactly: pages are widened, and multiplied as Bf16Cache's are.  A key's scale
// multiplies its token's dot products, a value's the softmax weight.
struct Int8Cache : Halves16 {
  using Cell = int8_t;
  using Open = uint16_t;
  static constexpr int SCALES = 16 * sizeof(float);
  static constexpr size_t page_cells(int dim) { return SCALES + static_cast<size_t>(16) * dim; }

  static inline void put_key(int8_t* page, int token, const float* head, int dim) {
    alignas(64) int8_t levels[pk::MAX_HEAD_DIM];
    put_scale(page, token, quantise_head(head, dim, levels));
    for (int d = 0; d < dim; d++) page[SCALES + 16 * d + token] = levels[d];
  }
  static inline void put_value(int8_t* page, int token, const float* head, int dim) {
    put_scale(page, token, quantise_head(head, dim, page + SCALES + token * dim));
  }
  static inline void put_scale(int8_t* page, int token, float scale) { __builtin_memcpy(page + sizeof scale * token, &scale, sizeof scale); }
  static inline void copy_scale(const int8_t* page, int from, int8_t* to_page, int to) {
    __builtin_memcpy(to_page + sizeof(float) * to, page + sizeof(float) * from, sizeof(float));
  }
  // A key's levels aren't those of its value, whose largest number is another one.
  static inline void copy_token(const int8_t* keys, const int8_t* values, int from, int8_t* to_keys, int8_t* to_values, int to, int dim, int value_dim) {
    copy_scale(keys, from, to_keys, to);
    copy_scale(values, from, to_values, to);
    for (int d = 0; d < dim; d++) to_keys[SCALES + 16 * d + to] = keys[SCALES + 16 * d + from];
    __builtin_memcpy(to_values + SCALES + static_cast<size_t>(to) * value_dim, values + SCALES + static_cast<size_t>(from) * value_dim, value_dim);
  }
  static inline void ask_for_token(const int8_t* keys, const int8_t* values, int token, int dim, int value_dim) {
    pk::prefetch(reinterpret_cast<const uint8_t*>(keys), page_cells(dim));
    pk::prefetch(reinterpret_cast<const uint8_t*>(values + SCALES + static_cast<size_t>(token) * value_dim), value_dim);
  }
  static inline V scales(const int8_t* page) { return load(reinterpret_cast<const float*>(page)); }

  class Reader {
   public:
    // levels [dim][16] -> [dim / 2][16][2]
    inline const uint16_t* keys(const int8_t* page, int dim, int place) {
      const int8_t* levels = page + SCALES;
      uint16_t* cells = cells_[place];
      for (int d = 0; d < dim; d += 2) store_bf16_pairs(cells + 16 * d, load_i8(levels + 16 * d), load_i8(levels + 16 * d + 16));
      return cells;
    }

   private:
    alignas(64) uint16_t cells_[SCORE_PAGES][16 * pk::MAX_HEAD_DIM];
  };

  template <int R, int C> static inline void values(const Query* weights, const int8_t* page, int count, int dim, int d, V (*sums)[C]) {
    const int8_t* levels = page + SCALES + d;
    for (int t = 0; t < count; t += 2) {
      alignas(64) uint16_t pairs[C][32];
      for (int c = 0; c < C; c++) store_bf16_pairs(pairs[c], load_i8(levels + t * dim + 16 * c), load_i8(levels + (t + 1) * dim + 16 * c));
      // The token beyond an odd count is none of the row's.
      add_pairs<R, C>(pairs[0], weights + t, t + 1 < count, sums);
    }
  }

  static inline const float* wide_keys(const int8_t* page, int dim, float* memory) {
    for (int d = 0; d < dim; d++) store(memory + 16 * d, load_i8(page + SCALES + 16 * d));
    return memory;
  }
  static inline void widen_values(const int8_t* page, int dim, int d, float* out) {
    for (int t = 0; t < 16; t++) store(out + 16 * t, load_i8(page + SCALES + t * dim + d));
  }
  // memory: [8][16 * N][2].
  static constexpr bool PAIRED = false;
  template <int N> static inline const uint16_t* pairs_of_values(const int8_t* page, int dim, int d, uint16_t* memory) {
    const int8_t* levels = page + SCALES + d;
    for (int t = 0; t < 16; t += 2)
      for (int c = 0; c < N; c++) store_bf16_pairs(memory + 16 * N * t + 32 * c, load_i8(levels + t * dim + 16 * c), load_i8(levels + (t + 1) * dim + 16 * c));
    return memory;
  }
  static constexpr bool SCALED = true;
  static inline V scaled(V dots, const int8_t* page) { return mul(dots, scales(page)); }
  static inline V put_weights(Query* out, V weights, const int8_t* page, int first, int last) {
    // Scales beyond `last` are of no token of the row: NaN perhaps.
    round_weights(out, keep_through(mul(weights, scales(page)), first, last, 0.0f));
    return weights;
  }
};

}  // namespace
