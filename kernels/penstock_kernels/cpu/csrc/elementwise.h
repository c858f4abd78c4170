// Exponential, norms and the rotary embedding.
#pragma once
#include <cmath>

#include "types.h"

namespace {

// e^x for x <= 88; 0 below -87 (no subnormal results).  Relative error under 2e-7: range reduction
// to |r| <= ln 2 / 2, and the series to the sixth power.
inline V exponential(V x) {
  const V n = round_even(mul(max(x, set1(-87.0f)), set1(1.44269504088896341f)));
  V r = fma(n, set1(-0.693145751953125f), max(x, set1(-87.0f)));
  r = fma(n, set1(-1.428606820309417232e-6f), r);
  V p = set1(1.0f / 720.0f);
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  // NaN: n is NaN and the conversion is not a number's; carry it over by hand.
  return add(zero_below(scale2(p, n), x, -87.0f), sub(x, x));
}

// The same for one x, which is finite: no peak is -1e30, not infinity.
inline float exponential(float x) {
  alignas(64) float lanes[16];
  store(lanes, exponential(set1(x)));
  return lanes[0];
}

// gate / (1 + e^-gate) * up
inline V silu_mul(V gate, V up) {
  // e^-gate overflows nothing: for gate < -87 the quotient is 0 to float32 anyway.
  const V negative = max(sub(zero(), gate), set1(-87.0f));
  const V bounded = sub(zero(), max(sub(zero(), negative), set1(-87.0f)));
  const V poison = mul(gate, zero());
  return mul(add(div(gate, add(set1(1.0f), exponential(bounded))), poison), up);
}

// 1 / sqrt(mean of squares + eps). x: [width].
inline float inverse_rms(const float* x, int width, float eps) {
  V squares = zero();
  int i = 0;
  for (; i + 16 <= width; i += 16) squares = fma(load(x + i), load(x + i), squares);
  float total = sum(squares);
  for (; i < width; i++) total += x[i] * x[i];
  return 1.0f / std::sqrt(total / static_cast<float>(width) + eps);
}

inline void normalise(const float* x, const float* weight, int width, float eps, float* out) {
  const float by = inverse_rms(x, width, eps);
  int i = 0;
  for (; i + 16 <= width; i += 16) store(out + i, mul(mul(load(x + i), set1(by)), load(weight + i)));
  for (; i < width; i++) out[i] = x[i] * by * weight[i];
}

// Rotates a head's halves against each other (the NeoX layout). cosines, sines: [dim / 2].
inline void rotate(float* head, const float* cosines, const float* sines, int dim) {
  const int half = dim / 2;
  for (int i = 0; i < half; i++) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace
