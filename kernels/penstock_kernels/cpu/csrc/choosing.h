// The phases of an index, which chooses the keys that a token reads: what it caches, its scores, and the choice
// (DeepSeek-AI, "DeepSeek-V3.2", 2025).
#pragma once
#include "thread.h"

namespace {

// Where the index's keys of a sequence lie: behind the values of each block.
template <class Cache> struct IndexPages {
  using Cell = typename Cache::Cell;
  const Pages pages;
  const size_t first, cells;  // cells before a block's first page, and of a page

  IndexPages(const Thread& t, const PkAttention& a, int sequence)
      : pages(t.pages<Cache>(a, sequence)), first(pages.per_block * pages.value_page_cells), cells(Cache::page_cells(a.index_dim)) {}
  Cell* at(const PkAttention& a, int page) const {
    return static_cast<Cell*>(a.values) + pages.block(page) * pages.value_block_cells + first + page % pages.per_block * cells;
  }
};

template <class Cache> void place_index(Thread& t, const PkPhase& p) {
  const PkAttention& a = *p.attention;
  t.share_out(t.batch.rows, [&](int row) {
    const Angles by = t.angles(a, row);
    const int position = t.position_of(row);
    normalise(t.row(p.source, row), p.norm, a.index_dim, t.own.row);
    rotate(t.own.row, by.cosines, by.sines, a.rotary_dims);
    const IndexPages<Cache> pages(t, a, t.sequence_of(row));
    Cache::put_key(pages.at(a, position / 16), position % 16, t.own.row, a.index_dim);
    float* query = t.row(p.target, row);
    for (int head = 0; head < a.index_heads; head++) rotate(query + head * a.index_dim, by.cosines, by.sines, a.rotary_dims);
  });
}

template <class Cache> class Index {
 public:
  using Cell = typename Cache::Cell;
  using Query = typename Cache::Query;

  Index(Thread& t, const PkPhase& p) : t_(t), p_(p), a_(*p.attention), width_(static_cast<size_t>(t.scratch.index_splits) * pk::KEY_SPLIT) {}

  void score() {
    const int splits = t_.scratch.index_splits;
    if (!t_.scratch.index_by_split) return;
    t_.share_out(t_.scratch.num_tiles * splits, [&](int unit) {
      const QueryTile& tile = t_.scratch.tiles[unit / splits];
      split(tile, unit % splits, t_.scratch.index + tile.row * width_);
    });
  }

  void choose() {
    if (!t_.scratch.index_splits) return;
    if (t_.scratch.index_by_split) return t_.share_out(t_.batch.rows, [&](int row) { choose(row, t_.scratch.index + row * width_); });
    t_.share_out(t_.scratch.num_tiles, [&](int unit) {
      const QueryTile& tile = t_.scratch.tiles[unit];
      float* scores = t_.scratch.index + t_.number * pk::TILE_QUERIES * width_;
      for (int i = 0; i < t_.scratch.index_splits; i++) split(tile, i, scores);
      for (int r = 0; r < tile.count; r++) choose(tile.row + r, scores + r * width_);
    });
  }

 private:
  Thread& t_;
  const PkPhase& p_;
  const PkAttention& a_;
  const size_t width_;  // scores of a row

  // Scores of a split's keys for the tokens of a tile that choose.  scores: [tile.count][width_].
  void split(const QueryTile& tile, int split, float* scores) {
    const int first = split * pk::KEY_SPLIT, last = tile.position + tile.count - 1;
    if (last < a_.most || last < first) return;
    const int num_pages = (tokens_through(last, first) + 15) / 16;
    const IndexPages<Cache> pages(t_, a_, tile.sequence);
    const Cell* keys[pk::KEY_SPLIT / 16];
    for (int p = 0; p < num_pages; p++) {
      keys[p] = pages.at(a_, first / 16 + p);
      pk::prefetch(reinterpret_cast<const uint8_t*>(keys[p]), pages.cells * sizeof(Cell));
    }
    for (int r = 0; r < tile.count; r++)
      if (tile.position + r >= a_.most && tile.position + r >= first) row(tile.row + r, keys, num_pages, scores + r * width_ + first);
  }

  // out: [num_pages * 16] of a row.
  void row(int row, const Cell* const* keys, int num_pages, float* out) {
    const int heads = a_.index_heads, dim = a_.index_dim;
    const float *query = t_.row(p_.target, row), *weights = t_.row(p_.source, row) + dim;
    Query* panel = reinterpret_cast<Query*>(t_.own.queries);
    for (int h = 0; h < heads; h++) Cache::put_query(panel + h * QUERY_STRIDE, query + h * dim, dim);
    typename Cache::Reader reader;
    for (int p = 0; p < num_pages; p += SCORE_PAGES) {
      const int count = num_pages - p < SCORE_PAGES ? num_pages - p : SCORE_PAGES;
      const typename Cache::Open* open[SCORE_PAGES];
      for (int i = 0; i < count; i++) open[i] = reader.keys(keys[p + i], dim, i);
      if (count == SCORE_PAGES) scores_of<Cache, SCORE_PAGES>(panel, heads, open, dim, t_.own.scores + 16 * p);
      else for (int i = 0; i < count; i++) scores_of<Cache, 1>(panel, heads, open + i, dim, t_.own.scores + 16 * (p + i));
    }
    for (int p = 0; p < num_pages; p++) {
      V total = zero();
      for (int h = 0; h < heads; h++) total = fma(set1(weights[h]), max(zero(), load(t_.own.scores + h * pk::KEY_SPLIT + 16 * p)), total);
      store(out + 16 * p, Cache::scaled(total, keys[p]));
    }
  }

  // A number that orders scores as they are; 0 and -0 are the same one.
  static uint32_t order_of(float score) {
    uint32_t bits;
    const float signless = score + 0.0f;
    __builtin_memcpy(&bits, &signless, sizeof bits);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  }

  // By the highest digits first: how many scores have each, of those that have the digits found so far.
  void choose(int row, const float* scores) {
    const int seen = t_.position_of(row) + 1;
    if (seen <= a_.most) return;
    constexpr int DIGITS = 3, SHIFTS[DIGITS] = {21, 10, 0}, BITS[DIGITS] = {11, 11, 10};
    uint32_t least = 0;  // the lowest score that is chosen, as far as its digits are known
    int left = a_.most;  // of the scores that have them
    for (int digit = 0; digit < DIGITS; digit++) {
      const uint32_t mask = (1u << BITS[digit]) - 1, known = digit ? ~0u << SHIFTS[digit - 1] : 0;
      int32_t counts[1 << 11] = {};
      for (int i = 0; i < seen; i++) {
        const uint32_t order = order_of(scores[i]);
        if ((order & known) == least) counts[order >> SHIFTS[digit] & mask]++;
      }
      uint32_t value = mask;
      for (; counts[value] < left; value--) left -= counts[value];
      least |= value << SHIFTS[digit];
    }
    int32_t* out = t_.chosen(row);
    for (int i = 0, found = 0; found < a_.most; i++) {
      const uint32_t order = order_of(scores[i]);
      if (order > least || (order == least && left-- > 0)) out[found++] = i;
    }
  }
};

}  // namespace
