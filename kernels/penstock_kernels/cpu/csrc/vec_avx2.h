// Sixteen lanes as two halves on AVX2 with FMA and F16C, with AVX-VNNI's integer dot products where the file is
// compiled for them: every number is the same.
#pragma once
#include <immintrin.h>
#include <cstdint>

namespace {

// Rows of a product by floats whose sums the registers hold.
constexpr int FLOAT_ROWS = 6;
// The same of quantised products.
constexpr int LEVEL_ROWS = 12;
// Sums of attention's scores that the registers hold, and pages of keys that share a row's queries; of its values, rows
// and vectors of a head.
constexpr int SCORE_SUMS = 6, SCORE_PAGES = 1, VALUE_ROWS = 6, VALUE_VECTORS = 1;
// Whether many rows of attention multiply keys and values that were made floats once for all of them.
constexpr bool WIDENS = true;

struct V { __m256 lo, hi; };
struct I { __m256i lo, hi; };
struct W { __m256i lo, hi; };

inline V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V x) { _mm256_storeu_ps(p, x.lo); _mm256_storeu_ps(p + 8, x.hi); }
inline V add(V a, V b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline V sub(V a, V b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline V mul(V a, V b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline V div(V a, V b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline V fma(V a, V b, V c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline V max(V a, V b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline V abs(V a) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
inline float sum(V a) {
  const __m256 both = _mm256_add_ps(a.lo, a.hi);
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
inline float highest(V a) {
  const __m256 both = _mm256_max_ps(a.lo, a.hi);
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

inline __m256 f16_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline V load_f16(const uint16_t* p) { return {f16_half(p), f16_half(p + 8)}; }
inline __m256 bf16_half(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline V load_bf16(const uint16_t* p) { return {bf16_half(p), bf16_half(p + 8)}; }
// Of 16 pairs of bfloat16, the first and the second of each.
inline __m256i eight_pairs(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256 even_half(const uint16_t* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(eight_pairs(p), 16)); }
inline __m256 odd_half(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_and_si256(eight_pairs(p), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline V load_even(const uint16_t* p) { return {even_half(p), even_half(p + 16)}; }
inline V load_odd(const uint16_t* p) { return {odd_half(p), odd_half(p + 16)}; }
inline __m256 i8_half(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline V load_i8(const int8_t* p) { return {i8_half(p), i8_half(p + 8)}; }

inline __m256 scale2_half(__m256 x, __m256 whole) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(whole), 23)));
}
inline V scale2(V x, V whole) { return {scale2_half(x.lo, whole.lo), scale2_half(x.hi, whole.hi)}; }
inline V zero_below(V y, V x, float limit) {
  const __m256 bound = _mm256_set1_ps(limit);
  return {_mm256_and_ps(y.lo, _mm256_cmp_ps(x.lo, bound, _CMP_NLT_UQ)),
          _mm256_and_ps(y.hi, _mm256_cmp_ps(x.hi, bound, _CMP_NLT_UQ))};
}
// By lanes, x where a > b, else y (NaN isn't greater).
inline V where_greater(V a, V b, V x, V y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)), _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}
inline V keep_through(V y, int first, int last, float other) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i limit = _mm256_set1_epi32(last - first);
  const __m256i over_lo = _mm256_cmpgt_epi32(lanes, limit);
  const __m256i over_hi = _mm256_cmpgt_epi32(_mm256_add_epi32(lanes, _mm256_set1_epi32(8)), limit);
  const __m256 o = _mm256_set1_ps(other);
  return {_mm256_blendv_ps(y.lo, o, _mm256_castsi256_ps(over_lo)), _mm256_blendv_ps(y.hi, o, _mm256_castsi256_ps(over_hi))};
}
inline V keep_from(V y, int first, int from, float other) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i limit = _mm256_set1_epi32(from - first);
  const __m256i under_lo = _mm256_cmpgt_epi32(limit, lanes);
  const __m256i under_hi = _mm256_cmpgt_epi32(limit, _mm256_add_epi32(lanes, _mm256_set1_epi32(8)));
  const __m256 o = _mm256_set1_ps(other);
  return {_mm256_blendv_ps(y.lo, o, _mm256_castsi256_ps(under_lo)), _mm256_blendv_ps(y.hi, o, _mm256_castsi256_ps(under_hi))};
}

inline I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline V to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline W load_w(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline W low_nibbles(W w) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(w.lo, mask), _mm256_and_si256(w.hi, mask)};
}
inline W high_nibbles(W w) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(w.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(w.hi, 4), mask)};
}
// Bits move to the left, or by less than 0 to the right, some into the next byte of two.
template <int LEFT> inline __m256i shifted(__m256i w) { return LEFT > 0 ? _mm256_slli_epi16(w, LEFT) : LEFT < 0 ? _mm256_srli_epi16(w, -LEFT) : w; }
template <int LEFT> inline W shifted(W w) { return {shifted<LEFT>(w.lo), shifted<LEFT>(w.hi)}; }
inline W and_bits(W w, int mask) {
  const __m256i bits = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(w.lo, bits), _mm256_and_si256(w.hi, bits)};
}
// Those of `mask` in other, besides those of w.
inline W with_bits(W w, W other, int mask) {
  const W more = and_bits(other, mask);
  return {_mm256_or_si256(w.lo, more.lo), _mm256_or_si256(w.hi, more.hi)};
}
inline I plus(I a, int32_t b) {
  const __m256i all = _mm256_set1_epi32(b);
  return {_mm256_add_epi32(a.lo, all), _mm256_add_epi32(a.hi, all)};
}
inline I plus(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
// Each level's entry of a table of 16.
inline W look_up(const uint8_t* table, W levels) {
  const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(entries, levels.lo), _mm256_shuffle_epi8(entries, levels.hi)};
}
inline __m256i four_bytes(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}
#if defined(__AVXVNNI__)
// Of N times four inputs: the sum of levels times a, added to `sums`.
template <int N> inline I dot(const W* w, const int8_t* a, I sums = izero()) {
  for (int i = 0; i < N; i++) {
    const __m256i x = four_bytes(a + 4 * i);
    sums = {_mm256_dpbusd_avx_epi32(sums.lo, w[i].lo, x), _mm256_dpbusd_avx_epi32(sums.hi, w[i].hi, x)};
  }
  return sums;
}
template <int N> inline I dot_nibbles(const W* w, const int8_t* a) { return dot<N>(w, a); }
// Of levels up to 31 (STEP 4) or 63 (2), added to x.
template <int N, int STEP> inline I dot_small(const W* w, const int8_t* a, int32_t x) { return dot<N>(w, a, {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}); }
// Of levels less 128; offset: -128 times the sum of a.
inline W as_signed(W levels) { return levels; }
template <int N> inline I dot_signed(const W* w, const int8_t* a, int32_t offset) {
  const __m256i first = _mm256_set1_epi32(offset);
  return dot<N>(w, a, {first, first});
}
#else
#define PK_DOTS_OF_FEW_ROWS 1
inline __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
// Of N times four inputs, at most eight: the sum of levels (0 to 15) times a.  16 pairs of them, 15 * 127 * 16, fit
// into 16 bits.
template <int N> inline I dot_nibbles(const W* w, const int8_t* a) {
  I pairs = izero();
  for (int i = 0; i < N; i++) {
    const __m256i x = four_bytes(a + 4 * i);
    pairs.lo = _mm256_add_epi16(pairs.lo, _mm256_maddubs_epi16(w[i].lo, x));
    pairs.hi = _mm256_add_epi16(pairs.hi, _mm256_maddubs_epi16(w[i].hi, x));
  }
  return {widened(pairs.lo), widened(pairs.hi)};
}
// The same of levels up to 31 (STEP 4) or 63 (2), added to x: of STEP times four inputs, sums fit into 16 bits.
template <int N, int STEP> inline I dot_small(const W* w, const int8_t* a, int32_t x) {
  I sums = {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
  for (int i = 0; i < N; i += STEP) sums = plus(sums, dot_nibbles<STEP>(w + i, a + 4 * i));
  return sums;
}
// The same of any bytes: by halves of four bits, since 255 * 127 * 2 doesn't fit into 16 bits.
template <int N> inline I dot(const W* w, const int8_t* a) {
  W low[N], high[N];
  for (int i = 0; i < N; i++) low[i] = low_nibbles(w[i]), high[i] = high_nibbles(w[i]);
  const I lows = dot_nibbles<N>(low, a), highs = dot_nibbles<N>(high, a);
  return {_mm256_add_epi32(lows.lo, _mm256_slli_epi32(highs.lo, 4)), _mm256_add_epi32(lows.hi, _mm256_slli_epi32(highs.hi, 4))};
}
// Of levels less 128, as as_signed made them.  128 * 127 * 2 does fit; the sign goes from the level to a, which is
// never -128.
inline W as_signed(W levels) {
  const __m256i top = _mm256_set1_epi8(static_cast<char>(128));
  return {_mm256_xor_si256(levels.lo, top), _mm256_xor_si256(levels.hi, top)};
}
inline __m256i dot4_signed(__m256i sums, __m256i w, __m256i a) {
  return _mm256_add_epi32(sums, widened(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))));
}
template <int N> inline I dot_signed(const W* w, const int8_t* a, int32_t) {
  I sums = izero();
  for (int i = 0; i < N; i++) {
    const __m256i x = four_bytes(a + 4 * i);
    sums = {dot4_signed(sums.lo, w[i].lo, x), dot4_signed(sums.hi, w[i].hi, x)};
  }
  return sums;
}
#endif

