// Limits of this machine: bytes read per second from memory, and operations per second of the
// int8 and bfloat16 dot-product units. Compiled by probe.py for the processor it runs on. Products
// are AMX's where the system lets the process have it; else those of int8 are VNNI's, or made of what
// what AVX2 has. VNNI's are also measured with what a GGUF file's blocks add to them: a scale and a minimum
// of each 32 weights.
//
//   probe THREADS BUFFER_MIB    prints one JSON object; null where the processor has no such unit
//
// A multiply-add counts as two operations. Each figure is the best of several passes: a limit is
// what nothing disturbed.
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_AMX
#endif

namespace {

constexpr int kPasses = 7;
constexpr int64_t kSteps = 40000000;  // of 32 products each; about 10 ms a pass

volatile int64_t sink;

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

template <typename Pass>
double best_seconds(const Pass& pass) {
  double best = 1e9;
  for (int i = 0; i < kPasses; i++) {
    const double begun = now();
    pass();
    best = std::min(best, now() - begun);
  }
  return best;
}

// Every thread reads a part of its own, which it has written first: its pages are near it.
double read_bandwidth(int threads, int64_t bytes) {
  const int64_t part = bytes / threads / 4096 * 4096;
  std::unique_ptr<uint8_t, decltype(&std::free)> memory(
      static_cast<uint8_t*>(std::aligned_alloc(4096, part * threads)), &std::free);
  if (!memory) return 0;
#pragma omp parallel num_threads(threads)
  {
    uint8_t* mine = memory.get() + part * omp_get_thread_num();
    for (int64_t i = 0; i < part; i++) mine[i] = static_cast<uint8_t>(i * 7);
  }
  const double seconds = best_seconds([&] {
    int64_t total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
      const uint8_t* at = memory.get() + part * omp_get_thread_num();
      const int64_t* words = reinterpret_cast<const int64_t*>(at);
      int64_t sums[32] = {};
      for (int64_t i = 0; i < part / 8; i += 32)
        for (int k = 0; k < 32; k++) sums[k] += words[i + k];
      for (int64_t value : sums) total += value;
    }
    sink = total;
  });
  return part * threads / seconds;
}

// Each unit has kChains independent accumulators (more than latency times units, and they fit into
// the registers) and multiplies kProducts pairs a step.  Where one instruction does it all, it is
// written as such: GCC 12 copies an accumulator before and after its own function for it, which
// takes as long as the product.
#if defined(__AVX512VNNI__)
struct Int8 {
  using Vector = __m512i;
  static constexpr int kChains = 16, kProducts = 64;
  static Vector operand(int8_t value) { return _mm512_set1_epi8(value); }
  static Vector add(Vector sum, Vector a, Vector b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};
#elif defined(__AVXVNNI__)
struct Int8 {
  using Vector = __m256i;
  static constexpr int kChains = 12, kProducts = 32;
  static Vector operand(int8_t value) { return _mm256_set1_epi8(value); }
  static Vector add(Vector sum, Vector a, Vector b) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
  }
};
#elif defined(__AVX2__)
struct Int8 {
  using Vector = __m256i;
  static constexpr int kChains = 8, kProducts = 32;
  static Vector operand(int8_t value) { return _mm256_set1_epi8(value); }
  static Vector add(Vector sum, Vector a, Vector b) {
    const Vector pairs = _mm256_maddubs_epi16(a, b);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};
#else
#define NO_INT8
#endif

#ifdef __AVX512VNNI__
// A sum of floats, to which 16 outputs' blocks of 32 weights are added: their whole number, as a
// float, times the scales of the weights and of the inputs, and the minimum times the inputs' sum.
struct Blocks {
  using Vector = __m512;
  static constexpr int kChains = 16, kProducts = 8 * Int8::kProducts;
  static Vector operand(int8_t value) { return _mm512_castsi512_ps(_mm512_set1_epi8(value)); }
  static Vector add(Vector sum, Vector a, Vector b) {
    const __m512i levels = _mm512_castps_si512(a), weights = _mm512_castps_si512(b);
    __m512i whole = _mm512_setzero_si512(), others = whole;
    asm volatile("" : "+v"(others));  // For the compiler they aren't alike.
    for (int i = 0; i < 4; i++) {
      whole = Int8::add(whole, weights, levels);
      others = Int8::add(others, weights, levels);
    }
    whole = _mm512_add_epi32(whole, others);
    Vector scale;
    asm volatile("vmulps %2, %1, %0" : "=v"(scale) : "v"(a), "v"(b));  // Not once for all blocks.
    return _mm512_fmadd_ps(a, b, _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sum));
  }
};
#endif

