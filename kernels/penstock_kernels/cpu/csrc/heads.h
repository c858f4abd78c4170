// The phases that make queries, keys and values: products head by head, norms, rotation, the cache.
#pragma once
#include "low_rank.h"

namespace {

template <class Cache> class Heads {
 public:
  using Cell = typename Cache::Cell;

  Heads(Thread& t, const PkPhase& p) : t_(t), p_(p), a_(*p.attention) {}

  // A unit is a head of queries, keys or values.
  void multiply() {
    const int dim = a_.head_dim, per_head = dim / 16;
    const Activations a = t_.input(p_.source, p_.matrices[0].inputs);
    float *heads = t_.own.heads, *tile = heads + static_cast<size_t>(pk::ROWS) * dim;
    const bool keys = p_.matrices[1].tiles, own_values = p_.matrices[2].tiles;
    const int units = a_.heads + (keys + own_values) * a_.kv_heads, begin = t_.mine(units).begin;
    if (begin < a_.heads) ask_for_raised(t_, p_, 0, begin * per_head, 2);
    else if (begin < a_.heads + a_.kv_heads) ask_for_raised(t_, p_, 1, (begin - a_.heads) * per_head, 2);
    t_.by_tiles(units, a.row_bytes(p_.matrices[0].kind), [&](int head, int row, int rows) {
      const int beyond_query = head - a_.heads, beyond_key = beyond_query - a_.kv_heads;
      if (beyond_query < 0 && !t_.computes(row, rows)) return;
      const int which = beyond_query < 0 ? 0 : beyond_key < 0 ? 1 : 2;
      const PkMatrix* matrix = &p_.matrices[which];
      const int within = beyond_query < 0 ? head : beyond_key < 0 ? beyond_query : beyond_key;
      for (int i = 0; i < per_head; i += 2) {
        const int tiles = per_head - i < 2 ? 1 : 2;
        tile_products(*matrix, within * per_head + i, tiles, a, row, rows, tile);
        add_raised(t_, raised_by(t_, p_), which, within * per_head + i, tiles, row, rows, tile);
        for (int j = 0; j < tiles; j++)
          for (int r = 0; r < rows; r++) store(heads + r * dim + 16 * (i + j), load(tile + 16 * (j * pk::ROWS + r)));
      }
      if (p_.limit > 0.0f)
        for (int i = 0; i < rows * dim; i += 16) store(heads + i, within_bounds(load(heads + i), set1(-p_.limit)));
      for (int r = 0; r < rows; r++) {
        float* values = heads + r * dim;
        if (beyond_key >= 0) put_value(row + r, beyond_key, values);
        else if (beyond_query >= 0 && !own_values) put_both(row + r, beyond_query, values);
        else if (p_.whole) copy(values, beyond_query < 0 ? t_.row(PK_QUERIES, row + r) + p_.first + within * dim : t_.row(PK_KEYS, row + r) + p_.first_key + within * dim);
        else if (beyond_query < 0) put_query(row + r, head, values);
        else put_key(row + r, beyond_query, values);
      }
    }, keys);
  }

  // A unit is a row of queries and keys, whose heads are normalised together.
  void place() {
    const int dim = a_.head_dim;
    t_.share_out(t_.batch.rows, [&](int row) {
      float *queries = t_.row(PK_QUERIES, row), *keys = t_.row(PK_KEYS, row);
      normalise(queries, p_.norm, p_.part ? p_.width : a_.heads * dim, queries);
      normalise(keys, p_.other_norm, p_.part ? p_.key_width : a_.kv_heads * dim, keys);
      for (int head = 0; head < a_.heads; head++) turn_query(queries + p_.first + head * dim, row, {});
      for (int head = 0; head < a_.kv_heads; head++) {
        float* key = keys + p_.first_key + head * dim;
        turn(key, row, {});
        cache_key(row, head, key);
      }
    });
  }

 private:
  Thread& t_;
  const PkPhase& p_;
  const PkAttention& a_;

  void put_query(int row, int head, float* values) {
    turn_query(values, row, p_.norm);
    copy(values, t_.row(PK_QUERIES, row) + p_.first + head * a_.head_dim);
  }

  void put_key(int row, int head, float* values) {
    turn(values, row, p_.other_norm);
    cache_key(row, head, values);
  }

  void cache_key(int row, int head, const float* values) {
    store_key<Cache>(static_cast<Cell*>(a_.keys), t_.pages<Cache>(a_, t_.sequence_of(row)), head, position_of(row), values, a_.head_dim);
  }

  void put_both(int row, int head, float* values) {
    put_value(row, head, values);
    put_key(row, head, values);
  }

  void put_value(int row, int head, const float* values) {
    if (p_.third_norm.kind != PK_NORM_NONE) {
      normalise(values, p_.third_norm, a_.head_dim, t_.own.row);
      values = t_.own.row;
    }
    store_value<Cache>(static_cast<Cell*>(a_.values), t_.pages<Cache>(a_, t_.sequence_of(row)), head, position_of(row), values, a_.head_dim);
  }

  void turn(float* values, int row, const PkNorm& norm) {
    if (!a_.norms_behind && norm.kind != PK_NORM_NONE) normalise(values, norm, a_.head_dim, values);
    const Angles by = t_.angles(a_, row);
    rotate(values, by.cosines, by.sines, a_.rotary_dims);
    if (a_.norms_behind && norm.kind != PK_NORM_NONE) normalise(values, norm, a_.head_dim, values);
  }

  void turn_query(float* values, int row, const PkNorm& norm) {
    turn(values, row, norm);
    if (!a_.query_factors) return;
    const V by = set1(a_.query_factors[position_of(row)]);
    for (int d = 0; d < a_.head_dim; d += 16) store(values + d, mul(load(values + d), by));
  }

  void copy(const float* values, float* out) {
    for (int d = 0; d < a_.head_dim; d += 16) store(out + d, load(values + d));
  }

  int position_of(int row) const { return t_.position_of(row); }
};

}  // namespace
