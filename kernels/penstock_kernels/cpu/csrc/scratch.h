// The memory of a step: buffers of the program, and what each thread has for itself.
#pragma once
#include "attention.h"
#include "peaks.h"
#include "threads.h"

namespace {

// Rows of one step up to which each thread makes the inputs of a product for itself: cheaper than a
// barrier.
constexpr int PRIVATE_ROWS = 2;
// Why the rest of a step isn't computed: between two layers, or in an exchange with other ranks.
constexpr int GIVEN_UP = 1, BROKEN_OFF = 2;
// Rows whose logits are computed at a time.
constexpr int LOGITS_ROWS = 64;

// Query positions of one sequence, and one KV head: what a thread attends with at a time.  end: tokens of
// the sequence so far.
struct QueryTile { int32_t sequence, row, count, position, end; };
// Neighbouring rows that pass a tile of weights together, pk::ROWS at most.
struct Piece { int32_t row, rows; };
// Whose a row is, and where it stands in that sequence.
struct RowPlace { int32_t sequence, position; };

// Floats of partial results of attention, or of an index's scores, that threads leave for each other: 256 MiB.
constexpr size_t MOST_PARTIALS = size_t{64} << 20;

// Rows by the experts that they chose. A place is a row at one of its experts; the places of an expert
// follow one another, in the order of rows.
struct Places {
  Activations input, inner;
  float* results;   // [places, hidden rounded up to 32]
  int32_t *chosen;  // [rows][active]: experts, ascending
  float* shares;    // [rows][active]: their scores; ones where these are factors of inputs
  float* factors;   // [places]: of inputs, where scores are
  int32_t *first;   // [experts + 1]: the first place of each expert
  int32_t *busy;    // [experts + 1]: experts here that have places; at the number of all experts, how many
  int32_t *here;    // [places + 1]: places of experts that are here; at the number of places, how many
  int32_t *place;   // [rows][active]
  int32_t *run_of;  // [places]: as in PkBatch, where it has runs
};

struct Scratch {
  Places places;
  float* floats[PK_INPUT];     // by PkBuffer
  float* partials;
  float* index;                // scores of keys, [rows, index_splits * KEY_SPLIT] where threads share those of a row, else of each thread as many for a tile
  int32_t* chosen;             // [rows, chosen_width]: positions of chosen keys, or numbers of blocks, ascending
  Activations input, inner;
  float* low[3];               // [rows or places, low_rank]: what A of adapters gives, for the three matrices of a phase
  QueryTile* tiles;
  RowPlace* rows;
  uint8_t* is_wanted;          // [rows]
  int32_t* wanted;             // rows that the batch wants, each once, ascending
  Piece* pieces;               // the same rows
  int num_wanted, num_pieces;
  Cursor* cursors;             // of each phase and thread
  Peak* peaks;                 // [threads][num_wanted]; where the batch wants the likeliest tokens
  std::atomic<int>* given_up;  // GIVEN_UP or BROKEN_OFF
  char* threads;               // per thread
  size_t thread_bytes;
  int tile_queries;            // query positions of a tile, at most
  int num_tiles, max_splits, index_splits, chosen_width;
  bool by_split, index_by_split;
  size_t total;
};

struct ThreadScratch {
  Activations own, by_head;
  float *scores, *weights, *queries, *partial, *folded, *row, *heads, *window, *state, *angles, *peaks, *gathered;
};

// Of a row of a product's input (see Activations).
inline int parts_of(const PkProgram& m) { return m.two_parts ? 2 : 1; }

inline int attention_group(const PkAttention& a) { return a.heads / a.kv_heads; }

inline int heads_of_index(const PkAttention& a) { return a.entries ? a.entries->index_heads : a.index_heads; }

// The largest of a program's attentions, each number by itself.
struct Limits {
  size_t rows = 0, head_dim = 0, value_dim = 0, kv_heads = 0, heads_and_partials = 0, by_head = 0, turning = 0;
  size_t experts = 0, active = 0, adapted = 1, expert_inner = 0, window = 0, state = 0;
  size_t gathered = 0;
  int most = 0;          // keys that a token reads, of layers that choose them; 0: none does
  int chosen = 0;        // numbers that say which
  int rate = 1;          // tokens that such a key stands for
  int queries = 1;       // of a tile
  bool in_order = false; // whether some layer reads all

