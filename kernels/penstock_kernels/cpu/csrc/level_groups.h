// Groups of quantised weights times rows of levels: how their levels are read, and what is added to a row's sums.
#pragma once
#include <utility>

#include "activations.h"

namespace {

// What the bytes of a group's weights are: levels of four, five or eight bits, those of six that count as much less 32,
// or signed ones as as_signed made them.
enum class Weights { NIBBLES, FIVE_BITS, LESS_32, BYTES, SIGNED };
constexpr Weights weights_of(int bits) { return bits <= 4 ? Weights::NIBBLES : bits == 5 ? Weights::FIVE_BITS : Weights::BYTES; }

}  // namespace

#if defined(PK_DOTS_OF_ROWS)
#include "dots_neon.h"
#endif

namespace {

// Group g of a row, then of the next ones. Addresses are made of the ones before: those of all rows would not fit into
// the registers, and an index beside the base costs an operation for each of a group's loads.
struct Cell {
  const int8_t* levels;
  size_t at;

  Cell(const Activations& a, int row, int g) : levels(a.levels + static_cast<size_t>(row) * a.stride + pk::GROUP * g), at(static_cast<size_t>(row) * a.groups + g) {}
  void next(const Activations& a) {
    levels += a.stride;
    at += a.groups;
    asm("" : "+r"(levels), "+r"(at));
  }
};

// The same where sums of levels are known already.
struct Place {
  size_t at;

  Place(const Activations& a, int row, int g) : at(static_cast<size_t>(row) * a.groups + g) {}
  void next(const Activations& a) {
    at += a.groups;
    asm("" : "+r"(at));
  }
};

// Whole numbers of M rows: of N times four inputs of group g, from its input `from` on, the sum of weights times levels.
#if defined(PK_DOTS_OF_ROWS)
template <Weights SORT, int N, int M> struct Dots {
  using At = Place;
  I of[M];

  __attribute__((always_inline)) Dots(const W* w, const Activations& a, int row, int g, int from = 0) {
    const Cell first(a, row, g);
    dots_of_rows<SORT == Weights::BYTES, N, M>(w, first.levels + from, a.stride, of);
    if (SORT == Weights::BYTES && !UNSIGNED_BYTES) put_on<-1>(a.offsets, first.at, a.groups);
    if (SORT == Weights::LESS_32) put_on<1>(a.lesser_offsets16 + from / 16, 2 * first.at, 2 * a.groups);
  }
  I operator()(const Place&, int m) const { return of[m]; }

 private:
  // What bytes lack since they became signed, or have too much.
  template <int TIMES> void put_on(const int32_t* offsets, size_t at, int next) {
    PK_UNROLLED
    for (int m = 0; m < M; m++, at += next) of[m] = plus(of[m], TIMES * offsets[at]);
  }
};
#else
template <Weights SORT, int N, int M> struct Dots {
  using At = Cell;
  const W* w;
  const Activations& a;
  const int from;

  Dots(const W* weights, const Activations& rows, int, int, int first = 0) : w(weights), a(rows), from(first) {}
  __attribute__((always_inline)) I operator()(const Cell& cell, int) const {
    if (SORT == Weights::NIBBLES) return dot_nibbles<N>(w, cell.levels + from);
    if (SORT == Weights::FIVE_BITS) return dot_small<N, 4>(w, cell.levels + from, 0);
    if (SORT == Weights::LESS_32) return dot_small<N, 2>(w, cell.levels + from, a.lesser_offsets16[2 * cell.at + from / 16]);
    if (SORT == Weights::BYTES) return dot<N>(w, cell.levels + from);
    return dot_signed<N>(w, cell.levels + from, N == 8 ? a.offsets[cell.at] : a.offsets16[2 * cell.at + from / 16]);
  }
};
// Bytes that `dot` takes.
inline W as_bytes(W levels) { return levels; }
#endif

}  // namespace

#if defined(PK_DOTS_OF_FEW_ROWS)
#include "dots_avx2.h"
#endif

