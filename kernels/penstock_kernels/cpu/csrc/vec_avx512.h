// Sixteen lanes on AVX-512 (F, BW, DQ, VL, VNNI, BF16).
#pragma once
#include <immintrin.h>
#include <cstdint>

namespace {

// Rows of a product by floats whose sums the registers hold.
constexpr int FLOAT_ROWS = 12;

using V = __m512;    // 16 floats
using I = __m512i;   // 16 int32 sums
using W = __m512i;   // 64 unsigned bytes: 16 lanes of 4

inline V zero() { return _mm512_setzero_ps(); }
inline V set1(float x) { return _mm512_set1_ps(x); }
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V x) { _mm512_storeu_ps(p, x); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V div(V a, V b) { return _mm512_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V max(V a, V b) { return _mm512_max_ps(a, b); }
inline V abs(V a) { return _mm512_abs_ps(a); }
inline float sum(V a) { return _mm512_reduce_add_ps(a); }
inline float highest(V a) { return _mm512_reduce_max_ps(a); }

inline V load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline V load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline V load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// x * 2^n for whole n, without a table; n in [-126, 127].
inline V scale2(V x, V n) {
  const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return mul(x, _mm512_castsi512_ps(bits));
}
inline V round_even(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// y where x < limit, else 0 is not wanted: keeps y where x >= limit, 0 elsewhere (NaN kept).
inline V zero_below(V y, V x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(limit), _CMP_NLT_UQ), y);
}
// Lane i where first + i <= last, else `other`.
inline V keep_through(V y, int first, int last, float other) {
  const __m512i lanes = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(first));
  return _mm512_mask_blend_ps(_mm512_cmple_epi32_mask(lanes, _mm512_set1_epi32(last)), set1(other), y);
}
// Lane i where first + i >= from, else `other`.
inline V keep_from(V y, int first, int from, float other) {
  const __m512i lanes = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(first));
  return _mm512_mask_blend_ps(_mm512_cmpge_epi32_mask(lanes, _mm512_set1_epi32(from)), set1(other), y);
}

inline I izero() { return _mm512_setzero_si512(); }
inline V to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline I minus(I a, int32_t b) { return _mm512_sub_epi32(a, _mm512_set1_epi32(b)); }
inline W load_w(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline W low_nibbles(W w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
inline W high_nibbles(W w) { return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15)); }
// Each level's entry of a table of 16.
inline W look_up(const uint8_t* table, W levels) {
  return _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), levels);
}
// sums += w[lane][0..3] . a[0..3]; w unsigned, a signed bytes.
inline I dot4(I sums, W w, const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(four));
}
inline I dot4_nibble(I sums, W w, const int8_t* a) { return dot4(sums, w, a); }

// 16 floats, rounded to nearest even and clamped, as signed bytes.
inline void store_i8(int8_t* p, V x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}
inline int32_t sum_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_reduce_add_epi32(_mm512_cvtepi8_epi32(bytes));
}

// Pairs of bfloat16: sums[lane] += w[lane][0..1] . a[0..1].
inline V dot2_bf16(V sums, const uint16_t* w, const uint16_t* a) {
  int32_t two;
  __builtin_memcpy(&two, a, 4);
  return _mm512_dpbf16_ps(sums, (__m512bh)_mm512_loadu_si512(w), (__m512bh)_mm512_set1_epi32(two));
}

// The same with the first of each pair only: the second may hold anything, NaN included.
inline V dot1_bf16(V sums, const uint16_t* w, const uint16_t* a) {
  const __m512i first = _mm512_and_si512(_mm512_loadu_si512(w), _mm512_set1_epi32(0xffff));
  return _mm512_dpbf16_ps(sums, (__m512bh)first, (__m512bh)_mm512_set1_epi32(*a));
}
// 16 floats, rounded to nearest even.
inline void store_bf16(uint16_t* p, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x));
}
// 16 pairs (even, odd) of numbers that are bfloat16 already.
inline void store_bf16_pairs(uint16_t* p, V even, V odd) {
  _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd)));
}

}  // namespace
