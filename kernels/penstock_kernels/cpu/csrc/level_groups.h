// Groups of quantised weights times rows of levels: how their levels are read, and what is added to a row's sums.
#pragma once
#include "activations.h"

namespace {

// What the bytes of a group's weights are: levels up to 15, up to 255, or signed ones as as_signed made them.
enum class Weights { NIBBLES, BYTES, SIGNED };

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
    if (SORT == Weights::BYTES && !UNSIGNED_BYTES) add_offsets(a, first.at);
  }
  I operator()(const Place&, int m) const { return of[m]; }

 private:
  // What the bytes lack since they became signed.
  void add_offsets(const Activations& a, size_t at) {
    static_assert(SORT != Weights::BYTES || N == 8);
    PK_UNROLLED
    for (int m = 0; m < M; m++, at += a.groups) of[m] = less(of[m], a.offsets[at]);
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
    if (SORT == Weights::BYTES) return dot<N>(w, cell.levels + from);
    return dot_signed<N>(w, cell.levels + from, N == 8 ? a.offsets[cell.at] : a.offsets16[2 * cell.at + from / 16]);
  }
};
// Bytes that `dot` takes.
inline W as_bytes(W levels) { return levels; }
#endif

// sums[m] += group g of the tile times group g of row m. Scales are float16 or float32 (WIDE).
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

// Of levels that lie two to a byte, each in a byte of its own.
__attribute__((always_inline)) inline void read_nibbles(const uint8_t* q, W* w) {
  PK_UNROLLED
  for (int i = 0; i < 8; i++) w[i] = i % 2 ? high_nibbles(load_w(q + 64 * (i / 2))) : low_nibbles(load_w(q + 64 * (i / 2)));
}

// sums[m] += scale times that of row m, times dots(place of row m, m): whole numbers, however they were summed up.
template <class Place, int M, class Dots> inline void add_scaled(V scale, const Activations& a, int row, int g, const Dots& dots, V* sums) {
  Place place(a, row, g);
  PK_UNROLLED
  for (int m = 0; m < M; m++, place.next(a)) sums[m] = fma(to_float(dots(place, m)), mul(scale, set1(a.scales[place.at])), sums[m]);
}

// Unsigned levels with a scale and a minimum: two to a byte (NIBBLES), or one.
template <bool NIBBLES, bool WIDE> struct Unsigned {
  static constexpr int KIND = NIBBLES ? (WIDE ? PK_U4W : PK_U4H) : (WIDE ? PK_U8W : PK_U8H);
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    read(q, w);
    using Whole = Dots<NIBBLES ? Weights::NIBBLES : Weights::BYTES, 8, M>;
    add<typename Whole::At, M>(s, a, row, g, Whole(w, a, row, g), sums);
  }
  __attribute__((always_inline)) static inline void read(const uint8_t* q, W* w) {
    if (NIBBLES) return read_nibbles(q, w);
    PK_UNROLLED
    for (int i = 0; i < 8; i++) w[i] = as_bytes(load_w(q + 64 * i));
  }
  template <class Place, int M, class Dots> static inline void add(const uint8_t* s, const Activations& a, int row, int g, const Dots& dots, V* sums) {
    const V scale = load_scale<WIDE>(s, 0), minimum = load_scale<WIDE>(s, 1);
    Place place(a, row, g);
    PK_UNROLLED
    for (int m = 0; m < M; m++, place.next(a)) {
      const I levels = dots(place, m);
      sums[m] = fma(to_float(levels), mul(scale, set1(a.scales[place.at])), sums[m]);
      sums[m] = fma(minimum, set1(a.scaled_sums[place.at]), sums[m]);
    }
  }
};

// Two to a byte; the first and the latter 16 inputs have a scale and a minimum each.
struct UnsignedHalves {
  static constexpr int KIND = PK_U4W16;
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    read_nibbles(q, w);
    const V first = load_scale<true>(s, 0), second = load_scale<true>(s, 1);
    const V least = load_scale<true>(s, 2), second_least = load_scale<true>(s, 3);
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
    read_nibbles(q, w);
    PK_UNROLLED
    for (int i = 0; i < 8; i++) w[i] = as_signed(look_up(KIND == PK_F4W ? pk::E2M1 : pk::IQ4, w[i]));
  }
  template <class Place, int M, class Dots> static inline void add(const uint8_t* s, const Activations& a, int row, int g, const Dots& dots, V* sums) {
    add_scaled<Place, M>(load_scale<KIND != PK_T4H>(s, 0), a, row, g, dots, sums);
  }
};

// Signed levels, of which the first and the latter 16 have a scale each.
template <int M> __attribute__((always_inline)) inline void add_halves(const W* w, V first, V second, const Activations& a, int row, int g, V* sums) {
  using Half = Dots<Weights::SIGNED, 4, M>;
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
    add_halves<M>(w, load_scale<true>(s, 0), load_scale<true>(s, 1), a, row, g, sums);
  }
};

// Levels that stand for E2M1's entries. Sums lack what `factor_of` returns.
struct LookedHalves {
  static constexpr int KIND = PK_F4B16;
  template <int M> static inline void group(const uint8_t* q, const uint8_t* s, const Activations& a, int row, int g, V* sums) {
    W w[8];
    Looked<PK_F4W>::read(q, w);
    add_halves<M>(w, load_e4m3(s, 0), load_e4m3(s, 1), a, row, g, sums);
  }
};

// What a matrix's sums are multiplied by at the end, where scales are bytes: entries are twice the weights, and
// load_e4m3 divides.
inline float factor_of(const PkMatrix& matrix) { return 128.0f * matrix.factor; }

}  // namespace
