// AVX2's products of several rows of levels with a group of weights, as whole numbers.
//
// A group's weights fill all registers.  So each of their vectors is read once for a few rows, whose sums stay in
// registers meanwhile: read for each row, weights would take longer to load than to multiply.
#pragma once
#include "activations.h"
#include "vec_avx2.h"

namespace {

// Rows whose sums the registers hold: of pairs in 16 bits alone, or of what these have come to.
constexpr int FEW_PAIRS = 4, FEW_SUMS = 3;

// Compilers would put the additions off, and lack registers.
__attribute__((always_inline)) inline void pin(I& sums) { asm volatile("" : "+x"(sums.lo), "+x"(sums.hi)); }

// Sums of M rows. By halves: compilers copy a pair of them in smaller pieces, which is slow to read as a whole.
template <int M> struct Sums {
  __m256i lo[M], hi[M];

  __attribute__((always_inline)) I operator[](int m) const { return {lo[m], hi[m]}; }
};

// Levels of R rows, `stride` bytes apart.
template <int R> struct FewRows {
  const int8_t* at[R];

  __attribute__((always_inline)) FewRows(const int8_t* a, size_t stride) {
    PK_UNROLLED
    for (int r = 0; r < R; r++) {
      at[r] = a + r * stride;
      asm("" : "+r"(at[r]));  // Or there would be an address for each input.
    }
  }
  __attribute__((always_inline)) __m256i four(int r, int i) const { return four_bytes(at[r] + 4 * i); }
};

// Unsigned levels, of STEP times four inputs of which the sums fit into 16 bits.
template <int STEP> struct UnsignedRows {
  static constexpr int MOST = STEP == 8 ? FEW_PAIRS : FEW_SUMS;

  template <int R> __attribute__((always_inline)) static inline void multiply(const W* w, const FewRows<R>& rows, __m256i* lo, __m256i* hi) {
    I sums[R];
    PK_UNROLLED
    for (int begin = 0; begin < 8; begin += STEP) {
      I pairs[R];
      PK_UNROLLED
      for (int i = begin; i < begin + STEP; i++)
        PK_UNROLLED
        for (int r = 0; r < R; r++) {
          const __m256i x = rows.four(r, i);
          const I products = {_mm256_maddubs_epi16(w[i].lo, x), _mm256_maddubs_epi16(w[i].hi, x)};
          pairs[r] = i == begin ? products : I{_mm256_add_epi16(pairs[r].lo, products.lo), _mm256_add_epi16(pairs[r].hi, products.hi)};
          pin(pairs[r]);
        }
      PK_UNROLLED
      for (int r = 0; r < R; r++) {
        const I wide = {widened(pairs[r].lo), widened(pairs[r].hi)};
        sums[r] = begin ? plus(sums[r], wide) : wide;
      }
    }
    PK_UNROLLED
    for (int r = 0; r < R; r++) lo[r] = sums[r].lo, hi[r] = sums[r].hi;
  }
};

// Signed levels, as as_signed made them.
struct SignedRows {
  static constexpr int MOST = FEW_SUMS;

  template <int R> __attribute__((always_inline)) static inline void multiply(const W* w, const FewRows<R>& rows, __m256i* lo, __m256i* hi) {
    I sums[R];
    PK_UNROLLED
    for (int r = 0; r < R; r++) sums[r] = izero();
    PK_UNROLLED
    for (int i = 0; i < 8; i++)
      PK_UNROLLED
      for (int r = 0; r < R; r++) {
        const __m256i x = rows.four(r, i);
        sums[r] = {dot4_signed(sums[r].lo, w[i].lo, x), dot4_signed(sums[r].hi, w[i].hi, x)};
        pin(sums[r]);
      }
    PK_UNROLLED
    for (int r = 0; r < R; r++) lo[r] = sums[r].lo, hi[r] = sums[r].hi;
  }
};

// Of M rows, a few at a time. These are done before the next ones begin.
template <class Rows, int M> __attribute__((always_inline)) inline void dots_of_rows(const W* w, const int8_t* a, size_t stride, __m256i* lo, __m256i* hi) {
  constexpr int few = M < Rows::MOST ? M : Rows::MOST;
  Rows::template multiply<few>(w, FewRows<few>(a, stride), lo, hi);
  asm volatile("" : : : "memory");
  if constexpr (M > few) dots_of_rows<Rows, M - few>(w, a + few * stride, stride, lo + few, hi + few);
}

// Of a whole group.
template <class Rows, int M> struct GroupDots {
  using At = Place;
  Sums<M> of;

  __attribute__((always_inline)) GroupDots(const W* w, const int8_t* levels, size_t stride) { dots_of_rows<Rows, M>(w, levels, stride, of.lo, of.hi); }
  __attribute__((always_inline)) I operator()(const Place&, int m) const { return of[m]; }
};

// Bytes, by halves of four bits, since 255 * 127 * 2 doesn't fit into 16 bits.
template <int M> struct ByteDots {
  using At = Place;
  Sums<M> low, high;

  __attribute__((always_inline)) ByteDots(const W* w, const int8_t* levels, size_t stride) {
    W part[8];
    PK_UNROLLED
    for (int i = 0; i < 8; i++) part[i] = high_nibbles(w[i]);
    dots_of_rows<UnsignedRows<8>, M>(part, levels, stride, high.lo, high.hi);
    PK_UNROLLED
    for (int i = 0; i < 8; i++) part[i] = low_nibbles(w[i]);
    dots_of_rows<UnsignedRows<8>, M>(part, levels, stride, low.lo, low.hi);
  }
  __attribute__((always_inline)) I operator()(const Place&, int m) const { return plus(low[m], {_mm256_slli_epi32(high.lo[m], 4), _mm256_slli_epi32(high.hi[m], 4)}); }
};

template <Weights SORT, int M> struct SharedDots;
template <int M> struct SharedDots<Weights::NIBBLES, M> { using Type = GroupDots<UnsignedRows<8>, M>; };
template <int M> struct SharedDots<Weights::FIVE_BITS, M> { using Type = GroupDots<UnsignedRows<4>, M>; };
template <int M> struct SharedDots<Weights::SIGNED, M> { using Type = GroupDots<SignedRows, M>; };
template <int M> struct SharedDots<Weights::BYTES, M> { using Type = ByteDots<M>; };

template <Weights SORT, int M> struct Dots<SORT, 8, M> : SharedDots<SORT, M>::Type {
  __attribute__((always_inline)) Dots(const W* w, const Activations& a, int row, int g, int = 0) : SharedDots<SORT, M>::Type(w, Cell(a, row, g).levels, a.stride) {}
};

}  // namespace
