// The phase of attention: query tiles over the cache, whole or split by split.
#pragma once
#include "thread.h"

namespace {

inline float* partials_at(const Thread& t, const PkAttention& a, int tile, int kv_head, int split) {
  const size_t per_split = static_cast<size_t>(t.scratch.tile_queries * attention_group(a)) * partial_size(a.value_dim);
  return t.scratch.partials + ((static_cast<size_t>(tile) * a.kv_heads + kv_head) * t.scratch.max_splits + split) * per_split;
}

// out: [value_dim], of query head `head`, from its partial over all keys.
inline void finish_head(const PkAttention& a, int head, float* partial, float* out) {
  if (a.sinks) fold_sink(partial, a.sinks[head], a.value_dim);
  const V by = set1(1.0f / partial[1]);
  for (int d = 0; d < a.value_dim; d += 16) store(out + d, mul(load(partial + 16 + d), by));
}

// Copies chosen tokens' keys and values into pages of their own, in which they follow one another.
template <class Cache> struct Gathered {
  using Cell = typename Cache::Cell;
  const Pages& pages;
  const PkAttention& a;
  const int32_t* chosen;  // [count] positions
  int count;
  Cell* memory;           // of a split's pages

  void operator()(SplitPages<Cache>& found, int, int end) const {
    const size_t key_cells = Cache::page_cells(a.head_dim), value_cells = Cache::page_cells(a.value_dim);
    for (int p = 0; p < end; p++) {
      Cell *keys = memory + p * (key_cells + value_cells), *values = keys + key_cells;
      for (int t = 0; t < 16 && 16 * p + t < count; t++) {
        if (16 * p + t + TOKENS_AHEAD < count) ask_for(chosen[16 * p + t + TOKENS_AHEAD]);
        const int at = chosen[16 * p + t];
        Cache::copy_token(keys_of(at), values_of(at), at % 16, keys, values, t, a.head_dim, a.value_dim);
      }
      found.keys[p] = keys;
      found.values[p] = values;
    }
  }

 private:
  // Tokens that are asked for before they are copied.
  static constexpr int TOKENS_AHEAD = 2;
  const Cell* keys_of(int position) const { return static_cast<const Cell*>(a.keys) + pages.at(position / 16, 0); }
  const Cell* values_of(int position) const { return static_cast<const Cell*>(a.values) + pages.value_at(position / 16, 0); }
  void ask_for(int position) const {
    Cache::ask_for_token(keys_of(position), values_of(position), position % 16, a.head_dim, a.value_dim);
  }
};

template <class Cache> class Attend {
 public:
  using Cell = typename Cache::Cell;
  using Query = typename Cache::Query;

  Attend(Thread& t, const PkPhase& p) : t_(t), p_(p), a_(*p.attention), group_(a_.heads / a_.kv_heads), size_(partial_size(a_.value_dim)) {}

  void run() {
    const int splits = t_.scratch.by_split ? t_.scratch.max_splits : 1, units = t_.scratch.num_tiles * a_.kv_heads * splits;
    t_.share_out(units, [&](int unit) {
      const auto place = [&](int of) { return Place{of / (a_.kv_heads * splits), of / splits % a_.kv_heads, of % splits}; };
      attend(place(unit), unit + 1 < units ? coming(place(unit + 1)) : Coming{});
    });
  }

 private:
  Thread& t_;
  const PkPhase& p_;
  const PkAttention& a_;
  const int group_, size_;

  // What a thread attends with at a time. split: of the keys, where threads share those of a tile.
  struct Place { int tile, kv_head, split; };

  int last_of(const QueryTile& tile) const { return last_key(a_, tile.position + tile.count - 1, tile.end, t_.last_seen(tile.row + tile.count - 1)); }

  // Whether a token reads keys that were chosen for it, wherever they lie.
  bool chooses(int position) const { return a_.most && position >= a_.most; }

  // The first keys that a place, or a later one of its tile, will read; none beyond what the tile sees.
  Coming coming(const Place& at) const {
    const QueryTile& tile = t_.scratch.tiles[at.tile];
    if (chooses(tile.position + tile.count - 1)) return {};
    const int seen = first_key(a_, tile.position), begun = at.split * pk::KEY_SPLIT;
    return keys_from(tile, at.kv_head, (seen > begun ? seen : begun) / 16);
  }

  Coming keys_from(const QueryTile& tile, int kv_head, int page) const {
    const Pages pages = t_.pages<Cache>(a_, tile.sequence);
    Coming found;
    found.bytes = pages.head_cells * sizeof(Cell);
    for (const int end = last_of(tile) / 16 + 1; found.count < PAGES_AHEAD && page < end; page++)
      found.pages[found.count++] = reinterpret_cast<const uint8_t*>(static_cast<const Cell*>(a_.keys) + pages.at(page, kv_head));
    return found;
  }

  void attend(const Place& at, const Coming& next) {
    const QueryTile& tile = t_.scratch.tiles[at.tile];
    if (!t_.computes(tile.row, tile.count)) return;
    if (!chooses(tile.position + tile.count - 1)) return attend(tile, 0, at, next);
    // Each row has keys of its own.
    for (int r = 0; r < tile.count; r++) attend({tile.sequence, tile.row + r, 1, tile.position + r, tile.end}, r, at, {});
  }

  // tile: the place's, or one of its rows, with so many `before` it.
  void attend(const QueryTile& tile, int before, const Place& at, const Coming& next) {
    const int kv_head = at.kv_head, split = at.split;
    const int dim = a_.head_dim, rows = tile.count * group_;
    const int num_splits = last_of(tile) / pk::KEY_SPLIT + 1, first_split = first_key(a_, tile.position) / pk::KEY_SPLIT;
    const bool by_split = t_.scratch.by_split;
    if (by_split && (split < first_split || split >= num_splits)) return;
    const Reach reach(a_, tile.position, tile.end, rows, group_, t_.last_seen(tile.row), t_.between(tile.row));
    Query* panel = reinterpret_cast<Query*>(t_.own.queries);
    for (int r = 0; r < rows; r++)
      Cache::put_query(panel + r * QUERY_STRIDE, t_.row(p_.source, tile.row + r / group_) + p_.first + (kv_head * group_ + r % group_) * dim, dim);
    if (by_split) return one_split(tile, panel, reach, rows, kv_head, split, next, partials_at(t_, a_, at.tile, kv_head, split) + static_cast<size_t>(before) * group_ * size_);
    for (int i = first_split; i < num_splits; i++) {
      const Coming rest = chooses(tile.position) ? Coming{} : i + 1 < num_splits ? keys_from(tile, kv_head, (i + 1) * pk::KEY_SPLIT / 16) : next;
      one_split(tile, panel, reach, rows, kv_head, i, rest, i == first_split ? t_.own.folded : t_.own.partial);
      for (int r = 0; i > first_split && r < rows; r++) take_in(reach, r, i);
    }
    for (int r = 0; r < rows; r++) {
      const int head = kv_head * group_ + r % group_;
      finish_head(a_, head, t_.own.folded + static_cast<size_t>(r) * size_, t_.row(p_.target, tile.row + r / group_) + p_.first + head * a_.value_dim);
    }
  }

  // Row r's partial of split i joins those before it.
  void take_in(const Reach& reach, int r, int i) {
    const int begun = reach.first(r) / pk::KEY_SPLIT;
    if (reach.last(r) < i * pk::KEY_SPLIT || begun > i) return;
    float *into = t_.own.folded + static_cast<size_t>(r) * size_, *part = t_.own.partial + static_cast<size_t>(r) * size_;
    if (begun < i) return fold(into, part, a_.value_dim);
    for (int j = 0; j < size_; j++) into[j] = part[j];
  }

  void one_split(const QueryTile& tile, const Query* panel, const Reach& reach, int rows, int kv_head, int split, const Coming& next, float* partials) {
    // Floats as weights take the place of their scores, which leaves more of the nearest cache to keys and values.
    Query* weights = reinterpret_cast<Query*>(sizeof(Query) == sizeof(float) ? t_.own.scores : t_.own.weights);
    const Pages pages = t_.pages<Cache>(a_, tile.sequence);
    const Biases biases(a_, tile.position, kv_head, group_);
    if (chooses(tile.position) && a_.block) {
      // Chosen blocks lie in whole pages, which are read where they are.
      const int32_t* blocks = t_.chosen(tile.row) + kv_head * (a_.most / a_.block);
      const auto of_blocks = [&](SplitPages<Cache>& found, int first, int end) {
        for (int p = first, at = split * pk::KEY_SPLIT; p < end; p++) {
          const int place = at + 16 * p, page = (blocks[place / a_.block] * a_.block + place % a_.block) / 16;
          found.keys[p] = static_cast<const Cell*>(a_.keys) + pages.at(page, kv_head);
          found.values[p] = static_cast<const Cell*>(a_.values) + pages.value_at(page, kv_head);
        }
      };
      return attend_split<Cache>(panel, reach, biases, rows, a_, of_blocks, split, next, t_.own.scores, weights, partials);
    }
    if (chooses(tile.position)) {
      const int32_t* chosen = t_.chosen(tile.row) + split * pk::KEY_SPLIT;
      const Gathered<Cache> gathered{pages, a_, chosen, tokens_through(a_.most - 1, split * pk::KEY_SPLIT), reinterpret_cast<Cell*>(t_.own.gathered)};
      return attend_split<Cache>(panel, reach, biases, rows, a_, gathered, split, next, t_.own.scores, weights, partials);
    }
    const auto in_order = [&](SplitPages<Cache>& found, int first, int end) {
      for (int p = first, at = split * (pk::KEY_SPLIT / 16); p < end; p++) {
        found.keys[p] = static_cast<const Cell*>(a_.keys) + pages.at(at + p, kv_head);
        found.values[p] = static_cast<const Cell*>(a_.values) + pages.value_at(at + p, kv_head);
      }
    };
    attend_split<Cache>(panel, reach, biases, rows, a_, in_order, split, next, t_.own.scores, weights, partials);
  }
};

// Folds the splits of one head of a row, where threads have shared them. out: [value_dim].
inline void fold_head(Thread& t, const PkAttention& a, int row, int head, float* out) {
  const int position = t.position_of(row);
  int tile = 0;
  while (t.scratch.tiles[tile].row + t.scratch.tiles[tile].count <= row) tile++;
  const int group = a.heads / a.kv_heads, dim = a.value_dim, size = partial_size(dim);
  const int last = last_key(a, position, t.scratch.tiles[tile].end, t.last_seen(row));
  const int num_splits = last / pk::KEY_SPLIT + 1, first_split = first_key(a, position) / pk::KEY_SPLIT;
  const size_t at = static_cast<size_t>((row - t.scratch.tiles[tile].row) * group + head % group) * size;
  for (int i = 0; i < size; i++) t.own.folded[i] = partials_at(t, a, tile, head / group, first_split)[at + i];
  for (int split = first_split + 1; split < num_splits; split++) fold(t.own.folded, partials_at(t, a, tile, head / group, split) + at, dim);
  finish_head(a, head, t.own.folded, out);
}

// What attention has left of a row, [heads * value_dim]; folds its splits first where threads have
// shared them.
inline const float* mixed_row(Thread& t, const PkAttention& a, const PkPhase& p, int row) {
  float* out = t.row(p.source, row);
  if (!t.scratch.by_split) return out;
  if (t.own_rows()) out = t.own.row;
  for (int head = 0; head < a.heads; head++) fold_head(t, a, row, head, out + head * a.value_dim);
  return out;
}

}  // namespace
