// One forward pass: every phase of a program in one parallel region, with barriers between them.
#pragma once
#include <omp.h>

#include "choosing.h"
#include "compressed.h"
#include "exchange.h"
#include "experts.h"
#include "heads.h"
#include "latents.h"
#include "layer_inputs.h"
#include "mixing.h"
#include "products.h"
#include "rows.h"
#include "scans.h"
#include "streams.h"

namespace {

template <class Cache> void run_phase(Thread& t, const PkPhase& p) {
  switch (p.kind) {
    case PK_EMBED: return embed(t, p);
    case PK_MAKE_INPUT: return make_input(t, p);
    case PK_HEADS: return Heads<Cache>(t, p).multiply();
    case PK_PLACE: return Heads<Cache>(t, p).place();
    case PK_ATTEND: return Attend<Cache>(t, p).run();
    case PK_PRODUCT: return product(t, p);
    case PK_GATE_UP: return gate_up(t, p);
    case PK_ADD_NORM: return add_norm(t, p);
    case PK_LOGITS: return logits(t, p);
    case PK_ROUTE: return route(t, p);
    case PK_EXPERTS_UP: return experts_up(t, p);
    case PK_EXPERTS_DOWN: return experts_down(t, p);
    case PK_COMBINE: return combine(t, p);
    case PK_PLACE_LATENT: return place_latent<Cache>(t, p);
    case PK_BY_HEAD: return by_head(t, p);
    case PK_EXCHANGE: return exchange(t, p);
    case PK_LOOK_UP: return look_up(t, p);
    case PK_NORM: return norm(t, p);
    case PK_ROWS: return give_rows(t, p);
    case PK_SCALE: return scale_rows(t, p);
    case PK_INPUTS_OF_LAYERS: return inputs_of_layers(t, p);
    case PK_GATE_BY: return gate_by(t, p);
    case PK_CUT_GATE: return cut_gate(t, p);
    case PK_BEGIN_STREAMS: return begin_streams(t, p);
    case PK_PREDICT: return predict(t, p);
    case PK_JOIN_PATH: return join_path(t, p);
    case PK_CORRECT: return correct(t, p);
    case PK_ADD_TO_OTHERS: return add_to_others(t, p);
    case PK_END_STREAM: return end_stream(t, p);
    case PK_CONVOLVE: return convolve(t, p);
    case PK_SCAN: return scan(t, p);
    case PK_TAKE_ROWS: return take_rows(t, p);
    case PK_PLACE_INDEX: return place_index<Cache>(t, p);
    case PK_INDEX: return with_keys<Cache>(t, p, [](auto index) { index.score(); });
    case PK_CHOOSE: return with_keys<Cache>(t, p, [](auto index) { index.choose(); });
    case PK_SPREAD: return spread(t, p);
    case PK_MIX_LOGITS: return mix_logits(t, p);
    case PK_MIX_READ: return mix_read(t, p);
    case PK_MIX_WRITE: return mix_write(t, p);
    case PK_PLACE_ENTRIES: return place_entries<Cache>(t, p);
    case PK_MAKE_ENTRIES: return MakeEntries<Cache>(t, p).run();
    case PK_ATTEND_ENTRIES: return AttendEntries<Cache>(t, p).run();
    case PK_LOWER: return p.experts ? lower_experts(t, p) : lower(t, p);
  }
}

inline void count_layer(Thread& t) {
  if (t.number != 0) return;
  if (t.batch.layers_done) *t.batch.layers_done = *t.batch.layers_done + 1;
  if (t.batch.cancelled && *t.batch.cancelled) t.scratch.given_up->store(GIVEN_UP, std::memory_order_relaxed);
}

// Of a phase, from its construction to its end: what the thread computed and what it waited, where the batch has ticks.
class PhaseClock {
 public:
  PhaseClock(Thread& t, int phase) : t_(t), ticks_(t.batch.ticks) {
    if (!ticks_) return;
    ticks_ += 2 * (static_cast<size_t>(t.number) * t.program.num_phases + phase);
    t.waited = 0;
    begun_ = pk::nanoseconds();
  }
  ~PhaseClock() {
    if (!ticks_) return;
    ticks_[0] += pk::nanoseconds() - begun_ - t_.waited;
    ticks_[1] += t_.waited;
  }

