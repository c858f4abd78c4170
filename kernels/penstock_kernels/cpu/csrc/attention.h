// Attention of query rows over one sequence's paged keys and values.
//
// A sequence's positions are cut into splits of KEY_SPLIT. Each split gives a query row a partial
// softmax (peak, sum, weighted values); partials are folded in the order of positions by the online
// recurrence (Milakov and Gimelshein, 2018).  A row's bits depend on its own keys alone.
//
// Cache of a layer, for every 16 tokens (a page) and KV head: in float32 keys as [head_dim][16 tokens]
// and values as [16 tokens][head_dim]; in bfloat16 pairs lie together for the dot products, keys as
// [head_dim / 2][16 tokens][2] and values as [8][head_dim][2 tokens].  In int8 the 16 tokens' scales
// (float32) come first, then the levels, ordered as in float32.
#pragma once
#include "activations.h"
#include "elementwise.h"

namespace {

constexpr float NO_PEAK = -1e30f;
// Pages of keys that are asked for before they are read.
constexpr int PAGES_AHEAD = 4;

// How keys, values, queries and softmax weights are stored and multiplied. Cell: what a page is made
// of.  Query: what a query, a weight and a page of keys that is open for multiplying are made of.
struct F32Cache {
  using Cell = float;
  using Query = float;
  static constexpr size_t page_cells(int dim) { return static_cast<size_t>(16) * dim; }
  static inline void put_key(float* page, int token, const float* head, int dim) {
    for (int d = 0; d < dim; d++) page[16 * d + token] = head[d];
  }
  static inline void put_value(float* page, int token, const float* head, int dim) {
    for (int d = 0; d < dim; d++) page[token * dim + d] = head[d];
  }
  // A page's keys, ready to be multiplied, until the next page is opened.
  struct Reader {
    static inline const float* keys(const float* page, int) { return page; }
  };
  static inline V scaled(V dots, const float*) { return dots; }
  // Stores 16 weights for the page of values, of tokens `first` to `last`; returns what to sum up.
  static inline V put_weights(float* out, V weights, const float*, int, int) {
    store(out, weights);
    return weights;
  }
  // Row r of the panel of queries, [dim][rows].
  static inline void put_query(float* panel, int r, int rows, const float* query, int dim) {
    for (int d = 0; d < dim; d++) panel[d * rows + r] = query[d];
  }
  // 16 scores of each of R queries, the first R columns of a panel.
  template <int R> static inline void scores(const float* panel, int rows, const float* page, int dim, V* dots) {
    for (int d = 0; d < dim; d++) {
      const V key = load(page + 16 * d);
      for (int r = 0; r < R; r++) dots[r] = fma(set1(panel[d * rows + r]), key, dots[r]);
    }
  }
  static inline const float* column(const float* panel, int r) { return panel + r; }
  // sums[r][c] += weights of the first `count` tokens times C vectors of their values, from d on.
  template <int R, int C> static inline void values(const float* weights, const float* page, int count, int dim, int d, V (*sums)[C]) {
    for (int t = 0; t < count; t++) {
      V value[C];
      for (int c = 0; c < C; c++) value[c] = load(page + static_cast<size_t>(t) * dim + d + 16 * c);
      for (int r = 0; r < R; r++) {
        const V by = set1(weights[r * pk::KEY_SPLIT + t]);
        for (int c = 0; c < C; c++) sums[r][c] = fma(by, value[c], sums[r][c]);
      }
    }
  }
};

struct Bf16Cache {
  using Cell = uint16_t;
  using Query = uint16_t;
  static constexpr size_t page_cells(int dim) { return static_cast<size_t>(16) * dim; }
  static inline void put_key(uint16_t* page, int token, const float* head, int dim) {
    for (int d = 0; d < dim; d++) page[32 * (d / 2) + 2 * token + d % 2] = to_bf16(head[d]);
  }
  static inline void put_value(uint16_t* page, int token, const float* head, int dim) {
    for (int d = 0; d < dim; d++) page[(token / 2 * dim + d) * 2 + token % 2] = to_bf16(head[d]);
  }
  struct Reader {
    static inline const uint16_t* keys(const uint16_t* page, int) { return page; }
  };
  static inline V scaled(V dots, const uint16_t*) { return dots; }
  static inline V put_weights(uint16_t* out, V weights, const uint16_t*, int, int) {
    store_bf16(out, weights);
    // The weights as they are used, so that they are exactly a distribution.
    return load_bf16(out);
  }
  // The panel is [dim / 2][rows][2].
  static inline void put_query(uint16_t* panel, int r, int rows, const float* query, int dim) {
    for (int d = 0; d < dim; d += 16) {
      uint16_t cells[16];
      store_bf16(cells, load(query + d));
      for (int i = 0; i < 16; i += 2) __builtin_memcpy(panel + (d + i) * rows + 2 * r, cells + i, 2 * sizeof *cells);
    }
  }
  template <int R> static inline void scores(const uint16_t* panel, int rows, const uint16_t* page, int dim, V* dots) {
    for (int d = 0; d < dim; d += 2)
      for (int r = 0; r < R; r++) dots[r] = dot2_bf16(dots[r], page + 16 * d, panel + d * rows + 2 * r);
  }
  static inline const uint16_t* column(const uint16_t* panel, int r) { return panel + 2 * r; }
  template <int R, int C> static inline void values(const uint16_t* weights, const uint16_t* page, int count, int dim, int d, V (*sums)[C]) {
    int t = 0;
    for (; t + 2 <= count; t += 2)
      for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = dot2_bf16(sums[r][c], page + static_cast<size_t>(t) * dim + 2 * (d + 16 * c), weights + r * pk::KEY_SPLIT + t);
    // The token beyond an odd count is none of the row's.
    if (t < count)
      for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = dot1_bf16(sums[r][c], page + static_cast<size_t>(t) * dim + 2 * (d + 16 * c), weights + r * pk::KEY_SPLIT + t);
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
struct Int8Cache : Bf16Cache {
  using Cell = int8_t;
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
  static inline V scales(const int8_t* page) { return load(reinterpret_cast<const float*>(page)); }

  class Reader {
   public:
    // levels [dim][16] -> [dim / 2][16][2]
    inline const uint16_t* keys(const int8_t* page, int dim) {
      const int8_t* levels = page + SCALES;
      for (int d = 0; d < dim; d += 2) store_bf16_pairs(cells_ + 16 * d, load_i8(levels + 16 * d), load_i8(levels + 16 * d + 16));
      return cells_;
    }

   private:
    alignas(64) uint16_t cells_[16 * pk::MAX_HEAD_DIM];
  };

  template <int R, int C> static inline void values(const uint16_t* weights, const int8_t* page, int count, int dim, int d, V (*sums)[C]) {
    const int8_t* levels = page + SCALES + d;
    for (int t = 0; t < count; t += 2) {
      alignas(64) uint16_t pairs[C][32];
      for (int c = 0; c < C; c++) store_bf16_pairs(pairs[c], load_i8(levels + t * dim + 16 * c), load_i8(levels + (t + 1) * dim + 16 * c));
      for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
          const uint16_t* by = weights + r * pk::KEY_SPLIT + t;
          // The token beyond an odd count is none of the row's.
          sums[r][c] = t + 1 < count ? dot2_bf16(sums[r][c], pairs[c], by) : dot1_bf16(sums[r][c], pairs[c], by);
        }
    }
  }

  static inline V scaled(V dots, const int8_t* page) { return mul(dots, scales(page)); }
  static inline V put_weights(uint16_t* out, V weights, const int8_t* page, int first, int last) {
    // Scales beyond `last` are of no token of the row: NaN perhaps.
    store_bf16(out, keep_through(mul(weights, scales(page)), first, last, 0.0f));
    return weights;
  }
};

// Where a sequence's tokens lie: 16-token pages.
struct Pages {
  const int32_t* table;
  int per_block;
  size_t page_cells;   // cells of one page over all KV heads
  size_t head_cells;   // cells of one page and KV head
  inline size_t at(int page, int kv_head) const {
    const size_t block = static_cast<size_t>(table[page / per_block]);
    return (block * per_block + page % per_block) * page_cells + kv_head * head_cells;
  }
};

template <class Cache>
void store_key(typename Cache::Cell* keys, const Pages& pages, int kv_head, int position, const float* head, int dim) {
  Cache::put_key(keys + pages.at(position / 16, kv_head), position % 16, head, dim);
}
template <class Cache>
void store_value(typename Cache::Cell* values, const Pages& pages, int kv_head, int position, const float* head, int dim) {
  Cache::put_value(values + pages.at(position / 16, kv_head), position % 16, head, dim);
}

// scores: [rows][KEY_SPLIT] of R query rows against one page.
template <class Cache, int R>
inline void page_scores(const typename Cache::Query* panel, int rows, const typename Cache::Query* page, int dim, float* scores) {
  V dots[R];
  for (int r = 0; r < R; r++) dots[r] = zero();
  Cache::template scores<R>(panel, rows, page, dim, dots);
  for (int r = 0; r < R; r++) store(scores + r * pk::KEY_SPLIT, dots[r]);
}

template <class Cache>
inline void scores_of(const typename Cache::Query* panel, int rows, const typename Cache::Query* page, int dim, float* scores) {
  int r = 0;
  for (; r + 12 <= rows; r += 12) page_scores<Cache, 12>(Cache::column(panel, r), rows, page, dim, scores + r * pk::KEY_SPLIT);
  for (; r + 8 <= rows; r += 8) page_scores<Cache, 8>(Cache::column(panel, r), rows, page, dim, scores + r * pk::KEY_SPLIT);
  for (; r + 3 <= rows; r += 3) page_scores<Cache, 3>(Cache::column(panel, r), rows, page, dim, scores + r * pk::KEY_SPLIT);
  for (; r < rows; r++) page_scores<Cache, 1>(Cache::column(panel, r), rows, page, dim, scores + r * pk::KEY_SPLIT);
}

// out: [rows][out_stride] += the first `count` tokens of pages, for R rows and C vectors of the head.
template <class Cache, int R, int C>
inline void page_values(const typename Cache::Query* weights, const typename Cache::Cell* const* pages, int count, int dim, int d, float* out, int out_stride) {
  V sums[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = load(out + r * out_stride + 16 * c);
  for (int t = 0; t < count; t += 16)
    Cache::template values<R, C>(weights + t, pages[t / 16], count - t < 16 ? count - t : 16, dim, d, sums);
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(out + r * out_stride + 16 * c, sums[r][c]);
}

template <class Cache, int C>
inline void values_of(const typename Cache::Query* weights, int rows, const typename Cache::Cell* const* pages, int count, int dim, int d, float* out, int out_stride) {
  int r = 0;
  for (; r + 6 <= rows; r += 6) page_values<Cache, 6, C>(weights + r * pk::KEY_SPLIT, pages, count, dim, d, out + r * out_stride, out_stride);
  for (; r + 3 <= rows; r += 3) page_values<Cache, 3, C>(weights + r * pk::KEY_SPLIT, pages, count, dim, d, out + r * out_stride, out_stride);
  for (; r < rows; r++) page_values<Cache, 1, C>(weights + r * pk::KEY_SPLIT, pages, count, dim, d, out + r * out_stride, out_stride);
}

// out: [rows][out_stride] += the first `count` tokens of pages, over the whole head.
template <class Cache>
inline void head_values(const typename Cache::Query* weights, int rows, const typename Cache::Cell* const* pages, int count, int dim, float* out, int out_stride) {
  int d = 0;
  for (; d + 64 <= dim; d += 64) values_of<Cache, 4>(weights, rows, pages, count, dim, d, out + d, out_stride);
  for (; d < dim; d += 16) values_of<Cache, 1>(weights, rows, pages, count, dim, d, out + d, out_stride);
}

// The first key that a token sees.
inline int first_key(const PkAttention& a, int position) {
  const int behind = a.window && position >= a.window ? position - a.window + 1 : 0;
  const int chunk = a.chunk ? position / a.chunk * a.chunk : 0;
  return behind > chunk ? behind : chunk;
}

// The keys that the rows of a tile see. A row is a query head of a token; `group` rows are one token's.
class Reach {
 public:
  Reach(const PkAttention& a, int position, int rows, int group) {
    for (int r = 0; r < rows; r++) {
      last_[r] = position + r / group;
      first_[r] = first_key(a, last_[r]);
    }
  }
  int first(int row) const { return first_[row]; }
  int last(int row) const { return last_[row]; }  // its own

 private:
  int first_[pk::MAX_TILE_ROWS], last_[pk::MAX_TILE_ROWS];
};

// Tokens of the split that begins at position `first`, through position `last`.
inline int tokens_through(int last, int first) {
  const int count = last - first + 1;
  return count < 0 ? 0 : count < pk::KEY_SPLIT ? count : pk::KEY_SPLIT;
}

// Tokens of the split that lie in pages before the one of position `from`.
inline int tokens_before(int from, int first) { return from > first ? (from - first) / 16 * 16 : 0; }

// A partial: [2 + dim] floats, peak, sum, weighted values.
constexpr int partial_size(int dim) { return 16 + dim; }

// The keys of a split that a row sees, of those that were multiplied: pages `first_page` to `end_page`.
struct Seen { int from, last, first, first_page, end_page; };

// Makes weights of a row's products, and the first two numbers of its partial: peak and sum.
// RULED: the row may see less than all keys up to its own, or its scores are capped.
template <class Cache, bool RULED>
inline void softmax(float* row, const Seen& seen, const typename Cache::Cell* const* key_pages, const typename Cache::Cell* const* value_pages,
                    const PkAttention& a, typename Cache::Query* weights, float* partial) {
  const V scale = set1(a.scale);
  V peaks = set1(NO_PEAK);
  for (int p = seen.first_page; p < seen.end_page; p++) {
    const int position = seen.first + 16 * p;
    V s = mul(Cache::scaled(load(row + 16 * p), key_pages[p]), scale);
    if (RULED && a.soft_cap > 0.0f) s = capped(s, a.soft_cap);
    s = keep_through(s, position, seen.last, NO_PEAK);
    if (RULED) s = keep_from(s, position, seen.from, NO_PEAK);
    store(row + 16 * p, s);
    // The score comes second: a NaN is then kept by AVX's maximum.
    peaks = max(peaks, s);
  }
  const float peak = highest(peaks);
  V sums = zero();
  for (int p = seen.first_page; p < seen.end_page; p++) {
    const int position = seen.first + 16 * p;
    V weight = keep_through(exponential(sub(load(row + 16 * p), set1(peak))), position, seen.last, 0.0f);
    if (RULED) weight = keep_from(weight, position, seen.from, 0.0f);
    sums = add(sums, Cache::put_weights(weights + 16 * p, weight, value_pages[p], position, seen.last));
  }
  partial[0] = peak;
  partial[1] = sum(sums);
}

// The partials of `rows` query rows over split `split`, which the first of them reaches.
// scores, weights: [rows][KEY_SPLIT] of scratch.  partials: [rows][partial_size]; what is left there of a
// row that doesn't reach the split means nothing.
template <class Cache>
void attend_split(const typename Cache::Query* panel, const Reach& reach, int rows, const PkAttention& a, const Pages& pages, int kv_head,
                  int split, float* scores, typename Cache::Query* weights, float* partials) {
  using Cell = typename Cache::Cell;
  const int first = split * pk::KEY_SPLIT, dim = a.head_dim, size = partial_size(dim);
  const int num_pages = (tokens_through(reach.last(rows - 1), first) + 15) / 16, first_page = tokens_before(reach.first(0), first) / 16;
  const Cell *key_pages[pk::KEY_SPLIT / 16], *value_pages[pk::KEY_SPLIT / 16];
  for (int p = first_page; p < num_pages; p++) {
    const size_t at = pages.at(first / 16 + p, kv_head);
    key_pages[p] = static_cast<const Cell*>(a.keys) + at;
    value_pages[p] = static_cast<const Cell*>(a.values) + at;
  }
  const auto ask_for = [&](const Cell* page) {
    pk::prefetch(reinterpret_cast<const uint8_t*>(page), pages.head_cells * sizeof *page);
  };
  typename Cache::Reader reader;
  for (int p = first_page; p < num_pages && p < first_page + PAGES_AHEAD; p++) ask_for(key_pages[p]);
  for (int p = first_page; p < num_pages; p++) {
    if (p + PAGES_AHEAD < num_pages) ask_for(key_pages[p + PAGES_AHEAD]);
    ask_for(value_pages[p]);
    scores_of<Cache>(panel, rows, reader.keys(key_pages[p], dim), dim, scores + 16 * p);
  }
  const bool ruled = a.soft_cap > 0.0f || reach.first(rows - 1) > first;
  for (int r = 0; r < rows; r++) {
    float *row = scores + r * pk::KEY_SPLIT, *partial = partials + static_cast<size_t>(r) * size;
    typename Cache::Query* row_weights = weights + static_cast<size_t>(r) * pk::KEY_SPLIT;
    const Seen seen = {reach.first(r), reach.last(r), first, first_page, num_pages};
    if (ruled) softmax<Cache, true>(row, seen, key_pages, value_pages, a, row_weights, partial);
    else softmax<Cache, false>(row, seen, key_pages, value_pages, a, row_weights, partial);
    for (int d = 0; d < dim; d += 16) store(partial + 16 + d, zero());
  }
  // Whole pages first, for all rows that see the same; then what each sees of its last page.  A weight
  // of 0 doesn't keep out a value that is not finite: no row reads beyond its position, nor a page
  // before the first that it sees something of.
  for (int part = 0; part < 2; part++)
    for (int r = 0, next; r < rows; r = next) {
      const auto end_of = [&](int row) {
        const int count = tokens_through(reach.last(row), first);
        return part ? count : count / 16 * 16;
      };
      const auto begin_of = [&](int row) {
        const int before = tokens_before(reach.first(row), first), whole = part ? end_of(row) / 16 * 16 : 0;
        return before > whole ? before : whole;
      };
      const int end_token = end_of(r), begin = begin_of(r);
      for (next = r + 1; next < rows && end_of(next) == end_token && begin_of(next) == begin; next++) {}
      if (begin < end_token)
        head_values<Cache>(weights + static_cast<size_t>(r) * pk::KEY_SPLIT + begin, next - r, value_pages + begin / 16, end_token - begin, dim,
                           partials + static_cast<size_t>(r) * size + 16, size);
    }
}

// into: a row's partial so far; part: the next split's.
inline void fold(float* into, const float* part, int dim) {
  const float peak = into[0] > part[0] ? into[0] : part[0];
  const float keep = exponential(into[0] - peak), gain = exponential(part[0] - peak);
  into[0] = peak;
  into[1] = into[1] * keep + part[1] * gain;
  for (int d = 0; d < dim; d += 16)
    store(into + 16 + d, fma(load(part + 16 + d), set1(gain), mul(load(into + 16 + d), set1(keep))));
}

// A score without a value takes part in the softmax.
inline void fold_sink(float* into, float sink, int dim) {
  const float peak = into[0] > sink ? into[0] : sink;
  const float keep = exponential(into[0] - peak);
  into[0] = peak;
  into[1] = into[1] * keep + exponential(sink - peak);
  for (int d = 0; d < dim; d += 16) store(into + 16 + d, mul(load(into + 16 + d), set1(keep)));
}

}  // namespace