#ifdef __AVX512BF16__
struct Bf16 {
  using Vector = __m512;
  static constexpr int kChains = 16, kProducts = 32;
  static Vector operand(int8_t value) { return _mm512_castsi512_ps(_mm512_set1_epi16(value << 8)); }
  static Vector add(Vector sum, Vector a, Vector b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
};
#else
#define NO_BF16
#endif

template <typename Unit>
double peak(int threads) {
  using Vector = typename Unit::Vector;
  constexpr int64_t kTurns = kSteps * 32 / Unit::kProducts / Unit::kChains;
  const double seconds = best_seconds([&] {
    int64_t total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
      Vector a = Unit::operand(3), b = Unit::operand(5), zero = Unit::operand(0);
      Vector sums[Unit::kChains];
      // The compiler may not see that chains and turns are all alike: it would keep one of them.
      for (Vector& sum : sums) {
        asm volatile("" : "+v"(zero));
        sum = zero;
      }
      for (int64_t i = 0; i < kTurns; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < Unit::kChains; k++) {
          asm volatile("" : "+v"(a), "+v"(b));
          sums[k] = Unit::add(sums[k], a, b);
        }
      }
      for (Vector& sum : sums) {
        int64_t first;
        std::memcpy(&first, &sum, sizeof first);
        total += first;
      }
    }
    sink = total;
  });
  return 2.0 * Unit::kProducts * Unit::kChains * kTurns * threads / seconds;
}

#ifdef HAS_AMX
struct alignas(64) Shapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Two operands and six accumulators; a product is of 16 rows, 16 columns and 64 inputs of int8, or 32 of bfloat16.
template <int INPUTS>
double amx_peak(int threads) {
  static_assert(INPUTS == 64 || INPUTS == 32);
  constexpr int64_t kTurns = 400000;
  const double seconds = best_seconds([&] {
#pragma omp parallel num_threads(threads)
    {
      const Shapes shapes;
      asm volatile("ldtilecfg %0" : : "m"(shapes));
      for (int64_t i = 0; i < kTurns; i++) {
        if (INPUTS == 64)
          asm volatile(
              "tdpbssd %tmm1, %tmm0, %tmm2\n\ttdpbssd %tmm1, %tmm0, %tmm3\n\t"
              "tdpbssd %tmm1, %tmm0, %tmm4\n\ttdpbssd %tmm1, %tmm0, %tmm5\n\t"
              "tdpbssd %tmm1, %tmm0, %tmm6\n\ttdpbssd %tmm1, %tmm0, %tmm7");
        else
          asm volatile(
              "tdpbf16ps %tmm1, %tmm0, %tmm2\n\ttdpbf16ps %tmm1, %tmm0, %tmm3\n\t"
              "tdpbf16ps %tmm1, %tmm0, %tmm4\n\ttdpbf16ps %tmm1, %tmm0, %tmm5\n\t"
              "tdpbf16ps %tmm1, %tmm0, %tmm6\n\ttdpbf16ps %tmm1, %tmm0, %tmm7");
      }
      asm volatile("tilerelease");
    }
  });
  return 2.0 * 16 * 16 * INPUTS * 6 * kTurns * threads / seconds;
}

// A process has to ask for AMX's registers: ARCH_REQ_XCOMP_PERM of arch_prctl, XFEATURE_XTILEDATA.
bool may_use_amx() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#endif

double int8_peak([[maybe_unused]] int threads) {
#ifdef HAS_AMX
  if (may_use_amx()) return amx_peak<64>(threads);
#endif
#ifdef NO_INT8
  return 0;
#else
  return peak<Int8>(threads);
#endif
}

double block_peak([[maybe_unused]] int threads) {
#ifdef HAS_AMX
  if (may_use_amx()) return 0;  // Whose products aren't VNNI's.
#endif
#ifdef __AVX512VNNI__
  return peak<Blocks>(threads);
#else
  return 0;
#endif
}

double bf16_peak([[maybe_unused]] int threads) {
#if defined(HAS_AMX) && defined(__AMX_BF16__)
  if (may_use_amx()) return amx_peak<32>(threads);
#endif
#ifdef NO_BF16
  return 0;
#else
  return peak<Bf16>(threads);
#endif
}

void print(const char* name, double value, const char* after) {
  if (value > 0)
    std::printf("\"%s\": %.6g%s", name, value, after);
  else
    std::printf("\"%s\": null%s", name, after);
}

}  // namespace

int main(int count, char** values) {
  if (count != 3) return 2;
  const int threads = std::atoi(values[1]);
  const int64_t mebibytes = std::atoll(values[2]);
  if (threads < 1 || threads > 1024 || mebibytes < 1) return 2;
  std::printf("{\"threads\": %d, ", threads);
  print("read_bytes_per_s", read_bandwidth(threads, mebibytes << 20), ", ");
  print("int8_ops_per_s", int8_peak(threads), ", ");
  print("block_int8_ops_per_s", block_peak(threads), ", ");
  print("bf16_ops_per_s", bf16_peak(threads), "}\n");
}
