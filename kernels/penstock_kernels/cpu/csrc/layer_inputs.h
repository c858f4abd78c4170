// Inputs that each layer has of its own, and gates that a product doesn't make in one go with what they weigh.
#pragma once
#include "products.h"

namespace {

// The inputs of all layers, side by side in a row. The target has the embedding's part of them.
inline void inputs_of_layers(Thread& t, const PkPhase& p) {
  const PkMatrix& table = p.matrices[0];
  t.share_out(t.batch.rows, [&](int r) {
    const int token = t.batch.tokens[r];
    float *out = t.row(p.target, r), *own = t.own.row;
    matrix_row(table, token < table.outputs ? token : 0, own);
    for (int at = 0; at < table.inputs; at += p.width) {
      normalise(out + at, p.norm, p.width, out + at);
      for (int i = at; i < at + p.width; i++) out[i] = (out[i] + own[i] * p.scale) * 0.70710678118654752f;
    }
  });
}

// 16 numbers, of which the first `left` count; the others are 0, whatever stands there.
inline V first_of(const float* x, int left) {
  if (left >= 16) return load(x);
  float some[16] = {};
  for (int i = 0; i < left; i++) some[i] = x[i];
  return load(some);
}

inline void gate_by(Thread& t, const PkPhase& p) {
  const bool gates = p.matrices[0].tiles;
  const PkMatrix& matrix = p.matrices[gates ? 0 : 1];
  const Activations a = t.input(p.source, matrix.inputs), inner = t.input(PK_INNER, matrix.outputs);
  t.by_tiles(pk::padded(matrix.outputs, 32) / 32, a.row_bytes(matrix.kind), [&](int unit, int row, int rows) {
    alignas(64) float out[2][16 * pk::ROWS];
    // As in inner_unit.
    const int tiles = 2 * unit + 2 <= pk::padded(matrix.outputs, 16) / 16 ? 2 : 1, left = matrix.outputs - 32 * unit;
    if (tiles == 1) __builtin_memset(out, 0, sizeof out);
    tile_products(matrix, 2 * unit, tiles, a, row, rows, out[0]);
    const auto value = [&](const float* product, V other) {
      return gates ? mul(activate(p.activation, load(product)), other) : mul(activate(p.activation, other), load(product));
    };
    for (int r = 0; r < rows; r++) {
      const float* beside = t.row(p.beside, row + r) + p.first + 32 * unit;
      const V low = value(out[0] + 16 * r, first_of(beside, left)), high = value(out[1] + 16 * r, first_of(beside + 16, left - 16));
      set_group(inner, p.forms, row + r, unit, low, high);
    }
  });
  t.finish_rows(inner, p.forms, t.num_rows(), [&](int i) { return t.row_at(i); });
}

// The mean of numbers, and of the squares of what they differ by from `from`.
inline float mean_of(const float* x, int width) {
  V sums = zero();
  int i = 0;
  for (; i + 16 <= width; i += 16) sums = add(sums, load(x + i));
  float total = sum(sums);
  for (; i < width; i++) total += x[i];
  return total / static_cast<float>(width);
}
inline float mean_square(const float* x, int width, float from) {
  V squares = zero();
  int i = 0;
  for (; i + 16 <= width; i += 16) {
    const V apart = sub(load(x + i), set1(from));
    squares = fma(apart, apart, squares);
  }
  float total = sum(squares);
  for (; i < width; i++) total += (x[i] - from) * (x[i] - from);
  return total / static_cast<float>(width);
}

inline void cut_gate(Thread& t, const PkPhase& p) {
  t.share_out(t.batch.rows, [&](int r) {
    float* x = t.row(p.target, r);
    const float mean = mean_of(x, p.width), limit = mean + std::sqrt(mean_square(x, p.width, mean)) * p.scale;
    int i = 0;
    // The difference comes second: a NaN is then kept by AVX's maximum.
    for (; i + 16 <= p.width; i += 16) store(x + i, max(zero(), sub(load(x + i), set1(limit))));
    for (; i < p.width; i++) x[i] = x[i] - limit < 0.0f ? 0.0f : x[i] - limit;
  });
}

}  // namespace
