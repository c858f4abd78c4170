// The phases of an index, which chooses the keys that a token reads, or blocks of them: what it caches, its scores, and the
// choice (DeepSeek-AI, "DeepSeek-V3.2", 2025; MiniMax, "MiniMax M3", 2026).
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
    for (int head = 0; head < a.index_heads; head++, query += a.index_dim) {
      if (p.other_norm.kind != PK_NORM_NONE) normalise(query, p.other_norm, a.index_dim, query);
      rotate(query, by.cosines, by.sines, a.rotary_dims);
    }
  });
}

// A number that orders scores as they are; 0 and -0 are the same one.
inline uint32_t order_of(float score) {
  uint32_t bits;
  const float signless = score + 0.0f;
  __builtin_memcpy(&bits, &signless, sizeof bits);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// The places of the `most` highest of more scores, ascending; of equal ones the first.  By the highest digits first: how
// many scores have each, of those that have the digits found so far.
inline void choose_highest(const float* scores, int count, int most, int32_t* out) {
  constexpr int DIGITS = 3, SHIFTS[DIGITS] = {21, 10, 0}, BITS[DIGITS] = {11, 11, 10};
  uint32_t least = 0;  // the lowest score that is chosen, as far as its digits are known
  int left = most;     // of the scores that have them
  for (int digit = 0; digit < DIGITS; digit++) {
    const uint32_t mask = (1u << BITS[digit]) - 1, known = digit ? ~0u << SHIFTS[digit - 1] : 0;
    int32_t counts[1 << 11] = {};
    for (int i = 0; i < count; i++) {
      const uint32_t order = order_of(scores[i]);
      if ((order & known) == least) counts[order >> SHIFTS[digit] & mask]++;
    }
    uint32_t value = mask;
    for (; counts[value] < left; value--) left -= counts[value];
    least |= value << SHIFTS[digit];
  }
  for (int i = 0, found = 0; found < most; i++) {
    const uint32_t order = order_of(scores[i]);
    if (order > least || (order == least && left-- > 0)) out[found++] = i;
  }
}

// scores: [heads][KEY_SPLIT], products of a panel of queries with pages of an index's keys.
template <class Cache>
inline void page_products(const typename Cache::Query* panel, int heads, const typename Cache::Cell* const* keys, int num_pages, int dim, float* scores) {
  typename Cache::Reader reader;
  for (int p = 0; p < num_pages; p += SCORE_PAGES) {
    const int count = num_pages - p < SCORE_PAGES ? num_pages - p : SCORE_PAGES;
    const typename Cache::Open* open[SCORE_PAGES];
    for (int i = 0; i < count; i++) open[i] = reader.keys(keys[p + i], dim, i);
    if (count == SCORE_PAGES) scores_of<Cache, SCORE_PAGES>(panel, heads, open, dim, scores + 16 * p);
    else for (int i = 0; i < count; i++) scores_of<Cache, 1>(panel, heads, open + i, dim, scores + 16 * (p + i));
  }
}

// Keys of tokens: a token sees itself and those before it. weights: where in a row of the source the heads' weights begin.
template <class Cache> class TokenKeys {
 public:
  using Cell = typename Cache::Cell;

  TokenKeys(Thread& t, const PkAttention& a) : heads(a.index_heads), dim(a.index_dim), most(a.most), weights(a.index_dim), t_(t), a_(a) {}

  const int heads, dim, most, weights;

  int seen(int position) const { return position + 1; }
  // Sets where the keys of `count` pages lie, of 16 keys each.
  void find(int sequence, int first_page, int count, int, const Cell** keys) const {
    const IndexPages<Cache> pages(t_, a_, sequence);
    for (int p = 0; p < count; p++) {
      keys[p] = pages.at(a_, first_page + p);
      pk::prefetch(reinterpret_cast<const uint8_t*>(keys[p]), pages.cells * sizeof(Cell));
    }
  }

 private:
  Thread& t_;
  const PkAttention& a_;
};

template <class Cache, class Keys> class Index {
 public:
  using Cell = typename Cache::Cell;
  using Query = typename Cache::Query;

  Index(Thread& t, const PkPhase& p) : t_(t), p_(p), keys_(t, *p.attention), width_(static_cast<size_t>(t.scratch.index_splits) * pk::KEY_SPLIT) {}

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
      float* scores = t_.scratch.index + t_.number * t_.scratch.tile_queries * width_;
      for (int i = 0; i < t_.scratch.index_splits; i++) split(tile, i, scores);
      for (int r = 0; r < tile.count; r++) choose(tile.row + r, scores + r * width_);
    });
  }

 private:
  Thread& t_;
  const PkPhase& p_;
  const Keys keys_;
  const size_t width_;  // scores of a row

  // Scores of a split's keys for the tokens of a tile that choose.  scores: [tile.count][width_].
  void split(const QueryTile& tile, int split, float* scores) {
    const int first = split * pk::KEY_SPLIT, seen = keys_.seen(tile.position + tile.count - 1);
    if (seen <= keys_.most || seen <= first) return;
    const int num_pages = (tokens_through(seen - 1, first) + 15) / 16;
    const Cell* keys[pk::KEY_SPLIT / 16];
    keys_.find(tile.sequence, first / 16, num_pages, seen, keys);
    for (int r = 0; r < tile.count; r++) {
      const int own = keys_.seen(tile.position + r);
      if (own > keys_.most && own > first) row(tile.row + r, keys, num_pages, scores + r * width_ + first);
    }
  }

  // out: [num_pages * 16] of a row.
  void row(int row, const Cell* const* keys, int num_pages, float* out) {
    const int heads = keys_.heads, dim = keys_.dim;
    const float *query = t_.row(p_.target, row), *weights = t_.row(p_.source, row) + keys_.weights;
    Query* panel = reinterpret_cast<Query*>(t_.own.queries);
    for (int h = 0; h < heads; h++) Cache::put_query(panel + h * QUERY_STRIDE, query + h * dim, dim);
    page_products<Cache>(panel, heads, keys, num_pages, dim, t_.own.scores);
    for (int p = 0; p < num_pages; p++) {
      V total = zero();
      for (int h = 0; h < heads; h++) total = fma(set1(weights[h]), max(zero(), load(t_.own.scores + h * pk::KEY_SPLIT + 16 * p)), total);
      store(out + 16 * p, Cache::scaled(total, keys[p]));
    }
  }

  void choose(int row, const float* scores) {
    const int seen = keys_.seen(t_.position_of(row));
    if (seen > keys_.most) choose_highest(scores, seen, keys_.most, t_.chosen(row));
  }
};

