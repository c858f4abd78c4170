// One forward pass: every phase of every layer in one parallel region, with a barrier between phases.
#pragma once
#include <omp.h>

#include <atomic>

#include "attention.h"
#include "product.h"

namespace {

// Rows of one step up to which each thread makes the inputs of a product for itself: cheaper than a
// barrier.
constexpr int PRIVATE_ROWS = 2;
// Query positions of a sequence that share the reading of keys.
constexpr int TILE_QUERIES = 8;
// Rows whose logits are computed at a time.
constexpr int LOGITS_ROWS = 64;

// What a thread keeps about its waiting.
struct Patience { int sense = 0, spins = 4096; };

// All threads wait for each other. They spin, since phases are short; but where the system has put
// a thread aside to run another process, spinning keeps it from coming back: so a thread that spun
// in vain gives way, and spins less the next time.
class Barrier {
 public:
  void expect(int threads) { threads_ = threads; }

  void wait(Patience& patience) {
    if (threads_ == 1) return;
    const int sense = patience.sense ^= 1;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      sense_.store(sense, std::memory_order_release);
      return;
    }
    for (int i = 0; i < patience.spins; i++) {
      if (sense_.load(std::memory_order_acquire) == sense) {
        patience.spins = patience.spins < MOST ? 2 * patience.spins : MOST;
        return;
      }
      pk::breathe();
    }
    patience.spins = patience.spins > LEAST ? patience.spins / 4 : LEAST;
    while (sense_.load(std::memory_order_acquire) != sense) pk::give_way();
  }

 private:
  static constexpr int LEAST = 64, MOST = 8192;
  int threads_ = 1;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> sense_{0};
};

// What a layer does, phase by phase; each has a cursor for every thread.
enum Phase { ATTENTION_INPUT, QUERY_KEY_VALUE, ATTENTION, OUTPUT_INPUT, OUTPUT, FEED_FORWARD_INPUT, GATE_UP, DOWN, PHASES };

struct alignas(64) Cursor { std::atomic<int> next; };

struct Share { int begin, end; };
inline Share share_of(int count, int thread, int threads) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / threads), static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / threads)};
}

// Query positions of one sequence, and one KV head: what a thread attends with at a time.
struct QueryTile { int32_t sequence, row, count, position; };

struct Scratch {
  float *x, *q, *mixed, *partials;
  Activations wide, inner;     // hidden or attention width; feed-forward width
  QueryTile* tiles;
  Cursor* cursors;
  std::atomic<int>* given_up;
  char* threads;               // per thread
  size_t thread_bytes;
  int num_tiles, max_splits;
  bool by_split;
  size_t total;
};

struct ThreadScratch {
  Activations own;
  float *scores, *weights, *queries, *partial, *folded, *row, *heads;
};

inline int attention_rows(const PkModel& m) { return TILE_QUERIES * (m.heads / m.kv_heads); }

inline ThreadScratch thread_scratch(const PkModel& m, char* at, char** end) {
  ThreadScratch t;
  const int attend = m.heads * m.head_dim, widest = m.hidden > attend ? m.hidden : attend;
  at = t.own.place(at, PRIVATE_ROWS, widest);
  const size_t rows = attention_rows(m);
  Activations::take(at, t.scores, rows * pk::KEY_SPLIT);
  Activations::take(at, t.weights, rows * pk::KEY_SPLIT);
  Activations::take(at, t.queries, rows * m.head_dim);
  Activations::take(at, t.partial, rows * partial_size(m.head_dim));
  Activations::take(at, t.folded, rows * partial_size(m.head_dim));
  Activations::take(at, t.row, pk::padded(widest, 32));
  Activations::take(at, t.heads, static_cast<size_t>(pk::ROWS) * m.head_dim + 4 * 16 * pk::ROWS);
  *end = at;
  return t;
}

