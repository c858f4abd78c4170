// AVX2's products of one row.
//
// Without dot products, a lone stream may wait for its instructions rather than for memory, the more where two threads
// share a core.  So levels are multiplied as soon as they are unpacked, which needs registers for two vectors and not for
// eight, and a super-group's factors become floats once.  All sums are those of several rows, in the same order.
#pragma once
#include "level_groups.h"

namespace {

#define PK_INLINE __attribute__((always_inline)) inline

// A row's group: its levels, and where its scale and sums are.
struct RowGroup {
  const int8_t* levels;
  const uint8_t *magnitudes, *flips;
  size_t at;

  RowGroup(const Activations& a, int row) : at(static_cast<size_t>(row) * a.groups) {
    const size_t first = static_cast<size_t>(row) * a.stride;
    levels = a.levels + first;
    magnitudes = a.magnitudes + first;
    flips = a.flips + first;
  }
  PK_INLINE void next() {
    levels += pk::GROUP;
    magnitudes += pk::GROUP;
    flips += pk::GROUP;
    at++;
  }
};

// Sums of products of vectors 0 to 7 of a group, of STEP of which pairs fit into 16 bits.
template <int STEP> class RowSums {
 public:
  PK_INLINE void add(int i, W w, const int8_t* levels) {
    const __m256i x = four_bytes(levels + 4 * i);
    const I products = {_mm256_maddubs_epi16(w.lo, x), _mm256_maddubs_epi16(w.hi, x)};
    pairs_ = i % STEP ? I{_mm256_add_epi16(pairs_.lo, products.lo), _mm256_add_epi16(pairs_.hi, products.hi)} : products;
    pin(pairs_);  // Compilers would unpack all vectors first, and lack registers.
    if (i % STEP != STEP - 1) return;
    const I wide = {widened(pairs_.lo), widened(pairs_.hi)};
    sums_ = i < STEP ? wide : plus(sums_, wide);
  }
  PK_INLINE I all() const { return sums_; }

 private:
  I pairs_, sums_;
};

// Calls f(i, vector i) for the eight vectors of a group's levels of four bits, or the lower four of more.
template <class F> PK_INLINE void each_of_nibbles(const uint8_t* q, F f) {
  PK_UNROLLED
  for (int i = 0; i < 4; i++) {
    const W two = load_w(q + 64 * i);
    f(2 * i, low_nibbles(two));
    f(2 * i + 1, high_nibbles(two));
  }
}

// Entry n of table i has bit i of n for a fifth bit.
alignas(16) constexpr uint8_t FIFTH_BITS[4][16] = {
    {0, 16, 0, 16, 0, 16, 0, 16, 0, 16, 0, 16, 0, 16, 0, 16},
    {0, 0, 16, 16, 0, 0, 16, 16, 0, 0, 16, 16, 0, 0, 16, 16},
    {0, 0, 0, 0, 16, 16, 16, 16, 0, 0, 0, 0, 16, 16, 16, 16},
    {0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16},
};

// Entry n of table i has pair i of the bits of n for the fifth and the sixth.
alignas(16) constexpr uint8_t PAIRS[2][16] = {
    {0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48, 0, 16, 32, 48},
    {0, 0, 0, 0, 16, 16, 16, 16, 32, 32, 32, 32, 48, 48, 48, 48},
};
PK_INLINE W with_all(W a, W b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }

// How levels of BITS bits are read: `each` calls f(i, vector i) for the eight vectors of a group, and pairs of STEP of these
// times levels fit into 16 bits.
template <int BITS> struct RowLevels;
template <> struct RowLevels<4> {
  static constexpr int STEP = 8;
  template <class F> static PK_INLINE void each(const uint8_t* q, F f) { each_of_nibbles(q, f); }
};
template <> struct RowLevels<5> {
  static constexpr int STEP = 4;
  template <class F> static PK_INLINE void each(const uint8_t* q, F f) {
    const W bits = load_w(q + 256), of[2] = {low_nibbles(bits), high_nibbles(bits)};
    each_of_nibbles(q, [&](int i, W w) __attribute__((always_inline)) {
      const W fifth = look_up(FIFTH_BITS[i % 4], of[i / 4]);
      f(i, with_all(w, fifth));
    });
  }
};
template <> struct RowLevels<6> {
  static constexpr int STEP = 2;
  template <class F> static PK_INLINE void each(const uint8_t* q, F f) {
    PK_UNROLLED
    for (int half = 0; half < 2; half++) {
      const W bits = load_w(q + 256 + 64 * half);
      const W two = load_w(q + 128 * half), more = load_w(q + 128 * half + 64);
      const W low = low_nibbles(bits);
      f(4 * half, with_all(low_nibbles(two), look_up(PAIRS[0], low)));
      f(4 * half + 1, with_all(high_nibbles(two), look_up(PAIRS[1], low)));
      f(4 * half + 2, with_bits(low_nibbles(more), bits, 0x30));
      f(4 * half + 3, with_bits(high_nibbles(more), shifted<-2>(bits), 0x30));
    }
  }
};

// Whole numbers of a group of unsigned levels times the row's.
template <int BITS> PK_INLINE I row_dot(const uint8_t* q, const RowGroup& row) {
  RowSums<RowLevels<BITS>::STEP> sums;
  RowLevels<BITS>::each(q, [&](int i, W w) __attribute__((always_inline)) { sums.add(i, w, row.levels); });
  return sums.all();
}

// The same of levels less 128, vector i of which is level(i).  The row's signs go to the weights, by one operation: with a
// negative number's sign, w is -w - 1, so its magnitude is missing.
template <class Level> PK_INLINE I row_dot_signed(const RowGroup& row, const int32_t* negatives, Level level) {
  I sums = plus(izero(), negatives[row.at]);
  PK_UNROLLED
  for (int i = 0; i < 8; i++) {
    const __m256i x = four_bytes(reinterpret_cast<const int8_t*>(row.magnitudes) + 4 * i), flip = four_bytes(reinterpret_cast<const int8_t*>(row.flips) + 4 * i);
    const W w = level(i);
    const __m256i lo = _mm256_xor_si256(w.lo, flip), hi = _mm256_xor_si256(w.hi, flip);
    sums = {_mm256_add_epi32(sums.lo, widened(_mm256_maddubs_epi16(x, lo))), _mm256_add_epi32(sums.hi, widened(_mm256_maddubs_epi16(x, hi)))};
    pin(sums);
  }
  return sums;
}

// How a format's group is multiplied by one row; Shared: what the groups of a super-group have in common.
template <class Format> struct OneRow { static constexpr bool ANY = false; };
struct NothingShared {
  static constexpr int BYTES = 0;
  explicit NothingShared(const uint8_t*) {}
};

template <class Scales> struct RowScales {
  using Shared = NothingShared;
  static PK_INLINE V scale(const uint8_t* s, const Shared&) { return Scales::scale(s, 0, 0); }
  static PK_INLINE V minimum(const uint8_t* s, const Shared&) { return Scales::minimum(s, 0, 0, zero()); }
};
// Bytes times float16.
template <int KIND> struct RowScales<Factored<KIND>> {
  struct Shared {
    static constexpr int BYTES = pk::super_bytes(KIND);
    V scales, minima;
    explicit Shared(const uint8_t* s) : scales(load_f16(reinterpret_cast<const uint16_t*>(s))), minima(BYTES == 4 * pk::LANES ? load_f16(reinterpret_cast<const uint16_t*>(s) + 16) : zero()) {}
  };
  static PK_INLINE V scale(const uint8_t* s, const Shared& shared) { return mul(load_i8(reinterpret_cast<const int8_t*>(s)), shared.scales); }
  static PK_INLINE V minimum(const uint8_t* s, const Shared& shared) { return mul(load_i8(reinterpret_cast<const int8_t*>(s) + 16), shared.minima); }
};

template <int KIND, class Scales> struct OneRow<Unsigned<KIND, Scales>> : RowScales<Scales> {
  static constexpr bool ANY = pk::level_bits(KIND) < 8;
  static PK_INLINE void group(const uint8_t* q, const uint8_t* s, const typename RowScales<Scales>::Shared& shared, const Activations& a, const RowGroup& row, V& sums) {
    const V levels = to_float(row_dot<pk::level_bits(KIND)>(q, row));
    sums = fma(levels, mul(RowScales<Scales>::scale(s, shared), set1(a.scales[row.at])), sums);
    sums = fma(RowScales<Scales>::minimum(s, shared), set1(a.scaled_sums[row.at]), sums);
  }
};
template <int KIND> struct OneRow<Lessened<KIND>> {
  static constexpr bool ANY = true;
  using Shared = NothingShared;
  static PK_INLINE void group(const uint8_t* q, const uint8_t* s, const Shared&, const Activations& a, const RowGroup& row, V& sums) {
    const int32_t* less = pk::level_bits(KIND) == 4 ? a.less_8 : a.less_16;
    const V levels = to_float(plus(row_dot<pk::level_bits(KIND)>(q, row), less[row.at]));
    sums = fma(levels, mul(load_scale<false>(s, 0), set1(a.scales[row.at])), sums);
  }
};
// Levels less 128, of which `level` reads vector i.
template <bool WIDE, class Level> PK_INLINE V plus_signed(const uint8_t* s, const Activations& a, const RowGroup& row, V sums, Level level) {
  const V levels = to_float(row_dot_signed(row, a.negatives, level));
  return fma(levels, mul(load_scale<WIDE>(s, 0), set1(a.scales[row.at])), sums);
}
template <> struct OneRow<Signed> {
  static constexpr bool ANY = true;
  using Shared = NothingShared;
  static PK_INLINE void group(const uint8_t* q, const uint8_t* s, const Shared&, const Activations& a, const RowGroup& row, V& sums) {
    sums = plus_signed<false>(s, a, row, sums, [&](int i) __attribute__((always_inline)) { return load_w(q + 64 * i); });
  }
};
template <int KIND> struct OneRow<Looked<KIND>> {
  static constexpr bool ANY = true;
  using Shared = NothingShared;
  static PK_INLINE void group(const uint8_t* q, const uint8_t* s, const Shared&, const Activations& a, const RowGroup& row, V& sums) {
    sums = plus_signed<KIND != PK_T4H>(s, a, row, sums, [&](int i) __attribute__((always_inline)) {
      const W two = load_w(q + 64 * (i / 2));
      return look_up(KIND == PK_F4W ? pk::E2M1 : pk::IQ4, i % 2 ? high_nibbles(two) : low_nibbles(two));
    });
  }
};
template <> struct OneRow<LowerHalves<PK_S6K>> : RowScales<Factored<PK_S6K>> {
  static constexpr bool ANY = true;
  static PK_INLINE void group(const uint8_t* q, const uint8_t* s, const Shared& shared, const Activations& a, const RowGroup& row, V& sums) {
    RowSums<RowLevels<6>::STEP> halves[2];
    RowLevels<6>::each(q, [&](int i, W w) __attribute__((always_inline)) { halves[i / 4].add(i % 4, w, row.levels + 16 * (i / 4)); });
    const V by = set1(a.scales[row.at]);
    PK_UNROLLED
    for (int half = 0; half < 2; half++) {
      const I levels = plus(halves[half].all(), a.lesser_offsets16[2 * row.at + half]);
      sums = fma(to_float(levels), mul(scale(s + 16 * half, shared), by), sums);
    }
  }
};

// out: [16].
template <class Format> void tile_row(const PkMatrix& matrix, int tile, const Activations& a, int row, float* out) {
  constexpr int kind = Format::KIND;
  using Group = OneRow<Format>;
  const size_t size = pk::tile_bytes(kind, a.groups), ahead = row == a.first ? size : 0;
  const uint8_t *q = matrix.tiles + tile * size, *s = q + static_cast<size_t>(a.groups) * pk::level_bytes(kind);
  RowGroup group(a, row);
  V sums = zero();
  for (int left = a.groups; left > 0;) {
    const typename Group::Shared shared(s);
    s += Group::Shared::BYTES;
    const int count = Group::Shared::BYTES && left > pk::SUPER_GROUPS ? pk::SUPER_GROUPS : left;
    left -= count;
    for (int g = 0; g < count; g++, q += pk::level_bytes(kind), s += pk::scale_bytes(kind), group.next()) {
      pk::prefetch(q + ahead, pk::level_bytes(kind));
      pk::prefetch(s + ahead, pk::scale_bytes(kind));
      Group::group(q, s, shared, a, group, sums);
    }
  }
  store(out, matrix.bias ? add(sums, load(matrix.bias + 16 * tile)) : sums);
}

#undef PK_INLINE

}  // namespace
