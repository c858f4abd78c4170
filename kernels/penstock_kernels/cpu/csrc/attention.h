// Attention of query rows over one sequence's paged keys and values.
//
// A sequence's positions are cut into splits of KEY_SPLIT. Each split gives a query row a partial
// softmax (peak, sum, weighted values); partials are folded in the order of positions by the online
// recurrence (Milakov and Gimelshein, 2018).  A row's bits depend on its own keys alone.
#pragma once
#include "distances.h"
#include "scores.h"
#if defined(PK_AMX)
#include "amx_attention.h"
#endif

namespace {

#if !defined(PK_AMX)
constexpr int ROWS_BEYOND = 0;
#endif

constexpr float NO_PEAK = -1e30f;
// Pages of values that are added to sums while these are in registers. Of a few rows: pages lie so far apart that the
// same few places of the nearest cache would have to hold them all. Of many, who read them again and again: a split's.
constexpr int PAGES_OF_FEW = 4, PAGES_OF_MANY = pk::KEY_SPLIT / 16, MANY_ROWS = 12;

// Where a sequence's tokens lie: 16-token pages.
struct Pages {
  const int32_t* table;
  int per_block;
  size_t page_cells;   // cells of one page over all KV heads
  size_t head_cells;   // cells of one page and KV head
  size_t value_page_cells, value_head_cells;  // the same of values
  size_t block_cells, value_block_cells;      // from a block to the next
  inline size_t at(int page, int kv_head) const { return block(page) * block_cells + page % per_block * page_cells + kv_head * head_cells; }
  inline size_t value_at(int page, int kv_head) const { return block(page) * value_block_cells + page % per_block * value_page_cells + kv_head * value_head_cells; }
  inline size_t block(int page) const { return static_cast<size_t>(table[page / per_block]); }
};

template <class Cache>
void store_key(typename Cache::Cell* keys, const Pages& pages, int kv_head, int position, const float* head, int dim) {
  Cache::put_key(keys + pages.at(position / 16, kv_head), position % 16, head, dim);
}
template <class Cache>
void store_value(typename Cache::Cell* values, const Pages& pages, int kv_head, int position, const float* head, int dim) {
  Cache::put_value(values + pages.value_at(position / 16, kv_head), position % 16, head, dim);
}

// out: [rows][out_stride] += `tokens` tokens of pages, for R rows and C vectors of the head, from number d on.
template <class Cache, int R, int C>
inline void page_values(const typename Cache::Query* weights, const typename Cache::Cell* const* pages, int tokens, int dim, int d, float* out, int out_stride) {
  V sums[R][C];
  PK_UNROLLED
  for (int r = 0; r < R; r++)
    PK_UNROLLED
    for (int c = 0; c < C; c++) sums[r][c] = load(out + r * out_stride + 16 * c);
  for (int t = 0; t < tokens; t += 16) Cache::template values<R, C>(weights + t, pages[t / 16], tokens - t < 16 ? tokens - t : 16, dim, d, sums);
  PK_UNROLLED
  for (int r = 0; r < R; r++)
    PK_UNROLLED
    for (int c = 0; c < C; c++) store(out + r * out_stride + 16 * c, sums[r][c]);
}

// The same for all rows, from number d of the head on, C vectors at a time. Returns the first number that is left.
template <class Cache, int C>
inline int values_of(int d, const typename Cache::Query* weights, int rows, const typename Cache::Cell* const* pages, int tokens, int dim, float* out, int out_stride) {
  if constexpr (C <= VALUE_VECTORS)
    for (; d + 16 * C <= dim; d += 16 * C)
      by_few_rows<VALUE_ROWS>(rows, [&](auto few, int r) {
        page_values<Cache, decltype(few)::value, C>(weights + r * pk::KEY_SPLIT, pages, tokens, dim, d, out + d + r * out_stride, out_stride);
      });
  return d;
}

// out: [rows][out_stride] += the first `count` tokens of pages, over the whole head. Many rows read values again and again:
// of each vector of the head, they are made floats once, which lie together in the nearest cache.
template <class Cache>
inline void wide_values(const float* weights, int rows, const typename Cache::Cell* const* pages, int count, int dim, float* out, int out_stride) {
  alignas(64) float values[16 * pk::KEY_SPLIT];
  for (int d = 0; d < dim; d += 16) {
    for (int t = 0; t < count; t += 16) Cache::widen_values(pages[t / 16], dim, d, values + 16 * t);
    by_few_rows<VALUE_ROWS>(rows, [&](auto few, int r) {
      constexpr int R = decltype(few)::value;
      V sums[R][1];
      float* to = out + d + r * out_stride;
      PK_UNROLLED
      for (int i = 0; i < R; i++) sums[i][0] = load(to + i * out_stride);
      F32Cache::values<R, 1>(weights + r * pk::KEY_SPLIT, values, count, 16, 0, sums);
      PK_UNROLLED
      for (int i = 0; i < R; i++) store(to + i * out_stride, sums[i][0]);
    });
  }
}

// out: [rows][out_stride] += the first `count` tokens of pages, over the whole head.
template <class Cache>
inline void head_values(const typename Cache::Query* weights, int rows, const typename Cache::Cell* const* pages, int count, int dim, float* out, int out_stride) {
  if constexpr (WIDENS)
    if (rows >= MANY_ROWS) return wide_values<Cache>(weights, rows, pages, count, dim, out, out_stride);
  const int together = rows >= MANY_ROWS ? PAGES_OF_MANY : PAGES_OF_FEW, most = 16 * together;
  const auto ask_for = [&](int page) {
    for (size_t i = 0; i < Cache::page_cells(dim) * sizeof(typename Cache::Cell); i += 64) __builtin_prefetch(reinterpret_cast<const uint8_t*>(pages[page]) + i, 0, 3);
  };
  for (int t = 0; t < count; t += most) {
    const int tokens = count - t < most ? count - t : most;
    for (int page = t / 16 + together; 16 * page < count && page < t / 16 + 2 * together; page++) ask_for(page);
    int d = values_of<Cache, 4>(0, weights + t, rows, pages + t / 16, tokens, dim, out, out_stride);
    d = values_of<Cache, 2>(d, weights + t, rows, pages + t / 16, tokens, dim, out, out_stride);
    values_of<Cache, 1>(d, weights + t, rows, pages + t / 16, tokens, dim, out, out_stride);
  }
}

// The first key that a token sees.
inline int first_key(const PkAttention& a, int position) {
  const int behind = a.window && position >= a.window ? position - a.window + 1 : 0;
  const int chunk = a.chunk ? position / a.chunk * a.chunk : 0;
  return behind > chunk ? behind : chunk;
}

// The last key that a token sees, in a sequence that ends at position `end`; of one that reads chosen keys alone, which
// are counted then, the last of these.  last_seen: what the batch says of the token, or null.
inline int last_key(const PkAttention& a, int position, int end, const int32_t* last_seen) {
  if (a.through && position >= a.through) return a.through - 1;
  // The last of chosen blocks is the token's own.
  if (a.most && position >= a.most) return a.block ? a.most - a.block + position % a.block : a.most - 1;
  if (!a.both_ways) return last_seen && !a.causal ? *last_seen : position;
  return a.window && position + a.window < end ? position + a.window - 1 : end - 1;
}

// The keys that the rows of a tile see. A row is a query head of a token; `group` rows are one token's.
class Reach {
 public:
  // last_seen, between: of the first token and those behind it, or null.
  Reach(const PkAttention& a, int position, int end, int rows, int group, const int32_t* last_seen, const uint8_t* between)
      : between_(between), position_(position), group_(group) {
    for (int r = 0; r < rows; r++) {
      last_[r] = last_key(a, position + r / group, end, last_seen ? last_seen + r / group : nullptr);
      first_[r] = first_key(a, position + r / group);
    }
  }
  // Of keys that all rows see from the first one on. last(token): the last one that each token of the tile sees, or -1.
  template <class Last> Reach(int rows, int group, const Last& last) : between_(nullptr), position_(0), group_(group) {
    for (int r = 0; r < rows; r++) {
      last_[r] = last(r / group);
      first_[r] = 0;
    }
  }
  int first(int row) const { return first_[row]; }
  int last(int row) const { return last_[row]; }
  // Whether something up to the row's last key is hidden from it in the split that begins at position `first`.
  // seen: [KEY_SPLIT], 1 or 0, set then.
  bool hides(int row, int first, float* seen) const {
    const int token = row / group_, own = position_ + token;
    if (!between_ || last_[row] <= own || first + pk::KEY_SPLIT <= own + 1) return false;
    bool found = false;
    for (int i = 0; i < pk::KEY_SPLIT; i++) {
      // What is seen behind a token is of the step, whose rows follow one another as positions do.
      const int key = first + i;
      const bool hidden = key > own && key <= last_[row] && (between_[token] || between_[key - position_]);
      seen[i] = hidden ? 0.0f : 1.0f;
      found = found || hidden;
    }
    return found;
  }