// Cuts the batch into query tiles and lays the scratch memory out. work: null to measure only.
inline Scratch plan(const PkModel& m, const PkBatch& b, char* work) {
  Scratch s{};
  char* at = work;
  const int attend = m.heads * m.head_dim, widest = m.hidden > attend ? m.hidden : attend;
  const size_t rows = b.rows;
  Activations::take(at, s.x, rows * pk::padded(m.hidden, 32));
  Activations::take(at, s.q, rows * attend);
  Activations::take(at, s.mixed, rows * attend);
  at = s.wide.place(at, b.rows, widest);
  at = s.inner.place(at, b.rows, m.inner);
  int longest = 0;
  for (int i = 0; i < b.sequences; i++) {
    const int count = b.first_row[i + 1] - b.first_row[i];
    s.num_tiles += (count + TILE_QUERIES - 1) / TILE_QUERIES;
    const int end = b.starts[i] + count;
    longest = end > longest ? end : longest;
  }
  s.max_splits = (longest + pk::KEY_SPLIT - 1) / pk::KEY_SPLIT;
  Activations::take(at, s.tiles, s.num_tiles);
  Activations::take(at, s.cursors, static_cast<size_t>(m.num_layers) * PHASES * m.threads);
  Activations::take(at, s.given_up, 1);
  // Few tiles and many keys: threads share the splits of a tile instead of whole tiles.
  s.by_split = s.max_splits > 1 && s.num_tiles * m.kv_heads < 4 * m.threads;
  if (s.by_split)
    Activations::take(at, s.partials, static_cast<size_t>(s.num_tiles) * m.kv_heads * s.max_splits * attention_rows(m) * partial_size(m.head_dim));
  s.threads = at;
  char* end;
  thread_scratch(m, at, &end);
  s.thread_bytes = end - at;
  s.total = (at - work) + s.thread_bytes * m.threads;
  return s;
}

inline void fill_tiles(const PkBatch& b, Scratch& s) {
  int n = 0;
  for (int i = 0; i < b.sequences; i++)
    for (int row = b.first_row[i]; row < b.first_row[i + 1]; row += TILE_QUERIES) {
      const int left = b.first_row[i + 1] - row;
      s.tiles[n++] = {i, row, left < TILE_QUERIES ? left : TILE_QUERIES, b.starts[i] + row - b.first_row[i]};
    }
}

