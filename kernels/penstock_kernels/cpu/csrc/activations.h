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
// Rows that may be read behind the last one; whether K-quants read levels of super-groups, and how many rows of these a row has.
#if defined(PK_AMX)
constexpr int HALVES_BEYOND = 15, SUPER_BEYOND = 31, SUPER_ROWS = 2;
constexpr bool SUPER_LEVELS = true;
#elif defined(PK_SUPER_MULTIPLES)
constexpr int HALVES_BEYOND = 0, SUPER_BEYOND = 0, SUPER_ROWS = 1;
constexpr bool SUPER_LEVELS = true;
#else
constexpr int HALVES_BEYOND = 0, SUPER_BEYOND = 0, SUPER_ROWS = 1;
constexpr bool SUPER_LEVELS = false;
#endif
// Whether magnitudes and signs of levels are kept, too.
#if defined(PK_DOTS_OF_FEW_ROWS)
constexpr bool SIGNS_APART = true;
#else
constexpr bool SIGNS_APART = false;
#endif
// Inputs of a super-group.
constexpr int SUPER = pk::GROUP * pk::SUPER_GROUPS;

// x: [rows, stride] float32.  For quantised matrices also levels [rows, stride], and for each row and
// group of 32 the scale, scale * sum of levels, and -128, -8 and -16 times the sum of levels; the former two also for each
// 16, and -32 times the sum. Where SIGNS_APART: the levels' magnitudes, what gives weights their signs (store_signs), and the
// sum of the negative ones' magnitudes.
// For bfloat16 ones: halves.
// For K-quants where SUPER_LEVELS: super_levels [rows, SUPER_ROWS, super_stride], and for each of these and each super-group
// the scale, and for each group the sum of levels.
// With two SUPER_ROWS (AMX), all of a super-group has that scale; the second row is what the first's rounding has left, where
// one scale is too coarse for 256 inputs; elsewhere its scale is 0, and the rest of it nothing.  There are sums over each
// half of a group.
// With one, a group's scale is that of the super-group times a whole number of two bits (see Multiples), and sums have been
// multiplied by it.  super_shifts: for two groups at a time where the first of these bits is, of each, and where the second
// is; 16 if there is none.  super_offsets16: -16 times the sum over each half of a group.
// With two parts, a row's levels and halves are two rows: the number rounded, then what the rounding has left, which is
// rounded in turn. Their products' sum is that of a number with twice as many bits.
struct Activations {
  int stride = 0, groups = 0, parts = 1;
  int half_stride = 0, super_stride = 0;  // of halves and of super_levels, numbers
  int first = 0;  // the part of a row that meets each tile before all others, and asks for the next tile
  int8_t* levels = nullptr;
  float* scales = nullptr;
  float* scaled_sums = nullptr;
  int32_t* offsets = nullptr;
  uint8_t *magnitudes = nullptr, *flips = nullptr;
  int32_t* negatives = nullptr;
  int32_t *less_8 = nullptr, *less_16 = nullptr;
  float* scaled_sums16 = nullptr;
  int32_t* offsets16 = nullptr;
  int32_t* lesser_offsets16 = nullptr;
  int8_t* super_levels = nullptr;
  float* super_scales = nullptr;
  int16_t *super_sums = nullptr, *super_sums16 = nullptr, *super_shifts = nullptr;
  int32_t* super_offsets16 = nullptr;
  Half* halves = nullptr;
  float* floats = nullptr;

  // Lays the arrays out in memory that starts at `at`; returns its end.
  char* place(char* at, int rows, int width, int parts_of_row) {
    parts = parts_of_row;
    *this = of_width(width);
    const size_t floats_in = static_cast<size_t>(rows) * stride, cells = floats_in * parts, group_cells = static_cast<size_t>(rows) * groups * parts;
    take(at, levels, cells);
    take(at, scales, group_cells);
    take(at, scaled_sums, group_cells);
    take(at, offsets, group_cells);
    take(at, magnitudes, SIGNS_APART ? cells : 0);
    take(at, flips, SIGNS_APART ? cells : 0);
    take(at, negatives, SIGNS_APART ? group_cells : 0);
    take(at, less_8, group_cells);
    take(at, less_16, group_cells);
    take(at, scaled_sums16, 2 * group_cells);
    take(at, offsets16, 2 * group_cells);
    take(at, lesser_offsets16, 2 * group_cells);
    if (SUPER_LEVELS) {
      take(at, super_levels, SUPER_ROWS * static_cast<size_t>(rows * parts + SUPER_BEYOND) * super_stride);
      take(at, super_scales, SUPER_ROWS * group_cells / pk::SUPER_GROUPS);
      take(at, super_sums, SUPER_ROWS * group_cells);
      take(at, SUPER_ROWS == 2 ? super_sums16 : super_shifts, 2 * SUPER_ROWS * group_cells);
      take(at, super_offsets16, SUPER_ROWS == 2 ? 0 : 2 * group_cells);
    }
    take(at, halves, static_cast<size_t>(rows * parts + HALVES_BEYOND) * half_stride);
    take(at, floats, floats_in);
    return at;
  }