namespace {

// Levels of two bits, four vectors of which lie in one.
template <int... N> __attribute__((always_inline)) inline void four_quarters(W q, W* w, std::integer_sequence<int, N...>) {
  ((w[N] = and_bits(shifted<-2 * N>(q), 3)), ...);
}
__attribute__((always_inline)) inline void read_quarters(const uint8_t* q, W* w) {
  four_quarters(load_w(q), w, std::make_integer_sequence<int, 4>());
  four_quarters(load_w(q + 64), w + 4, std::make_integer_sequence<int, 4>());
}
// Bit N of a byte becomes bit LOW of that of w[N]; of pairs of bits, bits LOW and LOW + 1.
template <int LOW, int... N> __attribute__((always_inline)) inline void add_bits(W bits, W* w, std::integer_sequence<int, N...>) {
  ((w[N] = with_bits(w[N], shifted<LOW - N>(bits), 1 << LOW)), ...);
}
template <int LOW, int... N> __attribute__((always_inline)) inline void add_pairs(W bits, W* w, std::integer_sequence<int, N...>) {
  ((w[N] = with_bits(w[N], shifted<LOW - 2 * N>(bits), 3 << LOW)), ...);
}

// Scales or minima number `index` of a group, float16 or float32 (WIDE).
template <bool WIDE> inline V load_scale(const uint8_t* at, int index) {
  if (WIDE) return load(reinterpret_cast<const float*>(at) + 16 * index);
  return load_f16(reinterpret_cast<const uint16_t*>(at) + 16 * index);
}

// The same of scales of type e4m3, divided by 256: their bits are those of a float16, whose exponent is biased by eight
// more.
inline V load_e4m3(const uint8_t* at, int index) {
  uint16_t halves[16];
  for (int i = 0; i < 16; i++) halves[i] = static_cast<uint16_t>(at[16 * index + i] << 7);
  return load_f16(halves);
}

// A group's levels of BITS bits, each in a byte of its own: eight vectors (see pk::level_at).
template <int BITS> __attribute__((always_inline)) inline void read_levels(const uint8_t* q, W* w) {
  constexpr int low = pk::low_bits(BITS), more = BITS - low;
  if constexpr (low == 8) {
    PK_UNROLLED
    for (int i = 0; i < 8; i++) w[i] = load_w(q + 64 * i);
  } else if constexpr (low == 4) {
    PK_UNROLLED
    for (int i = 0; i < 8; i++) w[i] = i % 2 ? high_nibbles(load_w(q + 64 * (i / 2))) : low_nibbles(load_w(q + 64 * (i / 2)));
  } else read_quarters(q, w);
  if constexpr (more == 1) add_bits<low>(load_w(q + 64 * low), w, std::make_integer_sequence<int, 8>());
  if constexpr (more == 2) {
    add_pairs<low>(load_w(q + 64 * low), w, std::make_integer_sequence<int, 4>());
    add_pairs<low>(load_w(q + 64 * low + 64), w + 4, std::make_integer_sequence<int, 4>());
  }
}

// sums[m] += scale times that of row m, times dots(place of row m, m): whole numbers, however they were summed up.
template <class Place, int M, class Dots> inline void add_scaled(V scale, const Activations& a, int row, int g, const Dots& dots, V* sums) {
  Place place(a, row, g);
  PK_UNROLLED
  for (int m = 0; m < M; m++, place.next(a)) sums[m] = fma(to_float(dots(place, m)), mul(scale, set1(a.scales[place.at])), sums[m]);
}

// A group's scales and minima; `index` is 1 of its latter 16 inputs, where they have their own.
template <bool WIDE> struct ScaleAndMinimum {
  static inline V scale(const uint8_t* s, int, int) { return load_scale<WIDE>(s, 0); }
  static inline V minimum(const uint8_t* s, int, int, V) { return load_scale<WIDE>(s, 1); }
};
// Float32, of each half of a group.
struct Wide {
  static inline V scale(const uint8_t* s, int, int index) { return load_scale<true>(s, index); }
  static inline V minimum(const uint8_t* s, int, int index, V) { return load_scale<true>(s, 2 + index); }
};
// Bytes times float16: a product that no float32 rounds.
template <int KIND> struct Factored {
  static inline V scale(const uint8_t* s, int g, int index) { return times(s, g, index, 0); }
  static inline V minimum(const uint8_t* s, int g, int index, V) { return times(s, g, pk::scale_bytes(KIND) / pk::LANES / 2 + index, 1); }

 private:
  static inline V times(const uint8_t* s, int g, int index, int factor) {
    const uint16_t* factors = reinterpret_cast<const uint16_t*>(s - pk::factors_before(KIND, g));
    return mul(load_i8(reinterpret_cast<const int8_t*>(s) + 16 * index), load_f16(factors + 16 * factor));
  }
};

// Unsigned levels with a scale and a minimum.
template <int KIND_, class Scales> struct Unsigned {
  static constexpr int KIND = KIND_, BITS = pk::level_bits(KIND);
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    read(q, w);
    using Whole = Dots<weights_of(BITS), 8, M>;
    add<typename Whole::At, M>(s, a, row, g, Whole(w, a, row, g), sums);
  }
  __attribute__((always_inline)) static inline void read(const uint8_t* q, W* w) {
    read_levels<BITS>(q, w);
    if (BITS < 8) return;
    PK_UNROLLED
    for (int i = 0; i < 8; i++) w[i] = as_bytes(w[i]);
  }
  template <class Place, int M, class Dots> static inline void add(const uint8_t* s, const Activations& a, int row, int g, const Dots& dots, V* sums) {
    const V scale = Scales::scale(s, g, 0), minimum = Scales::minimum(s, g, 0, scale);
    Place place(a, row, g);
    PK_UNROLLED
    for (int m = 0; m < M; m++, place.next(a)) {
      const I levels = dots(place, m);
      sums[m] = fma(to_float(levels), mul(scale, set1(a.scales[place.at])), sums[m]);
      sums[m] = fma(minimum, set1(a.scaled_sums[place.at]), sums[m]);
    }
  }
};