template <class Cache> class Forward {
 public:
  using Cell = typename Cache::Cell;
  using Query = typename Cache::Query;

  Forward(const PkModel& m, const PkBatch& b, const Scratch& s, Barrier& barrier, int thread, int threads)
      : m_(m), b_(b), s_(s), barrier_(barrier), thread_(thread), threads_(threads), attend_(m.heads * m.head_dim), x_stride_(pk::padded(m.hidden, 32)) {
    char* end;
    t_ = thread_scratch(m, s.threads + s.thread_bytes * thread, &end);
  }

  void run() {
    embed();
    for (int i = 0; i < m_.num_layers; i++) {
      cursors_ = s_.cursors + static_cast<size_t>(i) * PHASES * threads_;
      layer(m_.layers[i]);
      // Set before the layer's last barrier, so that all threads see the same.
      if (s_.given_up->load(std::memory_order_relaxed)) return;
    }
    logits();
  }

 private:
  const PkModel& m_;
  const PkBatch& b_;
  const Scratch& s_;
  Barrier& barrier_;
  const int thread_, threads_, attend_, x_stride_;
  Patience patience_;
  ThreadScratch t_;
  Cursor* cursors_ = nullptr;  // of the present layer

  void wait() { barrier_.wait(patience_); }
  Share mine(int count) const { return share_of(count, thread_, threads_); }

  // body(unit) for units that no other thread has taken: first this thread's share, which is the
  // same in every step, then what is left of the others'.  A thread that the system has put aside
  // then holds up one unit of work and not its whole share.
  template <class Body> void share_out(Phase phase, int units, const Body& body) {
    for (int i = 0; i < threads_; i++) {
      const int owner = (thread_ + i) % threads_;
      const Share share = share_of(units, owner, threads_);
      std::atomic<int>& next = cursors_[phase * threads_ + owner].next;
      for (;;) {
        const int unit = share.begin + next.fetch_add(1, std::memory_order_relaxed);
        if (unit >= share.end) break;
        body(unit);
      }
    }
  }
  bool own_rows() const { return b_.rows <= PRIVATE_ROWS; }
  float* x(int row) const { return s_.x + static_cast<size_t>(row) * x_stride_; }

  void embed() {
    const Share rows = mine(b_.rows);
    for (int r = rows.begin; r < rows.end; r++) matrix_row(m_.embedding, b_.tokens[r], x(r));
    wait();
  }

  // The rows as the input of a product. make(row, activations).
  template <class Make> Activations input(Phase phase, int width, const Make& make) {
    const Activations a = (own_rows() ? t_.own : s_.wide).of_width(width);
    if (own_rows()) {
      for (int r = 0; r < b_.rows; r++) make(r, a);
    } else {
      share_out(phase, b_.rows, [&](int r) { make(r, a); });
      wait();
    }
    return a;
  }

  Activations normalised(Phase phase, const float* weight, int forms) {
    return input(phase, m_.hidden, [&](int r, const Activations& a) {
      normalise(x(r), weight, m_.hidden, m_.eps, t_.row);
      set_row(a, forms, r, t_.row, m_.hidden);
    });
  }

  void layer(const PkLayer& layer) {
    const int forms = pk::form_of(layer.query.kind) | pk::form_of(layer.key.kind) | pk::form_of(layer.value.kind);
    query_key_value(layer, normalised(ATTENTION_INPUT, layer.attention_norm, forms));
    wait();
    attention(layer);
    wait();
    add_product(OUTPUT, layer.output, input(OUTPUT_INPUT, attend_, [&](int r, const Activations& a) {
      set_row(a, pk::form_of(layer.output.kind), r, mixed_row(r), attend_);
    }));
    wait();
    feed_forward(layer, normalised(FEED_FORWARD_INPUT, layer.feed_forward_norm, pk::form_of(layer.gate.kind) | pk::form_of(layer.up.kind)));
    wait();
    add_product(DOWN, layer.down, s_.inner);
    if (thread_ == 0) {
      if (b_.layers_done) *b_.layers_done = *b_.layers_done + 1;
      if (b_.cancelled && *b_.cancelled) s_.given_up->store(1, std::memory_order_relaxed);
    }
    wait();
  }

  // ---- products

  // body(tile unit, first row, rows): a unit's weights stay in the cache while all rows pass.
  template <class Body> void by_tiles(Phase phase, int units, const Body& body) {
    share_out(phase, units, [&](int unit) {
      for (int row = 0; row < b_.rows; row += pk::ROWS) body(unit, row, b_.rows - row < pk::ROWS ? b_.rows - row : pk::ROWS);
    });
  }

  void query_key_value(const PkLayer& layer, const Activations& a) {
    const int dim = m_.head_dim, per_head = dim / 16;
    by_tiles(QUERY_KEY_VALUE, m_.heads + 2 * m_.kv_heads, [&](int head, int row, int rows) {
      float* tile = t_.heads + static_cast<size_t>(pk::ROWS) * dim;
      const int beyond_query = head - m_.heads, beyond_key = beyond_query - m_.kv_heads;
      const PkMatrix* matrix = beyond_query < 0 ? &layer.query : beyond_key < 0 ? &layer.key : &layer.value;
      const int within = beyond_query < 0 ? head : beyond_key < 0 ? beyond_query : beyond_key;
      for (int i = 0; i < per_head; i++) {
        tile_product(*matrix, within * per_head + i, a, row, rows, tile);
        for (int r = 0; r < rows; r++) store(t_.heads + r * dim + 16 * i, load(tile + 16 * r));
      }
      for (int r = 0; r < rows; r++) place_head(layer, head, row + r, t_.heads + r * dim);
    });
  }

  void place_head(const PkLayer& layer, int head, int row, float* values) {
    const int dim = m_.head_dim, sequence = sequence_of(row);
    const int position = b_.starts[sequence] + row - b_.first_row[sequence];
    if (head >= m_.heads + m_.kv_heads) {
      store_value<Cache>(static_cast<Cell*>(layer.values), pages(sequence), head - m_.heads - m_.kv_heads, position, values, dim);
      return;
    }
    const float* weight = head < m_.heads ? layer.query_norm : layer.key_norm;
    if (weight) normalise(values, weight, dim, m_.eps, values);
    const size_t angle = static_cast<size_t>(position) * (dim / 2);
    rotate(values, m_.cosines + angle, m_.sines + angle, dim);
    if (head < m_.heads) {
      float* out = s_.q + static_cast<size_t>(row) * attend_ + head * dim;
      for (int d = 0; d < dim; d += 16) store(out + d, load(values + d));
    } else {
      store_key<Cache>(static_cast<Cell*>(layer.keys), pages(sequence), head - m_.heads, position, values, dim);
    }
  }

  int sequence_of(int row) const {
    int low = 0, high = b_.sequences - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (b_.first_row[middle] <= row) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  Pages pages(int sequence) const {
    const size_t head_cells = Cache::page_cells(m_.head_dim);
    return {b_.tables + b_.first_block[sequence], m_.block_size / 16, head_cells * m_.kv_heads, head_cells};
  }

  void add_product(Phase phase, const PkMatrix& matrix, const Activations& a) {
    by_tiles(phase, pk::padded(matrix.outputs, 16) / 16, [&](int tile, int row, int rows) {
      alignas(64) float out[16 * pk::ROWS];
      tile_product(matrix, tile, a, row, rows, out);
      for (int r = 0; r < rows; r++) store(x(row + r) + 16 * tile, add(load(x(row + r) + 16 * tile), load(out + 16 * r)));
    });
  }

  // 32 inner values at a time: two tiles of gate and two of up, then straight into the next input.
  void feed_forward(const PkLayer& layer, const Activations& a) {
    by_tiles(GATE_UP, pk::padded(m_.inner, 32) / 32, [&](int unit, int row, int rows) {
      alignas(64) float out[4][16 * pk::ROWS];
      // An inner width of 16 more than a multiple of 32 has no last tile: its outputs are zeros.
      const int tiles = 2 * unit + 2 <= pk::padded(m_.inner, 16) / 16 ? 2 : 1;
      if (tiles == 1) __builtin_memset(out, 0, sizeof out);
      for (int i = 0; i < tiles; i++) {
        tile_product(layer.gate, 2 * unit + i, a, row, rows, out[2 * i]);
        tile_product(layer.up, 2 * unit + i, a, row, rows, out[2 * i + 1]);
      }
      for (int r = 0; r < rows; r++)
        set_group(s_.inner, pk::form_of(layer.down.kind), row + r, unit, silu_mul(load(out[0] + 16 * r), load(out[1] + 16 * r)),
                  silu_mul(load(out[2] + 16 * r), load(out[3] + 16 * r)));
    });
  }

  // ---- attention

  void attention(const PkLayer& layer) {
    const int splits = s_.by_split ? s_.max_splits : 1;
    share_out(ATTENTION, s_.num_tiles * m_.kv_heads * splits, [&](int unit) {
      attend(layer, unit / (m_.kv_heads * splits), unit / splits % m_.kv_heads, unit % splits);
    });
  }

  void attend(const PkLayer& layer, int tile_number, int kv_head, int split) {
    const QueryTile& tile = s_.tiles[tile_number];
    const int group = m_.heads / m_.kv_heads, dim = m_.head_dim, rows = tile.count * group, size = partial_size(dim);
    Query* panel = reinterpret_cast<Query*>(t_.queries);
    int last[256];
    for (int r = 0; r < rows; r++) {
      Cache::put_query(panel, r, rows, s_.q + static_cast<size_t>(tile.row + r / group) * attend_ + (kv_head * group + r % group) * dim, dim);
      last[r] = tile.position + r / group;
    }
    const int num_splits = last[rows - 1] / pk::KEY_SPLIT + 1;
    if (s_.by_split) {
      if (split < num_splits) one_split(layer, tile, panel, last, rows, kv_head, split, partials_at(tile_number, kv_head, split));
      return;
    }
    for (int i = 0; i < num_splits; i++) {
      one_split(layer, tile, panel, last, rows, kv_head, i, i ? t_.partial : t_.folded);
      for (int r = 0; i && r < rows; r++)
        if (last[r] >= i * pk::KEY_SPLIT) fold(t_.folded + static_cast<size_t>(r) * size, t_.partial + static_cast<size_t>(r) * size, dim);
    }
    for (int r = 0; r < rows; r++) finish_row(tile.row + r / group, kv_head * group + r % group, t_.folded + static_cast<size_t>(r) * size);
  }

  void one_split(const PkLayer& layer, const QueryTile& tile, const Query* panel, const int* last, int rows, int kv_head, int split, float* partials) {
    attend_split<Cache>(panel, last, rows, static_cast<const Cell*>(layer.keys), static_cast<const Cell*>(layer.values),
                        pages(tile.sequence), kv_head, split, m_.head_dim, 1.0f / std::sqrt(static_cast<float>(m_.head_dim)), t_.scores, reinterpret_cast<Query*>(t_.weights), partials);
  }

  float* partials_at(int tile, int kv_head, int split) const {
    const size_t per_split = static_cast<size_t>(attention_rows(m_)) * partial_size(m_.head_dim);
    return s_.partials + ((static_cast<size_t>(tile) * m_.kv_heads + kv_head) * s_.max_splits + split) * per_split;
  }

  void finish_row(int row, int head, const float* partial) {
    float* out = s_.mixed + static_cast<size_t>(row) * attend_ + head * m_.head_dim;
    const V by = set1(1.0f / partial[1]);
    for (int d = 0; d < m_.head_dim; d += 16) store(out + d, mul(load(partial + 16 + d), by));
  }

  // The attention's result for a row; folds its splits first where threads have shared them.
  const float* mixed_row(int row) {
    float* out = s_.mixed + static_cast<size_t>(row) * attend_;
    if (!s_.by_split) return out;
    if (own_rows()) out = t_.row;
    const int sequence = sequence_of(row), within = row - b_.first_row[sequence];
    int tile = 0;
    while (s_.tiles[tile].row + s_.tiles[tile].count <= row) tile++;
    const int group = m_.heads / m_.kv_heads, dim = m_.head_dim, size = partial_size(dim);
    const int num_splits = (b_.starts[sequence] + within) / pk::KEY_SPLIT + 1;
    for (int head = 0; head < m_.heads; head++) {
      const size_t at = static_cast<size_t>((row - s_.tiles[tile].row) * group + head % group) * size;
      for (int i = 0; i < size; i++) t_.folded[i] = partials_at(tile, head / group, 0)[at + i];
      for (int split = 1; split < num_splits; split++) fold(t_.folded, partials_at(tile, head / group, split) + at, dim);
      const V by = set1(1.0f / t_.folded[1]);
      for (int d = 0; d < dim; d += 16) store(out + head * dim + d, mul(load(t_.folded + 16 + d), by));
    }
    return out;
  }

  // ---- output head

  void logits() {
    const int forms = pk::form_of(m_.head.kind);
    for (int first = 0; first < b_.num_wanted; first += LOGITS_ROWS) {
      const int count = b_.num_wanted - first < LOGITS_ROWS ? b_.num_wanted - first : LOGITS_ROWS;
      const Activations a = s_.wide.of_width(m_.hidden);
      wait();  // Every thread is through with the last block's input.
      const Share rows = mine(count);
      for (int r = rows.begin; r < rows.end; r++) {
        normalise(x(b_.wanted[first + r]), m_.norm, m_.hidden, m_.eps, t_.row);
        set_row(a, forms, r, t_.row, m_.hidden);
      }
      wait();
      const Share tiles = mine(pk::padded(m_.vocab, 16) / 16);
      for (int tile = tiles.begin; tile < tiles.end; tile++)
        for (int row = 0; row < count; row += pk::ROWS) head_tile(a, tile, row, count - row < pk::ROWS ? count - row : pk::ROWS, first);
    }
  }

  void head_tile(const Activations& a, int tile, int row, int rows, int first) {
    alignas(64) float out[16 * pk::ROWS];
    tile_product(m_.head, tile, a, row, rows, out);
    const int lanes = m_.vocab - 16 * tile < 16 ? m_.vocab - 16 * tile : 16;
    for (int r = 0; r < rows; r++)
      __builtin_memcpy(b_.logits + static_cast<size_t>(first + row + r) * m_.vocab + 16 * tile, out + 16 * r, lanes * sizeof(float));
  }
};

template <class Cache> void forward_with(const PkModel& m, const PkBatch& b, Scratch& s) {
  Barrier barrier;
  s.given_up->store(0, std::memory_order_relaxed);
  const size_t cursors = static_cast<size_t>(m.num_layers) * PHASES * m.threads;
  for (size_t i = 0; i < cursors; i++) s.cursors[i].next.store(0, std::memory_order_relaxed);
#pragma omp parallel num_threads(m.threads)
  {
    // The runtime may give fewer threads than were asked for.
#pragma omp single
    barrier.expect(omp_get_num_threads());
    Forward<Cache>(m, b, s, barrier, omp_get_thread_num(), omp_get_num_threads()).run();
  }
}

inline size_t product_of(const PkMatrix& matrix, const float* x, int rows, float* out, int threads, void* work) {
  Activations a;
  char* start = static_cast<char*>(work);
  const size_t total = a.place(start, rows, matrix.inputs) - start;
  if (!work) return total;
  const int tiles = pk::padded(matrix.outputs, 16) / 16;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int r = 0; r < rows; r++) set_row(a, pk::form_of(matrix.kind), r, x + static_cast<size_t>(r) * matrix.inputs, matrix.inputs);
#pragma omp for schedule(static)
    for (int tile = 0; tile < tiles; tile++)
      for (int row = 0; row < rows; row += pk::ROWS) {
        alignas(64) float part[16 * pk::ROWS];
        const int count = rows - row < pk::ROWS ? rows - row : pk::ROWS;
        tile_product(matrix, tile, a, row, count, part);
        const int lanes = matrix.outputs - 16 * tile < 16 ? matrix.outputs - 16 * tile : 16;
        for (int r = 0; r < count; r++)
          __builtin_memcpy(out + static_cast<size_t>(row + r) * matrix.outputs + 16 * tile, part + 16 * r, lanes * sizeof(float));
      }
  }
  return total;
}

// Bytes of scratch that the batch needs; with `work` (64-byte aligned), runs it.
inline size_t forward(const PkModel& m, const PkBatch& b, void* work) {
  Scratch s = plan(m, b, static_cast<char*>(work));
  if (!work) return s.total;
  fill_tiles(b, s);
  if (m.cache == PK_CACHE_F32) forward_with<F32Cache>(m, b, s);
  else if (m.cache == PK_CACHE_BF16) forward_with<Bf16Cache>(m, b, s);
  else forward_with<Int8Cache>(m, b, s);
  return s.total;
}

}  // namespace
