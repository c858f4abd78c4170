// The likeliest token of each row, while its logits are computed: they are never written to memory.
#pragma once
#include "threads.h"

namespace {

// Largest logit of a row among those that a thread has computed, and the token that has it; -1: one isn't a finite number.
struct Peak { float logit; int32_t token; };

// What a thread keeps of the rows of a block: for each, 16 lanes of three numbers.
class Peaks {
 public:
  static constexpr int FLOATS = 3 * 16;  // of a row

  explicit Peaks(float* lanes) : lanes_(lanes) {}

  void begin(int rows) {
    for (int r = 0; r < rows; r++) {
      store(at(r, LARGEST), set1(-__builtin_inff()));
      store(at(r, TILE), zero());
      store(at(r, ODD), zero());
    }
  }

  // logits: of row r and the tokens from 16 * tile on, `count` of them, at most 16.
  void take(int r, int tile, int count, V logits) {
    if (count < 16) logits = keep_through(logits, 0, count - 1, 0.0f);
    // 0 * x is not 0 where x isn't finite, and what isn't finite stays in the sum.
    store(at(r, ODD), fma(logits, zero(), load(at(r, ODD))));
    if (count < 16) logits = keep_through(logits, 0, count - 1, -__builtin_inff());
    const V largest = load(at(r, LARGEST));
    // A lane's tiles ascend: of equal logits, it keeps the first.
    store(at(r, TILE), where_greater(logits, largest, set1(static_cast<float>(tile)), load(at(r, TILE))));
    store(at(r, LARGEST), where_greater(logits, largest, logits, largest));
  }

  Peak of(int r) const {
    Peak peak{-__builtin_inff(), 0};
    const float *largest = at(r, LARGEST), *tiles = at(r, TILE), *odd = at(r, ODD);
    for (int lane = 0; lane < 16; lane++) {
      if (odd[lane] != 0.0f) return {0.0f, -1};
      peak = likelier(peak, {largest[lane], 16 * static_cast<int32_t>(tiles[lane]) + lane});
    }
    return peak;
  }

  // Of two threads' or lanes' the one that counts.
  static Peak likelier(Peak a, Peak b) {
    if (a.token < 0 || b.token < 0) return {0.0f, -1};
    if (a.logit == b.logit) return a.token < b.token ? a : b;
    return a.logit > b.logit ? a : b;
  }

 private:
  enum Number { LARGEST, TILE, ODD };
  float* lanes_;

  float* at(int r, Number number) const { return lanes_ + FLOATS * r + 16 * number; }
};

}  // namespace