// Unsigned levels less 8 or 16, with a scale: what they are less is a whole number of a row, too, and costs no product of
// floats.
template <int KIND_> struct Lessened {
  static constexpr int KIND = KIND_, BITS = pk::level_bits(KIND);
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    read(q, w);
    using Whole = Dots<weights_of(BITS), 8, M>;
    add<typename Whole::At, M>(s, a, row, g, Whole(w, a, row, g), sums);
  }
  __attribute__((always_inline)) static inline void read(const uint8_t* q, W* w) { read_levels<BITS>(q, w); }
  template <class Place, int M, class Dots> static inline void add(const uint8_t* s, const Activations& a, int row, int g, const Dots& dots, V* sums) {
    const int32_t* less = BITS == 4 ? a.less_8 : a.less_16;
    add_scaled<Place, M>(load_scale<false>(s, 0), a, row, g, [&](const Place& place, int m) { return plus(dots(place, m), less[place.at]); }, sums);
  }
};

// The first and the latter 16 inputs have a scale and a minimum each.
template <int KIND_, class Scales> struct UnsignedHalves {
  static constexpr int KIND = KIND_;
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    read_levels<pk::level_bits(KIND)>(q, w);
    const V first = Scales::scale(s, g, 0), second = Scales::scale(s, g, 1);
    const V least = Scales::minimum(s, g, 0, first), second_least = Scales::minimum(s, g, 1, second);
    using Half = Dots<Weights::NIBBLES, 4, M>;
    const Half half(w, a, row, g), other(w + 4, a, row, g, 16);
    typename Half::At cell(a, row, g);
    PK_UNROLLED
    for (int m = 0; m < M; m++, cell.next(a)) {
      const float scale = a.scales[cell.at];
      const float* scaled_sums = a.scaled_sums16 + 2 * cell.at;
      const I one = half(cell, m), two = other(cell, m);
      sums[m] = fma(to_float(one), mul(first, set1(scale)), sums[m]);
      sums[m] = fma(to_float(two), mul(second, set1(scale)), sums[m]);
      sums[m] = fma(least, set1(scaled_sums[0]), sums[m]);
      sums[m] = fma(second_least, set1(scaled_sums[1]), sums[m]);
    }
  }
};

struct Signed {
  static constexpr int KIND = PK_S8H;
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    read(q, w);
    using Whole = Dots<Weights::SIGNED, 8, M>;
    add<typename Whole::At, M>(s, a, row, g, Whole(w, a, row, g), sums);
  }
  __attribute__((always_inline)) static inline void read(const uint8_t* q, W* w) {
    PK_UNROLLED
    for (int i = 0; i < 8; i++) w[i] = as_signed(load_w(q + 64 * i));
  }
  template <class Place, int M, class Dots> static inline void add(const uint8_t* s, const Activations& a, int row, int g, const Dots& dots, V* sums) {
    add_scaled<Place, M>(load_scale<false>(s, 0), a, row, g, dots, sums);
  }
};

