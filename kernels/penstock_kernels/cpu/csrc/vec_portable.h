// Sixteen lanes in plain C++: slow, and right on any machine.
#pragma once
#include <cmath>
#include <cstdint>

namespace {

// Rows of a product by floats whose sums the registers hold.
constexpr int FLOAT_ROWS = 12;
// The same of quantised products.
constexpr int LEVEL_ROWS = 12;
// Sums of attention's scores that the registers hold, and pages of keys that share a row's queries; of its values, rows
// and vectors of a head.
constexpr int SCORE_SUMS = 12, SCORE_PAGES = 1, VALUE_ROWS = 6, VALUE_VECTORS = 4;
// Whether many rows of attention multiply keys and values that were made floats once for all of them.
constexpr bool WIDENS = false;

struct V { float x[16]; };
struct I { int32_t x[16]; };
struct W { uint8_t x[64]; };

#define PK_LANES for (int i = 0; i < 16; i++)

inline V set1(float a) { V r; PK_LANES r.x[i] = a; return r; }
inline V zero() { return set1(0.0f); }
inline V load(const float* p) { V r; PK_LANES r.x[i] = p[i]; return r; }
inline void store(float* p, V a) { PK_LANES p[i] = a.x[i]; }
inline V add(V a, V b) { PK_LANES a.x[i] += b.x[i]; return a; }
inline V sub(V a, V b) { PK_LANES a.x[i] -= b.x[i]; return a; }
inline V mul(V a, V b) { PK_LANES a.x[i] *= b.x[i]; return a; }
inline V div(V a, V b) { PK_LANES a.x[i] /= b.x[i]; return a; }
inline V fma(V a, V b, V c) { PK_LANES c.x[i] += a.x[i] * b.x[i]; return c; }
inline V max(V a, V b) { PK_LANES a.x[i] = a.x[i] > b.x[i] ? a.x[i] : b.x[i]; return a; }
inline V abs(V a) { PK_LANES a.x[i] = std::fabs(a.x[i]); return a; }
inline float sum(V a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a.x[i] += a.x[i + half];
  return a.x[0];
}
inline float highest(V a) { float r = a.x[0]; PK_LANES r = a.x[i] > r ? a.x[i] : r; return r; }

inline float bits_to_float(uint32_t bits) { float r; __builtin_memcpy(&r, &bits, 4); return r; }
inline uint32_t float_to_bits(float x) { uint32_t r; __builtin_memcpy(&r, &x, 4); return r; }
inline float f16_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float small = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
  return sign ? -small : small;
}
inline V load_f16(const uint16_t* p) { V r; PK_LANES r.x[i] = f16_to_float(p[i]); return r; }
inline V load_bf16(const uint16_t* p) { V r; PK_LANES r.x[i] = bits_to_float(static_cast<uint32_t>(p[i]) << 16); return r; }
// Of 16 pairs of bfloat16, the first and the second of each.
inline V load_even(const uint16_t* p) { V r; PK_LANES r.x[i] = bits_to_float(static_cast<uint32_t>(p[2 * i]) << 16); return r; }
inline V load_odd(const uint16_t* p) { V r; PK_LANES r.x[i] = bits_to_float(static_cast<uint32_t>(p[2 * i + 1]) << 16); return r; }
inline V load_i8(const int8_t* p) { V r; PK_LANES r.x[i] = p[i]; return r; }

inline V scale2(V a, V whole) {
  PK_LANES a.x[i] = bits_to_float(float_to_bits(a.x[i]) + (float_to_bits(whole.x[i]) << 23));
  return a;
}
inline V zero_below(V y, V a, float limit) { PK_LANES y.x[i] = a.x[i] < limit ? 0.0f : y.x[i]; return y; }
// By lanes, x where a > b, else y (NaN isn't greater).
inline V where_greater(V a, V b, V x, V y) { PK_LANES y.x[i] = a.x[i] > b.x[i] ? x.x[i] : y.x[i]; return y; }
inline V keep_through(V y, int first, int last, float other) {
  PK_LANES y.x[i] = first + i <= last ? y.x[i] : other;
  return y;
}
inline V keep_from(V y, int first, int from, float other) {
  PK_LANES y.x[i] = first + i >= from ? y.x[i] : other;
  return y;
}

