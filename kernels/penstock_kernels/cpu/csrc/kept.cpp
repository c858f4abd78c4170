// KV blocks on their way to where they are kept outside of the cache: copied together, given a checksum, and written to
// a file by a thread that takes only the time which nobody else wants.
#include "interface.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

// The checksum is that of kernels/reference/checksum.py, which says what it is made of.
constexpr int STRIPE = 1024, LANES = 2, SHIFT = 4;
constexpr int WORDS = STRIPE / 4;
constexpr uint64_t PRIME = (UINT64_C(1) << 61) - 1;
constexpr uint64_t POINTS[LANES] = {UINT64_C(0x0F3A5C6E9B1D2847), UINT64_C(0x1B6D93A7C4E8501F)};
constexpr int NICENESS = 10;

struct Added {
  alignas(16) uint32_t words[WORDS + SHIFT * (LANES - 1)];
  Added() {
    uint64_t state = 0;
    for (uint32_t& word : words) {
      uint64_t mixed = state += UINT64_C(0x9E3779B97F4A7C15);
      mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
      mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94D049BB133111EB);
      word = static_cast<uint32_t>((mixed ^ (mixed >> 31)) >> 32);
    }
  }
};
const Added added;

void sums_of_stripe(const uint8_t* data, uint64_t* sums) {
#if defined(__SSE2__)
  __m128i total[LANES] = {_mm_setzero_si128(), _mm_setzero_si128()};
  for (int word = 0; word < WORDS; word += 4) {
    const __m128i here = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 4 * word));
    for (int lane = 0; lane < LANES; lane++) {
      const __m128i more = _mm_load_si128(reinterpret_cast<const __m128i*>(added.words + word + SHIFT * lane));
      const __m128i both = _mm_add_epi32(here, more);
      total[lane] = _mm_add_epi64(total[lane], _mm_mul_epu32(both, _mm_srli_epi64(both, 32)));
    }
  }
  for (int lane = 0; lane < LANES; lane++) {
    alignas(16) uint64_t halves[2];
    _mm_store_si128(reinterpret_cast<__m128i*>(halves), total[lane]);
    sums[lane] = halves[0] + halves[1];
  }
#else
  uint32_t words[WORDS];
  std::memcpy(words, data, STRIPE);
  for (int lane = 0; lane < LANES; lane++) {
    sums[lane] = 0;
    for (int word = 0; word < WORDS; word += 2) {
      const uint32_t first = words[word] + added.words[word + SHIFT * lane];
      const uint32_t second = words[word + 1] + added.words[word + 1 + SHIFT * lane];
      sums[lane] += uint64_t{first} * second;
    }
  }
#endif
}

uint64_t times(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  const uint64_t sum = static_cast<uint64_t>(product & PRIME) + static_cast<uint64_t>(product >> 61);
  return sum >= PRIME ? sum - PRIME : sum;
}

struct Polynomials {
  uint64_t values[LANES] = {0, 0};
  void append(int lane, uint64_t number) {
    for (const uint64_t half : {number & UINT64_C(0xFFFFFFFF), number >> 32})
      values[lane] = times((values[lane] + half) % PRIME, POINTS[lane]);
  }
};

void checksum(const uint8_t* key, int key_bytes, const uint8_t* data, size_t size, uint64_t* out) {
  Polynomials sums;
  for (int at = 0; at + 8 <= key_bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, key + at, 8);
    for (int lane = 0; lane < LANES; lane++) sums.append(lane, word);
  }
  for (int lane = 0; lane < LANES; lane++) sums.append(lane, size);
  for (size_t at = 0; at < size; at += STRIPE) {
    uint64_t stripe[LANES];
    if (size - at >= STRIPE) {
      sums_of_stripe(data + at, stripe);
    } else {
      uint8_t rest[STRIPE] = {};
      std::memcpy(rest, data + at, size - at);
      sums_of_stripe(rest, stripe);
    }
    for (int lane = 0; lane < LANES; lane++) sums.append(lane, stripe[lane]);
  }
  for (int lane = 0; lane < LANES; lane++) out[lane] = sums.values[lane];
}

// All of it; 0, or what errno says.
int write_all(int fd, const void* data, size_t size, int64_t at) {
  const char* next = static_cast<const char*>(data);
  while (size) {
    const ssize_t written = pwrite(fd, next, size, at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    next += written, at += written, size -= written;
  }
  return 0;
}

int keep(const PkKept& kept) {
  uint64_t sums[LANES];
  const uint8_t* payload = static_cast<const uint8_t*>(kept.payload);
  checksum(static_cast<const uint8_t*>(kept.key), kept.key_bytes, payload, kept.payload_bytes, sums);
  int64_t at = kept.offset + kept.header_bytes;
  if (const int failed = write_all(kept.fd, sums, sizeof sums, at)) return failed;
  at += sizeof sums;
  if (const int failed = write_all(kept.fd, payload, kept.payload_bytes, at)) return failed;
  return write_all(kept.fd, kept.header, kept.header_bytes, kept.offset);
}

void step_back(bool idle) {
#if defined(__linux__)
  sched_param none = {};
  if (idle && sched_setscheduler(0, SCHED_IDLE, &none) == 0) return;
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), NICENESS);
#else
  (void)idle;
#endif
}

}  // namespace

extern "C" {

void pk_gather(const uint64_t* parts, const uint64_t* widths, int count, uint64_t block, void* target) {
  char* next = static_cast<char*>(target);
  for (int part = 0; part < count; part++) {
    std::memcpy(next, reinterpret_cast<const char*>(parts[part]) + block * widths[part], widths[part]);
    next += widths[part];
  }
}

void pk_checksum(const void* key, int key_bytes, const void* data, size_t size, uint64_t* out) {
  checksum(static_cast<const uint8_t*>(key), key_bytes, static_cast<const uint8_t*>(data), size, out);
}

int pk_keep(const PkKept* kept, int idle) {
  int failed = 0;
  try {
    // A thread's priority can't be raised again: so each call has one of its own.
    std::thread([&] {
      step_back(idle != 0);
      failed = keep(*kept);
    }).join();
  } catch (const std::system_error&) {
    failed = keep(*kept);
  }
  return failed;
}

}  // extern "C"