// Of blocks of positions: each head of the index chooses for the queries of a KV head.
template <class Cache> class BlockIndex {
 public:
  using Cell = typename Cache::Cell;
  using Query = typename Cache::Query;

  BlockIndex(Thread& t, const PkPhase& p)
      : t_(t), p_(p), a_(*p.attention), blocks_(t.scratch.index_splits * pk::KEY_SPLIT / a_.block), width_(static_cast<size_t>(t.scratch.index_splits) * pk::KEY_SPLIT) {}

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
      float* scores = t_.scratch.index + t_.number * t_.scratch.tile_queries * width_;
      for (int i = 0; i < t_.scratch.index_splits; i++) split(tile, i, scores);
      for (int r = 0; r < tile.count; r++) choose(tile.row + r, scores + r * width_);
    });
  }

 private:
  Thread& t_;
  const PkPhase& p_;
  const PkAttention& a_;
  const int blocks_;    // of a head's scores
  const size_t width_;  // scores of a row, more than [heads][blocks]

  // Scores of a split's blocks for the tokens of a tile that choose.  scores: [tile.count][width_].
  void split(const QueryTile& tile, int split, float* scores) {
    const int first = split * pk::KEY_SPLIT, last = tile.position + tile.count - 1;
    if (last < a_.most || last < first) return;
    const int num_pages = (tokens_through(last, first) + 15) / 16;
    const Cell* keys[pk::KEY_SPLIT / 16];
    const IndexPages<Cache> pages(t_, a_, tile.sequence);
    for (int p = 0; p < num_pages; p++) {
      keys[p] = pages.at(a_, first / 16 + p);
      pk::prefetch(reinterpret_cast<const uint8_t*>(keys[p]), pages.cells * sizeof(Cell));
    }
    for (int r = 0; r < tile.count; r++) {
      const int position = tile.position + r;
      if (position < a_.most || position < first) continue;
      multiply(tile.row + r, keys, (tokens_through(position, first) + 15) / 16);
      for (int h = 0; h < a_.index_heads; h++) raise(keys, first, position, t_.own.scores + h * pk::KEY_SPLIT, scores + r * width_ + h * blocks_);
    }
  }

  // Products of a row's heads with pages of keys, into own.scores.
  void multiply(int row, const Cell* const* keys, int num_pages) {
    const float* query = t_.row(p_.target, row);
    Query* panel = reinterpret_cast<Query*>(t_.own.queries);
    for (int h = 0; h < a_.index_heads; h++) Cache::put_query(panel + h * QUERY_STRIDE, query + h * a_.index_dim, a_.index_dim);
    page_products<Cache>(panel, a_.index_heads, keys, num_pages, a_.index_dim, t_.own.scores);
  }

  // Scores of the blocks of the split that begins at position `first`, of its products, through `position`.  out: of all blocks of a head.
  void raise(const Cell* const* keys, int first, int position, const float* products, float* out) {
    for (int begin = first; begin < first + pk::KEY_SPLIT && begin <= position; begin += a_.block) {
      V highest_of = set1(-INFINITY);
      for (int at = begin; at < begin + a_.block && at <= position; at += 16) {
        const int p = (at - first) / 16;
        highest_of = max(highest_of, keep_through(Cache::scaled(load(products + 16 * p), keys[p]), at, position, -INFINITY));
      }
      out[begin / a_.block] = highest(highest_of);
    }
  }

  void choose(int row, float* scores) {
    const int position = t_.position_of(row), own = position / a_.block, most = a_.most / a_.block;
    if (position < a_.most) return;
    for (int h = 0; h < a_.index_heads; h++) {
      float* of_head = scores + h * blocks_;
      for (int i = 0; i < a_.local; i++) of_head[own - i] = INFINITY;
      choose_highest(of_head, own + 1, most, t_.chosen(row) + h * most);
    }
  }
};

}  // namespace
