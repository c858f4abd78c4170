// The phases of attention over latents: keys and values of a token are made of one vector, and each head has
// maps of its own from queries to such vectors, and from them to values.
#pragma once
#include "attend.h"

namespace {

template <class Cache> void place_latent(Thread& t, const PkPhase& p) {
  using Cell = typename Cache::Cell;
  const PkAttention& a = *p.attention;
  const int turning = a.rotary_dims, rank = a.value_dim, dim = a.head_dim;
  t.share_out(t.batch.rows, [&](int row) {
    const int sequence = t.sequence_of(row), position = t.position_of(row);
    const Angles by = t.angles(a, row);
    const float* stored = t.row(p.source, row);
    float* key = t.own.row;
    for (int i = 0; i < turning; i++) key[i] = stored[rank + i];
    rotate(key, by.cosines, by.sines, turning);
    normalise(stored, p.norm, rank, key + turning);
    const Pages pages = t.pages<Cache>(a, sequence);
    store_key<Cache>(static_cast<Cell*>(a.keys), pages, 0, position, key, dim);
    store_value<Cache>(static_cast<Cell*>(a.values), pages, 0, position, key + turning, rank);
    const float* raw = t.row(PK_MIXED, row) + p.width - turning;
    float* query = t.row(PK_QUERIES, row);
    for (int head = 0; head < a.heads; head++, raw += p.width, query += dim) {
      for (int i = 0; i < turning; i++) query[i] = raw[i];
      rotate(query, by.cosines, by.sines, turning);
      if (a.query_factors)
        for (int i = 0; i < turning; i++) query[i] *= a.query_factors[position];
    }
  });
}

// A unit is a head, all rows.
inline void by_head(Thread& t, const PkPhase& p) {
  const PkByHead& h = *p.by_head;
  const Activations a = t.own.by_head.of_width(h.matrices[0].inputs);
  t.by_tiles(h.count, a.row_bytes(h.matrices[0].kind), [&](int head, int row, int rows) {
    const PkMatrix& matrix = h.matrices[head];
    for (int r = 0; r < rows; r++) {
      float* from = t.row(p.source, row + r) + h.source_stride * head + h.source_first;
      if (p.attention && t.scratch.by_split) fold_head(t, *p.attention, row + r, head, from);
      set_row(a, pk::form_of(matrix.kind), r, from, matrix.inputs);
    }
    for (int i = 0; i < matrix.outputs; i += 16) {
      alignas(64) float out[16 * pk::ROWS];
      tile_product(matrix, i / 16, a, 0, rows, out);
      const int lanes = matrix.outputs - i < 16 ? matrix.outputs - i : 16;
      for (int r = 0; h.query_factors && r < rows; r++) store(out + 16 * r, mul(load(out + 16 * r), set1(h.query_factors[t.position_of(row + r)])));
      for (int r = 0; r < rows; r++)
        __builtin_memcpy(t.row(p.target, row + r) + h.target_stride * head + h.target_first + i, out + 16 * r, lanes * sizeof(float));
    }
  });
}

}  // namespace
