// Products by AMX, whose registers multiply 16 rows of 32 bfloat16, or of 32 levels, with 16 outputs at once: those of
// bfloat16 for any number of rows, those of quantised weights for many.
//
// Sums of bfloat16 are AMX's own: it adds pairs up in their order, and takes numbers below 2^-126 for 0. Sums of whole numbers are exact, so a row has the bits that vec_avx512.h's instructions give it: what is added to
// its floats, and in which order, is said once, in level_groups.h.  First come the whole numbers of some groups, then
// the floats of these: for some hundred cycles behind an instruction of AMX, one for vectors takes twice as long.
#pragma once
#include "level_groups.h"

namespace {

// Rows that an AMX register holds.
constexpr int AMX_ROWS = 16;
// Rows from which on a product is quicker so: with fewer, some would be computed twice, and weights are read for few.
constexpr int AMX_LEAST = 24;
static_assert(AMX_LEAST >= AMX_ROWS);
// Groups whose whole numbers lie in memory at a time, [2][AMX_GROUPS][16][16]: little of the nearest cache.
constexpr int AMX_GROUPS = 4;
// Bytes from a row of outputs to the next.
constexpr size_t AMX_WIDTH = 64;

// A thread's AMX registers are for products while this lives: 0 to 3 hold sums; 4 sixteen rows of 64 bytes, 5 what these
// are multiplied with; 6 sixteen rows of half as many bytes, 7 what these are.  Afterwards the system need not save them for it.
class AmxRegisters {
 public:
  AmxRegisters() {
    Shapes shapes{};
    shapes.palette = 1;
    for (int i = 0; i < 8; i++) shape(shapes, i, 16, AMX_WIDTH);
    shape(shapes, 6, AMX_ROWS, AMX_WIDTH / 2);
    shape(shapes, 7, 8, AMX_WIDTH);
    // Compilers' own function says that it reads less of the shapes than it does.
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }
  ~AmxRegisters() { asm volatile("tilerelease" : : : "memory"); }
  AmxRegisters(const AmxRegisters&) = delete;
  AmxRegisters& operator=(const AmxRegisters&) = delete;

 private:
  struct alignas(64) Shapes { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; };
  static void shape(Shapes& shapes, int i, int rows, int bytes) {
    shapes.rows[i] = static_cast<uint8_t>(rows);
    shapes.bytes[i] = static_cast<uint16_t>(bytes);
  }
};

// What AMX multiplies: the bytes of a format, signed or not, or nothing of it.
template <class Format> struct AmxBytes { static constexpr bool ANY = false; };
template <int KIND, class Scales> struct AmxBytes<Unsigned<KIND, Scales>> { static constexpr bool ANY = true, SIGNED = false, AS_STORED = pk::level_bits(KIND) == 8; };
template <int KIND> struct AmxBytes<Lessened<KIND>> { static constexpr bool ANY = true, SIGNED = false, AS_STORED = false; };
template <> struct AmxBytes<Signed> { static constexpr bool ANY = true, SIGNED = true, AS_STORED = false; };
template <int KIND> struct AmxBytes<Looked<KIND>> : AmxBytes<Signed> {};

// The whole numbers of two panels of rows and some groups.
struct alignas(64) AmxSums { int32_t of[2][AMX_GROUPS][AMX_ROWS][16]; };

template <int REGISTER> inline void amx_load(const void* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(REGISTER) : "memory");
}
template <int REGISTER> inline void amx_store(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(REGISTER) : "memory");
}
template <int REGISTER> inline void amx_zero() { asm volatile("tilezero %%tmm%c0" : : "i"(REGISTER)); }
inline void amx_zero_sums() { amx_zero<0>(), amx_zero<1>(), amx_zero<2>(), amx_zero<3>(); }

