// Phases that treat each row by itself: embeddings, inputs of products, norms of results.
#pragma once
#include "gates.h"
#include "low_rank.h"

namespace {

// Adds to a row of an embedding what its adapter has for the token.
inline void add_of_token(Thread& t, const PkLowRank& own, int row, int token, float* out) {
  float* low = t.scratch.low[0] + static_cast<size_t>(row) * t.program.low_rank;
  for (int i = 0; i < t.program.low_rank; i++) low[i] = 0.0f;
  matrix_row(own.down, token, low);
  PairProduct product{};
  product.x = low;
  product.stride = t.program.low_rank;
  product.out = out;
  product.out_next = 16;
  product.out_stride = 16;
  product.adds = true;
  factor_product(own.up, product, 0, pk::padded(own.up.outputs, 16) / 16, 1);
}

inline void embed(Thread& t, const PkPhase& p) {
  const Share rows = t.mine(t.batch.rows);
  for (int r = rows.begin; r < rows.end; r++) {
    float* out = t.row(p.target, r);
    const PkLowRank* own = adapter_of(t, p, 0, r);
    const int at = t.batch.tokens[r] - p.first;
    if (p.part && (at < 0 || at >= p.matrices[0].outputs)) {
      for (int i = 0; i < p.matrices[0].inputs; i++) out[i] = 0.0f;
      continue;
    }
    matrix_row(own && own->whole.tiles ? own->whole : p.matrices[0], at, out);
    if (own && own->up.tiles) add_of_token(t, *own, r, at, out);
    if (p.scale == 1.0f) continue;
    for (int i = 0; i < p.matrices[0].inputs; i++) out[i] *= p.scale;
  }
}

// What positions or types add to an embedding.
inline void look_up(Thread& t, const PkPhase& p) {
  const int width = p.matrices[0].inputs;
  t.share_out(t.batch.rows, [&](int r) {
    const int position = t.position_of(r), type = t.batch.types ? t.batch.types[r] : 0;
    float* out = t.row(p.target, r);
    matrix_row(p.matrices[0], p.first < 0 ? type : p.first + position, t.own.row);
    for (int i = 0; i < width; i++) out[i] += t.own.row[i];
  });
}

inline void norm(Thread& t, const PkPhase& p) {
  t.by_rows([&](int r) { normalise(t.row(p.source, r), p.norm, p.width, t.row(p.target, r)); });
}

inline void scale_rows(Thread& t, const PkPhase& p) {
  t.by_rows([&](int r) {
    float* out = t.row(p.target, r);
    for (int i = 0; i < p.width; i++) out[i] *= p.scale;
  });
}

// What the batch brings for some rows.
inline void take_rows(Thread& t, const PkPhase& p) {
  t.share_out(t.batch.num_taken, [&](int i) {
    const float* x = t.batch.taken + static_cast<size_t>(i) * t.batch.taken_width + p.first;
    float* out = t.row(p.target, t.batch.taken_rows[i]);
    for (int j = 0; j < p.width; j++) out[j] = p.adds ? out[j] + x[j] : x[j];
  });
}

// Rows as what the step gives.
inline void give_rows(Thread& t, const PkPhase& p) {
  t.share_out(t.batch.num_wanted, [&](int i) {
    const float* x = t.row(p.source, t.batch.wanted[i]);
    float* out = t.batch.logits + static_cast<size_t>(i) * p.width;
    if (p.norm.kind != PK_NORM_NONE) return normalise(x, p.norm, p.width, out);
    for (int j = 0; j < p.width; j++) out[j] = x[j];
  });
}

// The rows as the input of a product, in the thread's own memory or in that of all.
inline void make_input(Thread& t, const PkPhase& p) {
  const Activations a = t.input(PK_INPUT, p.width), inner = t.scratch.inner.of_width(p.width);
  const auto source = [&](int r) -> const float* {
    if (p.attention) return attended_row(t, p, r);
    if (p.recurrent) return scanned_row(t, *p.recurrent, p, r);
    return gated_row(t, p, r, p.source == PK_INNER ? inner.floats + static_cast<size_t>(r) * inner.stride : t.row(p.source, r) + p.first);
  };
  const auto make = [&](int r) {
    const float* x = source(r);
    if (p.norm.kind != PK_NORM_NONE) {
      normalise(x, p.norm, p.width, t.own.row);
      x = t.own.row;
    }
    set_row(a, p.forms, r, x, p.width);
  };
  if (t.own_rows()) {
    for (int i = 0; i < t.num_rows(); i++) make(t.row_at(i));
  } else {
    t.by_rows(make);
    t.wait();
  }
}

inline void add_norm(Thread& t, const PkPhase& p) {
  t.by_rows([&](int r) {
    float* out = t.row(p.target, r);
    normalise(t.row(p.source, r), p.norm, p.width, t.own.row);
    for (int i = 0; i < p.width; i++) out[i] += p.scale * t.own.row[i];
  });
}

}  // namespace