  explicit Limits(const PkProgram& m) : queries(tile_queries(m)) {
    for (int i = 0; i < m.num_phases; i++) {
      if (const PkExperts* e = m.phases[i].experts) {
        raise(experts, e->count);
        raise(active, e->active);
        if (m.phases[i].low_rank >= 0) raise(adapted, e->active);
        raise(expert_inner, e->downs[0].inputs);
      }
      if (const PkRecurrent* l = m.phases[i].recurrent) {
        // Of a unit's channels, all inputs that a row sees and what becomes of them.
        const int channels = pk::padded(l->kind == PK_GATED_DELTA && l->key_dim > 64 ? l->key_dim : 64, 16);
        raise(window, static_cast<size_t>(l->kernel + 1) * channels);
        if (l->value_dim % 16) raise(state, static_cast<size_t>(l->key_dim) * pk::STATE_LANES);
      }
      if (const PkByHead* h = m.phases[i].by_head) raise(by_head, h->matrices[0].inputs);
      if (m.phases[i].kind == PK_INDEX) raise(rows, heads_of_index(*m.phases[i].attention));
      if (m.phases[i].kind == PK_ATTEND_ENTRIES) with_entries(*m.phases[i].attention);
      if (m.phases[i].kind != PK_ATTEND) continue;
      const PkAttention& a = *m.phases[i].attention;
      if (a.most) {
        chosen = most = a.most;
        if (a.block) chosen = most / a.block * a.kv_heads;
        else raise(gathered, static_cast<size_t>(pk::KEY_SPLIT) * (a.head_dim + a.value_dim));
      } else in_order = true;
      raise(rows, static_cast<size_t>(queries) * attention_group(a));
      raise(head_dim, a.head_dim);
      raise(value_dim, a.value_dim);
      raise(kv_heads, a.kv_heads);
      if (a.axes) raise(turning, a.rotary_dims);
      raise(heads_and_partials, static_cast<size_t>(a.heads) * partial_size(a.value_dim));
    }
  }

  void with_entries(const PkAttention& a) {
    raise(rows, static_cast<size_t>(queries) * attention_group(a));
    raise(head_dim, a.head_dim);
    raise(value_dim, a.value_dim);
    if (!a.entries) return;
    raise(head_dim, a.entries->index_dim);
    raise(gathered, static_cast<size_t>(pk::KEY_SPLIT) * (a.head_dim + a.value_dim));
    raise(gathered, static_cast<size_t>(pk::KEY_SPLIT) * a.entries->index_dim);
    if (!a.entries->most) return;
    chosen = most = a.entries->most;
    rate = a.entries->rate;
  }

  // Query positions of a tile of a prompt, a multiple of TILE_QUERIES, so that tiles don't straddle pages: of the largest
  // group of heads that share a KV head they are at most TILE_ROWS rows.
  static int tile_queries(const PkProgram& m) {
    size_t group = 1;
    for (int i = 0; i < m.num_phases; i++)
      if (m.phases[i].kind == PK_ATTEND || m.phases[i].kind == PK_ATTEND_ENTRIES) raise(group, attention_group(*m.phases[i].attention));
    const int queries = pk::TILE_ROWS / static_cast<int>(group) / pk::TILE_QUERIES * pk::TILE_QUERIES;
    return queries < pk::TILE_QUERIES ? pk::TILE_QUERIES : queries > pk::MOST_TILE_QUERIES ? pk::MOST_TILE_QUERIES : queries;
  }

