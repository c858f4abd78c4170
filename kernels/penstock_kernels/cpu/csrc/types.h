// What crosses the C interface, in a file for each subject, and what the instruction sets share. No code of any of them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "batch_types.h"
#include "layer_types.h"
#include "matrix_types.h"
#include "program_types.h"

namespace pk {

constexpr int KEY_SPLIT = 256; // token positions per attention split; part of the numbers
constexpr int MAX_HEAD_DIM = 1024;
constexpr int MAX_GROUP = 128;  // query heads that share a KV head
// Query positions of a sequence that share the reading of keys: so many at least, and of few heads to a KV head up to 32,
// where they are multiplied so fast that reading would take longer. A row is one of these heads' query.
constexpr int TILE_QUERIES = 8;
#if defined(__AMX_INT8__)
constexpr int MOST_TILE_QUERIES = 32, TILE_ROWS = 64;
#else
constexpr int MOST_TILE_QUERIES = TILE_QUERIES, TILE_ROWS = 64;
#endif
constexpr int MAX_TILE_ROWS = TILE_QUERIES * MAX_GROUP;
constexpr int MAX_INDEX_HEADS = 1024;
// Rows of a product that pass a tile of weights while it lies in the nearest cache; on AMX as many as make it worth while
// to turn weights into what its registers multiply.
#if defined(__AMX_INT8__)
constexpr int ROWS = 128;
#else
constexpr int ROWS = 32;
#endif

constexpr int MAX_EXPERTS = 1024, MAX_ACTIVE = 64, MAX_STREAMS = 64;
constexpr int MAX_KERNEL = 64, MAX_KEY_DIM = 4096, MAX_STATE_HEADS = 4096;  // of recurrent layers
constexpr int STATE_LANES = 32;  // values of a head whose state lies together
constexpr int VOCAB_GROUP = 128; // logits that the sampler surveys together

constexpr int MAX_RATE = 1 << 16;  // tokens of an entry

constexpr int padded(int n, int unit) { return (n + unit - 1) / unit * unit; }
// Numbers that a token gives to entries, and entries for which a block has room (see penstock.model.kv_layout).
constexpr int given_numbers(const PkEntries& e, int head_dim) { return 2 * e.series * (head_dim + e.index_dim); }
constexpr int entries_of_block(int rate, int block_size) { return block_size % rate == 0 ? block_size / rate : rate % block_size == 0 ? 1 : block_size; }
// Floats of a row of a convolution's weights: sixteen can be read from any channel on.
constexpr int conv_stride(int channels) { return padded(channels, 16) + 16; }

// Asks for memory that will be read soon, into the second level of the cache: its queue is several
// times as long as the first level's, which alone doesn't keep the memory busy.
inline void prefetch(const uint8_t* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

// Products of `rows` rows of x, [rows, stride], with one tile of floats or two, `next` floats apart, of so many groups,
// plus bias (16 numbers each, or null). A sum goes through the inputs in order.  out: [rows][16] of each tile, `out_next`
// floats apart.
using FloatTiles = void (*)(const float* tile, size_t next, int tiles, int groups, const float* x, size_t stride, int rows, const float* bias, float* out, size_t out_next);
// For kernels with narrower registers than the processor has; null where there are none, or where an instruction
// set was chosen by name.
extern std::atomic<FloatTiles> wide_floats;
FloatTiles avx512_floats();

// One instruction set's entry points.
struct Kernels {
  const char* name;
  // Both return the bytes of 64-byte aligned scratch that they need, and run only if given it.
  // out: [rows, outputs] = x [rows, inputs] times the matrix, plus bias.
  // parts: of x's rows, see activations.h.
  size_t (*product)(const PkMatrix&, const float* x, int rows, int parts, float* out, int threads, void* work);
  size_t (*forward)(const PkProgram&, const PkBatch&, void* work);
  // The sampler's passes over a row, see distribution.h.
  bool (*survey)(const float* logits, int count, float* maxima);
  void (*weigh)(const float* logits, int count, double largest, double temperature, double* weights);
};

// Lets another thread run while this one waits.
void give_way();

// The number of the processor that the calling thread runs on, or -1.
int processor();

// Moves the calling thread to a processor that is none of `taken`, [count], if it may use one; it may use those that it
// might before. Returns the number of the one that it is on.
int move_from(const int* taken, int count);

// Of a clock that only goes on.
int64_t nanoseconds();

// Sleeps while the variable has this value, until `wake_all`; may end for no reason.
void sleep_on(std::atomic<int>& variable, int value);
void wake_all(std::atomic<int>& variable);

// A moment's rest between two looks at a shared variable.
inline void breathe() {
#if defined(PK_X86)
  __builtin_ia32_pause();
#elif defined(PK_ARM)
  asm volatile("isb");  // Takes as long as x86's pause; `yield` takes no time.
#endif
}

const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx512vnni_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();
const Kernels* neon_kernels();
const Kernels* neoni8mm_kernels();

}  // namespace pk
