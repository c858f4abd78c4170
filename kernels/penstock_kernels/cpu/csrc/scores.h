// Products of query rows with a split's keys, page by page, and what is asked for meanwhile.
#pragma once
#include "cache.h"
#include "elementwise.h"
#if defined(PK_AMX)
#include "amx.h"
#endif

namespace {

// Pages of keys that are asked for before they are read.
constexpr int PAGES_AHEAD = 4;

// A number that a template is made for.
template <int N> struct Number { static constexpr int value = N; };

// body(Number<R>, row) for rows `row`... R at a time. Returns the first row that is left.
template <int R, int MOST, class Body> inline int rows_by(int r, int rows, const Body& body) {
  // Seven or eight rows are four and what is left: six would leave one or two, whose few sums wait for one another.
  if constexpr (R <= MOST)
    for (; r + R <= rows && ((R != 6 && R != 5) || (rows - r != 7 && rows - r != 8)); r += R) body(Number<R>(), r);
  return r;
}
// The same for all rows, at most MOST at a time.
template <int MOST, class Body> inline void by_few_rows(int rows, const Body& body) {
  int r = rows_by<24, MOST>(0, rows, body);
  r = rows_by<12, MOST>(r, rows, body);
  r = rows_by<8, MOST>(r, rows, body);
  r = rows_by<6, MOST>(r, rows, body);
  r = rows_by<5, MOST>(r, rows, body);
  r = rows_by<4, MOST>(r, rows, body);
  r = rows_by<3, MOST>(r, rows, body);
  r = rows_by<2, MOST>(r, rows, body);
  rows_by<1, MOST>(r, rows, body);
}

// scores: [R][KEY_SPLIT] of the first R query rows of a panel against P neighbouring pages.
template <class Cache, int R, int P>
inline void page_scores(const typename Cache::Query* panel, const typename Cache::Open* const* pages, int dim, float* scores) {
  V dots[R][P];
  PK_UNROLLED
  for (int i = 0; i < R; i++)
    PK_UNROLLED
    for (int p = 0; p < P; p++) dots[i][p] = zero();
  Cache::template scores<R, P>(panel, pages, dim, dots);
  PK_UNROLLED
  for (int i = 0; i < R; i++)
    PK_UNROLLED
    for (int p = 0; p < P; p++) store(scores + i * pk::KEY_SPLIT + 16 * p, dots[i][p]);
}

template <class Cache, int P, class After>
inline void scores_of(const typename Cache::Query* panel, int rows, const typename Cache::Open* const* pages, int dim, float* scores, const After& after) {
  by_few_rows<SCORE_SUMS / P>(rows, [&](auto few, int r) {
    page_scores<Cache, decltype(few)::value, P>(panel + r * QUERY_STRIDE, pages, dim, scores + r * pk::KEY_SPLIT);
    after();
  });
}
template <class Cache, int P>
inline void scores_of(const typename Cache::Query* panel, int rows, const typename Cache::Open* const* pages, int dim, float* scores) {
  scores_of<Cache, P>(panel, rows, pages, dim, scores, [] {});
}

// A split's pages, of which those from `first` to before `end` are read.
template <class Cell> struct PagesToRead {
  const Cell *const *keys, *const *values;
  int first, end;
  size_t key_bytes, value_bytes;  // of a page

  void ask_for_keys(int page) const { if (page < end) pk::prefetch(reinterpret_cast<const uint8_t*>(keys[page]), key_bytes); }
};

// Asks for what is read after a page's keys, all at once before these are multiplied.
template <class Cell> class AtOnce {
 public:
  AtOnce(const PagesToRead<Cell>& pages, int) : pages_(pages) {
    for (int p = 0; p < PAGES_AHEAD; p++) pages.ask_for_keys(pages.first + p);
  }
  void begin(int page) const {
    pages_.ask_for_keys(page + PAGES_AHEAD);
    pk::prefetch(reinterpret_cast<const uint8_t*>(pages_.values[page]), pages_.value_bytes);
  }
  void go_on() const {}

 private:
  const PagesToRead<Cell>& pages_;
};

// The same bit by bit, while they are multiplied with many rows: of as many lines at once, AVX2's processors leave some out.
template <class Cell> class BitByBit {
 public:
  BitByBit(const PagesToRead<Cell>& pages, int rows) : pages_(pages), turns_((rows + SCORE_SUMS - 1) / SCORE_SUMS) { pages.ask_for_keys(pages.first); }
  void begin(int page) {
    keys_ = page + 1 < pages_.end ? Range{reinterpret_cast<const uint8_t*>(pages_.keys[page + 1]), pages_.key_bytes} : Range{nullptr, 0};
    values_ = {reinterpret_cast<const uint8_t*>(pages_.values[page]), pages_.value_bytes};
  }
  void go_on() {
    ask_for(keys_, share(pages_.key_bytes));
    ask_for(values_, share(pages_.value_bytes));
  }

 private:
  struct Range { const uint8_t* at; size_t left; };

  size_t share(size_t bytes) const { return (bytes / turns_ + 64) / 64 * 64; }
  static void ask_for(Range& of, size_t bytes) {
    const size_t now = bytes < of.left ? bytes : of.left;
    pk::prefetch(of.at, now);
    of = {of.at + now, of.left - now};
  }

  const PagesToRead<Cell>& pages_;
  const int turns_;
  Range keys_{nullptr, 0}, values_{nullptr, 0};
};

// scores: [rows][KEY_SPLIT]. reader: opens pages for Cache.  asking: for what is read next.
template <class Cache, class Reader, class Cell, class Asking>
inline void split_scores(Reader& reader, Asking&& asking, const typename Cache::Query* panel, int rows, const PagesToRead<Cell>& pages, int dim, float* scores) {
  const auto go_on = [&] { asking.go_on(); };
  for (int p = pages.first; p < pages.end; p += SCORE_PAGES) {
    const int count = pages.end - p < SCORE_PAGES ? pages.end - p : SCORE_PAGES;
    const typename Cache::Open* open[SCORE_PAGES];
    for (int i = 0; i < count; i++) {
      asking.begin(p + i);
      open[i] = reader.keys(pages.keys[p + i], dim, i);
    }
    if (count == SCORE_PAGES) scores_of<Cache, SCORE_PAGES>(panel, rows, open, dim, scores + 16 * p, go_on);
    else for (int i = 0; i < count; i++) scores_of<Cache, 1>(panel, rows, open + i, dim, scores + 16 * (p + i), go_on);
  }
}

// Opens pages of keys as floats.
template <class Cache> class WideKeys {
 public:
  inline const float* keys(const typename Cache::Cell* page, int dim, int place) { return Cache::wide_keys(page, dim, floats_[place]); }

 private:
  alignas(64) float floats_[SCORE_PAGES][16 * pk::MAX_HEAD_DIM];
};

}  // namespace
