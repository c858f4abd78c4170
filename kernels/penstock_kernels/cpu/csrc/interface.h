// The C interface of the shared library. No torch, no Python: pointers, sizes and plain structs.
#pragma once
#include "types.h"

#define PK_PUBLIC __attribute__((visibility("default")))

extern "C" {

enum PkSource : int32_t {
  PK_SOURCE_F32 = 0, PK_SOURCE_F16 = 1, PK_SOURCE_BF16 = 2, PK_Q4_0 = 3, PK_Q4_1 = 4, PK_Q5_0 = 5, PK_Q5_1 = 6,
  PK_Q8_0 = 7, PK_Q4_K = 8, PK_Q5_K = 9, PK_Q6_K = 10, PK_Q2_K = 20, PK_Q3_K = 21, PK_IQ4_NL = 22, PK_IQ4_XS = 23,
  PK_MXFP4 = 24, PK_NVFP4 = 25,
  // For formats that only the caller can read: a block has float32 scales of its first and of its latter 16 levels, minima
  // likewise, and 32 levels of a byte each, as the kind has them; of a kind with one scale for all, the first one counts.
  // Rows are filled up to whole blocks; what is beyond the inputs counts for nothing.
  PK_LEVELS = 64
};

// The instruction set in use: "amx", "avx512", "avx512vnni", "avxvnni", "avx2", "neoni8mm", "neon" or "portable"; the
// best that the processor has, unless pk_use has chosen a lesser one.  Empty where the processor has none of those that
// this build holds: nothing else here may be called then.
PK_PUBLIC const char* pk_instruction_set();
// The digest of the sources that this was built of, see sources.py.
PK_PUBLIC const char* pk_sources();
// 0 when `name` is in use now, -1 when this processor or build can't.
PK_PUBLIC int pk_use(const char* name);

PK_PUBLIC size_t pk_matrix_bytes(int kind, int outputs, int inputs);
// Packs `rows` source rows; row r becomes output order[r] (null: r) of the matrix.  tiles must be
// zeroed before the first rows are packed.  -1 for a source, kind or width that can't be packed,
// -2 for scales of a quantised source that aren't finite.
PK_PUBLIC int pk_pack(int source, const void* data, int rows, int inputs, int kind, void* tiles, int outputs, const int32_t* order, int threads);

// Bytes of scratch that the call below needs.  parts: 1, or 2 for rows of twice as many bits.
PK_PUBLIC size_t pk_product_bytes(const PkMatrix* matrix, int rows, int parts);
PK_PUBLIC void pk_product(const PkMatrix* matrix, const float* x, int rows, int parts, float* out, int threads, void* work);

// The first phase that doesn't fit the program's buffers or what comes before it; num_phases where the
// program's own numbers are out of bounds; -1 for a program that can be run.
PK_PUBLIC int pk_check(const PkProgram* program);
// Bytes of scratch for a batch of a program that can be run.
PK_PUBLIC size_t pk_forward_bytes(const PkProgram* program, const PkBatch* batch);
PK_PUBLIC void pk_forward(const PkProgram* program, const PkBatch* batch, void* work);

// Bytes of scratch for a batch; what it points to isn't looked at.
PK_PUBLIC size_t pk_sample_bytes(const PkSampling* batch);
PK_PUBLIC void pk_sample(const PkSampling* batch, void* work);

// draws[i]: in [0, 1), 53 bits, a pure function of (seed, sequence, token).  sequence < 2^32.
PK_PUBLIC void pk_uniform(int count, const uint64_t* seeds, const uint64_t* sequences, const uint64_t* tokens, double* draws);

// A block's contents that are written to a file at `offset`: header, 16 bytes of checksum, payload. The header is
// written last.
struct PkKept {
  int32_t fd, key_bytes;
  const void *key, *header, *payload;
  uint64_t header_bytes, payload_bytes;
  int64_t offset;
};

// Row `block` of each of `count` arrays, whose rows have `widths` bytes, one behind another.
PK_PUBLIC void pk_gather(const uint64_t* parts, const uint64_t* widths, int count, uint64_t block, void* target);
// out: [2], a checksum of key and contents. key_bytes: a multiple of 8.
PK_PUBLIC void pk_checksum(const void* key, int key_bytes, const void* data, size_t size, uint64_t* out);
// 0, or an errno. In a thread that gives way to all others; with `idle` it has only the time that nobody else wants.
PK_PUBLIC int pk_keep(const PkKept* kept, int idle);
// Where runs of `width` tokens have been. base: has the first `at` of its tokens, isn't extended any more, and
// outlives it; null: none. Null where there is no memory.
PK_PUBLIC void* pk_runs_new(int width, const void* base, int at);
PK_PUBLIC void pk_runs_free(void* runs);
// Adds tokens, and has all runs found that end before token `end`. -1 where there is no memory, after which the
// object may only be freed.
PK_PUBLIC int pk_runs_extend(void* runs, const int32_t* tokens, int count, int end);
// Writes at most `most` ids that mostly followed the longest runs that equal the end of `tail`, or what followed the
// newest of them (votes: 0), and returns how many; -1 where there is no memory. longest: of a run; a shorter one
// bounds how many are taken. runs: at least one, all of one width. length: of `tail`, at least that width.
PK_PUBLIC int pk_runs_guess(const void* const* runs, int count, const int32_t* tail, int length, int longest, int most, int votes, int32_t* ids);

}  // extern "C"

namespace pk {

size_t source_row_bytes(int source, int inputs);
bool can_pack(int source, int inputs, int kind);
// False: a scale or minimum of a quantised source isn't finite.
bool pack_row(int source, const uint8_t* row, int inputs, int kind, uint8_t* tiles, int output);

int check(const PkProgram& program);

// Bytes of 64-byte aligned scratch that the batch needs; with `work`, runs it.
size_t sample(const Kernels& kernels, const PkSampling& batch, void* work);

}  // namespace pk
