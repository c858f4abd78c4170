// Sixteen lanes on AVX-512 (F, BW, DQ, VL, VNNI), with its bfloat16 units where the file is compiled for them.
// Without them every number is the one that vec_avx2.h computes, to the bit.
#pragma once
#include <immintrin.h>
#include <cstdint>

// Two products of bfloat16 are one operation, with a rounding of its own.
#if defined(__AVX512BF16__)
#define PK_BF16_UNITS 1
#endif
// Whether products of many rows go by AMX.
#if defined(__AMX_INT8__)
#define PK_AMX 1
#elif defined(__AVX512BF16__)
// Whether whole numbers of K-quants' groups are multiplied in pairs (see super_multiples.h).
#define PK_SUPER_MULTIPLES 1
#endif

namespace {

// Rows of a product by floats whose sums the registers hold.
constexpr int FLOAT_ROWS = 12;
// The same of quantised products.
constexpr int LEVEL_ROWS = 16;
// Sums of attention's scores that the registers hold, and pages of keys that share a row's queries; of its values, rows
// and vectors of a head.
constexpr int SCORE_SUMS = 24, SCORE_PAGES = 2, VALUE_ROWS = 6, VALUE_VECTORS = 4;
// Whether many rows of attention multiply keys and values that were made floats once for all of them.
constexpr bool WIDENS = false;

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
// By halves, as the other instruction sets do it.
inline __m256 low_half(V a) { return _mm512_castps512_ps256(a); }
inline __m256 high_half(V a) { return _mm512_extractf32x8_ps(a, 1); }
inline float sum(V a) {
  const __m256 both = _mm256_add_ps(low_half(a), high_half(a));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
inline float highest(V a) {
  const __m256 both = _mm256_max_ps(low_half(a), high_half(a));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

inline V load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline V load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
// Of 16 pairs of bfloat16, the first and the second of each.
inline V load_even(const uint16_t* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
inline V load_odd(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline V load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// x * 2^n, where both are normal numbers and the lowest 9 bits of `whole` are n.
inline V scale2(V x, V whole) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(whole), 23)));
}
// y where x < limit, else 0 is not wanted: keeps y where x >= limit, 0 elsewhere (NaN kept).
inline V zero_below(V y, V x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(limit), _CMP_NLT_UQ), y);
}
// By lanes, x where a > b, else y (NaN isn't greater).
inline V where_greater(V a, V b, V x, V y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x); }
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
inline I plus(I a, int32_t b) { return _mm512_add_epi32(a, _mm512_set1_epi32(b)); }
inline W load_w(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline W low_nibbles(W w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
inline W high_nibbles(W w) { return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15)); }
// Bits move to the left, or by less than 0 to the right, some into the next byte of two.
template <int LEFT> inline W shifted(W w) { return LEFT > 0 ? _mm512_slli_epi16(w, LEFT) : LEFT < 0 ? _mm512_srli_epi16(w, -LEFT) : w; }
inline W and_bits(W w, int mask) { return _mm512_and_si512(w, _mm512_set1_epi8(static_cast<char>(mask))); }
// Those of `mask` in other, besides those of w.
inline W with_bits(W w, W other, int mask) { return _mm512_ternarylogic_epi32(w, other, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8); }
// Each level's entry of a table of 16.
inline W look_up(const uint8_t* table, W levels) {
  return _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), levels);
}
// sums += w[lane][0..3] . a[0..3]; w unsigned, a signed bytes.
// The broadcast is part of the instruction: compilers make one of its own, and the ports that load become the limit.
typedef int32_t __attribute__((may_alias)) Four;
inline I dot4(I sums, W w, const int8_t* a) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(w), "m"(*reinterpret_cast<const Four*>(a)));
  return sums;
}
// Of N times four inputs: the sum of levels (0 to 15 in dot_nibbles) times a, added to `sums`. In two parts, since each
// operation waits for the one before it: whole numbers have the same sum in any order.
template <int N> inline I dot(const W* w, const int8_t* a, I sums = izero()) {
  I others = izero();
  for (int i = 0; i < N; i += 2) {
    sums = dot4(sums, w[i], a + 4 * i);
    others = dot4(others, w[i + 1], a + 4 * i + 4);
  }
  return _mm512_add_epi32(sums, others);
}
template <int N> inline I dot_nibbles(const W* w, const int8_t* a) { return dot<N>(w, a); }
// Of levels up to 31 (STEP 4) or 63 (2), added to x.
template <int N, int STEP> inline I dot_small(const W* w, const int8_t* a, int32_t x) { return dot<N>(w, a, _mm512_set1_epi32(x)); }
// Of levels less 128, as as_signed made them; offset: -128 times the sum of a.
inline W as_signed(W levels) { return levels; }
template <int N> inline I dot_signed(const W* w, const int8_t* a, int32_t offset) { return dot<N>(w, a, _mm512_set1_epi32(offset)); }

