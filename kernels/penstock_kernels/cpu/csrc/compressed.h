// The phases of attention to the last tokens and to entries that stand for several tokens each (DeepSeek-AI,
// "DeepSeek-V4", 2026): what is cached, how entries are made of it, and the softmax over both.
#pragma once
#include "attend.h"
#include "choosing.h"

namespace {

// Numbers of the cache that lie one behind another, `count` of them, a multiple of 16. Caches of bytes have none.
inline void put_cells(const float* x, int count, float* out) { for (int d = 0; d < count; d += 16) store(out + d, load(x + d)); }
inline void put_cells(const float* x, int count, uint16_t* out) { for (int d = 0; d < count; d += 16) store_rounded(out + d, load(x + d)); }
inline void put_cells(const float*, int, int8_t*) {}
inline V load_cells(const float* p) { return load(p); }
inline V load_cells(const uint16_t* p) { return load_bf16(p); }
inline V load_cells(const int8_t* p) { return load_i8(p); }

// Where what a sequence has of entries lies: what its tokens give behind the values of each block, and entries in blocks of
// the first group.
template <class Cache> class EntryPages {
 public:
  using Cell = typename Cache::Cell;

  EntryPages(const Thread& t, const PkAttention& a, int sequence)
      : pages_(t.pages<Cache>(a, sequence)), table_(t.batch.tables + t.batch.first_block[sequence]), values_(static_cast<Cell*>(a.values) + pages_.per_block * pages_.value_page_cells),
        kept_(static_cast<Cell*>(a.entries->kept)), block_(a.entries->block / sizeof(Cell)), size_(t.program.block_size), rate_(a.entries->rate),
        of_block_(pk::entries_of_block(rate_, size_)), given_(pk::given_numbers(*a.entries, a.head_dim)), dim_(a.head_dim), index_dim_(a.entries->index_dim) {}

  // What the token at a position gives to entries.
  Cell* given(int position) const { return values_ + pages_.block(position / 16) * pages_.value_block_cells + static_cast<size_t>(position % size_) * given_; }
  Cell* entry(int number) const { return entries(number) + static_cast<size_t>(place(number)) * dim_; }
  // An entry's key in the index.
  Cell* key(int number) const { return entries(number) + static_cast<size_t>(of_block_) * dim_ + static_cast<size_t>(place(number)) * index_dim_; }

 private:
  const Pages pages_;
  const int32_t* const table_;
  Cell *const values_, *const kept_;
  const size_t block_;
  const int size_, rate_, of_block_, given_, dim_, index_dim_;

  int last_token(int number) const { return (number + 1) * rate_ - 1; }
  Cell* entries(int number) const { return kept_ + static_cast<size_t>(table_[last_token(number) / size_]) * block_; }
  int place(int number) const { return static_cast<int>(static_cast<int64_t>(last_token(number) % size_) * of_block_ / size_); }
};

template <class Cache> void place_entries(Thread& t, const PkPhase& p) {
  using Cell = typename Cache::Cell;
  const PkAttention& a = *p.attention;
  const int dim = a.head_dim;
  t.share_out(t.batch.rows, [&](int row) {
    const int sequence = t.sequence_of(row), position = t.position_of(row);
    const Angles by = t.angles(a, row);
    const auto turn = [&](float* head, int size) { rotate_last(head, size, by.cosines, by.sines, a.rotary_dims); };
    const float* made = t.row(p.source, row);
    float* key = t.own.row;
    normalise(made, p.norm, dim, key);
    turn(key, dim);
    const Pages pages = t.pages<Cache>(a, sequence);
    store_key<Cache>(static_cast<Cell*>(a.keys), pages, 0, position, key, dim);
    store_value<Cache>(static_cast<Cell*>(a.values), pages, 0, position, key, dim);
    float* query = t.row(p.target, row);
    for (int head = 0; head < a.heads; head++, query += dim) {
      normalise(query, p.other_norm, dim, query);
      turn(query, dim);
    }
    if (!a.entries) return;
    const PkEntries& e = *a.entries;
    put_cells(made + dim, pk::given_numbers(e, dim), EntryPages<Cache>(t, a, sequence).given(position));
    for (int head = 0; head < e.index_heads; head++) turn(t.row(p.beside, row) + head * e.index_dim, e.index_dim);
  });
}

// An entry is made of what is cached, in any case: its bits don't depend on how tokens were divided into steps.
template <class Cache> class MakeEntries {
 public:
  using Cell = typename Cache::Cell;

  MakeEntries(Thread& t, const PkPhase& p) : t_(t), a_(*p.attention), e_(*a_.entries) {}

  // A unit is a row, which may be an entry's last token.
  void run() {
    t_.share_out(t_.batch.rows, [&](int row) {
      const int position = t_.position_of(row), number = position / e_.rate;
      if ((position + 1) % e_.rate) return;
      const EntryPages<Cache> pages(t_, a_, t_.sequence_of(row));
      make(pages, position, 0, a_.head_dim, e_.bias, e_.norm, pages.entry(number));
      if (e_.index_dim) make(pages, position, 2 * e_.series * a_.head_dim, e_.index_dim, e_.index_bias, e_.index_norm, pages.key(number));
    });
  }

 private:
  Thread& t_;
  const PkAttention& a_;
  const PkEntries& e_;

  // first: of the numbers that tokens give for it.
  void make(const EntryPages<Cache>& pages, int last, int first, int dim, const float* bias, const PkNorm& norm, Cell* out) {
    float *peaks = t_.own.heads, *sums = peaks + dim, *mixed = sums + dim;
    for (int d = 0; d < dim; d += 16) {
      store(peaks + d, set1(-__builtin_inff()));
      store(sums + d, zero());
      store(mixed + d, zero());
    }
    // The score comes second: a NaN is then kept by AVX's maximum.
    by_tokens(pages, last, first, dim, bias, [&](const Cell*, V logit, int d) { store(peaks + d, max(load(peaks + d), logit)); });
    by_tokens(pages, last, first, dim, bias, [&](const Cell* value, V logit, int d) {
      const V weight = exponential(sub(logit, load(peaks + d)));
      store(sums + d, add(load(sums + d), weight));
      store(mixed + d, fma(weight, load_cells(value), load(mixed + d)));
    });
    for (int d = 0; d < dim; d += 16) store(mixed + d, div(load(mixed + d), load(sums + d)));
    normalise(mixed, norm, dim, mixed);
    const size_t angles = static_cast<size_t>(last + 1 - e_.rate) * (a_.rotary_dims / 2);
    rotate_last(mixed, dim, a_.cosines + angles, a_.sines + angles, a_.rotary_dims);
    put_cells(mixed, dim, out);
  }

  // body(values, logits, d) for 16 numbers from d on of each token that there is. Of two series, the tokens of the entry
  // before have the first, and its own the second.
  template <class Body> void by_tokens(const EntryPages<Cache>& pages, int last, int first, int dim, const float* bias, const Body& body) const {
    const int wide = e_.series * dim, reach = e_.series * e_.rate;
    for (int i = 0; i < reach; i++) {
      const int position = last + 1 - reach + i, column = i / e_.rate * dim;
      if (position < 0) continue;
      const Cell *values = pages.given(position) + first + column, *logits = values + wide;
      const float* added = bias + static_cast<size_t>(i % e_.rate) * wide + column;
      for (int d = 0; d < dim; d += 16) body(values + d, add(load_cells(logits + d), load(added + d)), d);
    }
  }
};

// Copies entries into pages of their own, in which they follow one another.
template <class Cache> struct GatheredEntries {
  using Cell = typename Cache::Cell;
  const EntryPages<Cache>& entries;
  const int32_t* chosen;  // [count] numbers; null: those from `first` on
  int first, count, dim;
  float* row;             // [dim]
  Cell* memory;           // of a split's pages

  void operator()(SplitPages<Cache>& found, int, int end) const {
    const size_t cells = Cache::page_cells(dim);
    for (int p = 0; p < end; p++) {
      Cell *keys = memory + 2 * p * cells, *values = keys + cells;
      for (int t = 0; t < 16 && 16 * p + t < count; t++) {
        const int at = 16 * p + t;
        if (at + 1 < count) pk::prefetch(reinterpret_cast<const uint8_t*>(entry(at + 1)), dim * sizeof(Cell));
        const Cell* from = entry(at);
        for (int d = 0; d < dim; d += 16) store(row + d, load_cells(from + d));
        Cache::put_key(keys, t, row, dim);
        Cache::put_value(values, t, row, dim);
      }
      found.keys[p] = keys;
      found.values[p] = values;
    }
  }

 private:
  const Cell* entry(int at) const { return entries.entry(chosen ? chosen[at] : first + at); }
};

template <class Cache> class AttendEntries {
 public:
  using Cell = typename Cache::Cell;
  using Query = typename Cache::Query;

  AttendEntries(Thread& t, const PkPhase& p) : t_(t), p_(p), a_(*p.attention), size_(partial_size(a_.value_dim)) {}

  // A unit is a query tile, or of few tiles some of its heads.
  void run() {
    const int tiles = t_.scratch.num_tiles, together = tiles < 4 * t_.threads && a_.heads > HEADS_OF_FEW ? HEADS_OF_FEW : a_.heads;
    const int parts = (a_.heads + together - 1) / together;
    t_.share_out(tiles * parts, [&](int unit) {
      const QueryTile& tile = t_.scratch.tiles[unit / parts];
      const int head = unit % parts * together, heads = a_.heads - head < together ? a_.heads - head : together;
      if (!chooses(tile.position + tile.count - 1)) return attend(tile, head, heads);
      // Each row has entries of its own.
      for (int r = 0; r < tile.count; r++) attend({tile.sequence, tile.row + r, 1, tile.position + r, tile.end}, head, heads);
    });
  }

 private:
  static constexpr int HEADS_OF_FEW = 16;
  Thread& t_;
  const PkPhase& p_;
  const PkAttention& a_;
  const int size_;

  int seen(int position) const { return a_.entries ? (position + 1) / a_.entries->rate : 0; }
  bool chooses(int position) const { return a_.entries && a_.entries->most && seen(position) > a_.entries->most; }

  // Rows are `heads` query heads of each of the tile's tokens, from number `head` on.
  void attend(const QueryTile& tile, int head, int heads) {
    const int dim = a_.head_dim, rows = tile.count * heads;
    Query* panel = reinterpret_cast<Query*>(t_.own.queries);
    for (int r = 0; r < rows; r++)
      Cache::put_query(panel + r * QUERY_STRIDE, t_.row(p_.source, tile.row + r / heads) + (head + r % heads) * dim, dim);
    to_tokens(tile, panel, rows, heads);
    if (seen(tile.position + tile.count - 1)) to_entries(tile, panel, rows, heads);
    for (int r = 0; r < rows; r++) {
      const int row = tile.row + r / heads, own = head + r % heads;
      float* out = t_.row(p_.target, row) + own * dim;
      finish_head(a_, own, t_.own.folded + static_cast<size_t>(r) * size_, out);
      const Angles by = t_.angles(a_, row);
      rotate_last(out, dim, by.cosines, by.sines, a_.rotary_dims, true);
    }
  }

  void to_tokens(const QueryTile& tile, const Query* panel, int rows, int heads) {
    const Reach reach(a_, tile.position, tile.end, rows, heads, nullptr, nullptr);
    const Pages pages = t_.pages<Cache>(a_, tile.sequence);
    const int begin = reach.first(0) / pk::KEY_SPLIT, end = reach.last(rows - 1) / pk::KEY_SPLIT + 1;
    for (int split = begin; split < end; split++) {
      const auto in_order = [&](SplitPages<Cache>& found, int first, int last) {
        for (int p = first, at = split * (pk::KEY_SPLIT / 16); p < last; p++) {
          found.keys[p] = static_cast<const Cell*>(a_.keys) + pages.at(at + p, 0);
          found.values[p] = static_cast<const Cell*>(a_.values) + pages.value_at(at + p, 0);
        }
      };
      one_split(panel, reach, rows, in_order, split, split == begin ? t_.own.folded : t_.own.partial);
      for (int r = 0; split > begin && r < rows; r++) {
        const int own = reach.first(r) / pk::KEY_SPLIT;
        if (reach.last(r) / pk::KEY_SPLIT < split || own > split) continue;
        float *into = folded(r), *part = t_.own.partial + static_cast<size_t>(r) * size_;
        if (own < split) fold(into, part, a_.value_dim);
        else for (int i = 0; i < size_; i++) into[i] = part[i];
      }
    }
  }

  void to_entries(const QueryTile& tile, const Query* panel, int rows, int heads) {
    const bool some = chooses(tile.position);
    const Reach reach(rows, heads, [&](int token) { return (some ? a_.entries->most : seen(tile.position + token)) - 1; });
    const EntryPages<Cache> entries(t_, a_, tile.sequence);
    for (int split = 0; split * pk::KEY_SPLIT <= reach.last(rows - 1); split++) {
      const int first = split * pk::KEY_SPLIT, count = tokens_through(reach.last(rows - 1), first);
      const GatheredEntries<Cache> gathered{entries, some ? t_.chosen(tile.row) + first : nullptr, first, count, a_.head_dim, t_.own.row, reinterpret_cast<Cell*>(t_.own.gathered)};
      one_split(panel, reach, rows, gathered, split, t_.own.partial);
      for (int r = 0; r < rows; r++)
        if (reach.last(r) >= first) fold(folded(r), t_.own.partial + static_cast<size_t>(r) * size_, a_.value_dim);
    }
  }

  template <class Find> void one_split(const Query* panel, const Reach& reach, int rows, const Find& find, int split, float* partials) {
    // As Attend has them.
    Query* weights = reinterpret_cast<Query*>(sizeof(Query) == sizeof(float) ? t_.own.scores : t_.own.weights);
    attend_split<Cache>(panel, reach, Biases(a_, 0, 0, 1), rows, a_, find, split, Coming{}, t_.own.scores, weights, partials);
  }

  float* folded(int row) const { return t_.own.folded + static_cast<size_t>(row) * size_; }
};

// Keys of entries, in an Index: a token sees those of which it is the last token, or stands behind it.
template <class Cache> class EntryKeys {
 public:
  using Cell = typename Cache::Cell;

  EntryKeys(Thread& t, const PkAttention& a) : heads(a.entries->index_heads), dim(a.entries->index_dim), most(a.entries->most), weights(0), t_(t), a_(a) {}

  const int heads, dim, most, weights;

  int seen(int position) const { return (position + 1) / a_.entries->rate; }
  void find(int sequence, int first_page, int count, int end, const Cell** keys) const {
    const EntryPages<Cache> entries(t_, a_, sequence);
    for (int p = 0; p < count; p++) {
      Cell* page = reinterpret_cast<Cell*>(t_.own.gathered) + p * Cache::page_cells(dim);
      for (int t = 0, at = 16 * (first_page + p); t < 16 && at < end; t++, at++) {
        const Cell* from = entries.key(at);
        for (int d = 0; d < dim; d += 16) store(t_.own.row + d, load_cells(from + d));
        Cache::put_key(page, t, t_.own.row, dim);
      }
      keys[p] = page;
    }
  }

 private:
  Thread& t_;
  const PkAttention& a_;
};

// body(index) with the index of a phase.
template <class Cache, class Body> void with_keys(Thread& t, const PkPhase& p, const Body& body) {
  if (p.attention->entries) body(Index<Cache, EntryKeys<Cache>>(t, p));
  else if (p.attention->block) body(BlockIndex<Cache>(t, p));
  else body(Index<Cache, TokenKeys<Cache>>(t, p));
}

}  // namespace
