// Phases that are products: into the residual, the feed-forward's inner ones, logits.
#pragma once
#include "low_rank.h"

namespace {

inline void product(Thread& t, const PkPhase& p) {
  const PkMatrix& matrix = p.matrices[0];
  const Activations a = t.input(p.source, matrix.inputs);
  const V scale = set1(p.scale);
  const bool adapted = p.low_rank >= 0 && t.batch.num_runs;
  const int tiles = pk::padded(matrix.outputs, 16) / 16, together = adapted ? 2 : tiles_together(matrix), units = (tiles + together - 1) / together;
  ask_for_raised(t, p, 0, together * t.mine(units).begin, together);
  t.by_tiles(units, a.row_bytes(matrix.kind), [&](int unit, int row, int rows) {
    alignas(64) float out[2][16 * pk::ROWS];
    const int first = unit * together, count = tiles - first < together ? tiles - first : together;
    // What is added to may have gone to a further cache since the last layer.
    for (int i = 0; i < count; i++)
      for (int r = 0; r < rows; r++) __builtin_prefetch(t.row(p.target, row + r) + p.first + 16 * (first + i), 1, 2);
    tile_products(matrix, first, count, a, row, rows, out[0]);
    add_raised(t, raised_by(t, p), 0, first, count, row, rows, out[0]);
    for (int i = 0; i < count; i++) {
      for (int r = 0; r < rows; r++) {
        float* target = t.row(p.target, row + r) + p.first + 16 * (first + i);
        const V scaled = mul(load(out[i] + 16 * r), scale);
        store(target, p.adds ? add(load(target), scaled) : scaled);
      }
    }
  });
}

// Part of whatever calls it: on AVX2, 16 lanes would go through memory on their way there and back.
__attribute__((always_inline)) inline V activate(int kind, V x) {
  switch (kind) {
    case PK_SILU: return silu(x);
    case PK_GELU: return gelu(x);
    case PK_GELU_TANH: return gelu_tanh(x);
    case PK_QUICK_GELU: return quick_gelu(x);
    default: return relu2(x);
  }
}

// 32 inner values of up to pk::ROWS rows: two tiles of gate and two of up, then straight into the next
// input, from column p.first on.  gate: null without one.  weights: [rows] factors, or null.  factors: [rows]
// of the products' input, or null.
inline void inner_unit(const Thread& t, const PkPhase& p, const PkMatrix* gate, const PkMatrix& up, const Activations& a, const Activations& inner, int unit, int row, int rows,
                       const Raised& raised, const float* weights = nullptr, const float* factors = nullptr) {
  alignas(64) float out[4][16 * pk::ROWS];
  // An inner width of 16 more than a multiple of 32 has no last tile: its outputs are zeros.
  const int tiles = 2 * unit + 2 <= pk::padded(up.outputs, 16) / 16 ? 2 : 1;
  if (tiles == 1) __builtin_memset(out, 0, sizeof out);
  if (gate) tile_products(*gate, 2 * unit, tiles, a, row, rows, out[0]);
  tile_products(up, 2 * unit, tiles, a, row, rows, out[2]);
  if (gate) add_raised(t, raised, 0, 2 * unit, tiles, row, rows, out[0]);
  add_raised(t, raised, 1, 2 * unit, tiles, row, rows, out[2]);
  const auto value = [&](V g, V u) __attribute__((always_inline)) {
    if (p.activation == PK_CLAMPED_SWIGLU) return clamped_swiglu(g, u);
    if (!gate) return p.activation == PK_XIELU ? xielu(u, p.xielu) : activate(p.activation, u);
    if (p.gate_limit > 0.0f) {
      const V bound = set1(-p.gate_limit);
      g = at_most(g, bound);
      u = within_bounds(u, bound);
    }
    V active = activate(p.activation, g);
    if (p.limit > 0.0f) {
      const V bound = set1(-p.limit);
      active = at_most(active, bound);
      u = within_bounds(u, bound);
    }
    return mul(active, u);
  };
  for (int r = 0; r < rows; r++) {
    const auto product = [&](int i) { return factors ? mul(load(out[i] + 16 * r), set1(factors[r])) : load(out[i] + 16 * r); };
    V low = value(product(0), product(2)), high = value(product(1), product(3));
    if (weights) low = mul(low, set1(weights[r])), high = mul(high, set1(weights[r]));
    set_group(inner, p.forms, row + r, p.first / 32 + unit, low, high);
  }
}

inline void gate_up(Thread& t, const PkPhase& p) {
  const PkMatrix *gate = p.matrices[0].tiles ? &p.matrices[0] : nullptr, &up = p.matrices[1];
  const Activations a = t.input(p.source, up.inputs), inner = t.input(PK_INNER, p.part ? p.width : up.outputs);
  const int units = pk::padded(up.outputs, 32) / 32;
  for (int which = 0; which < 2; which++) ask_for_raised(t, p, which, 2 * t.mine(units).begin, 2);
  t.by_tiles(units, a.row_bytes(up.kind), [&](int unit, int row, int rows) {
    float weights[pk::ROWS];
    for (int r = 0; p.weighed && r < rows; r++) weights[r] = logistic(t.row(PK_SCORES, row + r)[0]);
    inner_unit(t, p, gate, up, a, inner, unit, row, rows, raised_by(t, p), p.weighed ? weights : nullptr);
  });
  t.finish_rows(inner, p.forms, t.num_rows(), [&](int i) { return t.row_at(i); });
}

// What the adapter of a wanted row does to the head; null for nothing.
inline const PkLowRank* head_of(const Thread& t, const PkPhase& p, int row) {
  const PkLowRank* own = adapter_of(t, p, 0, row);
  return own && (own->whole.tiles || own->factors || own->up.tiles) ? own : nullptr;
}

// The head's products with neighbouring rows, each with what its adapter has in its place, or adds.
// adapters: [rows], of these rows, as head_of has them.
inline void head_products(const Thread& t, const PkPhase& p, const Activations& a, int tile, int row, int rows, const PkLowRank* const* adapters, float* out) {
  for (int r = 0; r < rows;) {
    const PkLowRank* own = adapters[r];
    int end = r + 1;
    while (end < rows && adapters[end] == own) end++;
    float* part = out + 16 * r;
    tile_product(own && own->whole.tiles ? own->whole : p.matrices[0], tile, a, row + r, end - r, part);
    if (own && own->factors) rescale(*own, tile, end - r, part);
    if (own && own->up.tiles) {
      PairProduct product{};
      product.x = t.scratch.low[0] + static_cast<size_t>(row + r) * t.program.low_rank;
      product.stride = t.program.low_rank;
      product.out = part;
      product.out_next = 16 * pk::ROWS;
      product.out_stride = 16;
      product.adds = true;
      factor_product(own->up, product, tile, 1, end - r);
    }
    r = end;
  }
}

// What A of a wanted row's adapter gives, all of it by the thread that has made the row.
inline void lower_wanted(const Thread& t, const PkPhase& p, const Activations& a, int row, int first) {
  const PkLowRank* own = adapter_of(t, p, 0, t.batch.wanted[first + row]);
  if (!own || !own->down.tiles) return;
  PairProduct product{};
  product.x = a.floats + static_cast<size_t>(row) * a.stride;
  product.stride = a.stride;
  product.out = t.scratch.low[0] + static_cast<size_t>(row) * t.program.low_rank;
  product.out_next = 16;
  product.out_stride = t.program.low_rank;
  factor_product(own->down, product, 0, pk::padded(own->down.outputs, 16) / 16, 1, LOWERED_AHEAD);
}

// Where the logits of a block of wanted rows go: to memory, or only their peaks.
class LogitsOf {
 public:
  // first: the block's first row, of all that are wanted.
  LogitsOf(const Thread& t, const PkPhase& p, int first, int rows) : t_(t), p_(p), first_(first), rows_(rows), peaks_(t.own.peaks) {
    if (t.batch.likeliest) peaks_.begin(rows);
  }

