// How matrices are stored: kinds, tiles, groups and their levels.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

// How a matrix is stored. A tile is 16 outputs by all inputs; a group is 32 of its inputs.
// U4, U8: unsigned levels q, value = scale * q + minimum.  S8: value = scale * (q - 128).
// T4: levels from 0 to 15, value = scale * (IQ4[q] - 128).  F4: the same with E2M1.
// H: scale and minimum are float16.  W: they are float32.  W16: they are float32, for 16 inputs each.  B16: so are
// scales, which are bytes of type e4m3, at least 0, times the matrix's factor / 2.
// Levels of 2, 3, 5 and 6 bits are unsigned too; of S6 and S3, value = scale * (q - 32 or q - 4).
// D: the scale is float16, and the minimum -8 (U4) or -16 (U5) times it.
// K: scales and minima are signed bytes, for 32 inputs (U4, U5) or 16, times a float16 for 256 inputs of each.
enum PkKind : int32_t {
  PK_F32 = 0, PK_BF16 = 1, PK_U4H = 2, PK_U4W = 3, PK_U8H = 4, PK_U8W = 5, PK_S8H = 6, PK_S8W16 = 7, PK_U4W16 = 8,
  PK_T4H = 9, PK_T4W = 10, PK_F4W = 11, PK_F4B16 = 12, PK_U5H = 13, PK_U4D = 14, PK_U5D = 15, PK_U4K = 16,
  PK_U5K = 17, PK_S6K = 18, PK_S3K = 19, PK_U2K = 20, PK_KINDS = 21
};

// outputs, inputs: of the matrix; tiles cover them, rounded up to 16 and 32 with zeros.
// factor: of all scales of an F4B16.  tiles: 64-byte aligned.  bias: [outputs rounded up to 16] or null.
struct PkMatrix {
  int32_t kind, outputs, inputs;
  float factor;
  const uint8_t* tiles;
  const float* bias;
};

}  // extern "C"

namespace pk {

constexpr int LANES = 16;      // outputs per tile
constexpr int GROUP = 32;      // inputs that share a scale

// What four-bit levels stand for, plus 128: in GGUF's IQ4_NL and IQ4_XS, and (twice) in MXFP4 and NVFP4.
constexpr uint8_t IQ4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t E2M1[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

// Bits of a value, or of a level.
constexpr int level_bits(int kind) {
  switch (kind) {
    case PK_F32: return 32;
    case PK_BF16: return 16;
    case PK_U4H: case PK_U4W: case PK_U4W16: case PK_T4H: case PK_T4W: case PK_F4W: case PK_F4B16: case PK_U4D: case PK_U4K: return 4;
    case PK_U5H: case PK_U5D: case PK_U5K: return 5;
    case PK_S6K: return 6;
    case PK_S3K: return 3;
    case PK_U2K: return 2;
    default: return 8;
  }
}
// Bytes of a group's levels (or values).
constexpr int level_bytes(int kind) { return LANES * GROUP * level_bits(kind) / 8; }
// Bytes of a group's scales and minima.
constexpr int scale_bytes(int kind) {
  switch (kind) {
    case PK_F32: case PK_BF16: return 0;
    case PK_U4H: case PK_U8H: case PK_U5H: return 4 * LANES;
    case PK_U4W: case PK_U8W: return 8 * LANES;
    case PK_S8H: case PK_T4H: case PK_F4B16: case PK_U4D: case PK_U5D: return 2 * LANES;
    case PK_U4K: case PK_U5K: case PK_S6K: case PK_S3K: return 2 * LANES;
    case PK_T4W: case PK_F4W: case PK_U2K: return 4 * LANES;
    case PK_U4W16: return 16 * LANES;
    default: return 8 * LANES;
  }
}
// Groups that have float16 factors in common, which lie in front of the first one's scales, and their bytes.
constexpr int SUPER_GROUPS = 8;
constexpr int super_bytes(int kind) {
  switch (kind) {
    case PK_U4K: case PK_U5K: case PK_U2K: return 4 * LANES;
    case PK_S6K: case PK_S3K: return 2 * LANES;
    default: return 0;
  }
}
// Bytes from a tile's first scales, or the factors in front of them, to those of group g, and back from these to their
// factors.
constexpr size_t scale_offset(int kind, int g) {
  return static_cast<size_t>(g) * scale_bytes(kind) + static_cast<size_t>(g / SUPER_GROUPS + 1) * super_bytes(kind);
}
constexpr int factors_before(int kind, int g) { return super_bytes(kind) + g % SUPER_GROUPS * scale_bytes(kind); }

// Where levels of 2 to 8 bits lie: four inputs of all outputs are a vector of 64 bytes. Vectors 0 to 7 of a group lie one
// behind another (8 bits), two in a byte (4 bits), or four (2 bits); behind these come the third bits of eight vectors,
// the fifth ones, or two more bits of four vectors each.
// at: byte 4 * output + input % 4, of the vector input / 4.
constexpr int low_bits(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : 2; }
inline int level_at(const uint8_t* q, int bits, int vector, int at) {
  const int low = low_bits(bits), share = 8 / low, more = bits - low;
  int level = (q[64 * (vector / share) + at] >> (low * (vector % share))) & ((1 << low) - 1);
  const uint8_t* rest = q + 64 * low;
  if (more == 1) level |= ((rest[at] >> vector) & 1) << low;
  if (more == 2) level |= ((rest[64 * (vector / 4) + at] >> (2 * (vector % 4))) & 3) << low;
  return level;
}
// Forms of a product's input that a matrix of some kind reads; a set of bits.
// HALF_GROUPS: with levels, their sums over each 16 inputs.  SUPER_LEVELS: levels that have a scale for all inputs of eight
// groups, on instruction sets that gain by it (see activations.h); on all others it is LEVELS.
enum Form { FLOATS = 1, HALVES = 2, LEVELS = 4, HALF_GROUPS = 8, SUPER_LEVELS = 16 };
constexpr int form_of(int kind) {
  switch (kind) {
    case PK_F32: return FLOATS;
    case PK_BF16: return HALVES;
    case PK_S8W16: case PK_U4W16: case PK_F4B16: case PK_S3K: case PK_U2K: return LEVELS | HALF_GROUPS;
    case PK_U4K: case PK_U5K: return SUPER_LEVELS;
    case PK_S6K: return SUPER_LEVELS | HALF_GROUPS;
    default: return LEVELS;
  }
}

// A tile is its groups' levels, then its groups' scales and minima, rounded up to 64 bytes.
constexpr size_t tile_bytes(int kind, int groups) {
  const size_t scales = groups ? scale_offset(kind, groups - 1) + scale_bytes(kind) : 0;
  return (static_cast<size_t>(groups) * level_bytes(kind) + scales + 63) / 64 * 64;
}

}  // namespace pk
