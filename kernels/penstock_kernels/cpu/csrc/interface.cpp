// Picks the instruction set and passes calls on.
#include "interface.h"

#include <sched.h>
#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#if defined(PK_ARM)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <climits>
#include <cstring>

namespace {

#if defined(PK_X86)

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avxvnni() { return has_avx2() && __builtin_cpu_supports("avxvnni"); }

bool has_avx512vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

// AMX's registers are as large as a thread's whole stack for signals may be, so that a process has to ask the system
// for them.  Threads that it has already may use them as well.
bool ask_for_amx() {
#if defined(__linux__)
  constexpr long REQUEST = 0x1023, REGISTERS = 18;  // ARCH_REQ_XCOMP_PERM of arch_prctl, XFEATURE_XTILEDATA.
  static const bool granted = syscall(SYS_arch_prctl, REQUEST, REGISTERS) == 0;
  return granted;
#else
  return false;
#endif
}

bool has_amx() {
  return has_avx512vnni() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") && __builtin_cpu_supports("amx-bf16") &&
         __builtin_cpu_supports("avx512bf16") && ask_for_amx();
}

bool has_avx512() { return has_avx512vnni() && __builtin_cpu_supports("avx512bf16"); }

// Without what the kernels of 16 lanes need beyond it.
bool has_wide_floats() { return has_avx2() && __builtin_cpu_supports("avx512f"); }

// Whether the units for bfloat16 multiply more than those for floats.  Intel's don't: a processor with both of them
// (family 6, model 207) began 1.35 thousand million products of bfloat16 pairs a second, and 5.5 of floats.
bool has_fast_halves() { return !__builtin_cpu_is("intel"); }

#elif defined(PK_ARM) && defined(__linux__)

// Dot products of bytes: Cortex-A76, Neoverse N1 and newer.
bool has_neon() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }

// Products of 8-bit matrices: Neoverse V1 and N2, Cortex-A710 and newer.
bool has_neoni8mm() { return has_neon() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }

#elif defined(PK_ARM)

bool has_neon() { return false; }
bool has_neoni8mm() { return false; }

#endif

const pk::Kernels* named(const char* name) {
#if defined(PK_X86)
  if (!std::strcmp(name, "avx512")) return has_avx512() ? pk::avx512_kernels() : nullptr;
  if (!std::strcmp(name, "amx")) return has_amx() ? pk::amx_kernels() : nullptr;
  if (!std::strcmp(name, "avx512vnni")) return has_avx512vnni() ? pk::avx512vnni_kernels() : nullptr;
  if (!std::strcmp(name, "avxvnni")) return has_avxvnni() ? pk::avxvnni_kernels() : nullptr;
  if (!std::strcmp(name, "avx2")) return has_avx2() ? pk::avx2_kernels() : nullptr;
#elif defined(PK_ARM)
  if (!std::strcmp(name, "neoni8mm")) return has_neoni8mm() ? pk::neoni8mm_kernels() : nullptr;
  if (!std::strcmp(name, "neon")) return has_neon() ? pk::neon_kernels() : nullptr;
#endif
  return std::strcmp(name, "portable") ? nullptr : pk::portable_kernels();
}

const pk::Kernels* best() {
#if defined(PK_X86)
  if (has_fast_halves())
    if (const pk::Kernels* kernels = named("avx512")) return kernels;
  if (has_wide_floats()) pk::wide_floats.store(pk::avx512_floats(), std::memory_order_relaxed);
#endif
  constexpr const char* BY_SPEED[] = {"amx", "avx512vnni", "avxvnni", "avx2", "neoni8mm", "neon"};
  for (const char* name : BY_SPEED)
    if (const pk::Kernels* kernels = named(name)) return kernels;
  return pk::portable_kernels();
}

std::atomic<const pk::Kernels*> chosen{nullptr};

const pk::Kernels* chosen_or_best() {
  const pk::Kernels* now = chosen.load(std::memory_order_acquire);
  if (!now) chosen.store(now = best(), std::memory_order_release);
  return now;
}

const pk::Kernels& kernels() { return *chosen_or_best(); }

}  // namespace

namespace pk {

std::atomic<FloatTiles> wide_floats{nullptr};

void give_way() { sched_yield(); }

int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

#if defined(__linux__)
static_assert(sizeof(std::atomic<int>) == sizeof(int) && std::atomic<int>::is_always_lock_free);
void sleep_on(std::atomic<int>& variable, int value) {
  syscall(SYS_futex, &variable, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_all(std::atomic<int>& variable) {
  syscall(SYS_futex, &variable, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

int processor() { return sched_getcpu(); }

int move_from(const int* taken, int count) {
  cpu_set_t allowed, left;
  // A machine with more processors than the set has room for is left alone.
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return processor();
  left = allowed;
  for (int i = 0; i < count; i++)
    if (taken[i] >= 0 && taken[i] < CPU_SETSIZE) CPU_CLR(taken[i], &left);
  if (CPU_COUNT(&left) && sched_setaffinity(0, sizeof left, &left) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
  return processor();
}
#else
int processor() { return -1; }
int move_from(const int*, int) { return -1; }
void sleep_on(std::atomic<int>&, int) { sched_yield(); }
void wake_all(std::atomic<int>&) {}
#endif

}  // namespace pk

extern "C" {

const char* pk_sources() { return PK_SOURCES; }

const char* pk_instruction_set() {
  const pk::Kernels* now = chosen_or_best();
  return now ? now->name : "";
}

int pk_use(const char* name) {
  const pk::Kernels* wanted = named(name);
  if (!wanted) return -1;
  pk::wide_floats.store(nullptr, std::memory_order_relaxed);
  chosen.store(wanted, std::memory_order_release);
  return 0;
}

size_t pk_matrix_bytes(int kind, int outputs, int inputs) {
  return pk::padded(outputs, pk::LANES) / pk::LANES * pk::tile_bytes(kind, pk::padded(inputs, pk::GROUP) / pk::GROUP);
}

int pk_pack(int source, const void* data, int rows, int inputs, int kind, void* tiles, int outputs, const int32_t* order, int threads) {
  if (!pk::can_pack(source, inputs, kind)) return -1;
  const size_t row_bytes = pk::source_row_bytes(source, inputs);
  for (int r = 0; r < rows; r++)
    if ((order ? order[r] : r) < 0 || (order ? order[r] : r) >= outputs) return -1;
  bool sound = true;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(&& : sound)
  for (int r = 0; r < rows; r++)
    sound = pk::pack_row(source, static_cast<const uint8_t*>(data) + r * row_bytes, inputs, kind, static_cast<uint8_t*>(tiles), order ? order[r] : r) && sound;
  return sound ? 0 : -2;
}

size_t pk_product_bytes(const PkMatrix* matrix, int rows, int parts) { return kernels().product(*matrix, nullptr, rows, parts, nullptr, 1, nullptr); }

void pk_product(const PkMatrix* matrix, const float* x, int rows, int parts, float* out, int threads, void* work) {
  kernels().product(*matrix, x, rows, parts, out, threads, work);
}

int pk_check(const PkProgram* program) { return pk::check(*program); }

size_t pk_forward_bytes(const PkProgram* program, const PkBatch* batch) { return kernels().forward(*program, *batch, nullptr); }

void pk_forward(const PkProgram* program, const PkBatch* batch, void* work) { kernels().forward(*program, *batch, work); }

size_t pk_sample_bytes(const PkSampling* batch) { return pk::sample(kernels(), *batch, nullptr); }

void pk_sample(const PkSampling* batch, void* work) { pk::sample(kernels(), *batch, work); }

}  // extern "C"
