// The input of a matrix product, in the form that the matrix's storage asks for.
#pragma once
#include "types.h"

// A loop over rows is written out, so that their sums stay in registers.
#define PK_UNROLLED _Pragma("GCC unroll 24")

namespace {

#if defined(PK_BF16_UNITS)
using Half = uint16_t;
#else
using Half = float;
#endif

// x: [rows, stride] float32.  For quantised matrices also levels [rows, stride], and for each row and
// group of 32 the scale, scale * sum of levels, and -128 times the sum of levels; the latter two also for each 16.
// For bfloat16 ones: halves.
struct Activations {
  int stride = 0, groups = 0;
  int8_t* levels = nullptr;
  float* scales = nullptr;
  float* scaled_sums = nullptr;
  int32_t* offsets = nullptr;
  float* scaled_sums16 = nullptr;
  int32_t* offsets16 = nullptr;
  Half* halves = nullptr;
  float* floats = nullptr;

  // Lays the arrays out in memory that starts at `at`; returns its end.
  char* place(char* at, int rows, int width) {
    *this = of_width(width);
    const size_t cells = static_cast<size_t>(rows) * stride, group_cells = static_cast<size_t>(rows) * groups;
    take(at, levels, cells);
    take(at, scales, group_cells);
    take(at, scaled_sums, group_cells);
    take(at, offsets, group_cells);
    take(at, scaled_sums16, 2 * group_cells);
    take(at, offsets16, 2 * group_cells);
    take(at, halves, cells);
    take(at, floats, cells);
    return at;
  }

  // The same memory for rows of another width, at most the one that it was laid out for.
  Activations of_width(int width) const {
    Activations other = *this;
    other.stride = pk::padded(width, pk::GROUP);
    other.groups = other.stride / pk::GROUP;
    return other;
  }

  template <class T> static void take(char*& at, T*& array, size_t count) {
    array = reinterpret_cast<T*>(at);
    at += (count * sizeof(T) + 63) / 64 * 64;
  }
};

// A bfloat16 that a matrix of bfloat16 multiplies: as the pairs' units read it, or as a float, which is broadcast on the
// way to a product.
#if defined(PK_BF16_UNITS)
inline void store_half(Half* p, V x) { store_bf16(p, x); }
#else
inline void store_half(Half* p, V x) { store(p, round_bf16(x)); }
#endif

// Group g of a row: 32 values to signed bytes in -127..127 and their scale. NaN and infinity make the
// scale NaN, so that they reach every output of the row.
__attribute__((always_inline)) inline void quantise_group(const Activations& a, int forms, int row, int g, V low, V high) {
  const size_t cell = static_cast<size_t>(row) * a.stride + pk::GROUP * g, at = static_cast<size_t>(row) * a.groups + g;
  const float peak = highest(max(abs(low), abs(high)));
  // Of the smallest numbers, 127 / peak is more than there is.
  const float most = 3.4028234664e38f, levels_per_one = peak > 0.0f ? 127.0f / peak : 0.0f;
  const bool tiny = levels_per_one > most;
  const V inverse = set1(tiny ? most : levels_per_one);
  // What isn't finite is NaN times zero.
  const bool poisoned = any_nan(fma(high, zero(), mul(low, zero())));
  const float scale = poisoned ? __builtin_nanf("") : tiny ? 1.0f / most : peak / 127.0f;
  int32_t first, second;
  store_levels(a.levels + cell, mul(low, inverse), mul(high, inverse), first, second);
  const int32_t total = first + second;
  a.scales[at] = scale;
  a.offsets[at] = -128 * total;
  a.scaled_sums[at] = scale * static_cast<float>(total);
  if (!(forms & pk::HALF_GROUPS)) return;
  a.offsets16[2 * at] = -128 * first;
  a.offsets16[2 * at + 1] = -128 * second;
  a.scaled_sums16[2 * at] = scale * static_cast<float>(first);
  a.scaled_sums16[2 * at + 1] = scale * static_cast<float>(second);
}

// Group g of a row in each of `forms` (bits of pk::Form).
__attribute__((always_inline)) inline void set_group(const Activations& a, int forms, int row, int g, V low, V high) {
  if (forms & pk::LEVELS) quantise_group(a, forms, row, g, low, high);
  if (!(forms & (pk::HALVES | pk::FLOATS))) return;
  const size_t cell = static_cast<size_t>(row) * a.stride + pk::GROUP * g;
  float* floats = a.floats + cell;
  store(floats, low);
  store(floats + 16, high);
  if (forms & pk::HALVES) {
    store_half(a.halves + cell, low);
    store_half(a.halves + cell + 16, high);
  }
}

// A row of `width` floats, the last group filled up with zeros.
inline void set_row(const Activations& a, int forms, int row, const float* x, int width) {
  for (int g = 0; g < a.groups; g++) {
    const int left = width - pk::GROUP * g;
    if (left >= pk::GROUP) {
      set_group(a, forms, row, g, load(x + pk::GROUP * g), load(x + pk::GROUP * g + 16));
      continue;
    }
    float rest[pk::GROUP] = {};
    for (int i = 0; i < left; i++) rest[i] = x[pk::GROUP * g + i];
    set_group(a, forms, row, g, load(rest), load(rest + 16));
  }
}

// Row `row` of other activations of the same width, in each of `forms`.
inline void copy_row(const Activations& from, int row, const Activations& to, int to_row, int forms) {
  const size_t cell = static_cast<size_t>(row) * from.stride, to_cell = static_cast<size_t>(to_row) * to.stride;
  const size_t group = static_cast<size_t>(row) * from.groups, to_group = static_cast<size_t>(to_row) * to.groups;
  if (forms & pk::LEVELS) {
    __builtin_memcpy(to.levels + to_cell, from.levels + cell, to.stride);
    __builtin_memcpy(to.scales + to_group, from.scales + group, to.groups * sizeof *to.scales);
    __builtin_memcpy(to.scaled_sums + to_group, from.scaled_sums + group, to.groups * sizeof *to.scaled_sums);
    __builtin_memcpy(to.offsets + to_group, from.offsets + group, to.groups * sizeof *to.offsets);
  }
  if (forms & pk::HALF_GROUPS) {
    __builtin_memcpy(to.scaled_sums16 + 2 * to_group, from.scaled_sums16 + 2 * group, 2 * to.groups * sizeof *to.scaled_sums16);
    __builtin_memcpy(to.offsets16 + 2 * to_group, from.offsets16 + 2 * group, 2 * to.groups * sizeof *to.offsets16);
  }
  if (forms & pk::HALVES) __builtin_memcpy(to.halves + to_cell, from.halves + cell, to.stride * sizeof *to.halves);
  if (forms & (pk::HALVES | pk::FLOATS)) __builtin_memcpy(to.floats + to_cell, from.floats + cell, to.stride * sizeof *to.floats);
}

}  // namespace
