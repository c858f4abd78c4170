// One thread of a step: what it works on, and how it takes its part of a phase.
#pragma once
#include <unistd.h>

#include "product.h"
#include "scratch.h"

namespace {

// Blocks into which parts of rows are divided, each of which is multiplied with all units of tiles before the next one: its
// inputs, so many bytes a row, and its results stay in a core's second cache, of which inputs may fill half; and each thread
// finds several units.
inline int blocks_of(int parts, int units, int threads, size_t row_bytes) {
  constexpr int LEAST = 128 / pk::ROWS, MOST = 1024 / pk::ROWS, UNITS_EACH = 8;  // parts of a block, units of a thread
  constexpr long USUAL = 512 << 10;                    // where the system doesn't say how large the cache is
  static const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
  const size_t fit = static_cast<size_t>(found > 0 ? found : USUAL) / 2 / (pk::ROWS * row_bytes);
  const int together = fit < LEAST ? LEAST : fit > MOST ? MOST : static_cast<int>(fit);
  const int least = (parts + together - 1) / together, most = (parts + LEAST - 1) / LEAST, wanted = (UNITS_EACH * threads + units - 1) / units;
  return wanted < least ? least : wanted > most ? most : wanted;
}

// Cosines and sines of a row's rotation.
struct Angles { const float *cosines, *sines; };

struct Thread {
  const PkProgram& program;
  const PkBatch& batch;
  const Scratch& scratch;
  Barrier& barrier;
  const int number, threads;
  ThreadScratch own;
  Patience patience{number};
  Cursor* cursors = nullptr;  // of the present phase
  bool few = false;           // whether the present phase computes only rows that are wanted, and some aren't
  int64_t waited = 0;         // nanoseconds in barriers; where the batch has ticks

  Thread(const PkProgram& m, const PkBatch& b, const Scratch& s, Barrier& together, int which, int of)
      : program(m), batch(b), scratch(s), barrier(together), number(which), threads(of) {
    char* end;
    own = thread_scratch(m, Limits(m), s.threads + s.thread_bytes * which, &end);
  }

  void wait() {
    if (!batch.ticks) return barrier.wait(patience);
    const int64_t begun = pk::nanoseconds();
    barrier.wait(patience);
    waited += pk::nanoseconds() - begun;
  }
  Share mine(int count) const { return share_of(count, number, threads); }

  // body(unit) for units that no other thread has taken: first this thread's share, which is the
  // same in every step, then what is left of the others'.  A thread that the system has put aside
  // then holds up one unit of work and not its whole share.
  template <class Body> void share_out(int units, const Body& body) {
    for (int i = 0; i < threads; i++) {
      const int owner = (number + i) % threads;
      const Share share = share_of(units, owner, threads);
      std::atomic<int>& next = cursors[owner].next;
      for (;;) {
        const int unit = share.begin + next.fetch_add(1, std::memory_order_relaxed);
        if (unit >= share.end) break;
        body(unit);
      }
    }
  }

  // body(tile unit, first row, rows): a unit's weights stay in the nearest cache while rows pass, and the inputs of many
  // rows in the next one while all units pass them.
  // row_bytes: of a row's input.  all: even of rows that the phase may leave out.
  template <class Body> void by_tiles(int units, size_t row_bytes, const Body& body, bool all = false) {
    const bool some = few && !all;
    const int parts = some ? scratch.num_pieces : (batch.rows + pk::ROWS - 1) / pk::ROWS, blocks = blocks_of(parts, units, threads, row_bytes);
    share_out(units * blocks, [&](int i) {
      const Share own = share_of(parts, i / units, blocks);
      for (int part = own.begin; part < own.end; part++) {
        const int row = part * pk::ROWS;
        const Piece piece = some ? scratch.pieces[part] : Piece{row, batch.rows - row < pk::ROWS ? batch.rows - row : pk::ROWS};
        body(i % units, piece.row, piece.rows);
      }
    });
  }

  // Where rows' groups came one by one, what takes eight of them (see set_group): of `count` rows, number i being
  // row_at(i).
  template <class RowAt> void finish_rows(const Activations& a, int forms, int count, const RowAt& row_at) {
    if (!SUPER_LEVELS || !(forms & pk::SUPER_LEVELS)) return;
    wait();  // All groups are there.
    const int each = a.super_groups();
    const Share own = mine(count * each);
    for (int i = own.begin; i < own.end; i++) {
      const int row = row_at(i / each), b = i % each;
      set_super_levels(a, forms, row, b, a.floats + static_cast<size_t>(row) * a.stride + SUPER * b);
    }
  }

  // Rows that the phase computes, and the one number `i` of them.
  int num_rows() const { return few ? scratch.num_wanted : batch.rows; }
  int row_at(int i) const { return few ? scratch.wanted[i] : i; }
  template <class Body> void by_rows(const Body& body) {
    share_out(num_rows(), [&](int i) { body(row_at(i)); });
  }
  // Whether it computes some of these rows.
  bool computes(int row, int rows) const {
    for (int r = row; few && r < row + rows; r++)
      if (scratch.is_wanted[r]) return true;
    return !few;
  }

  // Whether the step has so few rows that each thread makes the inputs of products for itself.
  bool own_rows() const { return batch.rows <= PRIVATE_ROWS; }

  // A row of a buffer of floats.
  float* row(int buffer, int row) const { return scratch.floats[buffer] + static_cast<size_t>(row) * pk::padded(program.widths[buffer], 32); }

  // The input of a product, rows of `width`.
  Activations input(int buffer, int width) const {
    return (buffer == PK_INNER ? scratch.inner : own_rows() ? own.own : scratch.input).of_width(width);
  }

  int sequence_of(int row) const { return scratch.rows[row].sequence; }
  int position_of(int row) const { return scratch.rows[row].position; }

  // The positions of the keys that were chosen for the row, [most], or for each KV head the numbers of the blocks; ascending.
  int32_t* chosen(int row) const { return scratch.chosen + static_cast<size_t>(row) * scratch.chosen_width; }

  // What the batch says of the last position that the row sees, or null.
  const int32_t* last_seen(int row) const { return batch.last_seen ? batch.last_seen + row : nullptr; }
  const uint8_t* between(int row) const { return batch.between ? batch.between + row : nullptr; }

  // Of a row, by what its heads rotate: cosines and sines, [rotary_dims / 2] each.
  Angles angles(const PkAttention& a, int row) const {
    const int half = a.rotary_dims / 2;
    if (!a.axes || !batch.turns) {
      const size_t at = static_cast<size_t>(position_of(row)) * half;
      return {a.cosines + at, a.sines + at};
    }
    size_t at[3];
    for (int axis = 0; axis < 3; axis++) at[axis] = static_cast<size_t>(batch.turns[static_cast<size_t>(axis) * batch.rows + row]) * half;
    float *cosines = own.angles, *sines = cosines + half;
    for (int i = 0; i < half; i++) {
      cosines[i] = a.cosines[at[a.axes[i]] + i];
      sines[i] = a.sines[at[a.axes[i]] + i];
    }
    return {cosines, sines};
  }

  template <class Cache> Pages pages(const PkAttention& a, int sequence) const {
    const size_t head_cells = Cache::page_cells(a.head_dim), value_cells = Cache::page_cells(a.value_dim);
    constexpr size_t cell = sizeof(typename Cache::Cell);
    return {batch.tables + batch.first_block[a.group * batch.sequences + sequence], program.block_size / 16, head_cells * a.kv_heads, head_cells,
            value_cells * a.kv_heads, value_cells, a.key_block / cell, a.value_block / cell};
  }
};

}  // namespace