// Sums number TO, of the rows at x and the weights in register 7.
template <bool SIGNED, int TO> inline void amx_multiply(const int8_t* x, size_t stride) {
  amx_load<6>(x, stride);
  amx_zero<TO>();
  if (SIGNED) asm volatile("tdpbssd %%tmm7, %%tmm6, %%tmm%c0" : : "i"(TO));
  else asm volatile("tdpbsud %%tmm7, %%tmm6, %%tmm%c0" : : "i"(TO));
}
// Sums number TO += register 4 times register 5: signed levels by low bytes, which have no sign, or by high ones.
template <int TO> inline void amx_add_low() { asm volatile("tdpbsud %%tmm5, %%tmm4, %%tmm%c0" : : "i"(TO)); }
template <int TO> inline void amx_add_high() { asm volatile("tdpbssd %%tmm5, %%tmm4, %%tmm%c0" : : "i"(TO)); }
// The same, or 6 times 7: pairs of bfloat16, in the order of inputs.
template <int TO> inline void amx_add_products() { asm volatile("tdpbf16ps %%tmm5, %%tmm4, %%tmm%c0" : : "i"(TO)); }
template <int TO> inline void amx_add_half_products() { asm volatile("tdpbf16ps %%tmm7, %%tmm6, %%tmm%c0" : : "i"(TO)); }

// A tile of weights times 24 to 32 rows: the first 16, and the last 16, some of which are the same.
template <class Format> class AmxProduct {
 public:
  AmxProduct(const PkMatrix& matrix, int tile, const Activations& a, int row, int rows)
      : a_(a), first_(row), second_(row + rows - AMX_ROWS),
        levels_(matrix.tiles + tile * pk::tile_bytes(KIND, a.groups)), scales_(levels_ + static_cast<size_t>(a.groups) * pk::level_bytes(KIND)),
        bias_(matrix.bias ? matrix.bias + 16 * tile : nullptr), ahead_(row == a.first ? pk::tile_bytes(KIND, a.groups) : 0) {}

  // out: [rows, 16].
  void run(float* out) {
    for (int g = 0; g < a_.groups; g += AMX_GROUPS) {
      const int count = a_.groups - g < AMX_GROUPS ? a_.groups - g : AMX_GROUPS;
      read(g, count);
      multiply(g, count);
      for (int p = 0; p < 2; p++) add(p, g, count, out);
    }
  }

 private:
  static constexpr int KIND = Format::KIND, SIZE = pk::LANES * pk::GROUP;
  using Bytes = AmxBytes<Format>;
  const Activations& a_;
  const int first_, second_;
  const uint8_t *levels_, *scales_;
  const float* bias_;
  const size_t ahead_;
  AmxSums sums_;
  alignas(64) float floats_[2][AMX_ROWS * 16];
  alignas(64) uint8_t read_[AMX_GROUPS][SIZE];

  int panel(int p) const { return p ? second_ : first_; }
  const uint8_t* levels(int g) const { return levels_ + static_cast<size_t>(g) * pk::level_bytes(KIND); }
  const uint8_t* scales(int g) const { return scales_ + pk::scale_offset(KIND, g); }

  // Bytes of some groups' weights, and a request for those of the next tile.
  void read(int from, int count) {
    for (int g = from; g < from + count; g++) {
      if (ahead_) {
        pk::prefetch(levels(g) + ahead_, pk::level_bytes(KIND));
        pk::prefetch(scales(g) + ahead_, pk::scale_bytes(KIND));
      }
      if (Bytes::AS_STORED) continue;
      W w[8];
      Format::read(levels(g), w);
      for (int i = 0; i < 8; i++) store_w(read_[g - from] + 64 * i, Bytes::SIGNED ? less_128(w[i]) : w[i]);
    }
  }

  template <int TURN> void multiply_group(int from, int g) {
    const uint8_t* weights = Bytes::AS_STORED ? levels(from + g) : read_[g];
    const int8_t* x = a_.levels + pk::GROUP * static_cast<size_t>(from + g);
    const size_t stride = a_.stride;
    amx_load<7>(weights, AMX_WIDTH);
    amx_multiply<Bytes::SIGNED, 2 * TURN>(x + first_ * stride, stride);
    amx_multiply<Bytes::SIGNED, 2 * TURN + 1>(x + second_ * stride, stride);
  }
  template <int TURN> void store_group(int g) {
    amx_store<2 * TURN>(sums_.of[0][g], AMX_WIDTH);
    amx_store<2 * TURN + 1>(sums_.of[1][g], AMX_WIDTH);
  }
  // Sums are stored while the next ones are computed.
  void multiply(int from, int count) {
    multiply_group<0>(from, 0);
    int g = 0;
    for (; g + 2 < count; g += 2) {
      multiply_group<1>(from, g + 1);
      store_group<0>(g);
      multiply_group<0>(from, g + 2);
      store_group<1>(g + 1);
    }
    if (g + 1 < count) multiply_group<1>(from, g + 1);
    store_group<0>(g);
    if (g + 1 < count) store_group<1>(g + 1);
  }

  // The floats of a panel's rows, from group `from` on. A panel's own memory has those of the groups before: rows of
  // both panels count in each.
  void add(int p, int from, int count, float* out) {
    float* before = floats_[p];
    V sums[AMX_ROWS];
    PK_UNROLLED
    for (int m = 0; m < AMX_ROWS; m++) sums[m] = from ? load(before + 16 * m) : zero();
    for (int g = 0; g < count; g++) {
      const int32_t(*dots)[16] = sums_.of[p][g];
      Format::template add<Place, AMX_ROWS>(scales(from + g), a_, panel(p), from + g, [&](const Place&, int m) { return load_i(dots[m]); }, sums);
    }
    const bool last = from + count == a_.groups;
    const V bias = last && bias_ ? load(bias_) : zero();
    float* to = last ? out + 16 * (panel(p) - first_) : before;
    PK_UNROLLED
    for (int m = 0; m < AMX_ROWS; m++) store(to + 16 * m, last && bias_ ? ::add(sums[m], bias) : sums[m]);
  }
};

