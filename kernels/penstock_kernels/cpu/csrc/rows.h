// Phases that treat each row by itself: embeddings, inputs of products, norms of results.
#pragma once
#include "attend.h"

namespace {

inline void embed(Thread& t, const PkPhase& p) {
  const Share rows = t.mine(t.batch.rows);
  for (int r = rows.begin; r < rows.end; r++) {
    float* out = t.row(p.target, r);
    const int at = t.batch.tokens[r] - p.first;
    if (p.part && (at < 0 || at >= p.matrices[0].outputs)) {
      for (int i = 0; i < p.matrices[0].inputs; i++) out[i] = 0.0f;
      continue;
    }
    matrix_row(p.matrices[0], at, out);
    if (p.scale == 1.0f) continue;
    for (int i = 0; i < p.matrices[0].inputs; i++) out[i] *= p.scale;
  }
}

// The rows as the input of a product, in the thread's own memory or in that of all.
inline void make_input(Thread& t, const PkPhase& p) {
  const Activations a = t.input(PK_INPUT, p.width);
  const auto make = [&](int r) {
    const float* x = p.attention ? mixed_row(t, *p.attention, p, r) : t.row(p.source, r);
    if (p.norm.kind != PK_NORM_NONE) {
      normalise(x, p.norm, p.width, t.own.row);
      x = t.own.row;
    }
    set_row(a, p.forms, r, x, p.width);
  };
  if (t.own_rows()) {
    for (int r = 0; r < t.batch.rows; r++) make(r);
  } else {
    t.share_out(t.batch.rows, make);
    t.wait();
  }
}

inline void add_norm(Thread& t, const PkPhase& p) {
  t.share_out(t.batch.rows, [&](int r) {
    float* out = t.row(p.target, r);
    normalise(t.row(p.source, r), p.norm, p.width, t.own.row);
    for (int i = 0; i < p.width; i++) out[i] += p.scale * t.own.row[i];
  });
}

}  // namespace
