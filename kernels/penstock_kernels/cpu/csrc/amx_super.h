// K-quants on AMX. The eight groups of a super-group have whole numbers for scales and minima, and rows one scale for all
// of it (see activations.h), so that their sums over its 256 inputs are whole numbers: exact, whoever makes them.  For a few
// rows these are products of levels, which are multiplied by a group's scale; for many, weights become numbers of two bytes
// (level times scale), each of which AMX multiplies by itself.  Floats come once for a super-group, in one order for all:
//
//   sum += (sum over groups: scale * (levels . row)) * (factor of scales * scale of the row)
//   sum += (sum over groups: minimum * sum of the row's levels) * (factor of minima * scale of the row)
//
// Levels of Q6_K count as much less 32, which the first sum takes off; it has no minima, but scales for 16 inputs each.
// Where a row has two rows of levels for a super-group, the second's floats follow the first's.
#pragma once
#include "amx.h"

namespace {

// What makes floats of a super-group's whole numbers.  s: its factors and scales.
template <class Format> class SuperFloats {
 public:
  explicit SuperFloats(const uint8_t* s) : factor_(load_f16(reinterpret_cast<const uint16_t*>(s))), least_(Format::HALVES ? zero() : load_f16(reinterpret_cast<const uint16_t*>(s) + 16)) {
    for (int i = 0; i < PAIRS; i++) {
      const int g = Format::HALVES ? i : 2 * i;
      pairs_[i] = Format::HALVES ? pairs_of(Format::scales(s, g, 0), Format::scales(s, g, 1)) : pairs_of(Format::scales(s, g, 1), Format::scales(s, g + 1, 1));
    }
  }

  // sum += the floats of number `row` of super_levels' rows.  products: the sum over groups of scale * (levels . row); with LESS those of
  // Q6_K as they are stored.
  template <bool LESS> __attribute__((always_inline)) V add(const Activations& a, size_t row, int b, I products, V sum) const {
    const V scale = set1(a.super_scales[row * a.super_groups() + b]), by = mul(factor_, scale);
    if (!Format::HALVES) return fma(to_float(of_sums(a.super_sums + row * a.groups + pk::SUPER_GROUPS * b)), mul(least_, scale), fma(to_float(products), by, sum));
    if (LESS) products = less_32_times(products, of_sums(a.super_sums16 + 2 * (row * a.groups + pk::SUPER_GROUPS * b)));
    return fma(to_float(products), by, sum);
  }

 private:
  static constexpr int PAIRS = Format::HALVES ? pk::SUPER_GROUPS : pk::SUPER_GROUPS / 2;
  const V factor_, least_;
  I pairs_[PAIRS];  // of minima, or of halves' scales: those that meet sums which lie together

  __attribute__((always_inline)) I of_sums(const int16_t* sums) const {
    I total = izero();
    PK_UNROLLED
    for (int i = 0; i < PAIRS; i++) total = dot2_i16(total, pairs_[i], sums + 2 * i);
    return total;
  }
};

// The sum over groups of scale * (levels . row), of M rows.  x: their levels, `stride` bytes apart.
template <class Format, int M> __attribute__((always_inline)) inline void super_products(const uint8_t* levels, const uint8_t* s, const int8_t* x, size_t stride, I* products) {
  PK_UNROLLED
  for (int m = 0; m < M; m++) products[m] = izero();
  for (int g = 0; g < pk::SUPER_GROUPS; g++) {
    W w[8];
    read_levels<Format::BITS>(levels + static_cast<size_t>(g) * pk::level_bytes(Format::KIND), w);
    const I scale = load_i8_i(Format::scales(s, g, 0)), second = Format::HALVES ? load_i8_i(Format::scales(s, g, 1)) : scale;
    const int8_t* own = x + pk::GROUP * g;
    PK_UNROLLED
    for (int m = 0; m < M; m++, own += stride) {
      asm("" : "+r"(own));  // An address is made of the one before, as in Cell.
      if (Format::HALVES) products[m] = add_i(products[m], add_i(mul_i(dot<4>(w, own), scale), mul_i(dot<4>(w + 4, own + 16), second)));
      else products[m] = add_i(products[m], mul_i(dot<8>(w, own), scale));
    }
  }
}

// sum += a super-group's floats of one row.
template <class Format> __attribute__((noinline)) V super_sum(const uint8_t* levels, const uint8_t* s, const Activations& a, size_t row, int b, V sum) {
  I products[1];
  super_products<Format, 1>(levels, s, a.super_levels + row * a.super_stride + SUPER * b, 0, products);
  return SuperFloats<Format>(s).template add<true>(a, row, b, products[0], sum);
}

// Whether a part of a row has a second row of levels for the super-group.
inline bool has_second(const Activations& a, size_t part, int b) { return a.super_scales[(2 * part + 1) * a.super_groups() + b] != 0.0f; }

// M rows. out: [M, 16].
template <class Format, int M> void super_rows(const PkMatrix& matrix, int tile, const Activations& a, int row, float* out) {
  constexpr int kind = Format::KIND;
  const size_t size = pk::tile_bytes(kind, a.groups), ahead = row == a.first ? size : 0;
  const uint8_t *levels = matrix.tiles + tile * size, *s = levels + static_cast<size_t>(a.groups) * pk::level_bytes(kind);
  V sums[M];
  PK_UNROLLED
  for (int m = 0; m < M; m++) sums[m] = zero();
  const int8_t* x = a.super_levels + 2 * static_cast<size_t>(row) * a.super_stride;
  for (int b = 0; b < a.super_groups(); b++, levels += Format::LEVELS, s += Format::SCALES, x += SUPER) {
    if (ahead) {
      pk::prefetch(levels + ahead, Format::LEVELS);
      pk::prefetch(s + ahead, Format::SCALES);
    }
    I products[M];
    super_products<Format, M>(levels, s, x, 2 * static_cast<size_t>(a.super_stride), products);
    const SuperFloats<Format> floats(s);
    PK_UNROLLED
    for (int m = 0; m < M; m++) {
      const size_t part = static_cast<size_t>(row) + m;
      sums[m] = floats.template add<true>(a, 2 * part, b, products[m], sums[m]);
      if (has_second(a, part, b)) sums[m] = super_sum<Format>(levels, s, a, 2 * part + 1, b, sums[m]);
    }
  }
  const V bias = matrix.bias ? load(matrix.bias + 16 * tile) : zero();
  PK_UNROLLED
  for (int m = 0; m < M; m++) store(out + 16 * m, matrix.bias ? add(sums[m], bias) : sums[m]);
}

// Many rows of one tile or two: at a time 16 rows of two tiles, or 32 of one.  Registers 0 to 3 hold sums (of low bytes and
// of high ones, twice), 4 rows, 5 weights.
template <class Format, int TILES> class AmxSuperProduct {
 public:
  AmxSuperProduct(const PkMatrix& matrix, int tile, const Activations& a, int row, int rows)
      : matrix_(matrix), a_(a), tile_(tile), row_(row), rows_(rows), size_(pk::tile_bytes(Format::KIND, a.groups)), tiles_(matrix.tiles + tile * size_) {}

  // out: [TILES][pk::ROWS][16].
  void run(float* out) {
    for (int b = 0; b < a_.super_groups(); b++) {
      for (int t = 0; t < TILES; t++) make(t, b);
      add_super_group(b);
    }
    for (int t = 0; t < TILES; t++) {
      const float* bias = matrix_.bias ? matrix_.bias + 16 * (tile_ + t) : nullptr;
      for (int r = 0; r < rows_; r++) store(out + 16 * (t * pk::ROWS + r), bias ? ::add(load(floats_[t][r]), load(bias)) : load(floats_[t][r]));
    }
  }

 private:
  // Inputs that a register holds of a row, and steps of so many through a super-group.
  static constexpr int INPUTS = 64, STEPS = SUPER / INPUTS;
  static constexpr int TOGETHER = TILES == 2 ? AMX_ROWS : 2 * AMX_ROWS;
  struct alignas(64) Sums { int32_t of[2][2][AMX_ROWS][16]; };  // [tile or panel of rows][low, high]
  struct Turn { int from, second; };  // rows that are multiplied together, and which of their two rows of levels

  const PkMatrix& matrix_;
  const Activations& a_;
  const int tile_, row_, rows_;
  const size_t size_;
  const uint8_t* tiles_;
  alignas(64) uint8_t made_[TILES][2][STEPS][AMX_ROWS * AMX_WIDTH];  // the weights' low and high bytes
  alignas(64) float floats_[TILES][pk::ROWS][16];
  Sums sums_[2];

  const uint8_t* levels(int t, int b) const { return tiles_ + t * size_ + b * Format::LEVELS; }
  const uint8_t* scales(int t, int b) const { return tiles_ + t * size_ + static_cast<size_t>(a_.groups) * pk::level_bytes(Format::KIND) + b * Format::SCALES; }

  // The weights of a super-group.
  void make(int t, int b) {
    const uint8_t *q = levels(t, b), *s = scales(t, b);
    if (row_ == a_.first) {
      pk::prefetch(q + TILES * size_, Format::LEVELS);
      pk::prefetch(s + TILES * size_, Format::SCALES);
    }
    uint8_t *low = made_[t][0][0], *high = made_[t][1][0];
    for (int g = 0; g < pk::SUPER_GROUPS; g++, q += pk::level_bytes(Format::KIND)) {
      W w[8];
      read_levels<Format::BITS>(q, w);
      const I first = words_of(Format::scales(s, g, 0)), second = Format::HALVES ? words_of(Format::scales(s, g, 1)) : first;
      PK_UNROLLED
      for (int i = 0; i < 8; i++, low += 64, high += 64) store_products<Format::HALVES ? 32 : 0>(low, high, w[i], i < 4 ? first : second);
    }
  }

  template <int STEP> void multiply(const int8_t* x) {
    const uint8_t *low = made_[0][0][STEP], *high = made_[0][1][STEP];
    const size_t stride = 2 * static_cast<size_t>(a_.super_stride);
    x += INPUTS * STEP;
    amx_load<4>(x, stride);
    amx_load<5>(low, AMX_WIDTH);
    amx_add_low<0>();
    amx_load<5>(high, AMX_WIDTH);
    amx_add_high<1>();
    if (TILES == 2) {
      amx_load<5>(made_[TILES - 1][0][STEP], AMX_WIDTH);
      amx_add_low<2>();
      amx_load<5>(made_[TILES - 1][1][STEP], AMX_WIDTH);
      amx_add_high<3>();
    } else {
      amx_load<4>(x + AMX_ROWS * stride, stride);
      amx_add_high<3>();
      amx_load<5>(low, AMX_WIDTH);
      amx_add_low<2>();
    }
  }

  // Half of the floats of 16 rows: of the sums number `which`, whose rows are those from `from` on.
  template <int HALF> void add_rows(const Sums& sums, int which, const SuperFloats<Format>& floats, int t, int from, int second, int b) {
    constexpr int first = HALF * AMX_ROWS / 2, end = first + AMX_ROWS / 2;
    const auto add_row = [&](int r) __attribute__((always_inline)) {
      float* at = floats_[t][from + r];
      const I products = two_bytes(load_i(sums.of[which][0][r]), load_i(sums.of[which][1][r]));
      store(at, floats.template add<false>(a_, 2 * static_cast<size_t>(row_ + from + r) + second, b, products, b || second ? load(at) : zero()));
    };
    if (from + end <= rows_ && !second) {
      PK_UNROLLED
      for (int r = first; r < end; r++) add_row(r);
    } else {
      for (int r = first; r < end && from + r < rows_; r++)
        if (!second || has_second(a_, row_ + from + r, b)) add_row(r);
    }
  }
  // Of what a turn has multiplied, one of four parts of the floats.
  template <int PART> void add_part(const Sums& sums, const SuperFloats<Format>* floats, const Turn& turn, int b) {
    constexpr int which = PART / 2, t = TILES == 2 ? which : 0;
    add_rows<PART % 2>(sums, which, floats[t], t, TILES == 2 ? turn.from : turn.from + AMX_ROWS * which, turn.second, b);
  }

  bool any_second(int from, int b) const {
    for (int r = from; r < from + TOGETHER && r < rows_; r++)
      if (has_second(a_, row_ + r, b)) return true;
    return false;
  }

  // Products of rows, and between them the floats of those before: units for vectors and AMX's are busy at a time.
  void add_super_group(int b) {
    Turn turns[2 * pk::ROWS / AMX_ROWS];
    int count = 0;
    for (int from = 0; from < rows_; from += TOGETHER) turns[count++] = {from, 0};
    for (int from = 0; from < rows_; from += TOGETHER)
      if (any_second(from, b)) turns[count++] = {from, 1};
    const SuperFloats<Format> floats[2] = {SuperFloats<Format>(scales(0, b)), SuperFloats<Format>(scales(TILES - 1, b))};
    for (int i = 0; i <= count; i++) {
      const bool more = i < count;
      const Turn &next = turns[more ? i : 0], &before = turns[i ? i - 1 : 0];
      const int8_t* x = a_.super_levels + (2 * static_cast<size_t>(row_ + next.from) + next.second) * a_.super_stride + SUPER * b;
      const Sums& last = sums_[~i & 1];
      if (more) amx_zero_sums(), multiply<0>(x);
      if (i) add_part<0>(last, floats, before, b);
      if (more) multiply<1>(x);
      if (i) add_part<1>(last, floats, before, b);
      if (more) multiply<2>(x);
      if (i) add_part<2>(last, floats, before, b);
      if (more) multiply<3>(x);
      if (i) add_part<3>(last, floats, before, b);
      if (more) store_sums(sums_[i & 1]);
    }
  }
  static void store_sums(Sums& to) {
    amx_store<0>(to.of[0][0], AMX_WIDTH);
    amx_store<1>(to.of[0][1], AMX_WIDTH);
    amx_store<2>(to.of[1][0], AMX_WIDTH);
    amx_store<3>(to.of[1][1], AMX_WIDTH);
  }
};

// out: [2][pk::ROWS][16], of two tiles' products with AMX_LEAST rows or more; false where the matrix is no K-quant.
inline bool two_super_tiles(const PkMatrix& matrix, int tile, const Activations& a, int row, int rows, float* out) {
  switch (matrix.kind) {
    case PK_U4K: AmxSuperProduct<SuperGroups<PK_U4K>, 2>(matrix, tile, a, row, rows).run(out); return true;
    case PK_U5K: AmxSuperProduct<SuperGroups<PK_U5K>, 2>(matrix, tile, a, row, rows).run(out); return true;
    case PK_S6K: AmxSuperProduct<SuperGroups<PK_S6K>, 2>(matrix, tile, a, row, rows).run(out); return true;
    default: return false;
  }
}

}  // namespace
