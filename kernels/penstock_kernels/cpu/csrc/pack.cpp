// From the rows of a checkpoint to tiles.
#include <cmath>
#include <cstring>

#include "interface.h"

namespace {

// For functions that are made anew for each format: what isn't its own falls away.
#define PK_INLINE __attribute__((always_inline)) inline

using pk::GROUP;

float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  uint32_t bits;
  if (exponent == 31) bits = sign | 0x7f800000u | (mantissa << 13);
  else if (exponent) bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  else {
    const float small = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -small : small;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Rounds to nearest even.
uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00;
  if (bits >= 0x477ff000u) return sign | 0x7c00;
  if (bits < 0x38800000u) {
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    return sign | static_cast<uint16_t>(std::nearbyintf(magnitude * 16777216.0f));
  }
  bits += 0xfffu + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((bits - 0x38000000u) >> 13);
}

float bf16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 64);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

template <class T> T read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

constexpr size_t LEVELS_BLOCK = 16 + GROUP;  // bytes of a block of PK_LEVELS

// 32 values as the checkpoint has them: levels with scales and minima, or floats. The second scale and
// the second minimum are those of the latter 16, where they have their own.
struct Levels {
  uint8_t levels[GROUP];
  float scales[2];
  float minimum;
  float second_minimum;
  // Of K-quants, what scales and minima are made of: numbers of a byte, and the float16 factors of a super-block.
  int8_t scale_bytes[4];
  uint16_t factors[2];
};

constexpr uint16_t HALF_SIGN = 0x8000;

void q4(const uint8_t* q, uint8_t* levels) {
  for (int i = 0; i < 16; i++) {
    levels[i] = q[i] & 15;
    levels[i + 16] = q[i] >> 4;
  }
}
// Bit i of a byte as byte i, 0 or 1.
uint64_t spread(uint8_t bits) {
  const uint64_t apart = (bits * 0x0101010101010101ull) & 0x8040201008040201ull;
  return ((apart + 0x7f7f7f7f7f7f7f7full) >> 7) & 0x0101010101010101ull;
}
void q5(const uint8_t* high, const uint8_t* q, uint8_t* levels) {
  q4(q, levels);
  for (int i = 0; i < GROUP; i += 8) {
    const uint64_t fifth = read<uint64_t>(levels + i) | spread(high[i / 8]) << 4;
    std::memcpy(levels + i, &fifth, 8);
  }
}
// Adds the bits `mask` of 32 bytes, from bit `from` on, to levels that have none there, at bit `to`. Eight levels at a time.
PK_INLINE void add_bits(const uint8_t* bytes, int from, uint8_t mask, int to, uint8_t* levels) {
  const uint64_t masks = mask * 0x0101010101010101ull;
  for (int i = 0; i < GROUP; i += 8) {
    const uint64_t more = read<uint64_t>(levels + i) | ((read<uint64_t>(bytes + i) >> from) & masks) << to;
    std::memcpy(levels + i, &more, 8);
  }
}
// The six-bit scale and minimum number j of a K-quant's super-block.
void k_scale(const uint8_t* packed, int j, int& scale, int& minimum) {
  if (j < 4) {
    scale = packed[j] & 63;
    minimum = packed[j + 4] & 63;
  } else {
    scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
    minimum = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
  }
}

