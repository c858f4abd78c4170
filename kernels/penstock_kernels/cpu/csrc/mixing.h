// Phases of models with several residuals, which both halves of each layer mix (Xie et al., "Manifold-constrained
// hyper-connections", 2026).
#pragma once
#include "streams.h"

namespace {

inline int mixing_logits(const PkMixing& m) { return m.rounds ? m.count * (2 + m.count) : m.count; }

inline void spread(Thread& t, const PkPhase& p) {
  t.share_out(t.batch.rows, [&](int r) {
    for (int k = 0; k < p.mixing->count; k++)
      __builtin_memcpy(t.row(PK_STREAMS, r) + static_cast<size_t>(k) * p.width, t.row(p.source, r), p.width * sizeof(float));
  });
}

// A unit is a logit of a row: of few rows, each thread reads a part of the matrix.
inline void mix_logits(Thread& t, const PkPhase& p) {
  const PkMixing& m = *p.mixing;
  const int logits = mixing_logits(m), size = m.count * p.width;
  t.share_out(t.batch.rows * logits, [&](int unit) {
    const int row = unit / logits, number = unit % logits;
    t.row(p.target, row)[number] = dot_product(t.row(PK_STREAMS, row), m.product + static_cast<size_t>(number) * size, size);
  });
}

// out: [width], the sum of `count` residuals, each times a weight.
inline void weigh_residuals(const float* streams, int count, int width, const float* weights, float* out) {
  int i = 0;
  for (; i + 16 <= width; i += 16) {
    V total = mul(load(streams + i), set1(weights[0]));
    for (int k = 1; k < count; k++) total = fma(load(streams + static_cast<size_t>(k) * width + i), set1(weights[k]), total);
    store(out + i, total);
  }
  for (; i < width; i++) {
    out[i] = streams[i] * weights[0];
    for (int k = 1; k < count; k++) out[i] += streams[static_cast<size_t>(k) * width + i] * weights[k];
  }
}

// Divides the rows of a square, or its columns, by their sums plus eps. step: from one number of a line to the next.
inline void normalise_lines(float* square, int count, int line, int step, float eps) {
  for (int i = 0; i < count; i++) {
    float* first = square + i * line;
    float total = first[0];
    for (int j = 1; j < count; j++) total += first[j * step];
    for (int j = 0; j < count; j++) first[j * step] /= total + eps;
  }
}

// Makes the matrix that mixes residuals of its logits: rows and columns take turns (Sinkhorn and Knopp, 1967).
inline void balance(const PkMixing& m, float* square) {
  const int count = m.count;
  for (int i = 0; i < count; i++) {
    float *row = square + i * count, peak = row[0];
    for (int j = 1; j < count; j++) peak = row[j] > peak ? row[j] : peak;
    for (int j = 0; j < count; j++) row[j] = exponential(row[j] - peak);
  }
  normalise_lines(square, count, count, 1, 0.0f);
  for (int i = 0; i < count * count; i++) square[i] += m.eps;
  normalise_lines(square, count, 1, count, m.eps);
  for (int round = 1; round < m.rounds; round++) {
    normalise_lines(square, count, count, 1, m.eps);
    normalise_lines(square, count, 1, count, m.eps);
  }
}

inline void mix_read(Thread& t, const PkPhase& p) {
  const PkMixing& m = *p.mixing;
  const int count = m.count, size = count * p.width;
  t.share_out(t.batch.rows, [&](int r) {
    float* streams = t.row(PK_STREAMS, r);
    const float *products = t.row(p.source, r), by = inverse_rms(streams, size, m.norm_eps);
    const auto logit = [&](int number, int part) { return products[number] * by * m.scales[part] + m.base[number]; };
    float read[pk::MAX_STREAMS];
    for (int k = 0; k < count; k++) read[k] = logistic(logit(k, 0)) + m.eps;
    weigh_residuals(streams, count, p.width, read, t.row(p.target, r));
    if (!m.rounds) return;
    float *added = streams + size, *square = added + count;
    for (int k = 0; k < count; k++) added[k] = 2.0f * logistic(logit(count + k, 1));
    for (int i = 0; i < count * count; i++) square[i] = logit(2 * count + i, 2);
    balance(m, square);
  });
}

inline void mix_write(Thread& t, const PkPhase& p) {
  const int count = p.mixing->count, width = p.width;
  t.share_out(t.batch.rows, [&](int r) {
    float *streams = t.row(PK_STREAMS, r), *given = t.row(p.source, r);
    const float *added = streams + static_cast<size_t>(count) * width, *square = added + count;
    int i = 0;
    for (; i + 16 <= width; i += 16) {
      V before[pk::MAX_STREAMS];
      for (int k = 0; k < count; k++) before[k] = load(streams + static_cast<size_t>(k) * width + i);
      for (int n = 0; n < count; n++) {
        V total = mul(load(given + i), set1(added[n]));
        for (int k = 0; k < count; k++) total = fma(before[k], set1(square[k * count + n]), total);
        store(streams + static_cast<size_t>(n) * width + i, total);
      }
    }
    for (; i < width; i++) {
      float before[pk::MAX_STREAMS];
      for (int k = 0; k < count; k++) before[k] = streams[static_cast<size_t>(k) * width + i];
      for (int n = 0; n < count; n++) {
        float total = given[i] * added[n];
        for (int k = 0; k < count; k++) total += before[k] * square[k * count + n];
        streams[static_cast<size_t>(n) * width + i] = total;
      }
    }
  });
}

}  // namespace
