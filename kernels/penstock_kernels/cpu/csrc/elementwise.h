// Exponential, activations, norms and the rotary embedding.
#pragma once
#include <cmath>

#include "types.h"

namespace {

// 1.5 * 2^23. Added to a number between -2^22 and 2^22, it rounds that to a whole one, which is then in the lowest bits.
constexpr float WHOLE = 12582912.0f;

// e^x for x from -87 to 88.  Relative error under 2e-7: range reduction to |r| <= ln 2 / 2, and the series to the sixth
// power.
__attribute__((always_inline)) inline V bounded_exponential(V x) {
  const V whole = add(mul(x, set1(1.44269504088896341f)), set1(WHOLE)), n = sub(whole, set1(WHOLE));
  V r = fma(n, set1(-0.693145751953125f), x);
  r = fma(n, set1(-1.428606820309417232e-6f), r);
  V p = set1(1.0f / 720.0f);
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return scale2(p, whole);
}

// e^x for x <= 88; 0 below -87 (no subnormal results), NaN for NaN.
__attribute__((always_inline)) inline V exponential(V x) {
  return add(zero_below(bounded_exponential(max(x, set1(-87.0f))), x, -87.0f), sub(x, x));
}

// 2^x for x <= 0; 0 below -125 (no subnormal results), NaN for what isn't finite.  Relative error under 2e-7: a
// polynomial of the sixth degree between -1/2 and 1/2, where its largest error is the least.
__attribute__((always_inline)) inline V power_of_two(V x) {
  const V bounded = max(x, set1(-125.0f)), whole = add(bounded, set1(WHOLE)), r = sub(bounded, sub(whole, set1(WHOLE)));
  V p = set1(1.5345810755e-4f);
  p = fma(p, r, set1(1.3399931209e-3f));
  p = fma(p, r, set1(9.6184889617e-3f));
  p = fma(p, r, set1(5.5503287770e-2f));
  p = fma(p, r, set1(2.4022646891e-1f));
  p = fma(p, r, set1(6.9314720574e-1f));
  p = fma(p, r, set1(1.0f));
  return add(zero_below(scale2(p, whole), x, -125.0f), sub(x, x));
}

// e^x for one x, which is finite: no peak is -1e30, not infinity.
inline float exponential(float x) {
  alignas(64) float lanes[16];
  store(lanes, exponential(set1(x)));
  return lanes[0];
}

// 1 + e^-x, of which x / it is x times the logistic function. Nothing overflows: for x < -87 that
// quotient is 0 to float32 anyway.
__attribute__((always_inline)) inline V logistic_divisor(V x) {
  const V negative = max(sub(zero(), x), set1(-87.0f));
  const V bounded = sub(zero(), max(sub(zero(), negative), set1(-87.0f)));
  return add(set1(1.0f), bounded_exponential(bounded));
}

// The logistic function of one number.
inline float logistic(float x) {
  const float low = x < -80.0f ? 80.0f : -x;
  return 1.0f / (1.0f + exponential(low > 80.0f ? 80.0f : low));
}

// ln(1 + e^x), by the series of the inverse hyperbolic tangent.
inline float softplus(float x) {
  const float size = x < 0.0f ? -x : x, bounded = size > 87.0f ? 87.0f : size;
  const float y = exponential(-bounded), s = y / (2.0f + y), square = s * s;
  float sum = 1.0f / 15.0f;
  for (int n = 13; n > 0; n -= 2) sum = sum * square + 1.0f / static_cast<float>(n);
  return (x > 0.0f ? x : 0.0f) + 2.0f * s * sum;
}

// Activations; x times zero carries what isn't finite over.
__attribute__((always_inline)) inline V silu(V x) { return add(div(x, logistic_divisor(x)), mul(x, zero())); }

// By tanh (Hendrycks and Gimpel, 2016): x times the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3).
__attribute__((always_inline)) inline V gelu_tanh(V x) {
  const V cube = mul(mul(x, x), x);
  const V slope = mul(fma(cube, set1(0.044715f), x), set1(1.5957691216057308f));
  return add(div(x, logistic_divisor(slope)), mul(x, zero()));
}

// x times the normal distribution function. The error function is Hastings' approximation (Abramowitz and
// Stegun, 7.1.26), which is within 2e-7.
inline V gelu(V x) {
  const V size = abs(x), z = mul(size, set1(0.70710678118654752f));
  const V t = div(set1(1.0f), fma(z, set1(0.3275911f), set1(1.0f)));
  V p = set1(1.061405429f);
  p = fma(p, t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  const V beyond = mul(mul(p, t), exponential(sub(zero(), mul(z, z))));
  const V above = max(zero(), x);
  return add(sub(above, mul(mul(size, set1(0.5f)), beyond)), mul(x, zero()));
}

// x times the logistic function of 1.702 x (Hendrycks and Gimpel, 2016).
inline V quick_gelu(V x) { return add(div(x, logistic_divisor(mul(x, set1(1.702f)))), mul(x, zero())); }

// The square of what is above 0 (So et al., 2021).
inline V relu2(V x) {
  const V above = max(zero(), x);
  return add(mul(above, above), mul(x, zero()));
}

// x, but at most, or within, what `bound` is the negative of; NaN for NaN: a bound comes first, so that AVX's maximum
// keeps one.
__attribute__((always_inline)) inline V at_most(V x, V bound) { return sub(zero(), max(bound, sub(zero(), x))); }
__attribute__((always_inline)) inline V within_bounds(V x, V bound) { return at_most(max(bound, x), bound); }

// x^2 times c[0] above 0, and below it e^x - 1 - x times c[1]; of either with x times c[2].  No exponential is taken of more
// than c[3] (Huang and Schlag, 2024).
inline V xielu(V x, const float* c) {
  const V below = at_most(x, set1(-c[3])), near = max(set1(-0.5f), below);
  // Near 0, where e^x - 1 - x has few digits left, its series.
  V p = set1(1.0f / 362880.0f);
  p = fma(p, near, set1(1.0f / 40320.0f));
  p = fma(p, near, set1(1.0f / 5040.0f));
  p = fma(p, near, set1(1.0f / 720.0f));
  p = fma(p, near, set1(1.0f / 120.0f));
  p = fma(p, near, set1(1.0f / 24.0f));
  p = fma(p, near, set1(1.0f / 6.0f));
  p = fma(p, near, set1(0.5f));
  const V series = mul(mul(near, near), p), far = sub(sub(exponential(below), set1(1.0f)), below);
  const V curve = add(where_greater(below, set1(-0.5f), series, far), sub(below, x));
  const V bent = where_greater(x, zero(), mul(mul(x, x), set1(c[0])), mul(curve, set1(c[1])));
  return fma(x, set1(c[2]), bent);
}

// gate * sigmoid(1.702 gate) * (up + 1), with the gate at most 7 and up between -7 and 7 (gpt-oss).
inline V clamped_swiglu(V gate, V up) {
  const V bound = set1(-7.0f);
  const V kept = at_most(gate, bound), within = within_bounds(up, bound);
  return mul(div(kept, logistic_divisor(mul(kept, set1(1.702f)))), add(within, set1(1.0f)));
}

// cap * tanh(x / cap), and NaN for NaN.
inline V capped(V x, float cap) {
  // The argument comes second: a NaN is then kept by AVX's maximum.
  const V bounded = sub(zero(), max(set1(-80.0f), mul(x, set1(-2.0f / cap))));
  return mul(sub(set1(1.0f), div(set1(2.0f), add(set1(1.0f), exponential(bounded)))), set1(cap));
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

inline void root_mean_square(const float* x, const float* weight, int width, float eps, float* out) {
  const float by = inverse_rms(x, width, eps);
  int i = 0;
  for (; i + 16 <= width; i += 16) store(out + i, mul(mul(load(x + i), set1(by)), load(weight + i)));
  for (; i < width; i++) out[i] = x[i] * by * weight[i];
}

// Layer normalisation (Ba et al., 2016): the deviation is computed from differences to the mean.
inline void layer_norm(const float* x, const PkNorm& norm, int width, float* out) {
  V sums = zero();
  int i = 0;
  for (; i + 16 <= width; i += 16) sums = add(sums, load(x + i));
  float total = sum(sums);
  for (; i < width; i++) total += x[i];
  const float mean = total / static_cast<float>(width);
  for (i = 0; i + 16 <= width; i += 16) store(out + i, sub(load(x + i), set1(mean)));
  for (; i < width; i++) out[i] = x[i] - mean;
  root_mean_square(out, norm.weight, width, norm.eps, out);
  for (i = 0; norm.bias && i < width; i++) out[i] += norm.bias[i];
}

// A row's `width` numbers as the norm has them; x may be out.
inline void normalise(const float* x, const PkNorm& norm, int width, float* out) {
  if (norm.kind == PK_NORM_LAYER) layer_norm(x, norm, width, out);
  else root_mean_square(x, norm.weight, width, norm.eps, out);
}

// Rotates the halves of a head's first `dim` numbers against each other (the NeoX layout).
// cosines, sines: [dim / 2].
inline void rotate(float* head, const float* cosines, const float* sines, int dim) {
  const int half = dim / 2;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const V a = load(head + i), b = load(head + i + half), cosine = load(cosines + i), sine = load(sines + i);
    store(head + i, sub(mul(a, cosine), mul(b, sine)));
    store(head + i + half, add(mul(b, cosine), mul(a, sine)));
  }
  for (; i < half; i++) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = b * cosines[i] + a * sines[i];
  }
}

// Rotates the last `turning` numbers of a head of `dim`, of which neighbours are a pair; or `back`.
inline void rotate_last(float* head, int dim, const float* cosines, const float* sines, int turning, bool back = false) {
  float* last = head + dim - turning;
  for (int i = 0; i < turning / 2; i++) {
    const float a = last[2 * i], b = last[2 * i + 1], sine = back ? -sines[i] : sines[i];
    last[2 * i] = a * cosines[i] - b * sine;
    last[2 * i + 1] = b * cosines[i] + a * sine;
  }
}

}  // namespace