// Levels that stand for a table's entries, two to a byte.
template <int KIND_> struct Looked {
  static constexpr int KIND = KIND_;
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    read(q, w);
    using Whole = Dots<Weights::SIGNED, 8, M>;
    add<typename Whole::At, M>(s, a, row, g, Whole(w, a, row, g), sums);
  }
  __attribute__((always_inline)) static inline void read(const uint8_t* q, W* w) {
    read_levels<4>(q, w);
    PK_UNROLLED
    for (int i = 0; i < 8; i++) w[i] = as_signed(look_up(KIND == PK_F4W ? pk::E2M1 : pk::IQ4, w[i]));
  }
  template <class Place, int M, class Dots> static inline void add(const uint8_t* s, const Activations& a, int row, int g, const Dots& dots, V* sums) {
    add_scaled<Place, M>(load_scale<KIND != PK_T4H>(s, 0), a, row, g, dots, sums);
  }
};

// sums[m] += of each half of a group, its scale times that of row m, times its weights by the row's levels.
template <Weights SORT, int M> inline void add_halves(V first, V second, const W* w, const Activations& a, int row, int g, V* sums) {
  using Half = Dots<SORT, 4, M>;
  const Half half(w, a, row, g), other(w + 4, a, row, g, 16);
  typename Half::At cell(a, row, g);
  PK_UNROLLED
  for (int m = 0; m < M; m++, cell.next(a)) {
    const V by = set1(a.scales[cell.at]);
    sums[m] = fma(to_float(half(cell, m)), mul(first, by), sums[m]);
    sums[m] = fma(to_float(other(cell, m)), mul(second, by), sums[m]);
  }
}

struct SignedHalves {
  static constexpr int KIND = PK_S8W16;
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    for (int i = 0; i < 8; i++) w[i] = as_signed(load_w(q + 64 * i));
    add_halves<Weights::SIGNED, M>(load_scale<true>(s, 0), load_scale<true>(s, 1), w, a, row, g, sums);
  }
};

// Of levels less 4, those that are as much less 32.
alignas(16) constexpr uint8_t LESS_4_AS_LESS_32[16] = {28, 29, 30, 31, 32, 33, 34, 35};

// Levels less 32, or of three bits less 4; each half of a group has a byte for a scale.
template <int KIND_> struct LowerHalves {
  static constexpr int KIND = KIND_;
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    read_levels<pk::level_bits(KIND)>(q, w);
    if (KIND == PK_S3K)
      for (int i = 0; i < 8; i++) w[i] = look_up(LESS_4_AS_LESS_32, w[i]);
    const V first = Factored<KIND>::scale(s, g, 0), second = Factored<KIND>::scale(s, g, 1);
    add_halves<Weights::LESS_32, M>(first, second, w, a, row, g, sums);
  }
};

// Levels that stand for E2M1's entries. Sums lack what `factor_of` returns.
struct LookedHalves {
  static constexpr int KIND = PK_F4B16;
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    Looked<PK_F4W>::read(q, w);
    add_halves<Weights::SIGNED, M>(load_e4m3(s, 0), load_e4m3(s, 1), w, a, row, g, sums);
  }
};

// What a matrix's sums are multiplied by at the end, where scales are bytes: entries are twice the weights, and
// load_e4m3 divides.
inline float factor_of(const PkMatrix& matrix) { return 128.0f * matrix.factor; }

// Whether a K-quant's scales and minima are whole numbers that its products may count with (see activations.h).
constexpr bool is_super(int kind) { return pk::form_of(kind) & pk::SUPER_LEVELS; }

// Such a format.
template <int KIND_> struct SuperGroups {
  static constexpr int KIND = KIND_, BITS = pk::level_bits(KIND);
  static constexpr bool HALVES = pk::form_of(KIND) & pk::HALF_GROUPS;
  // Bytes of a super-group's levels, and of its factors and scales.
  static constexpr size_t LEVELS = static_cast<size_t>(pk::SUPER_GROUPS) * pk::level_bytes(KIND);
  static constexpr size_t SCALES = pk::super_bytes(KIND) + static_cast<size_t>(pk::SUPER_GROUPS) * pk::scale_bytes(KIND);

  static const int8_t* scales(const uint8_t* s, int g, int index) { return reinterpret_cast<const int8_t*>(s + pk::super_bytes(KIND) + g * pk::scale_bytes(KIND) + 16 * index); }
};

}  // namespace