// 2 to the power of e - 128; below 2^-126, numbers are subnormal.
float power_of_two(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x200000u << e : static_cast<uint32_t>(e - 1) << 23;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
// e4m3 without its sign, divided by 256. What isn't a number is 0, as ggml has it.
float e4m3(uint8_t b) { return (b & 127) == 127 ? 0.0f : half_to_float(static_cast<uint16_t>((b & 127) << 7)); }
// Group j of eight in a super-block's 64 bytes of two-bit levels: 32 bytes hold four groups.
PK_INLINE void two_bits(const uint8_t* q, int j, uint8_t* levels) { add_bits(q + 32 * (j / 4), 2 * (j % 4), 3, 0, levels); }
// The six-bit scale number i of sixteen in Q3_K's twelve bytes.
int q3_scale(const uint8_t* packed, int i) {
  const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4, high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
  return (low | high << 4) - 32;
}

// Group g of a row of blocks whose levels have two or three bits, or stand for a table's entries.
PK_INLINE Levels decode_small(int source, const uint8_t* row, int g) {
  Levels out{};
  const int j = g % 8;
  const uint8_t* b;
  switch (source) {
    case PK_Q2_K:
      b = row + 84 * (g / 8);
      two_bits(b + 16, j, out.levels);
      for (int i = 0; i < 2; i++) out.scales[i] = half_to_float(read<uint16_t>(b + 80)) * static_cast<float>(b[2 * j + i] & 15);
      out.minimum = -half_to_float(read<uint16_t>(b + 82)) * static_cast<float>(b[2 * j] >> 4);
      out.second_minimum = -half_to_float(read<uint16_t>(b + 82)) * static_cast<float>(b[2 * j + 1] >> 4);
      for (int i = 0; i < 4; i++) out.scale_bytes[i] = static_cast<int8_t>(i < 2 ? b[2 * j + i] & 15 : b[2 * j + i - 2] >> 4);
      out.factors[0] = read<uint16_t>(b + 80);
      out.factors[1] = read<uint16_t>(b + 82) ^ HALF_SIGN;
      break;
    case PK_Q3_K:
      b = row + 110 * (g / 8);
      two_bits(b + 32, j, out.levels);
      add_bits(b, j, 1, 2, out.levels);
      out.factors[0] = read<uint16_t>(b + 108);
      for (int i = 0; i < 2; i++) {
        out.scale_bytes[i] = static_cast<int8_t>(q3_scale(b + 96, 2 * j + i));
        out.scales[i] = half_to_float(out.factors[0]) * static_cast<float>(out.scale_bytes[i]);
      }
      break;
    case PK_IQ4_NL:
      b = row + 18 * g;
      q4(b + 2, out.levels);
      out.scales[0] = half_to_float(read<uint16_t>(b));
      break;
    case PK_IQ4_XS: {
      b = row + 136 * (g / 8);
      q4(b + 8 + 16 * j, out.levels);
      const int low = (b[4 + j / 2] >> (4 * (j % 2))) & 15, high = (b[2 + j / 4] >> (2 * (j % 4))) & 3;
      out.scales[0] = half_to_float(read<uint16_t>(b)) * static_cast<float>((low | high << 4) - 32);
      break;
    }
    case PK_NVFP4:  // four times 16 values, each in 8 bytes
      b = row + 36 * (g / 2) + 2 * (g % 2);
      for (int i = 0; i < 2; i++) {
        const uint8_t* q = row + 36 * (g / 2) + 4 + 16 * (g % 2) + 8 * i;
        for (int k = 0; k < 8; k++) {
          out.levels[16 * i + k] = q[k] & 15;
          out.levels[16 * i + 8 + k] = q[k] >> 4;
        }
        out.scales[i] = e4m3(b[i]);
      }
      break;
    default:  // PK_MXFP4
      b = row + 17 * g;
      q4(b + 1, out.levels);
      out.scales[0] = power_of_two(b[0]);
  }
  return out;
}

// Group g of a row of GGUF blocks.
PK_INLINE Levels decode(int source, const uint8_t* row, int g) {
  Levels out{};
  const uint8_t* b;
  switch (source) {
    case PK_Q4_0:
      b = row + 18 * g;
      q4(b + 2, out.levels);
      out.scales[0] = half_to_float(read<uint16_t>(b));
      out.minimum = -8.0f * out.scales[0];
      break;
    case PK_Q4_1:
      b = row + 20 * g;
      q4(b + 4, out.levels);
      out.scales[0] = half_to_float(read<uint16_t>(b));
      out.minimum = half_to_float(read<uint16_t>(b + 2));
      break;
    case PK_Q5_0:
      b = row + 22 * g;
      q5(b + 2, b + 6, out.levels);
      out.scales[0] = half_to_float(read<uint16_t>(b));
      out.minimum = -16.0f * out.scales[0];
      break;
    case PK_Q5_1:
      b = row + 24 * g;
      q5(b + 4, b + 8, out.levels);
      out.scales[0] = half_to_float(read<uint16_t>(b));
      out.minimum = half_to_float(read<uint16_t>(b + 2));
      break;
    case PK_Q8_0:
      b = row + 34 * g;
      for (int i = 0; i < GROUP; i++) out.levels[i] = static_cast<uint8_t>(b[2 + i] ^ 128);
      out.scales[0] = half_to_float(read<uint16_t>(b));
      break;
    case PK_Q4_K: case PK_Q5_K: {
      const bool five = source == PK_Q5_K;
      b = row + (five ? 176 : 144) * (g / 8);
      const int j = g % 8;
      const uint8_t *high = b + 16, *q = b + (five ? 48 : 16) + 32 * (j / 2);
      add_bits(q, 4 * (j % 2), 15, 0, out.levels);
      if (five) add_bits(high, j, 1, 4, out.levels);
      int scale, minimum;
      k_scale(b + 4, j, scale, minimum);
      out.scales[0] = half_to_float(read<uint16_t>(b)) * static_cast<float>(scale);
      out.minimum = -half_to_float(read<uint16_t>(b + 2)) * static_cast<float>(minimum);
      out.scale_bytes[0] = static_cast<int8_t>(scale);
      out.scale_bytes[1] = static_cast<int8_t>(minimum);
      out.factors[0] = read<uint16_t>(b);
      out.factors[1] = read<uint16_t>(b + 2) ^ HALF_SIGN;
      break;
    }
    case PK_LEVELS:
      b = row + LEVELS_BLOCK * static_cast<size_t>(g);
      for (int i = 0; i < 2; i++) out.scales[i] = read<float>(b + 4 * i);
      out.minimum = read<float>(b + 8);
      out.second_minimum = read<float>(b + 12);
      std::memcpy(out.levels, b + 16, GROUP);
      break;
    case PK_Q6_K: {
      b = row + 210 * (g / 8);
      const int j = g % 8, part = j / 4, quarter = j % 4;  // 128 values a part, 32 a quarter
      const uint8_t *low = b + 64 * part + 32 * (quarter % 2), *high = b + 128 + 32 * part;
      add_bits(low, 4 * (quarter / 2), 15, 0, out.levels);
      add_bits(high, 2 * quarter, 3, 4, out.levels);
      out.factors[0] = read<uint16_t>(b + 208);
      for (int i = 0; i < 2; i++) {
        out.scale_bytes[i] = static_cast<int8_t>(b[192 + 2 * j + i]);
        out.scales[i] = half_to_float(out.factors[0]) * static_cast<float>(out.scale_bytes[i]);
      }
      break;
    }
    default: return decode_small(source, row, g);
  }
  return out;
}

PK_INLINE float plain_value(int source, const uint8_t* row, int k) {
  if (source == PK_SOURCE_F32) return read<float>(row + 4 * static_cast<size_t>(k));
  const uint16_t half = read<uint16_t>(row + 2 * static_cast<size_t>(k));
  return source == PK_SOURCE_F16 ? half_to_float(half) : bf16_to_float(half);
}

// Two numbers of a row in bfloat16, from number k on, behind one another; beyond its end there are zeros.
PK_INLINE uint32_t two_bf16(int source, const uint8_t* row, int k, int inputs) {
  if (source == PK_SOURCE_BF16 && k + 1 < inputs) {
    const uint32_t both = read<uint32_t>(row + 2 * static_cast<size_t>(k)), quiet = 64;
    const bool first = (both & 0x7fff) > 0x7f80, second = (both >> 16 & 0x7fff) > 0x7f80;  // no numbers: quiet ones
    return both | (first ? quiet : 0) | (second ? quiet << 16 : 0);
  }
  uint32_t both = 0;
  for (int i = 0; i < 2; i++)
    if (k + i < inputs) both |= static_cast<uint32_t>(float_to_bf16(plain_value(source, row, k + i))) << (16 * i);
  return both;
}

// Group g of a row of plain numbers, to signed bytes.
Levels quantise(int source, const uint8_t* row, int g, int inputs) {
  Levels out{};
  float values[GROUP] = {}, peak = 0.0f;
  for (int i = 0; i < GROUP && GROUP * g + i < inputs; i++) {
    values[i] = plain_value(source, row, GROUP * g + i);
    peak = std::fabs(values[i]) > peak ? std::fabs(values[i]) : peak;
    // A group with NaN or infinity is NaN; no comparison above changes that.
    if (!std::isfinite(values[i])) peak = NAN;
  }
  const float scale = half_to_float(float_to_half(peak / 127.0f));
  out.scales[0] = scale;
  for (int i = 0; i < GROUP; i++) {
    const float level = scale > 0.0f ? std::nearbyintf(values[i] / scale) : 0.0f;
    out.levels[i] = static_cast<uint8_t>((level > 127 ? 127 : level < -127 ? -127 : static_cast<int>(level)) + 128);
  }
  return out;
}

PK_INLINE void put_scale(uint8_t* scales, bool wide, int index, int lane, float value) {
  if (wide) std::memcpy(scales + 4 * (16 * index + lane), &value, 4);
  else {
    const uint16_t half = float_to_half(value);
    std::memcpy(scales + 2 * (16 * index + lane), &half, 2);
  }
}

// Four levels at a time (see pk::level_at).
PK_INLINE void put_levels(int kind, uint8_t* q, int lane, const Levels& group) {
  const int bits = pk::level_bits(kind), low = pk::low_bits(bits), more = bits - low, share = 8 / low;
  const uint32_t ones = 0x01010101u;
  uint32_t vectors[8], rest[2] = {};
  std::memcpy(vectors, group.levels, GROUP);
  for (int i = 0; i < 8; i += share) {
    uint32_t four = 0;
    for (int j = 0; j < share; j++) four |= (vectors[i + j] & (((1u << low) - 1) * ones)) << (low * j);
    std::memcpy(q + 64 * (i / share) + 4 * lane, &four, 4);
  }
  for (int i = 0; i < 8 && more; i++) rest[more * i / 8] |= (vectors[i] >> low & ((1u << more) - 1) * ones) << (more * i % 8);
  for (int i = 0; i < more; i++) std::memcpy(q + 64 * (low + i) + 4 * lane, &rest[i], 4);
}

PK_INLINE void put_scales(int kind, uint8_t* s, int g, int lane, const Levels& group) {
  if (pk::super_bytes(kind)) {
    std::memcpy(s - pk::factors_before(kind, g) + 2 * lane, group.factors, 2);
    if (pk::super_bytes(kind) == 4 * pk::LANES) std::memcpy(s - pk::factors_before(kind, g) + 2 * (16 + lane), group.factors + 1, 2);
    for (int i = 0; i < pk::scale_bytes(kind) / pk::LANES; i++) s[16 * i + lane] = static_cast<uint8_t>(group.scale_bytes[i]);
    return;
  }
  if (kind == PK_F4B16) {
    for (int i = 0; i < 2; i++) s[16 * i + lane] = static_cast<uint8_t>(float_to_half(group.scales[i]) >> 7);
    return;
  }
  const bool halves = kind == PK_S8W16 || kind == PK_U4W16;
  const bool wide = kind == PK_U4W || kind == PK_U8W || halves || kind == PK_T4W || kind == PK_F4W;
  put_scale(s, wide, 0, lane, group.scales[0]);
  if (halves) put_scale(s, wide, 1, lane, group.scales[1]);
  else if (pk::scale_bytes(kind) > (wide ? 4 : 2) * pk::LANES) put_scale(s, wide, 1, lane, group.minimum);
  if (kind == PK_U4W16) {
    put_scale(s, wide, 2, lane, group.minimum);
    put_scale(s, wide, 3, lane, group.second_minimum);
  }
}

PK_INLINE void put_plain(int kind, uint8_t* q, int lane, int source, const uint8_t* row, int g, int inputs) {
  for (int i = 0; i < GROUP; i++) {
    const int k = GROUP * g + i;
    if (kind == PK_F32) {
      const float value = k < inputs ? plain_value(source, row, k) : 0.0f;
      std::memcpy(q + 4 * (16 * i + lane), &value, 4);
    } else if (i % 2 == 0) {
      const uint32_t both = two_bf16(source, row, k, inputs);
      std::memcpy(q + 64 * (i / 2) + 4 * lane, &both, 4);
    }
  }
}

bool is_plain(int source) { return source == PK_SOURCE_F32 || source == PK_SOURCE_F16 || source == PK_SOURCE_BF16; }

// The one kind that a format of blocks is packed as.
constexpr int own_kind(int source) {
  switch (source) {
    case PK_Q4_0: return PK_U4D;
    case PK_Q4_1: return PK_U4H;
    case PK_Q5_0: return PK_U5D;
    case PK_Q5_1: return PK_U5H;
    case PK_Q8_0: return PK_S8H;
    case PK_Q2_K: return PK_U2K;
    case PK_Q3_K: return PK_S3K;
    case PK_Q4_K: return PK_U4K;
    case PK_Q5_K: return PK_U5K;
    case PK_Q6_K: return PK_S6K;
    case PK_IQ4_NL: return PK_T4H;
    case PK_IQ4_XS: return PK_T4W;
    case PK_MXFP4: return PK_F4W;
    case PK_NVFP4: return PK_F4B16;
    default: return -1;
  }
}

// A row of a checkpoint and where it goes.
struct Place {
  const uint8_t* row;
  int inputs;
  uint8_t* tiles;
  int output;
};

PK_INLINE bool pack_groups(int source, int kind, Place at) {
  const int groups = pk::padded(at.inputs, GROUP) / GROUP, lane = at.output % pk::LANES;
  uint8_t* levels = at.tiles + at.output / pk::LANES * pk::tile_bytes(kind, groups);
  uint8_t* scales = levels + static_cast<size_t>(groups) * pk::level_bytes(kind);
  bool sound = true;
  for (int g = 0; g < groups; g++) {
    uint8_t* q = levels + static_cast<size_t>(g) * pk::level_bytes(kind);
    uint8_t* s = scales + pk::scale_offset(kind, g);
    if (kind == PK_F32 || kind == PK_BF16) put_plain(kind, q, lane, source, at.row, g, at.inputs);
    else {
      const Levels group = is_plain(source) ? quantise(source, at.row, g, at.inputs) : decode(source, at.row, g);
      sound = sound && (is_plain(source) || (std::isfinite(group.scales[0] + group.scales[1]) && std::isfinite(group.minimum + group.second_minimum)));
      put_levels(kind, q, lane, group);
      put_scales(kind, s, g, lane, group);
    }
  }
  return sound;
}

// With format and kind known to the compiler: three to five times as fast.
template <int SOURCE> bool pack_own(Place at) { return pack_groups(SOURCE, own_kind(SOURCE), at); }

}  // namespace