 private:
  const uint8_t* between_;
  int position_, group_;
  int first_[pk::MAX_TILE_ROWS], last_[pk::MAX_TILE_ROWS];
};

// What is added to the scores of a tile's rows by the distance of the key.
class Biases {
 public:
  Biases(const PkAttention& a, int position, int kv_head, int group)
      : products(a, position, kv_head, group), first_(a.biases ? a.biases + static_cast<size_t>(kv_head) * group * a.biases_width + a.biases_middle - position : nullptr),
        width_(a.biases_width), group_(group) {}
  const DistanceProducts products;
  // Of a row: what key 0 gets, and those behind it; or null.
  const float* of(int row) const { return first_ ? first_ + static_cast<ptrdiff_t>(row % group_) * width_ - row / group_ : nullptr; }

 private:
  const float* first_;
  int width_, group_;
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
// only: [KEY_SPLIT], 1 or 0, whether it sees each of these; null: it sees all.
struct Seen {
  int from, last, first, first_page, end_page;
  const float* only;
};

// Makes weights of a row's products, and the first two numbers of its partial: peak and sum.
// RULED: the row may see less than all keys up to its own, or its scores are capped or biased.
// biases: what the sequence's keys get, or null.
template <class Cache, bool RULED>
inline void softmax(float* row, const Seen& seen, const typename Cache::Cell* const* key_pages, const typename Cache::Cell* const* value_pages,
                    const PkAttention& a, const float* biases, typename Cache::Query* weights, float* partial) {
  const bool caps = RULED && a.soft_cap > 0.0f, shifts = RULED && biases;
  V peaks = set1(NO_PEAK);
  // Of pages that the row sees as a whole, nothing is left out.
  const int whole = RULED ? seen.first_page : (seen.last + 1 - seen.first) / 16;
  for (int p = seen.first_page; p < seen.end_page; p++) {
    const int position = seen.first + 16 * p;
    V s = Cache::scaled(load(row + 16 * p), key_pages[p]);
    if (caps) s = capped(mul(s, set1(a.scale)), a.soft_cap);
    if (shifts) s = fma(s, set1(caps ? 1.0f : a.scale), load(biases + position));
    if (p >= whole) s = keep_through(s, position, seen.last, NO_PEAK);
    if (RULED) s = keep_from(s, position, seen.from, NO_PEAK);
    if (RULED && seen.only) s = where_greater(load(seen.only + 16 * p), zero(), s, set1(NO_PEAK));
    if (Cache::SCALED || p >= whole) store(row + 16 * p, s);
    // The score comes second: a NaN is then kept by AVX's maximum.
    peaks = max(peaks, s);
  }
  // By powers of two: the scale, the base and the peak are one operation.
  const float scale = caps || shifts ? 1.0f : a.scale, octaves = scale * 1.44269504088896341f, peak = highest(peaks);
  const V by = set1(octaves), less = set1(-(peak * octaves));
  V sums = zero();
  for (int p = seen.first_page; p < seen.end_page; p++) {
    const int position = seen.first + 16 * p;
    V weight = Cache::two_to(fma(load(row + 16 * p), by, less));
    if (p >= whole) weight = keep_through(weight, position, seen.last, 0.0f);
    if (RULED) weight = keep_from(weight, position, seen.from, 0.0f);
    if (RULED && seen.only) weight = where_greater(load(seen.only + 16 * p), zero(), weight, zero());
    sums = add(sums, Cache::put_weights(weights + 16 * p, weight, value_pages[p], position, seen.last));
  }
  partial[0] = peak * scale;
  partial[1] = sum(sums);
}

// What a thread reads next: it is asked for while weights are computed, when no keys or values are on their way.
struct Coming {
  const uint8_t* pages[PAGES_AHEAD];
  int count = 0;
  size_t bytes = 0;  // of each
  void ask_for() const { for (int i = 0; i < count; i++) pk::prefetch(pages[i], bytes); }
};

// Where the pages of a split's keys and values lie.
template <class Cache> struct SplitPages { const typename Cache::Cell *keys[pk::KEY_SPLIT / 16], *values[pk::KEY_SPLIT / 16]; };

// The partials of `rows` query rows over split `split`, which the first of them reaches.
// find(pages, first, end): sets the pages from number `first` of the split to before `end`.
// scores, weights: [rows][KEY_SPLIT] of scratch, the same where a weight is a float.  partials: [rows][partial_size]; what is left there of a
// row that doesn't reach the split means nothing.
template <class Cache, class Find>
void attend_split(const typename Cache::Query* panel, const Reach& reach, const Biases& biases, int rows, const PkAttention& a, const Find& find, int split,
                  const Coming& coming, float* scores, typename Cache::Query* weights, float* partials) {
  using Cell = typename Cache::Cell;
  const int first = split * pk::KEY_SPLIT, dim = a.head_dim, value_dim = a.value_dim, size = partial_size(value_dim);
  const int num_pages = (tokens_through(reach.last(rows - 1), first) + 15) / 16, first_page = tokens_before(reach.first(0), first) / 16;
  SplitPages<Cache> pages;
  find(pages, first_page, num_pages);
  const Cell *const *key_pages = pages.keys, *const *value_pages = pages.values;
  const PagesToRead<Cell> to_read = {key_pages, value_pages, first_page, num_pages, Cache::page_cells(dim) * sizeof(Cell), Cache::page_cells(value_dim) * sizeof(Cell)};
  bool wide = false;
  if constexpr (WIDENS) {
    WideKeys<Cache> reader;
    wide = rows >= MANY_ROWS;
    if (wide) split_scores<F32Cache>(reader, BitByBit<Cell>(to_read, rows), panel, rows, to_read, dim, scores);
  }
  typename Cache::Reader reader;
  const auto by_vectors = [&] { split_scores<Cache>(reader, AtOnce<Cell>(to_read, rows), panel, rows, to_read, dim, scores); };
#if defined(PK_AMX)
  if constexpr (in_halves<Cache>) amx_split_scores<Cache>(panel, rows, to_read, dim, scores);
  else by_vectors();
#else
  if (!wide) by_vectors();
#endif
  if constexpr (std::is_same_v<Cache, F32Cache>)
    for (int r = 0; biases.products.any() && r < rows; r++) biases.products.add(scores + r * pk::KEY_SPLIT, r, panel + r * QUERY_STRIDE, key_pages, first, first_page, num_pages);
  coming.ask_for();
  const bool ruled = a.soft_cap > 0.0f || a.biases || reach.first(rows - 1) > first;
  for (int r = 0; r < rows; r++) {
    float *row = scores + r * pk::KEY_SPLIT, *partial = partials + static_cast<size_t>(r) * size;
    typename Cache::Query* row_weights = weights + static_cast<size_t>(r) * pk::KEY_SPLIT;
    alignas(64) float only[pk::KEY_SPLIT];
    const bool hides = reach.hides(r, first, only);
    const Seen seen = {reach.first(r), reach.last(r), first, first_page, num_pages, hides ? only : nullptr};
    if (ruled || hides) softmax<Cache, true>(row, seen, key_pages, value_pages, a, biases.of(r), row_weights, partial);
    else softmax<Cache, false>(row, seen, key_pages, value_pages, a, nullptr, row_weights, partial);
    for (int d = 0; d < value_dim; d += 16) store(partial + 16 + d, zero());
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
      if (begin >= end_token) continue;
      const typename Cache::Query* of = weights + static_cast<size_t>(r) * pk::KEY_SPLIT + begin;
      float* out = partials + static_cast<size_t>(r) * size + 16;
#if defined(PK_AMX)
      if constexpr (in_halves<Cache>)
        if (!part) {
          amx_values<Cache>(of, next - r, value_pages + begin / 16, (end_token - begin) / 16, value_dim, out, size);
          continue;
        }
#endif
      head_values<Cache>(of, next - r, value_pages + begin / 16, end_token - begin, value_dim, out, size);
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
