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
inline I plus(I x, int32_t y) {
  const int32x4_t four = vdupq_n_s32(y);
  return {vaddq_s32(x.a, four), vaddq_s32(x.b, four), vaddq_s32(x.c, four), vaddq_s32(x.d, four)};
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

// A quarter's outputs times N times four inputs of a row.
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

// Levels of M rows, `stride` bytes apart.
#if defined(__ARM_FEATURE_MATMUL_INT8)
// Eight inputs of two rows lie together; of an odd row they stay as they are.
template <int N, int M> struct Rows {
  int8x16_t pairs[M / 2 + 1][N / 2];
  const int8_t* last;

  __attribute__((always_inline)) Rows(const int8_t* a, size_t stride) : last(a + (M - 1) * stride) {
    PK_UNROLLED
    for (int p = 0; p < M / 2; p++, a += 2 * stride)
      for (int i = 0; i < N / 4; i++) {
        const int64x2_t one = vreinterpretq_s64_s8(vld1q_s8(a + 16 * i)), other = vreinterpretq_s64_s8(vld1q_s8(a + stride + 16 * i));
        pairs[p][2 * i] = vreinterpretq_s8_s64(vtrn1q_s64(one, other));
        pairs[p][2 * i + 1] = vreinterpretq_s8_s64(vtrn2q_s64(one, other));
      }
  }
};

template <class Bytes, int N, int M, int Q>
__attribute__((always_inline)) inline void quarter_of_rows(const W* w, const Rows<N, M>& rows, I* dots) {
  int32x4_t first[M / 2 + 1], second[M / 2 + 1];
  for (int p = 0; p < M / 2; p++) first[p] = second[p] = vdupq_n_s32(0);
  PK_UNROLLED
  for (int i = 0; i < N / 2 && M > 1; i++) {
    // Eight inputs of two outputs each, from four each of four outputs.
    const uint32x4_t four = vreinterpretq_u32_u8(quarter<Q>(w[2 * i])), next = vreinterpretq_u32_u8(quarter<Q>(w[2 * i + 1]));
    const uint8x16_t low = vreinterpretq_u8_u32(vzip1q_u32(four, next)), high = vreinterpretq_u8_u32(vzip2q_u32(four, next));
    PK_UNROLLED
    for (int p = 0; p < M / 2; p++) {
      first[p] = Bytes::multiply(first[p], low, rows.pairs[p][i]);
      second[p] = Bytes::multiply(second[p], high, rows.pairs[p][i]);
    }
  }
  PK_UNROLLED
  for (int p = 0; p < M / 2; p++) {
    set_quarter<Q>(dots[2 * p], vuzp1q_s32(first[p], second[p]));
    set_quarter<Q>(dots[2 * p + 1], vuzp2q_s32(first[p], second[p]));
  }
  if (M % 2) set_quarter<Q>(dots[M - 1], dot_of_row<Bytes, N, Q>(w, rows.last));
}
#else
template <int N, int M> struct Rows {
  const int8_t* first;
  const size_t stride;
  Rows(const int8_t* a, size_t apart) : first(a), stride(apart) {}
};

template <class Bytes, int N, int M, int Q>
__attribute__((always_inline)) inline void quarter_of_rows(const W* w, const Rows<N, M>& rows, I* dots) {
  PK_UNROLLED
  for (int m = 0; m < M; m++) set_quarter<Q>(dots[m], dot_of_row<Bytes, N, Q>(w, rows.first + m * rows.stride));
}
#endif

// A quarter is done before the next one begins: compilers would mix them, and lack registers.
inline void finish_quarter() { asm volatile("" : : : "memory"); }

// Of N times four inputs of M rows, `stride` bytes apart: the sum of weights times levels.
template <bool UNSIGNED, int N, int M>
__attribute__((always_inline)) inline void dots_of_rows(const W* w, const int8_t* a, size_t stride, I* dots) {
  const Rows<N, M> rows(a, stride);
  quarter_of_rows<Bytes<UNSIGNED>, N, M, 0>(w, rows, dots);
  finish_quarter();
  quarter_of_rows<Bytes<UNSIGNED>, N, M, 1>(w, rows, dots);
  finish_quarter();
  quarter_of_rows<Bytes<UNSIGNED>, N, M, 2>(w, rows, dots);
  finish_quarter();
  quarter_of_rows<Bytes<UNSIGNED>, N, M, 3>(w, rows, dots);
}

}  // namespace