#if defined(PK_BF16_UNITS)
inline I load_i(const int32_t* p) { return _mm512_load_si512(p); }
inline I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
inline I load_i8_i(const int8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
// Lanes' pairs of numbers of two bytes: the lower halves of each.
inline I pairs_of(I first, I second) { return _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16)); }
inline I pairs_of(const int8_t* first, const int8_t* second) { return pairs_of(load_i8_i(first), load_i8_i(second)); }
// sums += pairs[lane][0..1] . a[0..1].
inline I dot2_i16(I sums, I pairs, const int16_t* a) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(pairs), "m"(*reinterpret_cast<const Four*>(a)));
  return sums;
}
#endif

#if defined(PK_SUPER_MULTIPLES)
inline void store_i(int32_t* p, I x) { _mm512_store_si512(p, x); }
inline I set1_i(const int32_t* p) { return _mm512_set1_epi32(*p); }
inline I sixteen_times(I x) { return _mm512_slli_epi32(x, 4); }
// sums += pairs[lane][0..1] . others[lane][0..1].
inline I dot2_i16(I sums, I pairs, I others) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(pairs), "v"(others));
  return sums;
}
// Pairs times the sum of two powers of two, of which bits[0..1] and bits[2..3] are the exponents; 16 for none.
inline I times_bits(I pairs, const int16_t* bits) {
  const I high = _mm512_set1_epi32(*reinterpret_cast<const Four*>(bits)), low = _mm512_set1_epi32(*reinterpret_cast<const Four*>(bits + 2));
  return _mm512_add_epi16(_mm512_sllv_epi16(pairs, high), _mm512_sllv_epi16(pairs, low));
}
// Of a super-group's eight groups, by how much their scales are multiples of a sixteenth of the largest one's: whole numbers
// of two bits at most.
constexpr int MOST_TIMES = 16;
class Multiples {
 public:
  // The least that are enough.  peaks: [8], which times sixteenths are at most MOST_TIMES.  alike: whether all are MOST_TIMES.
  Multiples(const float* peaks, float sixteenths, bool alike) {
    const __m256 shares = _mm256_roundscale_ps(_mm256_mul_ps(_mm256_loadu_ps(peaks), _mm256_set1_ps(sixteenths)), _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const __m256i last = _mm256_set1_epi32(MOST_TIMES - 1), before = _mm256_sub_epi32(_mm256_cvtps_epi32(shares), _mm256_set1_epi32(1));
    const __m512i at = _mm512_castsi256_si512(alike ? last : _mm256_min_epi32(_mm256_max_epi32(before, _mm256_setzero_si256()), last));
    const auto entry = [&](__m512i table) { return _mm512_castsi512_si256(_mm512_permutexvar_epi32(at, table)); };
    times_ = entry(_mm512_setr_epi32(1, 2, 3, 4, 5, 6, 8, 8, 9, 10, 12, 12, 16, 16, 16, 16));
    high_ = entry(_mm512_setr_epi32(0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4));
    low_ = entry(_mm512_setr_epi32(16, 16, 0, 16, 0, 1, 16, 16, 0, 1, 2, 2, 16, 16, 16, 16));
  }

  // times: [8].  inverses: [8], what numbers are multiplied by to become levels; inverse: the same where it is MOST_TIMES.
  void store(float* times, float* inverses, float inverse) const {
    const __m256 own = _mm256_cvtepi32_ps(times_);
    _mm256_storeu_ps(times, own);
    _mm256_storeu_ps(inverses, _mm256_mul_ps(_mm256_set1_ps(inverse), _mm256_div_ps(_mm256_set1_ps(MOST_TIMES), own)));
  }
  // Which bits they have, of two groups at a time: the higher ones, then the others, or 16.  p: [16].
  void store_shifts(int16_t* p) const {
    const __m128i high = _mm256_cvtepi32_epi16(high_), low = _mm256_cvtepi32_epi16(low_);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi32(high, low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm_unpackhi_epi32(high, low));
  }
  // halves: [16], of each group the sums of levels in its halves.  sums: [8], all of a group times its number.  offsets: [16], -16
  // times the halves.
  void store_sums(const int32_t* halves, int16_t* sums, int32_t* offsets) const {
    const __m512i both = _mm512_load_si512(halves);
    _mm512_storeu_si512(offsets, _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(both, 4)));
    const __m256i whole = _mm512_cvtepi64_epi32(_mm512_add_epi32(both, _mm512_srli_epi64(both, 32)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), _mm256_cvtepi32_epi16(_mm256_mullo_epi32(whole, times_)));
  }

 private:
  __m256i times_, high_, low_;
};
// The largest sum of magnitudes of 16 signed bytes.
class Magnitudes {
 public:
  // The halves of 32.
  void take(const int8_t* p) {
    const __m256i bytes = _mm256_abs_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), eights = _mm256_sad_epu8(bytes, _mm256_setzero_si256());
    most_ = _mm256_max_epi32(most_, _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0x4e)));
  }
  int most() const {
    const __m128i both = _mm_max_epi32(_mm256_castsi256_si128(most_), _mm256_extracti128_si256(most_, 1));
    return _mm_cvtsi128_si32(both);
  }

 private:
  __m256i most_ = _mm256_setzero_si256();
};
#endif