  // Bytes of a row, as a matrix of that kind reads it.
  size_t row_bytes(int kind) const {
    const int form = pk::form_of(kind);
    const bool super = SUPER_LEVELS && form & pk::SUPER_LEVELS;
    const size_t numbers = form & pk::FLOATS ? stride * sizeof(float) : form & pk::HALVES ? half_stride * sizeof(Half) : super ? super_stride : stride + 3 * sizeof(float) * groups;
    return parts * numbers;
  }

  // The same memory for rows of another width, at most the one that it was laid out for.
  Activations of_width(int width) const {
    Activations other = *this;
    other.stride = pk::padded(width, pk::GROUP);
    other.groups = other.stride / pk::GROUP;
    // An odd number of lines, where rows are read together: they then don't share a place in the nearest cache.
    other.half_stride = HALVES_BEYOND ? pk::GROUP * (other.groups | 1) : other.stride;
    other.super_stride = 64 * (other.super_groups() * SUPER / 64 | 1);
    return other;
  }

  int super_groups() const { return groups / pk::SUPER_GROUPS; }

  template <class T> static void take(char*& at, T*& array, size_t count) {
    array = reinterpret_cast<T*>(at);
    at += (count * sizeof(T) + 63) / 64 * 64;
  }
};

// A bfloat16 that a matrix of bfloat16 multiplies: as the pairs' units read it, or as a float, which is broadcast on the
// way to a product.
#if defined(PK_BF16_UNITS)
inline void store_half(Half* p, V x) { store_bf16(p, x); }
inline V load_half(const Half* p) { return load_bf16(p); }
#else
inline void store_half(Half* p, V x) { store(p, round_bf16(x)); }
inline V load_half(const Half* p) { return load(p); }
#endif

// What numbers are multiplied by to become levels, and levels to become numbers.  poisoned: some number isn't finite, which
// makes the scale NaN.
struct LevelScale {
  float inverse, scale;

  __attribute__((always_inline)) LevelScale(float peak, bool poisoned) {
    // Of the smallest numbers, 127 / peak is more than there is.
    const float most = 3.4028234664e38f, levels_per_one = peak > 0.0f ? 127.0f / peak : 0.0f;
    const bool tiny = levels_per_one > most;
    inverse = tiny ? most : levels_per_one;
    scale = poisoned ? __builtin_nanf("") : tiny ? 1.0f / most : peak / 127.0f;
  }
};

// Group g of a part of a row: 32 values to signed bytes in -127..127 and their scale. NaN and infinity make the
// scale NaN, so that they reach every output of the row. Returns the scale.
__attribute__((always_inline)) inline float quantise_group(const Activations& a, int forms, int row, int g, V low, V high) {
  const size_t cell = static_cast<size_t>(row) * a.stride + pk::GROUP * g, at = static_cast<size_t>(row) * a.groups + g;
  // What isn't finite is NaN times zero.
  const LevelScale by(highest(max(abs(low), abs(high))), any_nan(fma(high, zero(), mul(low, zero()))));
  const V inverse = set1(by.inverse);
  const float scale = by.scale;
  int32_t first, second;
  store_levels(a.levels + cell, mul(low, inverse), mul(high, inverse), first, second);
  const int32_t total = first + second;
#if defined(PK_DOTS_OF_FEW_ROWS)
  a.negatives[at] = store_signs(a.levels + cell, a.magnitudes + cell, a.flips + cell);
#endif
  a.scales[at] = scale;
  a.offsets[at] = -128 * total;
  a.less_8[at] = -8 * total;
  a.less_16[at] = -16 * total;
  a.scaled_sums[at] = scale * static_cast<float>(total);
  if (!(forms & pk::HALF_GROUPS)) return scale;
  a.offsets16[2 * at] = -128 * first;
  a.offsets16[2 * at + 1] = -128 * second;
  a.lesser_offsets16[2 * at] = -32 * first;
  a.lesser_offsets16[2 * at + 1] = -32 * second;
  a.scaled_sums16[2 * at] = scale * static_cast<float>(first);
  a.scaled_sums16[2 * at + 1] = scale * static_cast<float>(second);
  return scale;
}

