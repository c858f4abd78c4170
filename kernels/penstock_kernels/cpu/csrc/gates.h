// What becomes of the results of attention or of a scan before they are multiplied: gates, and norms.
#pragma once
#include "attend.h"

namespace {

// out = x times the logistic function of gates; gates times zero carry what isn't finite over. x may be out.
inline void weigh_by_gates(const float* x, const float* gates, int width, float* out) {
  for (int i = 0; i < width; i += 16) {
    const V gate = load(gates + i);
    store(out + i, add(div(load(x + i), logistic_divisor(gate)), mul(gate, zero())));
  }
}

// out = x times the logistic function of one gate for each `each` numbers, as weigh_by_gates computes it.
inline void weigh_by_some(const float* x, const float* gates, int width, int each, float* out) {
  for (int first = 0; first < width; first += each) {
    const V gate = set1(gates[first / each]), divisor = logistic_divisor(gate), poison = mul(gate, zero());
    for (int i = first; i < first + each; i += 16) store(out + i, add(div(load(x + i), divisor), poison));
  }
}

// out = x times the softplus of one gate for each `each` numbers (Poolside, "Laguna", 2026).
inline void weigh_by_soft(const float* x, const float* gates, int width, int each, float* out) {
  for (int first = 0; first < width; first += each) {
    const float gate = gates[first / each];
    const V by = set1(softplus(gate) + gate * 0.0f);
    for (int i = first; i < first + each; i += 16) store(out + i, mul(load(x + i), by));
  }
}

// out = x times silu of gates. x may be out.
inline void multiply_by_silu(const float* x, const float* gates, int width, float* out) {
  for (int i = 0; i < width; i += 16) store(out + i, mul(load(x + i), silu(load(gates + i))));
}

// What a recurrent layer's scan has left of a row, gated and normed, in the thread's own memory.
inline const float* scanned_row(Thread& t, const PkRecurrent& l, const PkPhase& p, int row) {
  const float *x = t.row(p.source, row), *gates = t.row(PK_QUERIES, row) + l.gate;
  float* out = t.own.row;
  if (l.kind == PK_SHORT_CONV) return x;
  if (l.kind == PK_GATED_DELTA) {
    for (int i = 0; i < l.width; i += l.value_dim) root_mean_square(x + i, l.norm, l.value_dim, l.norm_eps, out + i);
    if (l.logistic_gate) weigh_by_gates(out, gates, l.width, out);
    else multiply_by_silu(out, gates, l.width, out);
    return out;
  }
  multiply_by_silu(x, gates, l.width, out);
  if (l.kind == PK_MAMBA1) return out;
  const int size = l.width / l.norm_groups;
  for (int i = 0; i < l.width; i += size) root_mean_square(out + i, l.norm + i, size, l.norm_eps, out + i);
  return out;
}

// A row, times the gates that the phase has for it, in the thread's own memory.
inline const float* gated_row(Thread& t, const PkPhase& p, int row, const float* x) {
  if (!p.gates) return x;
  const float* gates = t.row(PK_RESULT, row);
  if (p.soft_gates) weigh_by_soft(x, gates, p.width, p.width / p.gates, t.own.row);
  else if (p.gates == p.width) weigh_by_gates(x, gates, p.width, t.own.row);
  else weigh_by_some(x, gates, p.width, p.width / p.gates, t.own.row);
  return t.own.row;
}

// The same of a row of attention.
inline const float* attended_row(Thread& t, const PkPhase& p, int row) {
  return gated_row(t, p, row, mixed_row(t, *p.attention, p, row));
}

}  // namespace
