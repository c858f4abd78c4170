// A row's candidates: their order, the last of those that together have a given mass, sums of their weights, and the memory
// that a thread has for them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "types.h"

namespace {

constexpr int SUM_BLOCK = 512;  // places whose weights are added up together; part of the numbers
constexpr int SUM_LANES = 8;    // partial sums in a block; part of the numbers
constexpr int BUCKET_BITS = 8;
constexpr int FEW = 48;  // as many are sorted

// A candidate. key: larger is likelier.
struct Item {
  uint64_t key;
  int64_t id;
};

inline bool comes_before(const Item& a, const Item& b) { return a.key != b.key ? a.key > b.key : a.id < b.id; }

// Orders as the float does, with -0 equal to 0.
inline uint64_t key_of(float logit) {
  const float x = logit + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Weights aren't negative: their bits order as they do.
inline uint64_t key_of(double weight) {
  uint64_t bits;
  std::memcpy(&bits, &weight, 8);
  return bits;
}

inline double weight_of(uint64_t key) {
  double weight;
  std::memcpy(&weight, &key, 8);
  return weight;
}

inline double one(uint64_t) { return 1.0; }

inline int bit_length(uint64_t x) { return x ? 64 - __builtin_clzll(x) : 0; }

// The last of the likeliest items that together have `wanted` mass.
// Items are dealt into buckets by key, likeliest first, and only the bucket in which the mass is
// reached is looked at again: some passes over few items, whatever the distribution.
// items: at least one, in the order of their ids; changed.
template <class Mass> Item last_kept(Item* items, int count, double wanted, Mass mass) {
  double held = 0.0;
  uint64_t low, high;
  for (;;) {
    low = high = items[0].key;
    for (int i = 1; i < count; i++) {
      low = std::min(low, items[i].key);
      high = std::max(high, items[i].key);
    }
    if (count <= FEW || low == high) break;
    const int shift = std::max(0, bit_length(high - low) - BUCKET_BITS);
    double sums[1 << BUCKET_BITS] = {};
    for (int i = 0; i < count; i++) sums[(high - items[i].key) >> shift] += mass(items[i].key);
    // Rounding may leave the sum of all short of what is wanted: then it ends in the last bucket.
    const uint64_t last = (high - low) >> shift;
    uint64_t bucket = 0;
    while (bucket < last && held + sums[bucket] < wanted) held += sums[bucket++];
    int kept = 0;
    for (int i = 0; i < count; i++)
      if ((high - items[i].key) >> shift == bucket) items[kept++] = items[i];
    count = kept;
  }
  if (low != high) std::sort(items, items + count, comes_before);
  int place = 0;
  while (place + 1 < count && (held += mass(items[place].key)) < wanted) place++;
  return items[place];
}

inline double sum_of(const double* weights, int count) {
  double lanes[SUM_LANES] = {};
  int i = 0;
  for (; i + SUM_LANES <= count; i += SUM_LANES)
    for (int lane = 0; lane < SUM_LANES; lane++) lanes[lane] += weights[i + lane];
  for (int lane = 0; i < count; i++, lane++) lanes[lane] += weights[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

constexpr double ESTIMATED = 4e-6;  // what the estimate of a row's total may be off by, as a part of it

// sums[g]: of e^((logits[i] - largest) / temperature) over the VOCAB_GROUP places of group g, in float32.  scale: log2(e) /
// temperature.  All sums together are off by less than ESTIMATED: 2^x is off by 1.25e-7 |x|, as x is rounded three times,
// and by 5e-7 of the series and its roundings; and the mean of |x| by weight is at most log2 of the vocabulary, as that is
// the highest entropy and the total is at least 1.
inline void estimate(const float* logits, int count, float largest, float scale, double* sums) {
  constexpr float SHIFTER = 12582912.0f, LEAST = -120.0f;  // 1.5 * 2^23; and no subnormal numbers
  for (int start = 0; start < count; start += pk::VOCAB_GROUP) {
    const int size = count - start < pk::VOCAB_GROUP ? count - start : pk::VOCAB_GROUP;
    float powers[pk::VOCAB_GROUP];
    // A loop of its own: with the bound inside of the next one GCC makes branches of it.
#pragma omp simd
    for (int i = 0; i < size; i++) {
      const float exponent = (logits[start + i] - largest) * scale;
      powers[i] = exponent > LEAST ? exponent : LEAST;
    }
#pragma omp simd
    for (int i = 0; i < size; i++) {
      const float x = powers[i], shifted = x + SHIFTER, r = x - (shifted - SHIFTER);
      // The series of 2^r, |r| <= 1/2: powers of ln 2 over factorials.
      float p = 1.54035304e-4f;
      p = p * r + 1.33335581e-3f;
      p = p * r + 9.61812911e-3f;
      p = p * r + 5.55041087e-2f;
      p = p * r + 2.40226507e-1f;
      p = p * r + 6.93147181e-1f;
      p = p * r + 1.0f;
      uint32_t power, bits;
      __builtin_memcpy(&power, &shifted, 4);
      __builtin_memcpy(&bits, &p, 4);
      bits += power << 23;
      __builtin_memcpy(powers + i, &bits, 4);
    }
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < size; i++) sum += powers[i];
    *sums++ = sum;
  }
}

// One thread's memory.
struct Room {
  float* logits;    // [vocab] a row that had to be changed
  float* maxima;    // [groups] of the row at hand
  double* weights;  // [vocab] of the candidates
  double* sums;     // [blocks] of the weights
  int32_t* ids;     // [vocab] of the candidates, ascending, unless they are the whole vocabulary
  int32_t* places;  // [vocab] of some of the candidates
  float* some;      // [vocab] their logits
  double* estimates;  // [groups] sums of weights, nearly
  Item *items, *spare;  // [vocab]
};

template <class T> void take(char*& at, T*& piece, size_t count) {
  piece = reinterpret_cast<T*>(at);
  at += (count * sizeof(T) + 63) / 64 * 64;
}

inline int parts(int count, int unit) { return (count + unit - 1) / unit; }

// at: null to measure only.  Returns its end.
inline char* place(Room& room, int vocab, char* at) {
  take(at, room.logits, vocab);
  take(at, room.maxima, parts(vocab, pk::VOCAB_GROUP));
  take(at, room.weights, vocab);
  take(at, room.sums, parts(vocab, SUM_BLOCK));
  take(at, room.ids, vocab);
  take(at, room.places, vocab);
  take(at, room.some, vocab);
  take(at, room.estimates, parts(vocab, pk::VOCAB_GROUP));
  take(at, room.items, vocab);
  take(at, room.spare, vocab);
  return at;
}

inline size_t room_bytes(int vocab) {
  Room room;
  return reinterpret_cast<size_t>(place(room, vocab, nullptr));
}

}  // namespace