// Group g of all parts of a row.
__attribute__((always_inline)) inline void set_levels(const Activations& a, int forms, int row, int g, V low, V high) {
  const float scale = quantise_group(a, forms, a.parts * row, g, low, high);
  if (a.parts == 1) return;
  const int8_t* levels = a.levels + static_cast<size_t>(a.parts) * row * a.stride + pk::GROUP * g;
  const V back = set1(scale);
  quantise_group(a, forms, a.parts * row + 1, g, sub(low, mul(load_i8(levels), back)), sub(high, mul(load_i8(levels + 16), back)));
}

#if defined(PK_SUPER_MULTIPLES)
// What the magnitudes of 16 levels come to at most.  A group's weights, as they are stored (up to 15), less 16 (of five bits)
// or less 32 (of six, over half a group), times its levels are then numbers of two bytes, and so is MOST_TIMES the sum of its levels.
constexpr int MOST_OF_16 = 1023;
static_assert(32 * MOST_OF_16 < 1 << 15 && 2 * MOST_OF_16 * MOST_TIMES < 1 << 15);

// Super-group b of a row of super_levels.  peaks: what is taken for the largest number of each group.  times: by what their
// scales are multiples; is set.  Returns whether MOST_OF_16 holds.
inline bool quantise_super_group(const Activations& a, int row, int b, const float* x, const float* peaks, bool poisoned, float* times) {
  float top = 0.0f;
  for (int g = 0; g < pk::SUPER_GROUPS; g++) top = peaks[g] > top ? peaks[g] : top;
  const LevelScale by(poisoned ? 0.0f : top, poisoned);
  const bool alike = !(by.inverse > 0.0f && by.inverse < 1e37f);
  const Multiples multiples(peaks, MOST_TIMES / top, alike);
  float inverses[pk::SUPER_GROUPS];
  multiples.store(times, inverses, by.inverse);
  const size_t at = static_cast<size_t>(row) * a.groups + pk::SUPER_GROUPS * b;
  int8_t* levels = a.super_levels + static_cast<size_t>(row) * a.super_stride + SUPER * b;
  alignas(64) int32_t sums[2 * pk::SUPER_GROUPS];
  Magnitudes magnitudes;
  PK_UNROLLED
  for (int g = 0; g < pk::SUPER_GROUPS; g++) {
    const V inverse = set1(inverses[g]);
    store_levels(levels + pk::GROUP * g, mul(load(x + pk::GROUP * g), inverse), mul(load(x + pk::GROUP * g + 16), inverse), sums[2 * g], sums[2 * g + 1]);
    magnitudes.take(levels + pk::GROUP * g);
  }
  multiples.store_sums(sums, a.super_sums + at, a.super_offsets16 + 2 * at);
  multiples.store_shifts(a.super_shifts + 2 * at);
  a.super_scales[static_cast<size_t>(row) * a.super_groups() + b] = by.scale / MOST_TIMES;
  return magnitudes.most() <= MOST_OF_16;
}

// What is taken for the largest number of a group, peak, where MOST_OF_16 doesn't hold, so that it does.  x: [GROUP].
inline float peak_of_less(const float* x, float peak) {
  // Rounding adds a half to each of 16.  The largest number stays a whole level; it is at least a sixteenth of the sum, which
  // may be more than there is.
  constexpr float most = MOST_OF_16 - 8;
  const float low = sum(abs(load(x))), high = sum(abs(load(x + 16))), share = peak / (low > high ? low : high);
  const float level = most * (share > 1.0f / 16 ? share : 1.0f / 16);
  return level < 127.0f ? peak * (127.0f / static_cast<float>(static_cast<int>(level))) : peak;
}