inline __m128i to_i8(V x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
}
inline void store_i8(int8_t* p, V x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_i8(x)); }
// The same of 32, and the sums of the first and of the latter half of the bytes: of bytes made unsigned, less what that
// added.
inline void store_levels(int8_t* p, V low, V high, int32_t& first, int32_t& second) {
  const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(to_i8(low)), to_i8(high), 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(128))), _mm256_setzero_si256());
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  first = _mm256_cvtsi256_si32(sums) - 16 * 128;
  second = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1)) - 16 * 128;
}
// Magnitudes of 32 levels, and what turns a level less 128 of a matrix into a signed byte of the row's sign: 128, or of a
// negative level 127. Returns the sum of the negative levels' magnitudes.
inline int32_t store_signs(const int8_t* levels, uint8_t* magnitudes, uint8_t* flips) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels));
  const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), x), magnitude = _mm256_abs_epi8(x);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(magnitudes), magnitude);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(flips), _mm256_xor_si256(negative, _mm256_set1_epi8(static_cast<char>(128))));
  __m256i sums = _mm256_sad_epu8(_mm256_and_si256(magnitude, negative), _mm256_setzero_si256());
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  return _mm256_cvtsi256_si32(sums) + _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
}
inline bool any_nan(V x) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.lo, x.lo, _CMP_UNORD_Q), _mm256_cmp_ps(x.hi, x.hi, _CMP_UNORD_Q))) != 0;
}

// 8 floats, rounded to nearest even, each in the high half of its lane; NaN stays NaN.
inline __m256i rounded_half(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(64 << 16));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}
inline __m256 round_half(__m256 x) {
  return _mm256_castsi256_ps(_mm256_and_si256(rounded_half(x), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline V round_bf16(V x) { return {round_half(x.lo), round_half(x.hi)}; }
inline void store_bf16(uint16_t* p, V x) {
  const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(rounded_half(x.lo), 16), _mm256_srli_epi32(rounded_half(x.hi), 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
inline void store_rounded(uint16_t* p, V x) { store_bf16(p, x); }
// 16 pairs (even, odd) of numbers that are bfloat16 already.
inline void store_pairs_half(uint16_t* p, __m256 even, __m256 odd) {
  const __m256i pairs = _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(even), 16), _mm256_castps_si256(odd));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
}
inline void store_bf16_pairs(uint16_t* p, V even, V odd) {
  store_pairs_half(p, even.lo, odd.lo);
  store_pairs_half(p + 16, even.hi, odd.hi);
}

}  // namespace
