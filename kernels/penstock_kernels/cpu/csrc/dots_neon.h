// NEON's products of rows of levels with a group of weights, as whole numbers.
//
// The weights of a group, 16 outputs by 32 inputs, fill all registers.  So rows pass a quarter of them at a time, four
// outputs, whose weights and levels stay in registers meanwhile.  Sums of whole numbers are exact in any order.
#pragma once
#include "activations.h"
#include "vec_neon.h"

namespace {

// Whether bytes up to 255 can be multiplied. Otherwise they become signed, and what that lacks is added.
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool UNSIGNED_BYTES = true;
inline W as_bytes(W levels) { return levels; }
#else
constexpr bool UNSIGNED_BYTES = false;
inline W as_bytes(W levels) { return as_signed(levels); }
#endif
inline I less(I x, int32_t y) {
  const int32x4_t four = vdupq_n_s32(y);
  return {vsubq_s32(x.a, four), vsubq_s32(x.b, four), vsubq_s32(x.c, four), vsubq_s32(x.d, four)};
}

template <int Q, class T> inline auto quarter(const T& whole) {
  if constexpr (Q == 0) return whole.a;
  else if constexpr (Q == 1) return whole.b;
  else if constexpr (Q == 2) return whole.c;
  else return whole.d;
}
template <int Q> inline void set_quarter(I& whole, int32x4_t sums) {
  (Q == 0 ? whole.a : Q == 1 ? whole.b : Q == 2 ? whole.c : whole.d) = sums;
}

// How bytes of weights are multiplied: UNSIGNED, or signed, as levels up to 127 may be, too.
template <bool UNSIGNED> struct Bytes {
  // sums + w's four lanes times bytes 4 * LANE.. of a.
  template <int LANE> static inline int32x4_t dot(int32x4_t sums, uint8x16_t w, int8x16_t a) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (UNSIGNED) return vusdotq_s32(sums, w, vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(a), LANE)));
#endif
    return vdotq_laneq_s32(sums, vreinterpretq_s8_u8(w), a, LANE);
  }
#if defined(__ARM_FEATURE_MATMUL_INT8)
  // Two outputs by eight inputs, times two rows: sums of (output, row) 0 0, 0 1, 1 0, 1 1.
  static inline int32x4_t multiply(int32x4_t sums, uint8x16_t w, int8x16_t a) {
    if constexpr (UNSIGNED) return vusmmlaq_s32(sums, w, a);
    return vmmlaq_s32(sums, vreinterpretq_s8_u8(w), a);
  }
#endif
};

// N times four inputs of one row.
template <class Bytes, int N, int Q> __attribute__((always_inline)) inline int32x4_t dot_of_row(const W* w, const int8_t* a) {
  int32x4_t sums = vdupq_n_s32(0);
  PK_UNROLLED
  for (int i = 0; i < N; i += 4) {
    const int8x16_t x = vld1q_s8(a + 4 * i);
    sums = Bytes::template dot<0>(sums, quarter<Q>(w[i]), x);
    sums = Bytes::template dot<1>(sums, quarter<Q>(w[i + 1]), x);
    sums = Bytes::template dot<2>(sums, quarter<Q>(w[i + 2]), x);
    sums = Bytes::template dot<3>(sums, quarter<Q>(w[i + 3]), x);
  }
  return sums;
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Eight inputs of two outputs each, from four each of four outputs.
inline uint8x16_t zipped(uint8x16_t x, uint8x16_t y, bool second) {
  const uint32x4_t four = vreinterpretq_u32_u8(x), next = vreinterpretq_u32_u8(y);
  return vreinterpretq_u8_u32(second ? vzip2q_u32(four, next) : vzip1q_u32(four, next));
}
inline int8x16_t both_rows(int8x16_t x, int8x16_t y, bool second) {
  const int64x2_t one = vreinterpretq_s64_s8(x), other = vreinterpretq_s64_s8(y);
  return vreinterpretq_s8_s64(second ? vtrn2q_s64(one, other) : vtrn1q_s64(one, other));
}

// A quarter's outputs times two rows at a time.
template <class Bytes, int N, int M, int Q>
__attribute__((always_inline)) inline void quarter_of_rows(const W* w, const int8_t* a, size_t stride, I* dots) {
  uint8x16_t low[N / 2], high[N / 2];
  PK_UNROLLED
  for (int i = 0; i < N / 2; i++) {
    low[i] = zipped(quarter<Q>(w[2 * i]), quarter<Q>(w[2 * i + 1]), false);
    high[i] = zipped(quarter<Q>(w[2 * i]), quarter<Q>(w[2 * i + 1]), true);
  }
  PK_UNROLLED
  for (int m = 0; m + 1 < M; m += 2, a += 2 * stride) {
    int32x4_t first = vdupq_n_s32(0), second = first;
    PK_UNROLLED
    for (int i = 0; i < N / 2; i += 2) {
      const int8x16_t x = vld1q_s8(a + 8 * i), y = vld1q_s8(a + stride + 8 * i);
      const int8x16_t eight = both_rows(x, y, false), next = both_rows(x, y, true);
      first = Bytes::multiply(Bytes::multiply(first, low[i], eight), low[i + 1], next);
      second = Bytes::multiply(Bytes::multiply(second, high[i], eight), high[i + 1], next);
    }
    set_quarter<Q>(dots[m], vuzp1q_s32(first, second));
    set_quarter<Q>(dots[m + 1], vuzp2q_s32(first, second));
  }
  if (M % 2) set_quarter<Q>(dots[M - 1], dot_of_row<Bytes, N, Q>(w, a));
}
#else
template <class Bytes, int N, int M, int Q>
__attribute__((always_inline)) inline void quarter_of_rows(const W* w, const int8_t* a, size_t stride, I* dots) {
  PK_UNROLLED
  for (int m = 0; m < M; m++, a += stride) set_quarter<Q>(dots[m], dot_of_row<Bytes, N, Q>(w, a));
}
#endif

// Of N times four inputs of M rows, `stride` bytes apart: the sum of weights times levels.
template <bool UNSIGNED, int N, int M>
__attribute__((always_inline)) inline void dots_of_rows(const W* w, const int8_t* a, size_t stride, I* dots) {
  quarter_of_rows<Bytes<UNSIGNED>, N, M, 0>(w, a, stride, dots);
  quarter_of_rows<Bytes<UNSIGNED>, N, M, 1>(w, a, stride, dots);
  quarter_of_rows<Bytes<UNSIGNED>, N, M, 2>(w, a, stride, dots);
  quarter_of_rows<Bytes<UNSIGNED>, N, M, 3>(w, a, stride, dots);
}

}  // namespace