// Super-group b of part `part` of a row.  x: [SUPER], from which what has levels is taken off where rest isn't null.
inline void set_super_group(const Activations& a, int part, int b, const float* x, float* rest) {
  float peaks[pk::SUPER_GROUPS], times[pk::SUPER_GROUPS];
  V poison = zero();
  PK_UNROLLED
  for (int g = 0; g < pk::SUPER_GROUPS; g++) {
    const V low = load(x + pk::GROUP * g), high = load(x + pk::GROUP * g + 16);
    peaks[g] = highest(max(abs(low), abs(high)));
    poison = fma(high, zero(), fma(low, zero(), poison));
  }
  const bool poisoned = any_nan(poison);
  if (!quantise_super_group(a, part, b, x, peaks, poisoned, times) && !poisoned) {
    for (int g = 0; g < pk::SUPER_GROUPS; g++) peaks[g] = peak_of_less(x + pk::GROUP * g, peaks[g]);
    quantise_super_group(a, part, b, x, peaks, poisoned, times);
  }
  if (!rest) return;
  const V scale = set1(a.super_scales[static_cast<size_t>(part) * a.super_groups() + b]);
  const int8_t* levels = a.super_levels + static_cast<size_t>(part) * a.super_stride + SUPER * b;
  for (int k = 0; k < SUPER; k += 16) store(rest + k, sub(load(x + k), mul(mul(load_i8(levels + k), set1(times[k / pk::GROUP])), scale)));
}

// Super-group b of all parts of a row.  x: [SUPER].
inline void set_super_levels(const Activations& a, int, int row, int b, const float* x) {
  if (a.parts == 1) return set_super_group(a, row, b, x, nullptr);
  alignas(64) float rest[SUPER];
  set_super_group(a, 2 * row, b, x, rest);
  set_super_group(a, 2 * row + 1, b, rest, nullptr);
}
#else
// One scale is too coarse where the square of its steps is so many times the mean square of those that groups would have by
// themselves, of at most eight times.
constexpr float TOO_COARSE = 4.0f;

// Super-group b of one of the rows of super_levels, as quantise_group does it.  x: [SUPER].  Returns the scale; coarse is set
// to whether it is too coarse.
inline float quantise_super_group(const Activations& a, int forms, int row, int b, const float* x, bool& coarse) {
  float peak = 0.0f, squares = 0.0f;
  V poison = zero();
  for (int i = 0; i < SUPER; i += pk::GROUP) {
    const V low = load(x + i), high = load(x + i + 16);
    const float own = highest(max(abs(low), abs(high)));
    peak = own > peak ? own : peak;
    squares += own * own;
    poison = fma(high, zero(), fma(low, zero(), poison));
  }
  coarse = pk::SUPER_GROUPS * peak * peak > TOO_COARSE * squares;
  const LevelScale by(peak, any_nan(poison));
  const V inverse = set1(by.inverse);
  int8_t* levels = a.super_levels + static_cast<size_t>(row) * a.super_stride + SUPER * b;
  int16_t* sums = a.super_sums + static_cast<size_t>(row) * a.groups + pk::SUPER_GROUPS * b;
  int16_t* sums16 = a.super_sums16 + 2 * (static_cast<size_t>(row) * a.groups + pk::SUPER_GROUPS * b);
  for (int g = 0; g < pk::SUPER_GROUPS; g++) {
    int32_t first, second;
    store_levels(levels + pk::GROUP * g, mul(load(x + pk::GROUP * g), inverse), mul(load(x + pk::GROUP * g + 16), inverse), first, second);
    sums[g] = static_cast<int16_t>(first + second);
    if (!(forms & pk::HALF_GROUPS)) continue;
    sums16[2 * g] = static_cast<int16_t>(first);
    sums16[2 * g + 1] = static_cast<int16_t>(second);
  }
  a.super_scales[static_cast<size_t>(row) * a.super_groups() + b] = by.scale;
  return by.scale;
}

// Super-group b of part `part` of a row, in one row of super_levels or in two.  x: [SUPER], from which what has levels is
// taken off.
inline void set_super_group(const Activations& a, int forms, int part, int b, float* x) {
  bool coarse = false;
  for (int i = 0; i < 2; i++) {
    const size_t row = 2 * static_cast<size_t>(part) + i;
    float& scale = a.super_scales[row * a.super_groups() + b];
    scale = 0.0f;
    if (i && !coarse) return;
    bool finer;
    scale = quantise_super_group(a, forms, static_cast<int>(row), b, x, finer);
    coarse = finer && scale == scale;
    const V back = set1(scale);
    const int8_t* levels = a.super_levels + row * a.super_stride + SUPER * b;
    for (int k = 0; k < SUPER; k += 16) store(x + k, sub(load(x + k), mul(load_i8(levels + k), back)));
  }
}