inline I izero() { I r; PK_LANES r.x[i] = 0; return r; }
inline V to_float(I a) { V r; PK_LANES r.x[i] = static_cast<float>(a.x[i]); return r; }
inline I plus(I a, int32_t b) { PK_LANES a.x[i] += b; return a; }
inline W load_w(const uint8_t* p) { W r; __builtin_memcpy(r.x, p, 64); return r; }
inline W low_nibbles(W w) { for (auto& b : w.x) b &= 15; return w; }
inline W high_nibbles(W w) { for (auto& b : w.x) b >>= 4; return w; }
// Bits move to the left, or by less than 0 to the right.
template <int LEFT> inline W shifted(W w) { for (auto& b : w.x) b = static_cast<uint8_t>(LEFT > 0 ? b << (LEFT > 0 ? LEFT : 0) : b >> (LEFT < 0 ? -LEFT : 0)); return w; }
inline W and_bits(W w, int mask) { for (auto& b : w.x) b &= static_cast<uint8_t>(mask); return w; }
// Those of `mask` in other, besides those of w.
inline W with_bits(W w, W other, int mask) { for (int i = 0; i < 64; i++) w.x[i] |= static_cast<uint8_t>(other.x[i] & mask); return w; }
// Each level's entry of a table of 16.
inline W look_up(const uint8_t* table, W levels) { for (auto& b : levels.x) b = table[b]; return levels; }
inline I dot4(I sums, W w, const int8_t* a) {
  PK_LANES for (int j = 0; j < 4; j++) sums.x[i] += static_cast<int32_t>(w.x[4 * i + j]) * a[j];
  return sums;
}
// As in vec_avx512.h.
template <int N> inline I dot(const W* w, const int8_t* a) {
  I sums = izero();
  for (int i = 0; i < N; i++) sums = dot4(sums, w[i], a + 4 * i);
  return sums;
}
template <int N> inline I dot_nibbles(const W* w, const int8_t* a) { return dot<N>(w, a); }
// Of levels up to 31 (STEP 4) or 63 (2), added to x.
template <int N, int STEP> inline I dot_small(const W* w, const int8_t* a, int32_t x) { return plus(dot<N>(w, a), x); }
inline W as_signed(W levels) { return levels; }
template <int N> inline I dot_signed(const W* w, const int8_t* a, int32_t offset) { return plus(dot<N>(w, a), offset); }

inline void store_i8(int8_t* p, V a) {
  PK_LANES {
    // NaN and what is out of range become -128, as the vector conversions make them.
    const float r = std::nearbyint(a.x[i]);
    p[i] = r >= -128.0f && r <= 127.0f ? static_cast<int8_t>(r) : (r > 127.0f ? 127 : -128);
  }
}
// Of 32 floats, and the sums of the first and of the latter half of the bytes.
inline void store_levels(int8_t* p, V low, V high, int32_t& first, int32_t& second) {
  store_i8(p, low);
  store_i8(p + 16, high);
  first = second = 0;
  PK_LANES first += p[i], second += p[16 + i];
}
inline bool any_nan(V a) { bool any = false; PK_LANES any |= a.x[i] != a.x[i]; return any; }

// The bits of a float, rounded to the bfloat16 in their high half.
inline uint32_t rounded_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 64u << 16 : bits + 0x7fffu + ((bits >> 16) & 1);
}
inline V round_bf16(V a) { PK_LANES a.x[i] = bits_to_float(rounded_bits(a.x[i]) & 0xffff0000u); return a; }
// 16 floats, rounded to nearest even.
inline void store_bf16(uint16_t* p, V a) { PK_LANES p[i] = static_cast<uint16_t>(rounded_bits(a.x[i]) >> 16); }
inline void store_rounded(uint16_t* p, V a) { store_bf16(p, a); }
// 16 pairs (even, odd) of numbers that are bfloat16 already.
inline uint16_t upper_half(float x) { uint32_t bits; __builtin_memcpy(&bits, &x, 4); return static_cast<uint16_t>(bits >> 16); }
inline void store_bf16_pairs(uint16_t* p, V even, V odd) {
  PK_LANES {
    p[2 * i] = upper_half(even.x[i]);
    p[2 * i + 1] = upper_half(odd.x[i]);
  }
}

#undef PK_LANES

}  // namespace
