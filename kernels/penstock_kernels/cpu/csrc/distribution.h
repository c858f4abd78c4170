// What the sampler does to every entry of a row.  Plain C++ that the compiler vectorises for each
// instruction set: element by element, or by operations whose order doesn't matter, so that all of
// them give the same bits.
#pragma once
#include <cstdint>

#include "types.h"

namespace {

// 0 where all logits are finite numbers.
inline uint32_t odd_bits(const float* logits, int count) {
  uint32_t odd = 0;
#pragma omp simd reduction(| : odd)
  for (int i = 0; i < count; i++) {
    uint32_t bits;
    __builtin_memcpy(&bits, logits + i, 4);
    // A carry into the sign, where the exponent is all ones.
    odd |= (bits & 0x7f800000u) + 0x00800000u;
  }
  return odd & 0x80000000u;
}

inline float largest_of(const float* logits, int count) {
  float largest = -__builtin_inff();
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < count; i++) largest = logits[i] > largest ? logits[i] : largest;
  return largest;
}

// Largest logit of each VOCAB_GROUP places, and whether all logits are finite numbers.
inline bool survey(const float* logits, int count, float* maxima) {
  uint32_t odd = 0;
  for (int start = 0; start < count; start += pk::VOCAB_GROUP) {
    const int size = count - start < pk::VOCAB_GROUP ? count - start : pk::VOCAB_GROUP;
    odd |= odd_bits(logits + start, size);
    *maxima++ = largest_of(logits + start, size);
  }
  return odd == 0;
}

constexpr double LOWEST = -707.0, VANISHING = 1e-306;

// x[i] = e^x[i] for x from LOWEST to 0; 0 where that is under VANISHING (no subnormal numbers).
// Relative error under 4e-16: range reduction to |r| <= ln 2 / 2 with ln 2 in two parts (Cody and
// Waite), and the series to the 13th power.  e^0 is 1, exactly.
inline void exponentials(double* x, int count) {
  constexpr double SHIFTER = 6755399441055744.0;  // 1.5 * 2^52: what is added to it becomes an integer
#pragma omp simd
  for (int i = 0; i < count; i++) {
    const double shifted = x[i] * 1.44269504088896340736 + SHIFTER, n = shifted - SHIFTER;
    const double r = (x[i] - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // n is in the low bits of `shifted`; added to the exponent, it multiplies by 2^n.
    uint64_t power, bits;
    __builtin_memcpy(&power, &shifted, 8);
    __builtin_memcpy(&bits, &p, 8);
    bits += power << 52;
    __builtin_memcpy(&p, &bits, 8);
    // Leaves all bits of what isn't tiny, and is no branch.
    p -= VANISHING;
    x[i] = p > 0.0 ? p : 0.0;
  }
}

// weights[i] = e^((logits[i] - largest) / temperature).  largest: of the logits, finite; they may
// be -inf.
inline void weigh(const float* logits, int count, double largest, double temperature, double* weights) {
  // A loop of its own: with the bound inside of the next one GCC makes branches of it.
#pragma omp simd
  for (int i = 0; i < count; i++) {
    const double x = (static_cast<double>(logits[i]) - largest) / temperature;
    weights[i] = x > LOWEST ? x : LOWEST;
  }
  exponentials(weights, count);
}

}  // namespace
