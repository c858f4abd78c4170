// Philox-4x32-10: counter-based random numbers (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011).
#include "interface.h"

namespace {

struct Words { uint32_t w[4]; };

Words philox(Words counter, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; round++) {
    const uint64_t left = uint64_t{0xD2511F53} * counter.w[0], right = uint64_t{0xCD9E8D57} * counter.w[2];
    counter = {{static_cast<uint32_t>(right >> 32) ^ counter.w[1] ^ k0, static_cast<uint32_t>(right),
                static_cast<uint32_t>(left >> 32) ^ counter.w[3] ^ k1, static_cast<uint32_t>(left)}};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

}  // namespace

extern "C" void pk_uniform(int count, const uint64_t* seeds, const uint64_t* sequences, const uint64_t* tokens, double* draws) {
  for (int i = 0; i < count; i++) {
    const Words counter = {{static_cast<uint32_t>(tokens[i]), static_cast<uint32_t>(tokens[i] >> 32), static_cast<uint32_t>(sequences[i]), 0}};
    const Words words = philox(counter, static_cast<uint32_t>(seeds[i]), static_cast<uint32_t>(seeds[i] >> 32));
    const uint64_t bits = (uint64_t{words.w[0] >> 5} << 26) + (words.w[1] >> 6);
    draws[i] = static_cast<double>(bits) / 9007199254740992.0;
  }
}
