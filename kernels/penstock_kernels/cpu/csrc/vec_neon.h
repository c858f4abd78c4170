// Sixteen lanes as four quarters on NEON with dot products of bytes (Armv8.2-A), with its products of 8-bit matrices
// where the file is compiled for them.  Every number is the one that vec_avx2.h computes, to the bit.
#pragma once
#include <arm_neon.h>
#include <cstddef>
#include <cstdint>

// Whole numbers of all rows come before the first of them becomes a float, see dots_neon.h.
#define PK_DOTS_OF_ROWS 1

namespace {

// Rows of a product by floats whose sums the registers hold.
constexpr int FLOAT_ROWS = 6;
// Rows of quantised products that share the reading of weights.
constexpr int LEVEL_ROWS = 8;
// Sums of attention's scores that the registers hold, and pages of keys that share a row's queries; of its values, rows
// and vectors of a head.
constexpr int SCORE_SUMS = 6, SCORE_PAGES = 1, VALUE_ROWS = 6, VALUE_VECTORS = 1;
// Whether many rows of attention multiply keys and values that were made floats once for all of them.
constexpr bool WIDENS = false;

struct V { float32x4_t a, b, c, d; };
struct I { int32x4_t a, b, c, d; };
struct W { uint8x16_t a, b, c, d; };  // Four lanes of four bytes each.

// The same of each quarter.
#define PK_QUARTERS(OF) { OF(a), OF(b), OF(c), OF(d) }

inline V set1(float x) { const float32x4_t four = vdupq_n_f32(x); return {four, four, four, four}; }
inline V zero() { return set1(0.0f); }
inline V load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
inline void store(float* p, V x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
#define PK_OF(q) vaddq_f32(x.q, y.q)
inline V add(V x, V y) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
#define PK_OF(q) vsubq_f32(x.q, y.q)
inline V sub(V x, V y) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
#define PK_OF(q) vmulq_f32(x.q, y.q)
inline V mul(V x, V y) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
#define PK_OF(q) vdivq_f32(x.q, y.q)
inline V div(V x, V y) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
#define PK_OF(q) vfmaq_f32(z.q, x.q, y.q)
inline V fma(V x, V y, V z) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
// As AVX's maximum: the second where either is NaN, or both are zeros.  NEON's own would keep the NaN.
inline float32x4_t max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
#define PK_OF(q) max4(x.q, y.q)
inline V max(V x, V y) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
#define PK_OF(q) vabsq_f32(x.q)
inline V abs(V x) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
// By halves, as the other instruction sets do it.
inline float sum(V x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float highest(V x) {
  const float32x4_t four = max4(max4(x.a, x.c), max4(x.b, x.d)), two = max4(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(max4(two, vdupq_laneq_f32(two, 1)), 0);
}

inline float32x4_t f16_quarter(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline V load_f16(const uint16_t* p) { return {f16_quarter(p), f16_quarter(p + 4), f16_quarter(p + 8), f16_quarter(p + 12)}; }
inline float32x4_t bf16_quarter(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline V load_bf16(const uint16_t* p) { return {bf16_quarter(p), bf16_quarter(p + 4), bf16_quarter(p + 8), bf16_quarter(p + 12)}; }
// Of 16 pairs of bfloat16, the first and the second of each.
inline uint32x4_t four_pairs(const uint16_t* p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }
inline float32x4_t even_quarter(const uint16_t* p) { return vreinterpretq_f32_u32(vshlq_n_u32(four_pairs(p), 16)); }
inline float32x4_t odd_quarter(const uint16_t* p) { return vreinterpretq_f32_u32(vandq_u32(four_pairs(p), vdupq_n_u32(0xffff0000u))); }
inline V load_even(const uint16_t* p) { return {even_quarter(p), even_quarter(p + 8), even_quarter(p + 16), even_quarter(p + 24)}; }
inline V load_odd(const uint16_t* p) { return {odd_quarter(p), odd_quarter(p + 8), odd_quarter(p + 16), odd_quarter(p + 24)}; }
inline float32x4_t low_words(int16x8_t words) { return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))); }
inline float32x4_t high_words(int16x8_t words) { return vcvtq_f32_s32(vmovl_s16(vget_high_s16(words))); }
inline V load_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t first = vmovl_s8(vget_low_s8(bytes)), second = vmovl_s8(vget_high_s8(bytes));
  return {low_words(first), high_words(first), low_words(second), high_words(second)};
}

#define PK_OF(q) vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.q), vshlq_n_s32(vreinterpretq_s32_f32(whole.q), 23)))
inline V scale2(V x, V whole) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
// Of y, the numbers where x isn't less; NaN isn't.
#define PK_OF(q) vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y.q), vcltq_f32(x.q, bound)))
inline V zero_below(V y, V x, float limit) {
  const float32x4_t bound = vdupq_n_f32(limit);
  return PK_QUARTERS(PK_OF);
}
#undef PK_OF
inline I lanes_from(int first) {
  static const int32_t COUNT[4] = {0, 1, 2, 3};
  const int32x4_t lanes = vaddq_s32(vld1q_s32(COUNT), vdupq_n_s32(first));
  return {lanes, vaddq_s32(lanes, vdupq_n_s32(4)), vaddq_s32(lanes, vdupq_n_s32(8)), vaddq_s32(lanes, vdupq_n_s32(12))};
}
// By lanes, x where greater > less, else y (NaN isn't greater).
#define PK_OF(q) vbslq_f32(vcgtq_f32(greater.q, less.q), x.q, y.q)
inline V where_greater(V greater, V less, V x, V y) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
#define PK_OF(q) vbslq_f32(vcleq_s32(lanes.q, limit), y.q, o)
inline V keep_through(V y, int first, int last, float other) {
  const I lanes = lanes_from(first);
  const int32x4_t limit = vdupq_n_s32(last);
  const float32x4_t o = vdupq_n_f32(other);
  return PK_QUARTERS(PK_OF);
}
#undef PK_OF
#define PK_OF(q) vbslq_f32(vcgeq_s32(lanes.q, limit), y.q, o)
inline V keep_from(V y, int first, int from, float other) {
  const I lanes = lanes_from(first);
  const int32x4_t limit = vdupq_n_s32(from);
  const float32x4_t o = vdupq_n_f32(other);
  return PK_QUARTERS(PK_OF);
}
#undef PK_OF

#define PK_OF(q) vcvtq_f32_s32(x.q)
inline V to_float(I x) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
inline W load_w(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}; }
#define PK_OF(q) vandq_u8(w.q, vdupq_n_u8(15))
inline W low_nibbles(W w) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
#define PK_OF(q) vshrq_n_u8(w.q, 4)
inline W high_nibbles(W w) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
// Bits move to the left, or by less than 0 to the right.
template <int LEFT> inline uint8x16_t shifted(uint8x16_t w) {
  if constexpr (LEFT > 0) return vshlq_n_u8(w, LEFT);
  else if constexpr (LEFT < 0) return vshrq_n_u8(w, -LEFT);
  else return w;
}
#define PK_OF(q) shifted<LEFT>(w.q)
template <int LEFT> inline W shifted(W w) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
#define PK_OF(q) vandq_u8(w.q, vdupq_n_u8(static_cast<uint8_t>(mask)))
inline W and_bits(W w, int mask) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
// Those of `mask` in other, besides those of w.
#define PK_OF(q) vorrq_u8(w.q, vandq_u8(other.q, vdupq_n_u8(static_cast<uint8_t>(mask))))
inline W with_bits(W w, W other, int mask) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
// Each level's entry of a table of 16.
#define PK_OF(q) vqtbl1q_u8(entries, levels.q)
inline W look_up(const uint8_t* table, W levels) {
  const uint8x16_t entries = vld1q_u8(table);
  return PK_QUARTERS(PK_OF);
}
#undef PK_OF
// Less 128: products take signed bytes.
#define PK_OF(q) veorq_u8(levels.q, vdupq_n_u8(128))
inline W as_signed(W levels) { return PK_QUARTERS(PK_OF); }
#undef PK_OF

// x rounded to nearest even; what no int32 holds, and NaN, becomes the lowest one, as on AVX.
inline int32x4_t rounded(float32x4_t x) {
  return vbslq_s32(vcaltq_f32(x, vdupq_n_f32(2147483648.0f)), vcvtnq_s32_f32(x), vdupq_n_s32(INT32_MIN));
}
// 16 floats, rounded to nearest even and clamped, as signed bytes.
inline int8x16_t to_i8(V x) {
  const int16x8_t first = vcombine_s16(vqmovn_s32(rounded(x.a)), vqmovn_s32(rounded(x.b)));
  const int16x8_t second = vcombine_s16(vqmovn_s32(rounded(x.c)), vqmovn_s32(rounded(x.d)));
  return vcombine_s8(vqmovn_s16(first), vqmovn_s16(second));
}
inline void store_i8(int8_t* p, V x) { vst1q_s8(p, to_i8(x)); }
// The same of 32, and the sums of the first and of the latter half of the bytes.
inline void store_levels(int8_t* p, V low, V high, int32_t& first, int32_t& second) {
  const int8x16_t bytes = to_i8(low), more = to_i8(high);
  vst1q_s8(p, bytes);
  vst1q_s8(p + 16, more);
  first = vaddlvq_s8(bytes);
  second = vaddlvq_s8(more);
}
inline bool any_nan(V x) {
  const uint32x4_t first = vandq_u32(vceqq_f32(x.a, x.a), vceqq_f32(x.b, x.b));
  const uint32x4_t second = vandq_u32(vceqq_f32(x.c, x.c), vceqq_f32(x.d, x.d));
  return vminvq_u32(vandq_u32(first, second)) == 0;
}

// 4 floats, rounded to nearest even, each in the high half of its lane; NaN stays NaN.
inline uint32x4_t rounded_quarter(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t nearest = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  return vbslq_u32(vceqq_f32(x, x), nearest, vorrq_u32(bits, vdupq_n_u32(64 << 16)));
}
#define PK_OF(q) vreinterpretq_f32_u32(vandq_u32(rounded_quarter(x.q), vdupq_n_u32(0xffff0000u)))
inline V round_bf16(V x) { return PK_QUARTERS(PK_OF); }
#undef PK_OF
inline void store_bf16_half(uint16_t* p, float32x4_t x, float32x4_t y) {
  vst1q_u16(p, vcombine_u16(vshrn_n_u32(rounded_quarter(x), 16), vshrn_n_u32(rounded_quarter(y), 16)));
}
inline void store_bf16(uint16_t* p, V x) {
  store_bf16_half(p, x.a, x.b);
  store_bf16_half(p + 8, x.c, x.d);
}
inline void store_rounded(uint16_t* p, V x) { store_bf16(p, x); }
// 16 pairs (even, odd) of numbers that are bfloat16 already.
inline void store_pairs_quarter(uint16_t* p, float32x4_t even, float32x4_t odd) {
  vst1q_u16(p, vreinterpretq_u16_u32(vsriq_n_u32(vreinterpretq_u32_f32(odd), vreinterpretq_u32_f32(even), 16)));
}
inline void store_bf16_pairs(uint16_t* p, V even, V odd) {
  store_pairs_quarter(p, even.a, odd.a);
  store_pairs_quarter(p + 8, even.b, odd.b);
  store_pairs_quarter(p + 16, even.c, odd.c);
  store_pairs_quarter(p + 24, even.d, odd.d);
}

#undef PK_QUARTERS

}  // namespace