// Tiles of bfloat16, one or two, times 1 to 32 rows. A sum is built in the order of groups, whatever meets it there.
template <int TILES, int PANELS> inline void amx_halves(const PkMatrix& matrix, int tile, const Activations& a, int row, float (*out)[AMX_ROWS][16]) {
  const size_t size = pk::tile_bytes(PK_BF16, a.groups), stride = a.half_stride * sizeof(Half), ahead = row == a.first ? TILES * size : 0;
  const uint8_t* weights = matrix.tiles + tile * size;
  const Half* x = a.halves + static_cast<size_t>(row) * a.half_stride;
  const size_t next = AMX_ROWS * a.half_stride;
  constexpr size_t bytes = pk::level_bytes(PK_BF16);
  amx_zero_sums();
  for (int g = 0; g < a.groups; g++, weights += bytes, x += pk::GROUP) {
    for (int t = 0; ahead && t < TILES; t++) pk::prefetch(weights + t * size + ahead, bytes);
    amx_load<4>(x, stride);
    amx_load<5>(weights, AMX_WIDTH);
    amx_add_products<0>();
    if (TILES == 2) {
      amx_load<5>(weights + size, AMX_WIDTH);
      amx_add_products<1>();
    }
    if (PANELS == 1) continue;
    amx_load<4>(x + next, stride);
    amx_add_products<1 + TILES>();
    if (TILES == 2) {
      amx_load<5>(weights, AMX_WIDTH);
      amx_add_products<2>();
    }
  }
  amx_store<0>(out[0], AMX_WIDTH);
  if (TILES == 2) amx_store<1>(out[1], AMX_WIDTH);
  if (PANELS == 2) amx_store<2>(out[2], AMX_WIDTH);
  if (PANELS == 2 && TILES == 2) amx_store<3>(out[3], AMX_WIDTH);
}

}  // namespace
