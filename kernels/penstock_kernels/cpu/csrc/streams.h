// Phases of models with several residuals, of which a layer computes one: the others are predicted, and then
// corrected by it (Baykal et al., "Alternating updates for efficient transformers", 2023).
#pragma once
#include "layer_inputs.h"

namespace {

// Mean square that a stream is taken to have at least when it is scaled.
constexpr float LEAST_SQUARE = 1e-5f;

inline float dot_product(const float* x, const float* y, int width) {
  V sums = zero();
  int i = 0;
  for (; i + 16 <= width; i += 16) sums = fma(load(x + i), load(y + i), sums);
  float total = sum(sums);
  for (; i < width; i++) total += x[i] * y[i];
  return total;
}

// What a stream says about all: a number between -1 and 1 for each.
inline void route_streams(Thread& t, const PkPhase& p, const float* x, float* routed) {
  const PkStreams& s = *p.streams;
  normalise(x, p.norm, p.width, t.own.row);
  for (int i = 0; i < s.count; i++) {
    alignas(64) float lanes[16];
    store(lanes, capped(set1(dot_product(t.own.row, s.router + static_cast<size_t>(i) * p.width, p.width) / static_cast<float>(p.width)), 1.0f));
    routed[i] = lanes[0];
  }
}

// A row of a small matrix times what a stream says.
inline float said_of(const float* matrix, int row, const float* routed, int count) {
  float total = 0.0f;
  for (int i = 0; i < count; i++) total += matrix[row * count + i] * routed[i];
  return total;
}

// x times the factor that gives it the root mean square of `like`.
inline float factor_like(const float* x, const float* like, int width) {
  const float own = mean_square(x, width, 0.0f);
  return std::sqrt(mean_square(like, width, 0.0f)) / std::sqrt(own < LEAST_SQUARE ? LEAST_SQUARE : own);
}

inline void begin_streams(Thread& t, const PkPhase& p) {
  const PkStreams& s = *p.streams;
  t.share_out(t.batch.rows, [&](int r) {
    float *first = t.row(PK_STREAMS, r), *source = t.row(p.source, r);
    for (int i = 0; i < p.width; i++) first[i] = source[i];
    for (int k = 1; k < s.count; k++) {
      float* other = first + static_cast<size_t>(k) * s.stride;
      const float by = factor_like(other, first, p.width);
      for (int i = 0; i < p.width; i++) other[i] *= by;
    }
  });
}

inline void predict(Thread& t, const PkPhase& p) {
  const PkStreams& s = *p.streams;
  t.share_out(t.batch.rows, [&](int r) {
    float *streams = t.row(PK_STREAMS, r), *target = t.row(p.target, r);
    float routed[pk::MAX_STREAMS], mixing[pk::MAX_STREAMS * pk::MAX_STREAMS];
    route_streams(t, p, streams + static_cast<size_t>(s.active) * s.stride, routed);
    for (int i = 0; i < s.count * s.count; i++) mixing[i] = said_of(s.prediction, i, routed, s.count);
    for (int i = 0; i < p.width; i += 16) {
      V before[pk::MAX_STREAMS];
      for (int k = 0; k < s.count; k++) before[k] = load(streams + static_cast<size_t>(k) * s.stride + i);
      for (int k = 0; k < s.count; k++) {
        V total = before[k];
        for (int j = 0; j < s.count; j++) total = fma(before[j], set1(mixing[k * s.count + j]), total);
        store(streams + static_cast<size_t>(k) * s.stride + i, total);
        if (k == s.active) store(target + i, total);
      }
    }
  });
}

inline void join_path(Thread& t, const PkPhase& p) {
  t.share_out(t.batch.rows, [&](int r) {
    float *x = t.row(p.target, r), *mixed = t.row(p.source, r), *path = t.row(p.beside, r);
    normalise(mixed, p.norm, p.width, mixed);
    normalise(path, p.third_norm, p.width, path);
    normalise(x, p.other_norm, p.width, t.own.row);
    for (int i = 0; i < p.width; i++) x[i] = ((x[i] + mixed[i]) + (t.own.row[i] + path[i])) * p.scale;
  });
}

inline void correct(Thread& t, const PkPhase& p) {
  const PkStreams& s = *p.streams;
  t.share_out(t.batch.rows, [&](int r) {
    float *streams = t.row(PK_STREAMS, r), *computed = t.row(p.target, r);
    const float* active = streams + static_cast<size_t>(s.active) * s.stride;
    float routed[pk::MAX_STREAMS], shares[pk::MAX_STREAMS];
    route_streams(t, p, computed, routed);
    for (int k = 0; k < s.count; k++) shares[k] = said_of(s.correction, k, routed, s.count) + 1.0f;
    for (int i = 0; i < p.width; i += 16) {
      const V change = sub(load(computed + i), load(active + i));
      for (int k = 0; k < s.count; k++) {
        float* stream = streams + static_cast<size_t>(k) * s.stride + i;
        store(stream, fma(change, set1(shares[k]), load(stream)));
      }
      const V corrected = load(active + i);
      store(computed + i, s.output_scale ? mul(corrected, load(s.output_scale + i)) : corrected);
    }
  });
}

inline void add_to_others(Thread& t, const PkPhase& p) {
  const PkStreams& s = *p.streams;
  t.share_out(t.batch.rows, [&](int r) {
    float* streams = t.row(PK_STREAMS, r);
    normalise(t.row(p.source, r), p.norm, p.width, t.own.row);
    for (int k = 1; k < s.count; k++)
      for (int i = 0; i < p.width; i++) streams[static_cast<size_t>(k) * s.stride + i] += t.own.row[i];
  });
}

inline void end_stream(Thread& t, const PkPhase& p) {
  t.share_out(t.batch.rows, [&](int r) {
    const float *first = t.row(PK_STREAMS, r), *x = t.row(p.source, r);
    float* out = t.row(p.target, r);
    const float by = factor_like(x, first, p.width);
    for (int i = 0; i < p.width; i++) out[i] = ((p.adds ? out[i] : first[i]) + x[i] * by) * p.scale;
  });
}

}  // namespace
