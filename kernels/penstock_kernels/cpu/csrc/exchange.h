// The phase that calls out: ranks that share a model exchange what each has computed of a buffer.
#pragma once
#include "rows.h"

namespace {

// Set only by `exchange`, in front of a barrier that all threads pass before any of them comes to the next
// exchange: so all see the same.
inline bool broken_off(const Thread& t) { return t.scratch.given_up->load(std::memory_order_relaxed) == BROKEN_OFF; }

// Whether an exchange completes experts' results.
inline bool of_results(const PkPhase& p) { return p.experts && p.source != PK_INNER; }

// The inputs of products whose floats an exchange completes, or null.
inline const Activations* exchanged_input(const Thread& t, const PkPhase& p, Activations& of_width) {
  if (p.source != PK_INNER) return nullptr;
  of_width = (p.experts ? t.scratch.places.inner : t.scratch.inner).of_width(p.width);
  return &of_width;
}

inline void exchange(Thread& t, const PkPhase& p) {
  if (p.attention && t.scratch.by_split) {
    t.wait();  // All splits are there.
    t.share_out(t.batch.rows, [&](int r) {
      float* out = t.row(p.source, r) + p.first;
      for (int head = 0; head < p.attention->heads; head++) fold_head(t, *p.attention, r, head, out + head * p.attention->value_dim);
    });
  }
  Activations of_width;
  const Activations* input = exchanged_input(t, p, of_width);
  const int rows = p.experts ? t.batch.rows * p.experts->active : t.batch.rows;
  t.wait();
  if (t.number == 0) {
    const bool results = of_results(p);
    float* values = input ? input->floats : results ? t.scratch.places.results : t.row(p.source, 0);
    const int stride = input ? input->stride : pk::padded(t.program.widths[p.source], 32);
    const int32_t* first = results ? t.scratch.places.first : nullptr;
    if (t.program.exchange(static_cast<int32_t>(&p - t.program.phases), values, rows, stride, first)) t.scratch.given_up->store(BROKEN_OFF, std::memory_order_relaxed);
  }
  t.wait();
  if (!input || broken_off(t)) return;
  const Share mine = t.mine(rows);
  for (int r = mine.begin; r < mine.end; r++) set_row(*input, p.forms, r, input->floats + static_cast<size_t>(r) * input->stride, p.width);
}

}  // namespace