namespace pk {

size_t source_row_bytes(int source, int inputs) {
  const size_t n = inputs;
  switch (source) {
    case PK_SOURCE_F32: return 4 * n;
    case PK_SOURCE_F16: case PK_SOURCE_BF16: return 2 * n;
    case PK_Q4_0: return 18 * (n / 32);
    case PK_Q4_1: return 20 * (n / 32);
    case PK_Q5_0: return 22 * (n / 32);
    case PK_Q5_1: return 24 * (n / 32);
    case PK_Q8_0: return 34 * (n / 32);
    case PK_Q4_K: return 144 * (n / 256);
    case PK_Q5_K: return 176 * (n / 256);
    case PK_Q6_K: return 210 * (n / 256);
    case PK_LEVELS: return LEVELS_BLOCK * (padded(inputs, GROUP) / GROUP);
    case PK_Q2_K: return 84 * (n / 256);
    case PK_Q3_K: return 110 * (n / 256);
    case PK_IQ4_NL: return 18 * (n / 32);
    case PK_IQ4_XS: return 136 * (n / 256);
    case PK_MXFP4: return 17 * (padded(inputs, GROUP) / GROUP);
    case PK_NVFP4: return 36 * (padded(inputs, 2 * GROUP) / (2 * GROUP));
    default: return 0;
  }
}

bool can_pack(int source, int inputs, int kind) {
  if (inputs < 1) return false;
  switch (source) {
    case PK_SOURCE_F32: case PK_SOURCE_F16: case PK_SOURCE_BF16: return kind == PK_F32 || kind == PK_BF16 || kind == PK_S8H;
    case PK_LEVELS: return kind >= PK_U4H && kind <= PK_U4W16;
    case PK_Q4_0: case PK_Q4_1: case PK_Q5_0: case PK_Q5_1: case PK_Q8_0: case PK_IQ4_NL:
      return inputs % 32 == 0 && kind == own_kind(source);
    case PK_Q2_K: case PK_Q3_K: case PK_Q4_K: case PK_Q5_K: case PK_Q6_K: case PK_IQ4_XS:
      return inputs % 256 == 0 && kind == own_kind(source);
    case PK_MXFP4: case PK_NVFP4: return kind == own_kind(source);
    default: return false;
  }
}

bool pack_row(int source, const uint8_t* row, int inputs, int kind, uint8_t* tiles, int output) {
  const Place place{row, inputs, tiles, output};
  switch (source) {
    case PK_Q4_0: return pack_own<PK_Q4_0>(place);
    case PK_Q4_1: return pack_own<PK_Q4_1>(place);
    case PK_Q5_0: return pack_own<PK_Q5_0>(place);
    case PK_Q5_1: return pack_own<PK_Q5_1>(place);
    case PK_Q8_0: return pack_own<PK_Q8_0>(place);
    case PK_Q2_K: return pack_own<PK_Q2_K>(place);
    case PK_Q3_K: return pack_own<PK_Q3_K>(place);
    case PK_Q4_K: return pack_own<PK_Q4_K>(place);
    case PK_Q5_K: return pack_own<PK_Q5_K>(place);
    case PK_Q6_K: return pack_own<PK_Q6_K>(place);
    case PK_IQ4_NL: return pack_own<PK_IQ4_NL>(place);
    case PK_IQ4_XS: return pack_own<PK_IQ4_XS>(place);
    case PK_MXFP4: return pack_own<PK_MXFP4>(place);
    case PK_NVFP4: return pack_own<PK_NVFP4>(place);
    case PK_SOURCE_BF16: return kind == PK_BF16 ? pack_groups(PK_SOURCE_BF16, PK_BF16, place) : pack_groups(PK_SOURCE_BF16, kind, place);
    case PK_SOURCE_F16: return pack_groups(PK_SOURCE_F16, kind, place);
    default: return pack_groups(source, kind, place);
  }
}

}  // namespace pk
