// Limits of this machine: bytes read per second from memory, and operations per second of the
// int8 (VNNI) and bfloat16 dot-product units. Compiled by probe.py for the processor it runs on.
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
#include <memory>

namespace {

constexpr int kPasses = 7;
constexpr int kChains = 16;          // independent accumulators: more than latency times units
constexpr int64_t kSteps = 40000000;  // about 10 ms a pass

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

// The compiler may not see that the chains are all alike: it would keep one of them.
template <typename Vector>
void fill(Vector (&sums)[kChains], Vector value) {
  for (Vector& sum : sums) {
    asm volatile("" : "+v"(value));
    sum = value;
  }
}

#ifdef __AVX512VNNI__
double int8_peak(int threads) {
  const double seconds = best_seconds([&] {
    int64_t total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
      __m512i sums[kChains];
      fill(sums, _mm512_setzero_si512());
      __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
      for (int64_t i = 0; i < kSteps / kChains; i++) {
        asm volatile("" : "+v"(a), "+v"(b));  // not known to be the same every time
#pragma GCC unroll 16
        for (int k = 0; k < kChains; k++) sums[k] = _mm512_dpbusd_epi32(sums[k], a, b);
      }
      for (auto& sum : sums) total += _mm512_reduce_add_epi32(sum);
    }
    sink = total;
  });
  return 2.0 * 64 * kSteps * threads / seconds;
}
#else
double int8_peak(int) { return 0; }
#endif

#ifdef __AVX512BF16__
double bf16_peak(int threads) {
  const double seconds = best_seconds([&] {
    double total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
      __m512 sums[kChains];
      fill(sums, _mm512_setzero_ps());
      __m512i a = _mm512_set1_epi16(0x3f80), b = _mm512_set1_epi16(0x3c00);
      for (int64_t i = 0; i < kSteps / kChains; i++) {
        asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
        for (int k = 0; k < kChains; k++)
          sums[k] = _mm512_dpbf16_ps(sums[k], (__m512bh)a, (__m512bh)b);
      }
      for (auto& sum : sums) total += _mm512_reduce_add_ps(sum);
    }
    sink = static_cast<int64_t>(total);
  });
  return 2.0 * 32 * kSteps * threads / seconds;
}
#else
double bf16_peak(int) { return 0; }
#endif

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
  print("bf16_ops_per_s", bf16_peak(threads), "}\n");
}