  void take(int tile, int row, int lanes, const float* logits) {
    if (t_.batch.likeliest) return peaks_.take(row, tile, lanes, load(logits));
    __builtin_memcpy(t_.batch.logits + static_cast<size_t>(first_ + row) * t_.program.vocab + p_.first + 16 * tile, logits, lanes * sizeof(float));
  }

  void end() const {
    if (!t_.batch.likeliest) return;
    Peak* peaks = t_.scratch.peaks + static_cast<size_t>(t_.number) * t_.batch.num_wanted + first_;
    for (int r = 0; r < rows_; r++) peaks[r] = peaks_.of(r);
  }

 private:
  const Thread& t_;
  const PkPhase& p_;
  const int first_, rows_;
  Peaks peaks_;
};

inline void head_tile(Thread& t, const PkPhase& p, const Activations& a, int tile, int row, int rows, LogitsOf& into, const PkLowRank* const* adapters) {
  alignas(64) float out[16 * pk::ROWS];
  const PkMatrix& head = p.matrices[0];
  const int left = head.outputs - 16 * tile, lanes = left < 16 ? left : 16;
  head_products(t, p, a, tile, row, rows, adapters, out);
  for (int r = 0; r < rows; r++) {
    V logits = mul(load(out + 16 * r), set1(p.scale));
    if (p.soft_cap > 0.0f) logits = capped(logits, p.soft_cap);
    store(out + 16 * r, logits);
    into.take(tile, row + r, lanes, out + 16 * r);
  }
}

// The likeliest tokens of all wanted rows, of what each thread has found.
inline void give_likeliest(Thread& t) {
  if (!t.batch.likeliest) return;
  t.wait();
  const int wanted = t.batch.num_wanted;
  const Share rows = t.mine(wanted);
  for (int r = rows.begin; r < rows.end; r++) {
    Peak peak = t.scratch.peaks[r];
    for (int thread = 1; thread < t.threads; thread++) peak = Peaks::likelier(peak, t.scratch.peaks[static_cast<size_t>(thread) * wanted + r]);
    t.batch.likeliest[r] = peak.token;
  }
}

inline void logits(Thread& t, const PkPhase& p) {
  const PkMatrix& head = p.matrices[0];
  // A head in the place of the model's own may be of another kind.
  const int adapted = p.low_rank >= 0 && t.batch.num_runs ? pk::FLOATS | pk::HALVES : 0;
  const int wanted = t.batch.num_wanted, forms = pk::form_of(head.kind) | adapted;
  const Activations a = t.scratch.input.of_width(head.inputs);
  for (int first = 0; first < wanted; first += LOGITS_ROWS) {
    const int count = wanted - first < LOGITS_ROWS ? wanted - first : LOGITS_ROWS;
    t.wait();  // Every thread is through with the last block's input.
    const Share rows = t.mine(count);
    for (int r = rows.begin; r < rows.end; r++) {
      normalise(t.row(p.source, t.batch.wanted[first + r]), p.norm, head.inputs, t.own.row);
      set_row(a, forms, r, t.own.row, head.inputs);
      lower_wanted(t, p, a, r, first);
    }
    t.wait();
    const PkLowRank* adapters[LOGITS_ROWS];
    for (int r = 0; r < count; r++) adapters[r] = head_of(t, p, t.batch.wanted[first + r]);
    LogitsOf into(t, p, first, count);
    const Share tiles = t.mine(pk::padded(head.outputs, 16) / 16);
    for (int tile = tiles.begin; tile < tiles.end; tile++)
      for (int row = 0; row < count; row += pk::ROWS) head_tile(t, p, a, tile, row, count - row < pk::ROWS ? count - row : pk::ROWS, into, adapters + row);
    into.end();
  }
  give_likeliest(t);
}

}  // namespace