 private:
  Thread& t_;
  int64_t* ticks_;
  int64_t begun_ = 0;
};

template <class Cache> void run_program(Thread& t) {
  for (int i = 0; i < t.program.num_phases; i++) {
    const PkPhase& p = t.program.phases[i];
    if (p.kind == PK_LOWER && !t.batch.num_runs) continue;
    t.cursors = t.scratch.cursors + static_cast<size_t>(i) * t.threads;
    t.few = p.only_wanted && t.scratch.num_wanted < t.batch.rows;
    const PhaseClock clock(t, i);
    run_phase<Cache>(t, p);
    if (p.kind == PK_EXCHANGE && broken_off(t)) return;
    if (p.ends_layer) count_layer(t);
    if (p.waits) t.wait();
    // Set before the barrier, so that all threads see the same.
    if (p.ends_layer && t.scratch.given_up->load(std::memory_order_relaxed)) return;
  }
}

template <class Cache> void forward_with(const PkProgram& m, const PkBatch& b, Scratch& s) {
  Barrier barrier;
  s.given_up->store(0, std::memory_order_relaxed);
  const size_t cursors = static_cast<size_t>(m.num_phases) * m.threads;
  for (size_t i = 0; i < cursors; i++) s.cursors[i].next.store(0, std::memory_order_relaxed);
  std::atomic<int64_t> lost{0};
  const int threads = b.threads > 0 && b.threads < m.threads ? b.threads : m.threads;
  barrier.processors.expect(threads);
#pragma omp parallel num_threads(threads)
  {
    [[maybe_unused]] const AmxRegisters registers;
    Thread thread(m, b, s, barrier, omp_get_thread_num(), omp_get_num_threads());
    barrier.begin(thread.patience, thread.threads);
    run_program<Cache>(thread);
    lost.fetch_add(thread.patience.lost, std::memory_order_relaxed);
  }
  if (b.lost) *b.lost = lost.load(std::memory_order_relaxed);
}

inline size_t product_of(const PkMatrix& matrix, const float* x, int rows, int parts, float* out, int threads, void* work) {
  Activations a;
  char* start = static_cast<char*>(work);
  const size_t total = a.place(start, rows, matrix.inputs, parts) - start;
  if (!work) return total;
  const int tiles = pk::padded(matrix.outputs, 16) / 16, together = tiles_together(matrix);
#pragma omp parallel num_threads(threads)
  {
    [[maybe_unused]] const AmxRegisters registers;
#pragma omp for schedule(static)
    for (int r = 0; r < rows; r++) set_row(a, pk::form_of(matrix.kind), r, x + static_cast<size_t>(r) * matrix.inputs, matrix.inputs);
#pragma omp for schedule(static)
    for (int tile = 0; tile < tiles; tile += together)
      for (int row = 0; row < rows; row += pk::ROWS) {
        alignas(64) float part[2][16 * pk::ROWS];
        const int count = rows - row < pk::ROWS ? rows - row : pk::ROWS, some = tiles - tile < together ? tiles - tile : together;
        tile_products(matrix, tile, some, a, row, count, part[0]);
        for (int i = 0; i < some; i++) {
          const int first = 16 * (tile + i), lanes = matrix.outputs - first < 16 ? matrix.outputs - first : 16;
          for (int r = 0; r < count; r++)
            __builtin_memcpy(out + static_cast<size_t>(row + r) * matrix.outputs + first, part[i] + 16 * r, lanes * sizeof(float));
        }
      }
  }
  return total;
}

// Bytes of scratch that the batch needs; with `work` (64-byte aligned), runs it.
inline size_t forward(const PkProgram& m, const PkBatch& b, void* work) {
  Scratch s = plan(m, b, static_cast<char*>(work));
  if (!work) return s.total;
  fill_tiles(b, s);
  find_wanted(b, s);
  if (m.cache == PK_CACHE_F32) forward_with<F32Cache>(m, b, s);
  else if (m.cache == PK_CACHE_BF16) forward_with<Bf16Cache>(m, b, s);
  else forward_with<Int8Cache>(m, b, s);
  return s.total;
}

}  // namespace
