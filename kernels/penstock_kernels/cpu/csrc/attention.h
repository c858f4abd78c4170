// Attention of query rows over one sequence's paged keys and values.
//
// A sequence's positions are cut into splits of KEY_SPLIT. Each split gives a query row a partial
// softmax (peak, sum, weighted values); partials are folded in the order of positions by the online
// recurrence (Milakov and Gimelshein, 2018).  A row's bits depend on its own keys alone.
//
// Cache of a layer: for every 16 tokens and KV head, keys as [head_dim][16 tokens], values as
// [16 tokens][head_dim].
#pragma once
#include "activations.h"
#include "elementwise.h"

namespace {

constexpr float NO_PEAK = -1e30f;

struct F32Cache {
  using Cell = float;
  static inline V get(const float* p) { return load(p); }
  static inline float put(float x) { return x; }
};
struct Bf16Cache {
  using Cell = uint16_t;
  static inline V get(const uint16_t* p) { return load_bf16(p); }
  static inline uint16_t put(float x) { return to_bf16(x); }
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
  typename Cache::Cell* page = keys + pages.at(position / 16, kv_head) + position % 16;
  for (int d = 0; d < dim; d++) page[16 * d] = Cache::put(head[d]);
}
template <class Cache>
void store_value(typename Cache::Cell* values, const Pages& pages, int kv_head, int position, const float* head, int dim) {
  typename Cache::Cell* page = values + pages.at(position / 16, kv_head) + static_cast<size_t>(position % 16) * dim;
  for (int d = 0; d < dim; d++) page[d] = Cache::put(head[d]);
}

// scores: [rows][KEY_SPLIT] of R query rows against one page.
template <class Cache, int R>
inline void page_scores(const float* const* queries, const typename Cache::Cell* page, int dim, float* scores) {
  V dots[R];
  for (int r = 0; r < R; r++) dots[r] = zero();
  for (int d = 0; d < dim; d++) {
    const V key = Cache::get(page + 16 * d);
    for (int r = 0; r < R; r++) dots[r] = fma(set1(queries[r][d]), key, dots[r]);
  }
  for (int r = 0; r < R; r++) store(scores + r * pk::KEY_SPLIT, dots[r]);
}

template <class Cache>
inline void scores_of(const float* const* queries, int rows, const typename Cache::Cell* page, int dim, float* scores) {
  int r = 0;
  for (; r + 8 <= rows; r += 8) page_scores<Cache, 8>(queries + r, page, dim, scores + r * pk::KEY_SPLIT);
  for (; r + 3 <= rows; r += 3) page_scores<Cache, 3>(queries + r, page, dim, scores + r * pk::KEY_SPLIT);
  for (; r < rows; r++) page_scores<Cache, 1>(queries + r, page, dim, scores + r * pk::KEY_SPLIT);
}

// sums[r][c] over one page's first `count` tokens, for R rows and C vectors of the head.
template <class Cache, int R, int C>
inline void page_values(const float* weights, const typename Cache::Cell* page, int count, int dim, float* out, int out_stride) {
  V sums[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sums[r][c] = load(out + r * out_stride + 16 * c);
  for (int t = 0; t < count; t++) {
    V value[C];
    for (int c = 0; c < C; c++) value[c] = Cache::get(page + static_cast<size_t>(t) * dim + 16 * c);
    for (int r = 0; r < R; r++) {
      const V by = set1(weights[r * pk::KEY_SPLIT + t]);
      for (int c = 0; c < C; c++) sums[r][c] = fma(by, value[c], sums[r][c]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(out + r * out_stride + 16 * c, sums[r][c]);
}

template <class Cache, int C>
inline void values_of(const float* weights, int rows, const typename Cache::Cell* page, int count, int dim, float* out, int out_stride) {
  int r = 0;
  for (; r + 3 <= rows; r += 3) page_values<Cache, 3, C>(weights + r * pk::KEY_SPLIT, page, count, dim, out + r * out_stride, out_stride);
  for (; r < rows; r++) page_values<Cache, 1, C>(weights + r * pk::KEY_SPLIT, page, count, dim, out + r * out_stride, out_stride);
}

// Tokens of the page that begins at position `page`, through position `last`.
inline int tokens_through(int last, int page) {
  const int count = last - page + 1;
  return count < 0 ? 0 : count < 16 ? count : 16;
}

// A partial: [2 + dim] floats, peak, sum, weighted values.
inline int partial_size(int dim) { return 16 + dim; }

// The partials of `rows` query rows over split `split`. last: each row's own position.
// scores: [rows][KEY_SPLIT] of scratch.  partials: [rows][partial_size].
template <class Cache>
void attend_split(const float* const* queries, const int* last, int rows, const typename Cache::Cell* keys,
                  const typename Cache::Cell* values, const Pages& pages, int kv_head, int split, int dim, float scale,
                  float* scores, float* partials) {
  const int first = split * pk::KEY_SPLIT, size = partial_size(dim);
  int furthest = 0;
  for (int r = 0; r < rows; r++) furthest = last[r] > furthest ? last[r] : furthest;
  const int end = furthest + 1 < first + pk::KEY_SPLIT ? furthest + 1 : first + pk::KEY_SPLIT;
  const int num_pages = (end - first + 15) / 16;
  for (int p = 0; p < num_pages; p++)
    scores_of<Cache>(queries, rows, keys + pages.at(first / 16 + p, kv_head), dim, scores + 16 * p);
  for (int r = 0; r < rows; r++) {
    float* row = scores + r * pk::KEY_SPLIT;
    V peaks = set1(NO_PEAK);
    for (int p = 0; p < num_pages; p++) {
      const V s = keep_through(mul(load(row + 16 * p), set1(scale)), first + 16 * p, last[r], NO_PEAK);
      store(row + 16 * p, s);
      // The score comes second: a NaN is then kept by AVX's maximum.
      peaks = max(peaks, s);
    }
    const float peak = highest(peaks);
    V sums = zero();
    for (int p = 0; p < num_pages; p++) {
      const V weight = exponential(sub(load(row + 16 * p), set1(peak)));
      const V kept = keep_through(weight, first + 16 * p, last[r], 0.0f);
      store(row + 16 * p, kept);
      sums = add(sums, kept);
    }
    float* partial = partials + static_cast<size_t>(r) * size;
    partial[0] = peak;
    partial[1] = sum(sums);
    for (int d = 0; d < dim; d += 16) store(partial + 16 + d, zero());
  }
  for (int p = 0; p < num_pages; p++) {
    const typename Cache::Cell* page = values + pages.at(first / 16 + p, kv_head);
    // A weight of 0 doesn't keep out a value that is not finite: no row reads beyond its position.
    for (int r = 0, next; r < rows; r = next) {
      const int count = tokens_through(last[r], first + 16 * p);
      for (next = r + 1; next < rows && tokens_through(last[next], first + 16 * p) == count; next++) {}
      const float* weights = scores + static_cast<size_t>(r) * pk::KEY_SPLIT + 16 * p;
      float* out = partials + static_cast<size_t>(r) * size + 16;
      int d = 0;
      for (; d + 64 <= dim; d += 64) values_of<Cache, 4>(weights, next - r, page + d, count, dim, out + d, size);
      for (; d < dim; d += 16) values_of<Cache, 1>(weights, next - r, page + d, count, dim, out + d, size);
    }
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

}  // namespace