  static void raise(size_t& most, size_t to) { most = to > most ? to : most; }
};

inline ThreadScratch thread_scratch(const PkProgram& m, const Limits& most, char* at, char** end) {
  ThreadScratch t;
  size_t widest = 0;
  for (int i = 0; i < PK_BUFFERS; i++) Limits::raise(widest, m.widths[i]);
  at = t.own.place(at, PRIVATE_ROWS, m.widths[PK_INPUT], parts_of(m));
  if (most.by_head) at = t.by_head.place(at, pk::ROWS, static_cast<int>(most.by_head), parts_of(m));
  Activations::take(at, t.scores, (most.rows + ROWS_BEYOND) * pk::KEY_SPLIT);
  Activations::take(at, t.weights, (most.rows + ROWS_BEYOND) * pk::KEY_SPLIT);
  Activations::take(at, t.queries, (most.rows + ROWS_BEYOND) * QUERY_STRIDE);
  Activations::take(at, t.partial, most.rows * partial_size(most.value_dim));
  Activations::take(at, t.folded, most.rows * partial_size(most.value_dim));
  Activations::take(at, t.row, pk::padded(widest, 32));
  Activations::take(at, t.heads, pk::ROWS * most.head_dim + 4 * 16 * pk::ROWS);
  Activations::take(at, t.window, most.window);
  Activations::take(at, t.state, most.state);
  Activations::take(at, t.angles, most.turning);
  Activations::take(at, t.peaks, LOGITS_ROWS * Peaks::FLOATS);
  Activations::take(at, t.gathered, most.gathered);
  *end = at;
  return t;
}

// Cuts the batch into query tiles and lays the scratch memory out. work: null to measure only.
inline Scratch plan(const PkProgram& m, const PkBatch& b, char* work) {
  const Limits most(m);
  Scratch s{};
  char* at = work;
  for (int i = 0; i < PK_INPUT; i++) Activations::take(at, s.floats[i], static_cast<size_t>(b.rows) * pk::padded(m.widths[i], 32));
  const int wanted = b.num_wanted < LOGITS_ROWS ? b.num_wanted : LOGITS_ROWS;
  const int parts = parts_of(m);
  at = s.input.place(at, b.rows > wanted ? b.rows : wanted, m.widths[PK_INPUT], parts);
  at = s.inner.place(at, b.rows, m.widths[PK_INNER], parts);
  const size_t lowered = most.adapted * b.rows > static_cast<size_t>(wanted) ? most.adapted * b.rows : wanted;
  for (int i = 0; b.num_runs && i < 3; i++) Activations::take(at, s.low[i], lowered * m.low_rank);
  if (most.experts) {
    const int places = b.rows * static_cast<int>(most.active);
    at = s.places.input.place(at, places, m.widths[PK_INPUT], parts);
    at = s.places.inner.place(at, places, static_cast<int>(most.expert_inner), parts);
    Activations::take(at, s.places.results, static_cast<size_t>(places) * pk::padded(m.widths[PK_RESIDUAL], 32));
    Activations::take(at, s.places.chosen, places);
    Activations::take(at, s.places.shares, places);
    Activations::take(at, s.places.factors, places);
    Activations::take(at, s.places.first, most.experts + 1);
    Activations::take(at, s.places.busy, most.experts + 1);
    Activations::take(at, s.places.here, places + 1);
    Activations::take(at, s.places.place, places);
    Activations::take(at, s.places.run_of, places);
  }
  // What threads leave for each other has room for whole tiles, of which decodes fill one row, and drafts a few.
  int largest = 1, longest = 0;
  for (int i = 0; i < b.sequences; i++) {
    const int count = b.first_row[i + 1] - b.first_row[i];
    largest = count > largest ? count : largest;
  }
  s.tile_queries = largest > pk::TILE_QUERIES ? most.queries : largest > 1 ? pk::TILE_QUERIES : 1;
  for (int i = 0; i < b.sequences; i++) {
    const int count = b.first_row[i + 1] - b.first_row[i];
    s.num_tiles += (count + s.tile_queries - 1) / s.tile_queries;
    const int end = b.starts[i] + count;
    longest = end > longest ? end : longest;
  }
  const auto splits_of = [](int keys) { return (keys + pk::KEY_SPLIT - 1) / pk::KEY_SPLIT; };
  const int keys = longest / most.rate;
  const bool chooses = most.most && keys > most.most;
  s.max_splits = splits_of(chooses && !most.in_order ? most.most : longest);
  s.index_splits = chooses ? splits_of(keys) : 0;
  s.chosen_width = most.chosen;
  Activations::take(at, s.tiles, s.num_tiles);
  Activations::take(at, s.rows, b.rows);
  Activations::take(at, s.is_wanted, b.rows);
  Activations::take(at, s.wanted, b.rows);
  Activations::take(at, s.pieces, b.rows);
  Activations::take(at, s.cursors, static_cast<size_t>(m.num_phases) * m.threads);
  Activations::take(at, s.given_up, 1);
  if (b.likeliest) Activations::take(at, s.peaks, static_cast<size_t>(m.threads) * b.num_wanted);
  // Few tiles and many keys: threads share the splits of a tile instead of whole tiles, where what they leave
  // for each other takes little memory.
  const size_t partials = s.num_tiles * most.heads_and_partials * s.tile_queries * s.max_splits;
  s.by_split = s.max_splits > 1 && s.num_tiles * static_cast<int>(most.kv_heads) < 4 * m.threads && partials <= MOST_PARTIALS;
  if (s.by_split) Activations::take(at, s.partials, partials);
  if (chooses) {
    const size_t scores = static_cast<size_t>(s.index_splits) * pk::KEY_SPLIT;
    s.index_by_split = s.num_tiles < 4 * m.threads && b.rows * scores <= MOST_PARTIALS;
    Activations::take(at, s.index, scores * (s.index_by_split ? b.rows : m.threads * s.tile_queries));
    Activations::take(at, s.chosen, static_cast<size_t>(b.rows) * s.chosen_width);
  }
  s.threads = at;
  char* end;
  thread_scratch(m, most, at, &end);
  s.thread_bytes = end - at;
  s.total = (at - work) + s.thread_bytes * m.threads;
  return s;
}

inline void fill_tiles(const PkBatch& b, Scratch& s) {
  int n = 0;
  for (int i = 0; i < b.sequences; i++) {
    for (int row = b.first_row[i]; row < b.first_row[i + 1]; row++) s.rows[row] = {i, b.starts[i] + row - b.first_row[i]};
    for (int row = b.first_row[i]; row < b.first_row[i + 1]; row += s.tile_queries) {
      const int left = b.first_row[i + 1] - row;
      s.tiles[n++] = {i, row, left < s.tile_queries ? left : s.tile_queries, b.starts[i] + row - b.first_row[i], b.starts[i] + b.first_row[i + 1] - b.first_row[i]};
    }
  }
}

inline void find_wanted(const PkBatch& b, Scratch& s) {
  for (int row = 0; row < b.rows; row++) s.is_wanted[row] = 0;
  for (int i = 0; i < b.num_wanted; i++) s.is_wanted[b.wanted[i]] = 1;
  for (int row = 0; row < b.rows; row++) {
    if (!s.is_wanted[row]) continue;
    s.wanted[s.num_wanted++] = row;
    Piece* last = s.num_pieces ? &s.pieces[s.num_pieces - 1] : nullptr;
    if (last && last->row + last->rows == row && last->rows < pk::ROWS) last->rows++;
    else s.pieces[s.num_pieces++] = {row, 1};
  }
}

}  // namespace
