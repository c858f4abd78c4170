// Products of activation rows and a tile of 16 outputs.
//
// A row's sums are built in the same order whatever the number of rows: group by group, integers
// inside a group, floats across groups.  Rows only share the decoding of the weights.
#pragma once
#include "level_groups.h"
#if defined(PK_DOTS_OF_FEW_ROWS)
#include "one_row_avx2.h"
#endif
#if defined(PK_AMX)
#include "amx_super.h"
#elif defined(PK_SUPER_MULTIPLES)
#include "super_multiples.h"
#endif

namespace {

#if !defined(PK_AMX)
struct AmxRegisters {};
#endif

struct Halves {
  static constexpr int KIND = PK_BF16;
  template <int M> static inline void group(const uint8_t* q, const uint8_t*, const Activations& a, int row, int g, V* sums) {
    const uint16_t* w = reinterpret_cast<const uint16_t*>(q);
    const Half* x = a.halves + static_cast<size_t>(row) * a.half_stride + 32 * g;
    const size_t stride = a.half_stride;
    for (int i = 0; i < 16; i++, w += 32, x += 2) pair<M>(w, x, stride, sums);
  }
#if defined(PK_BF16_UNITS)
  template <int M> static inline void pair(const uint16_t* w, const Half* x, size_t stride, V* sums) {
    PK_UNROLLED
    for (int m = 0; m < M; m++) sums[m] = dot2_bf16(sums[m], load_pairs(w), x + m * stride);
  }
#else
  template <int M> static inline void pair(const uint16_t* w, const Half* x, size_t stride, V* sums) {
    const V even = load_even(w);
    PK_UNROLLED
    for (int m = 0; m < M; m++) sums[m] = fma(even, set1(x[m * stride]), sums[m]);
    const V odd = load_odd(w);
    PK_UNROLLED
    for (int m = 0; m < M; m++) sums[m] = fma(odd, set1(x[m * stride + 1]), sums[m]);
  }
#endif
};

struct Floats {
  static constexpr int KIND = PK_F32;
  template <int M> static inline void group(const uint8_t* q, const uint8_t*, const Activations& a, int row, int g, V* sums) {
    const float* w = reinterpret_cast<const float*>(q);
    for (int i = 0; i < 32; i++) {
      const V column = load(w + 16 * i);
      for (int m = 0; m < M; m++)
        sums[m] = fma(column, set1(a.floats[static_cast<size_t>(row + m) * a.stride + 32 * g + i]), sums[m]);
    }
  }
};

// Rows of a product by bfloat16 whose sums the registers hold.
#if defined(PK_BF16_UNITS)
constexpr int HALF_ROWS = 12;
#else
constexpr int HALF_ROWS = FLOAT_ROWS;
#endif

template <class Format, int M> void tile_rows(const PkMatrix& matrix, int tile, const Activations& a, int row, float* out) {
  constexpr int kind = Format::KIND;
#if defined(PK_DOTS_OF_FEW_ROWS)
  if constexpr (M == 1 && OneRow<Format>::ANY) return tile_row<Format>(matrix, tile, a, row, out);
#endif
#if defined(PK_AMX)
  if constexpr (is_super(kind)) return super_rows<SuperGroups<kind>, M>(matrix, tile, a, row, out);
#endif
  const size_t size = pk::tile_bytes(kind, a.groups);
  const uint8_t* levels = matrix.tiles + tile * size;
  // The first rows to meet a tile ask for the next one, piece by piece. Beyond the matrix lies what
  // is read next, or nothing, which a prefetch may touch.
  const size_t ahead = row == a.first ? size : 0;
  const uint8_t* scales = levels + static_cast<size_t>(a.groups) * pk::level_bytes(kind);
  V sums[M];
  PK_UNROLLED
  for (int m = 0; m < M; m++) sums[m] = zero();
  for (int g = 0; g < a.groups; g++) {
    const uint8_t* q = levels + static_cast<size_t>(g) * pk::level_bytes(kind);
    const uint8_t* s = scales + pk::scale_offset(kind, g);
    if (ahead) {
      pk::prefetch(q + ahead, pk::level_bytes(kind));
      pk::prefetch(s + ahead, pk::scale_bytes(kind));
    }
    Format::template group<M>(q, s, a, row, g, sums);
  }
  if (kind == PK_F4B16) {
    const V factor = set1(factor_of(matrix));
    PK_UNROLLED
    for (int m = 0; m < M; m++) sums[m] = mul(sums[m], factor);
  }
  const V bias = matrix.bias ? load(matrix.bias + 16 * tile) : zero();
  PK_UNROLLED
  for (int m = 0; m < M; m++) store(out + 16 * m, matrix.bias ? add(sums[m], bias) : sums[m]);
}

#if defined(PK_AMX)
// out: [TILES][pk::ROWS][16].
template <int TILES> void halves_of(const PkMatrix& matrix, int tile, const Activations& a, int row, int rows, float* out) {
  alignas(64) float sums[4][AMX_ROWS][16];
  for (; rows > 0; row += 2 * AMX_ROWS, rows -= 2 * AMX_ROWS, out += 2 * AMX_ROWS * 16) {
    if (rows > AMX_ROWS) amx_halves<TILES, 2>(matrix, tile, a, row, sums);
    else amx_halves<TILES, 1>(matrix, tile, a, row, sums);
    for (int t = 0; t < TILES; t++) {
      const float* bias = matrix.bias ? matrix.bias + 16 * (tile + t) : nullptr;
      for (int r = 0; r < rows && r < 2 * AMX_ROWS; r++) {
        const V sum = load(sums[r < AMX_ROWS ? t : 2 + t][r % AMX_ROWS]);
        store(out + 16 * (t * pk::ROWS + r), bias ? add(sum, load(bias)) : sum);
      }
    }
  }
}
#endif

// Formats of few files, which share a decoded weight by fewer counts of rows: each is compiled for each instruction set.
constexpr bool is_rare(int kind) { return kind == PK_U5H || kind == PK_U2K || kind == PK_S3K || kind == PK_U4W16 || kind == PK_T4W; }

// Row counts that a decoded weight is shared by; others are made up of these.
template <class Format> void tile_of(const PkMatrix& matrix, int tile, const Activations& a, int row, int rows, float* out) {
#if defined(PK_AMX)
  if constexpr (Format::KIND == PK_BF16) return halves_of<1>(matrix, tile, a, row, rows, out);
  if constexpr (is_super(Format::KIND)) {
    if (rows >= AMX_LEAST) return AmxSuperProduct<SuperGroups<Format::KIND>, 1>(matrix, tile, a, row, rows).run(out);
  } else if constexpr (AmxBytes<Format>::ANY) {
    for (int count; rows >= AMX_LEAST; row += count, rows -= count, out += 16 * count) {
      count = rows < 2 * AMX_ROWS ? rows : 2 * AMX_ROWS;
      AmxProduct<Format>(matrix, tile, a, row, count).run(out);
    }
  }
#elif defined(PK_SUPER_MULTIPLES)
  if constexpr (is_super(Format::KIND)) return super_rows<SuperGroups<Format::KIND>>(matrix, tile, a, row, rows, out);
#endif
  constexpr int most = Format::KIND == PK_F32 ? FLOAT_ROWS : Format::KIND == PK_BF16 ? HALF_ROWS : LEVEL_ROWS;
  if constexpr (is_rare(Format::KIND)) {
    for (int count; rows > 0; row += count, rows -= count, out += 16 * count) {
      count = rows >= most ? most : rows >= 4 ? 4 : 1;
      if (count == most) tile_rows<Format, most>(matrix, tile, a, row, out);
      else if (count == 4) tile_rows<Format, 4>(matrix, tile, a, row, out);
      else tile_rows<Format, 1>(matrix, tile, a, row, out);
    }
    return;
  }
  while (rows > 0) {
    // Of 7 or 8, 6 would leave too few for their sums to keep the units busy.
    const bool even = most == 6 && (rows == 7 || rows == 8);
    const int count = even ? 4 : rows >= most ? most : rows >= 12 && most > 12 ? 12 : rows >= 8 && most > 8 ? 8 : rows >= 6 ? 6 : rows >= 4 ? 4 : rows;
    switch (count) {
      case 1: tile_rows<Format, 1>(matrix, tile, a, row, out); break;
      case 2: tile_rows<Format, 2>(matrix, tile, a, row, out); break;
      case 3: tile_rows<Format, 3>(matrix, tile, a, row, out); break;
      case 4: tile_rows<Format, 4>(matrix, tile, a, row, out); break;
      case 6: tile_rows<Format, 6>(matrix, tile, a, row, out); break;
      case 8: tile_rows<Format, most < 8 ? most : 8>(matrix, tile, a, row, out); break;
      case 12: tile_rows<Format, most < 12 ? most : 12>(matrix, tile, a, row, out); break;
      default: tile_rows<Format, most>(matrix, tile, a, row, out);
    }
    row += count;
    rows -= count;
    out += 16 * count;
  }
}

// out: [rows, 16], rows <= pk::ROWS: rows `row`... of the activations' parts times tile number `tile`.
inline void product_of_parts(const PkMatrix& matrix, int tile, const Activations& a, int row, int rows, float* out) {
  switch (matrix.kind) {
    case PK_F32: return tile_of<Floats>(matrix, tile, a, row, rows, out);
    case PK_BF16: return tile_of<Halves>(matrix, tile, a, row, rows, out);
    case PK_U4H: return tile_of<Unsigned<PK_U4H, ScaleAndMinimum<false>>>(matrix, tile, a, row, rows, out);
    case PK_U4W: return tile_of<Unsigned<PK_U4W, ScaleAndMinimum<true>>>(matrix, tile, a, row, rows, out);
    case PK_U8H: return tile_of<Unsigned<PK_U8H, ScaleAndMinimum<false>>>(matrix, tile, a, row, rows, out);
    case PK_U8W: return tile_of<Unsigned<PK_U8W, ScaleAndMinimum<true>>>(matrix, tile, a, row, rows, out);
    case PK_U5H: return tile_of<Unsigned<PK_U5H, ScaleAndMinimum<false>>>(matrix, tile, a, row, rows, out);
    case PK_U4D: return tile_of<Lessened<PK_U4D>>(matrix, tile, a, row, rows, out);
    case PK_U5D: return tile_of<Lessened<PK_U5D>>(matrix, tile, a, row, rows, out);
    case PK_U4K: return tile_of<Unsigned<PK_U4K, Factored<PK_U4K>>>(matrix, tile, a, row, rows, out);
    case PK_U5K: return tile_of<Unsigned<PK_U5K, Factored<PK_U5K>>>(matrix, tile, a, row, rows, out);
    case PK_S8H: return tile_of<Signed>(matrix, tile, a, row, rows, out);
    case PK_U4W16: return tile_of<UnsignedHalves<PK_U4W16, Wide>>(matrix, tile, a, row, rows, out);
    case PK_U2K: return tile_of<UnsignedHalves<PK_U2K, Factored<PK_U2K>>>(matrix, tile, a, row, rows, out);
    case PK_S6K: return tile_of<LowerHalves<PK_S6K>>(matrix, tile, a, row, rows, out);
    case PK_S3K: return tile_of<LowerHalves<PK_S3K>>(matrix, tile, a, row, rows, out);
    case PK_T4H: return tile_of<Looked<PK_T4H>>(matrix, tile, a, row, rows, out);
    case PK_T4W: return tile_of<Looked<PK_T4W>>(matrix, tile, a, row, rows, out);
    case PK_F4W: return tile_of<Looked<PK_F4W>>(matrix, tile, a, row, rows, out);
    case PK_F4B16: return tile_of<LookedHalves>(matrix, tile, a, row, rows, out);
    default: return tile_of<SignedHalves>(matrix, tile, a, row, rows, out);
  }
}

// Rows of two parts each, which meet a tile together; their products are added up, and then the bias.
inline void sum_of_parts(const PkMatrix& matrix, int tile, const Activations& a, int row, int rows, float* out) {
  alignas(64) float products[16 * pk::ROWS];
  PkMatrix unbiased = matrix;
  unbiased.bias = nullptr;
  for (int first = 0; first < rows; first += pk::ROWS / 2) {
    const int count = rows - first < pk::ROWS / 2 ? rows - first : pk::ROWS / 2;
    product_of_parts(unbiased, tile, a, 2 * (row + first), 2 * count, products);
    for (int r = 0; r < count; r++) {
      const V sum = add(load(products + 32 * r), load(products + 32 * r + 16));
      store(out + 16 * (first + r), matrix.bias ? add(sum, load(matrix.bias + 16 * tile)) : sum);
    }
  }
}

// out: [rows, 16], rows <= pk::ROWS: rows `row`... of the activations times tile number `tile`.
inline void tile_product(const PkMatrix& matrix, int tile, const Activations& a, int row, int rows, float* out) {
  if (a.parts == 2 && matrix.kind != PK_F32) return sum_of_parts(matrix, tile, a, row, rows, out);
  product_of_parts(matrix, tile, a, row, rows, out);
}

// Tiles that are multiplied together: two of floats share the reading of rows, and two of bfloat16 or of a K-quant where AMX
// reads them.
inline int tiles_together(const PkMatrix& matrix) {
  if (matrix.kind == PK_F32) return 2;
#if defined(PK_AMX)
  return matrix.kind == PK_BF16 || is_super(matrix.kind) ? 2 : 1;
#else
  return 1;
#endif
}

// out: [count][pk::ROWS][16], of one tile or two, from `tile` on.  By wider registers than these kernels' own where the
// processor has them: a lane's sum is the same.
inline void tile_products(const PkMatrix& matrix, int tile, int count, const Activations& a, int row, int rows, float* out) {
#if defined(PK_AMX)
  if (matrix.kind == PK_BF16 && a.parts == 1 && count == 2) return halves_of<2>(matrix, tile, a, row, rows, out);
  if (rows >= AMX_LEAST && a.parts == 1 && count == 2 && two_super_tiles(matrix, tile, a, row, rows, out)) return;
#endif
  const pk::FloatTiles wide = matrix.kind == PK_F32 ? pk::wide_floats.load(std::memory_order_relaxed) : nullptr;
  if (!wide) {
    for (int i = 0; i < count; i++) tile_product(matrix, tile + i, a, row, rows, out + 16 * pk::ROWS * i);
    return;
  }
  const size_t size = pk::tile_bytes(PK_F32, a.groups);
  wide(reinterpret_cast<const float*>(matrix.tiles + tile * size), size / sizeof(float), count, a.groups,
       a.floats + static_cast<size_t>(row) * a.stride, a.stride, rows, matrix.bias ? matrix.bias + 16 * tile : nullptr, out, 16 * pk::ROWS);
}

// Lane `lane` of group g's scales or minima, as a float.
inline float scale_at(const uint8_t* s, int kind, int g, int index, int lane) {
  alignas(64) float lanes[16];
  if (kind == PK_F4B16) {
    store(lanes, load_e4m3(s, index));
    return lanes[lane];
  }
  const int half = pk::scale_bytes(kind) / pk::LANES / 2;
  if (pk::super_bytes(kind)) {
    const uint16_t* factors = reinterpret_cast<const uint16_t*>(s - pk::factors_before(kind, g));
    const bool minimum = pk::super_bytes(kind) == 4 * pk::LANES && index >= half;
    store(lanes, mul(load_i8(reinterpret_cast<const int8_t*>(s) + 16 * index), load_f16(factors + (minimum ? 16 : 0))));
    return lanes[lane];
  }
  const bool wide = kind == PK_U4W || kind == PK_U8W || kind == PK_S8W16 || kind == PK_U4W16 || kind == PK_T4W || kind == PK_F4W;
  store(lanes, wide ? load_scale<true>(s, index) : load_scale<false>(s, index));
  return lanes[lane];
}

// One value of group g; of an F4B16, divided by its `factor_of`. i: input within the group.
inline float value_at(const uint8_t* q, const uint8_t* s, int kind, int g, int lane, int i) {
  if (kind == PK_F32) return reinterpret_cast<const float*>(q)[16 * i + lane];
  if (kind == PK_BF16) {
    const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(q)[32 * (i / 2) + 2 * lane + i % 2]) << 16;
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
  }
  const int level = pk::level_at(q, pk::level_bits(kind), i / 4, 4 * lane + i % 4);
  const bool halves = pk::form_of(kind) & pk::HALF_GROUPS;
  const float scale = scale_at(s, kind, g, halves ? i / 16 : 0, lane);
  switch (kind) {
    case PK_T4H: case PK_T4W: return scale * static_cast<float>(pk::IQ4[level] - 128);
    case PK_F4W: case PK_F4B16: return scale * static_cast<float>(pk::E2M1[level] - 128);
    case PK_S6K: return scale * static_cast<float>(level - 32);
    case PK_S3K: return scale * static_cast<float>(level - 4);
    case PK_U4D: return scale * static_cast<float>(level - 8);
    case PK_U5D: return scale * static_cast<float>(level - 16);
    case PK_S8H: case PK_S8W16: return scale * static_cast<float>(level - 128);
    default: return scale * static_cast<float>(level) + scale_at(s, kind, g, halves ? 2 + i / 16 : 1, lane);
  }
}

// A row of a matrix as floats: what an embedding looks up. out: [inputs].
inline void matrix_row(const PkMatrix& matrix, int row, float* out) {
  const int groups = pk::padded(matrix.inputs, pk::GROUP) / pk::GROUP;
  const uint8_t* levels = matrix.tiles + row / 16 * pk::tile_bytes(matrix.kind, groups);
  const uint8_t* scales = levels + static_cast<size_t>(groups) * pk::level_bytes(matrix.kind);
  for (int k = 0; k < matrix.inputs; k++) {
    const int g = k / pk::GROUP;
    out[k] = value_at(levels + static_cast<size_t>(g) * pk::level_bytes(matrix.kind), scales + pk::scale_offset(matrix.kind, g),
                      matrix.kind, g, row % 16, k % pk::GROUP);
    if (matrix.kind == PK_F4B16) out[k] *= factor_of(matrix);
  }
}

}  // namespace