#if defined(PK_AMX)
inline void store_w(uint8_t* p, W w) { _mm512_store_si512(p, w); }
inline I mul_i(I a, I b) { return _mm512_mullo_epi32(a, b); }
// a - 32 * b, and low + 256 * high.
inline I less_32_times(I a, I b) { return _mm512_sub_epi32(a, _mm512_slli_epi32(b, 5)); }
inline I two_bytes(I low, I high) { return _mm512_add_epi32(low, _mm512_slli_epi32(high, 8)); }
inline I words_of(const int8_t* p) { return pairs_of(p, p); }
// Levels less LESS times scales, as lanes of two bytes have these: their low bytes and their high ones.
template <int LESS> inline void store_products(uint8_t* low, uint8_t* high, W levels, I scales) {
  const I first_bytes = _mm512_set1_epi16(0xff);
  I even = _mm512_and_si512(levels, first_bytes), odd = _mm512_srli_epi16(levels, 8);
  if (LESS) even = _mm512_sub_epi16(even, _mm512_set1_epi16(LESS)), odd = _mm512_sub_epi16(odd, _mm512_set1_epi16(LESS));
  even = _mm512_mullo_epi16(even, scales);
  odd = _mm512_mullo_epi16(odd, scales);
  // Of each bit, the second operand's where the first has a one, else the third's.
  _mm512_store_si512(low, _mm512_ternarylogic_epi32(first_bytes, even, _mm512_slli_epi16(odd, 8), 0xca));
  _mm512_store_si512(high, _mm512_ternarylogic_epi32(first_bytes, _mm512_srli_epi16(even, 8), odd, 0xca));
}
// Signed bytes.
inline W less_128(W levels) { return _mm512_xor_si512(levels, _mm512_set1_epi8(-128)); }
#endif

// 16 floats, rounded to nearest even and clamped, as signed bytes.
inline __m128i to_i8(V x) { return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)); }
inline void store_i8(int8_t* p, V x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_i8(x)); }
// The same of 32, and the sums of the first and of the latter half of the bytes.
inline void store_levels(int8_t* p, V low, V high, int32_t& first, int32_t& second) {
  const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(to_i8(low)), to_i8(high), 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
  first = _mm256_cvtsi256_si32(sums);
  second = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
}
inline bool any_nan(V x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

// 16 floats rounded to bfloat16, each in the high half of its lane; NaN stays NaN.
inline __m512i rounded_bits(V x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(64 << 16));
}
// As the cache keeps them: subnormal numbers are not zero.
inline void store_rounded(uint16_t* p, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(x), 16)));
}

// store_bf16: 16 floats, rounded to nearest even.
#if defined(PK_BF16_UNITS)
using Pairs = __m512i;  // 16 pairs of bfloat16
inline Pairs load_pairs(const uint16_t* p) { return _mm512_loadu_si512(p); }
// The first of each pair: the second may hold anything, NaN included.
inline Pairs first_of_pairs(const uint16_t* p) { return _mm512_and_si512(load_pairs(p), _mm512_set1_epi32(0xffff)); }
// One pair for all lanes, and one number with nothing beside it.
inline Pairs set1_pair(const uint16_t* a) { return _mm512_set1_epi32(*reinterpret_cast<const Four*>(a)); }
inline Pairs set1_first(const uint16_t* a) { return _mm512_set1_epi32(*a); }
// sums[lane] += w[lane][0..1] . a[0..1].
inline V dot2_bf16(V sums, Pairs w, const uint16_t* a) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(w), "m"(*reinterpret_cast<const Four*>(a)));
  return sums;
}
// Registers only: compilers would make a load of each of several products with one pair.
inline V dot2_bf16(V sums, Pairs w, Pairs a) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(w), "v"(a));
  return sums;
}
// 2^x for x <= 0, NaN for what isn't finite.  Relative error under 3e-6, where bfloat16's is up to 4e-3: a polynomial of
// the fourth degree between -1/2 and 1/2, where its largest error is the least.
inline V rough_power_of_two(V x) {
  const V whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = sub(x, whole);
  V p = set1(9.570100483e-3f);
  p = fma(p, r, set1(5.5917860209e-2f));
  p = fma(p, r, set1(2.4024744863e-1f));
  p = fma(p, r, set1(6.9312181476e-1f));
  p = fma(p, r, set1(9.9999926144e-1f));
  return add(_mm512_scalef_ps(p, whole), sub(x, x));
}
// Returns them as they are stored.
inline V store_bf16(uint16_t* p, V x) {
  const __m256i halves = (__m256i)_mm512_cvtneps_pbh(x);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
#else
inline V round_bf16(V x) { return _mm512_castsi512_ps(_mm512_and_si512(rounded_bits(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u)))); }
inline void store_bf16(uint16_t* p, V x) { store_rounded(p, x); }
#endif
// 16 pairs (even, odd) of numbers that are bfloat16 already.
inline void store_bf16_pairs(uint16_t* p, V even, V odd) {
  _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd)));
}

}  // namespace