// Super-group b of all parts of a row.  x: [SUPER].
inline void set_super_levels(const Activations& a, int forms, int row, int b, const float* x) {
  alignas(64) float rest[SUPER];
  __builtin_memcpy(rest, x, sizeof rest);
  for (int part = a.parts * row; part < a.parts * (row + 1); part++) set_super_group(a, forms, part, b, rest);
}
#endif

inline void set_halves(const Activations& a, int row, int g, V low, V high) {
  Half* halves = a.halves + static_cast<size_t>(a.parts) * row * a.half_stride + pk::GROUP * g;
  store_half(halves, low);
  store_half(halves + 16, high);
  if (a.parts == 1) return;
  store_half(halves + a.half_stride, sub(low, load_half(halves)));
  store_half(halves + a.half_stride + 16, sub(high, load_half(halves + 16)));
}

// Forms whose groups become levels, and those of which floats are kept.
constexpr int LEVEL_FORMS = SUPER_LEVELS ? pk::LEVELS : pk::LEVELS | pk::SUPER_LEVELS;
constexpr int FLOAT_FORMS = pk::HALVES | pk::FLOATS | (SUPER_LEVELS ? pk::SUPER_LEVELS : 0);

// Group g of a row in each of `forms` (bits of pk::Form).  Super-groups' levels are made of its floats once the row has
// all groups (Thread::finish_rows).
__attribute__((always_inline)) inline void set_group(const Activations& a, int forms, int row, int g, V low, V high) {
  if (forms & LEVEL_FORMS) set_levels(a, forms, row, g, low, high);
  if (!(forms & FLOAT_FORMS)) return;
  float* floats = a.floats + static_cast<size_t>(row) * a.stride + pk::GROUP * g;
  store(floats, low);
  store(floats + 16, high);
  if (forms & pk::HALVES) set_halves(a, row, g, low, high);
}

// A row of `width` floats, the last group filled up with zeros.
inline void set_row(const Activations& a, int forms, int row, const float* x, int width) {
  if (SUPER_LEVELS && forms & pk::SUPER_LEVELS) {
    for (int b = 0; b < a.super_groups(); b++) set_super_levels(a, forms, row, b, x + SUPER * b);
    forms &= ~pk::SUPER_LEVELS;
  }
  for (int g = 0; forms & ~pk::HALF_GROUPS && g < a.groups; g++) {
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

// Row `row` of other activations of the same width and as many parts, in each of `forms`.
inline void copy_row(const Activations& from, int row, const Activations& to, int to_row, int forms) {
  const auto copy = [&](auto* target, const auto* source, int count) {
    __builtin_memcpy(target + static_cast<size_t>(to_row) * count, source + static_cast<size_t>(row) * count, count * sizeof *target);
  };
  const int cells = to.parts * to.stride, groups = to.parts * to.groups;
  if (SUPER_LEVELS && forms & pk::SUPER_LEVELS) {
    copy(to.super_levels, from.super_levels, SUPER_ROWS * to.parts * to.super_stride);
    copy(to.super_scales, from.super_scales, SUPER_ROWS * to.parts * to.super_groups());
    copy(to.super_sums, from.super_sums, SUPER_ROWS * groups);
    if (SUPER_ROWS == 2) copy(to.super_sums16, from.super_sums16, 4 * groups);
    else copy(to.super_shifts, from.super_shifts, 2 * groups), copy(to.super_offsets16, from.super_offsets16, 2 * groups);
  }
  if (forms & LEVEL_FORMS) {
    copy(to.levels, from.levels, cells);
    copy(to.scales, from.scales, groups);
    copy(to.scaled_sums, from.scaled_sums, groups);
    copy(to.offsets, from.offsets, groups);
    if (SIGNS_APART) copy(to.magnitudes, from.magnitudes, cells), copy(to.flips, from.flips, cells), copy(to.negatives, from.negatives, groups);
    copy(to.less_8, from.less_8, groups);
    copy(to.less_16, from.less_16, groups);
  }
  if (forms & LEVEL_FORMS && forms & pk::HALF_GROUPS) {
    copy(to.scaled_sums16, from.scaled_sums16, 2 * groups);
    copy(to.offsets16, from.offsets16, 2 * groups);
    copy(to.lesser_offsets16, from.lesser_offsets16, 2 * groups);
  }
  if (forms & pk::HALVES) copy(to.halves, from.halves, to.parts * to.half_stride);
  if (forms & (pk::HALVES | pk::FLOATS)) copy(to.floats, from.floats, to.stride);
}

}  // namespace
