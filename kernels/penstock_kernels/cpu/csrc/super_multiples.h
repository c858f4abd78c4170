// K-quants on AVX-512 with units for bfloat16. Of a group of 32 inputs, floats would be three operations (scales, then two sums)
// on the ports that dot products need, beside eight of these.  The eight groups of a super-group have whole numbers for scales
// and minima, and a row's scales are whole multiples of one (see activations.h), so that its sums over 256 inputs are whole
// numbers, and floats come once for so many:
//
//   sum += (factor of scales * (sum over groups: scale * multiple * (levels . row))
//           + factor of minima * (sum over groups: minimum * multiple * sum of the row's levels)) * scale of the row
//
// A group's number has two bytes, so that one operation multiplies those of two groups by their scales.  These are
// multiplied by a row's multiples in shifts and sums, for which ports are free.  Levels of five bits count as much less 16
// until the end; those of six as much less 32, and they have scales for 16 inputs and no minima.
#pragma once
#include "level_groups.h"

namespace {

// Of N times four inputs: the sum of weights times a, less 32 (N 4) or 16 (8) times a's; offsets: -16 times the sum of a's first half
// and, of eight, of its latter half.
template <int N> __attribute__((always_inline)) inline I dot_less(const W* w, const int8_t* a, const int32_t* offsets) {
  I sums = set1_i(offsets), others = N == 8 ? set1_i(offsets + 1) : sums;
  PK_UNROLLED
  for (int i = 0; i < N; i += 2) {
    sums = dot4(sums, w[i], a + 4 * i);
    others = dot4(others, w[i + 1], a + 4 * i + 4);
  }
  return add_i(sums, others);
}

// The numbers of two bytes, from group g on, of two groups, or of their first halves and their latter ones.
template <class Format> struct SuperPair {
  W weights[16];
  I scales[2];

  SuperPair(const uint8_t* levels, const uint8_t* s, int g) {
    read_levels<Format::BITS>(levels, weights);
    read_levels<Format::BITS>(levels + pk::level_bytes(Format::KIND), weights + 8);
    for (int i = 0; i < (Format::HALVES ? 2 : 1); i++) scales[i] = pairs_of(Format::scales(s, g, i), Format::scales(s, g + 1, i));
  }

  // products += scales * a row's multiples * (weights . its levels).
  __attribute__((always_inline)) I add(I products, const int8_t* x, const int16_t* shifts, const int32_t* offsets) const {
    if (Format::HALVES) {
      products = dot2_i16(products, pairs_of(dot_less<4>(weights, x, offsets), dot_less<4>(weights + 8, x + 32, offsets + 2)), times_bits(scales[0], shifts));
      return dot2_i16(products, pairs_of(dot_less<4>(weights + 4, x + 16, offsets + 1), dot_less<4>(weights + 12, x + 48, offsets + 3)), times_bits(scales[1], shifts));
    }
    const bool five = Format::BITS == 5;
    const I first = five ? dot_less<8>(weights, x, offsets) : dot<8>(weights, x), second = five ? dot_less<8>(weights + 8, x + 32, offsets + 2) : dot<8>(weights + 8, x + 32);
    return dot2_i16(products, pairs_of(first, second), times_bits(scales[0], shifts));
  }
};

// The sum over groups of whole numbers times what sums of a row's levels came to.  index: 0 of scales, 1 of minima.
struct SuperSums {
  I pairs[pk::SUPER_GROUPS / 2];

  template <class Format> static SuperSums of(const uint8_t* s, int index) {
    SuperSums all;
    for (int i = 0; i < pk::SUPER_GROUPS / 2; i++) all.pairs[i] = pairs_of(Format::scales(s, 2 * i, index), Format::scales(s, 2 * i + 1, index));
    return all;
  }
  __attribute__((always_inline)) I operator()(const int16_t* sums) const {
    return add_i(dot2_i16(dot2_i16(izero(), pairs[0], sums), pairs[1], sums + 2), dot2_i16(dot2_i16(izero(), pairs[2], sums + 4), pairs[3], sums + 6));
  }
};

// out: [rows, 16], rows <= pk::ROWS.
template <class Format> void super_rows(const PkMatrix& matrix, int tile, const Activations& a, int row, int rows, float* out) {
  constexpr int kind = Format::KIND;
  const size_t size = pk::tile_bytes(kind, a.groups), ahead = row == a.first ? size : 0;
  const uint8_t *levels = matrix.tiles + tile * size, *s = levels + static_cast<size_t>(a.groups) * pk::level_bytes(kind);
  alignas(64) int32_t products[pk::ROWS][16];
  const V bias = matrix.bias ? load(matrix.bias + 16 * tile) : zero();
  for (int b = 0; b < a.super_groups(); b++, s += Format::SCALES) {
    if (ahead) pk::prefetch(s + ahead, Format::SCALES);
    for (int g = 0; g < pk::SUPER_GROUPS; g += 2, levels += 2 * pk::level_bytes(kind)) {
      if (ahead) pk::prefetch(levels + ahead, 2 * pk::level_bytes(kind));
      const SuperPair<Format> pair(levels, s, g);
      const int8_t* x = a.super_levels + static_cast<size_t>(row) * a.super_stride + SUPER * b + pk::GROUP * g;
      size_t at = 2 * (static_cast<size_t>(row) * a.groups + pk::SUPER_GROUPS * b + g);
      for (int r = 0; r < rows; r++, x += a.super_stride, at += 2 * a.groups)
        store_i(products[r], pair.add(g ? load_i(products[r]) : izero(), x, a.super_shifts + at, a.super_offsets16 + at));
    }
    const uint16_t* factors = reinterpret_cast<const uint16_t*>(s);
    const V factor = load_f16(factors), least = Format::HALVES ? zero() : load_f16(factors + 16);
    const SuperSums minima = SuperSums::of<Format>(s, 1), scales = SuperSums::of<Format>(s, 0);
    const bool last = b == a.super_groups() - 1;
    for (int r = 0; r < rows; r++) {
      const int16_t* sums = a.super_sums + (static_cast<size_t>(row) + r) * a.groups + pk::SUPER_GROUPS * b;
      I whole = load_i(products[r]);
      if (Format::BITS == 5) whole = add_i(whole, sixteen_times(scales(sums)));
      V own = mul(to_float(whole), factor);
      if (!Format::HALVES) own = fma(to_float(minima(sums)), least, own);
      own = fma(own, set1(a.super_scales[(static_cast<size_t>(row) + r) * a.super_groups() + b]), b ? load(out + 16 * r) : zero());
      store(out + 16 * r, last && matrix.bias ? add(own, bias) : own);
    }
  }
}

}  // namespace
