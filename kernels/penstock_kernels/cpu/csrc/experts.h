// The phases of a mixture of experts. Rows are gathered by the experts that they chose, in the order of
// rows; a row's sums are those of its own experts, in the experts' order.
#pragma once
#include "products.h"

namespace {

// The `count` best of scores, each time the first of the largest; those taken become NO_PEAK.
// taken(index) for each.
template <class Taken> void best_of(float* scores, int size, int count, const Taken& taken) {
  for (int k = 0; k < count; k++) {
    int best = 0;
    for (int i = 1; i < size; i++)
      if (scores[i] > scores[best]) best = i;
    taken(best);
    scores[best] = NO_PEAK;
  }
}

// Leaves the scores of the groups whose best one or two sum up highest, and makes the others NO_PEAK.
inline void keep_best_groups(const PkExperts& e, float* ranked) {
  float sums[pk::MAX_EXPERTS];
  bool open[pk::MAX_EXPERTS] = {};
  const int size = e.count / e.groups;
  for (int g = 0; g < e.groups; g++) {
    float first = NO_PEAK, second = NO_PEAK;
    for (int i = g * size; i < (g + 1) * size; i++) {
      if (ranked[i] > first) {
        second = first;
        first = ranked[i];
      } else if (ranked[i] > second) second = ranked[i];
    }
    sums[g] = e.group_best == 1 ? first : first + second;
  }
  best_of(sums, e.groups, e.active_groups, [&](int g) { open[g] = true; });
  for (int i = 0; i < e.count; i++)
    if (!open[i / size]) ranked[i] = NO_PEAK;
}

// Makes probabilities of a row's products with the router, or what stands for them.
inline void score(const PkExperts& e, float* scores) {
  float peak = NO_PEAK, total = 0.0f;
  for (int i = 0; i < e.count; i++) peak = scores[i] > peak ? scores[i] : peak;
  for (int i = 0; i < e.count; i++) {
    if (e.scoring == PK_SIGMOID) scores[i] = logistic(scores[i]);
    else if (e.scoring == PK_SQRT_SOFTPLUS) scores[i] = std::sqrt(softplus(scores[i]));
    else total += scores[i] = exponential(scores[i] - peak);
  }
  for (int i = 0; e.scoring == PK_SOFTMAX && i < e.count; i++) scores[i] /= total;
}

// Which experts the highest scores choose.
inline void take_best(const PkExperts& e, const float* scores, bool* taken) {
  float ranked[pk::MAX_EXPERTS];
  for (int i = 0; i < e.count; i++) ranked[i] = e.correction ? scores[i] + e.correction[i] : scores[i];
  if (e.groups > 1) keep_best_groups(e, ranked);
  // Of scores that are no numbers, an expert may come out best again; the next that is free takes part.
  best_of(ranked, e.count, e.active, [&](int i) {
    while (taken[i]) i = (i + 1) % e.count;
    taken[i] = true;
  });
}

// SparseMixer: each choice is the first of the largest products that are left, and becomes its softmax over those left
// that are near it.
inline void take_nearest(const PkExperts& e, float* scores, bool* taken) {
  for (int k = 0; k < e.active; k++) {
    int best = -1;
    for (int i = 0; i < e.count; i++)
      if (!taken[i] && (best < 0 || scores[i] > scores[best])) best = i;
    const float peak = scores[best];
    float total = 0.0f;
    for (int i = 0; i < e.count; i++) {
      const float size = std::max(std::abs(scores[i]), peak);
      // Where both are 0, their distance is no number and nothing is farther.
      if (!taken[i] && !((peak - scores[i]) / size > e.nearness)) total += exponential(scores[i] - peak);
    }
    taken[best] = true;
    scores[best] = 1.0f / total;
  }
}

// A row's experts and their shares, from its scores, which become probabilities. given: [active], the experts; or null.
inline void choose(const PkExperts& e, float* scores, const int32_t* given, int32_t* chosen, float* shares) {
  bool taken[pk::MAX_EXPERTS] = {};
  if (e.scoring == PK_SPARSE_MIXER) take_nearest(e, scores, taken);
  else if (e.scoring != PK_GIVEN) score(e, scores);
  for (int k = 0; given && k < e.active; k++) taken[given[k]] = true;
  if (!given && e.scoring != PK_SPARSE_MIXER) take_best(e, scores, taken);
  float sum = 0.0f;
  int n = 0;
  for (int i = 0; i < e.count; i++) {
    if (!taken[i]) continue;
    chosen[n] = i;
    shares[n++] = scores[i];
    sum += scores[i];
  }
  for (int k = 0; k < n; k++) shares[k] = (e.normalised ? shares[k] / (sum + e.sum_floor) : shares[k]) * e.scale;
  for (int k = 0; e.scales && k < n; k++) shares[k] *= e.scales[chosen[k]];
}

// Whether the expert is computed here, and not by another rank.
inline bool is_here(const PkExperts& e, int expert) { return e.downs[expert].tiles; }

// Places for the choices of all rows that the phase computes: by expert, then by row.
inline void give_places(const Thread& t, const PkExperts& e) {
  const Places& places = t.scratch.places;
  const auto by_choices = [&](const auto& body) {
    for (int i = 0; i < t.num_rows(); i++)
      for (int r = t.row_at(i), k = r * e.active; k < (r + 1) * e.active; k++) body(k, r);
  };
  for (int i = 0; i <= e.count; i++) places.first[i] = 0;
  by_choices([&](int i, int) { places.first[places.chosen[i] + 1]++; });
  for (int i = 0; i < e.count; i++) places.first[i + 1] += places.first[i];
  int32_t next[pk::MAX_EXPERTS];
  int busy = 0, here = 0;
  for (int i = 0; i < e.count; i++) {
    next[i] = places.first[i];
    if (!is_here(e, i)) continue;
    if (places.first[i + 1] > places.first[i]) places.busy[busy++] = i;
    for (int place = places.first[i]; place < places.first[i + 1]; place++) places.here[here++] = place;
  }
  places.busy[e.count] = busy;
  places.here[places.first[e.count]] = here;
  by_choices([&](int i, int row) {
    const int place = places.place[i] = next[places.chosen[i]]++;
    if (t.batch.run_of) places.run_of[place] = t.batch.run_of[row];
    if (!e.weighs_input) return;
    places.factors[place] = places.shares[i];
    places.shares[i] = 1.0f;
  });
}

inline void route(Thread& t, const PkPhase& p) {
  const PkExperts& e = *p.experts;
  const Places& places = t.scratch.places;
  const Share mine = t.mine(t.num_rows());
  for (int i = mine.begin; i < mine.end; i++) {
    const int r = t.row_at(i);
    const int64_t token = t.batch.tokens[r];
    const int32_t* given = e.by_token ? e.by_token + (token < e.tokens ? token : 0) * e.active : nullptr;
    choose(e, t.row(PK_SCORES, r), given, places.chosen + r * e.active, places.shares + r * e.active);
  }
  t.wait();
  if (t.number == 0) give_places(t, e);
  t.wait();
  const int width = e.ups[0].inputs;
  const Activations from = t.input(PK_INPUT, width), to = places.input.of_width(width);
  t.by_rows([&](int r) {
    for (int k = r * e.active; k < (r + 1) * e.active; k++)
      if (is_here(e, places.chosen[k])) copy_row(from, r, to, places.place[k], p.forms);
  });
}

// body(expert, unit, first place, places) for `units` of each expert that has places.
template <class Body> void by_experts(Thread& t, const PkExperts& e, int units, const Body& body) {
  const int32_t *first = t.scratch.places.first, *busy = t.scratch.places.busy;
  t.share_out(busy[e.count] * units, [&](int i) {
    const int expert = busy[i / units], end = first[expert + 1];
    for (int place = first[expert]; place < end; place += pk::ROWS) body(expert, i % units, place, end - place < pk::ROWS ? end - place : pk::ROWS);
  });
}

// The part of a row that meets an expert's tiles first.
inline int first_of(const Thread& t, const Activations& a, int expert) { return a.parts * t.scratch.places.first[expert]; }

// A layer's experts have three of an adapter's targets each, for gate, up and down.
inline Raised raised_by_expert(const Thread& t, const PkPhase& p, int expert) {
  return {t.batch.num_runs && p.low_rank >= 0 ? p.low_rank + 3 * expert : -1, t.scratch.places.run_of};
}

// The products of an expert's places with a pair of A's tiles, of the matrix number `which`.
inline void lower_places(const Thread& t, const PkPhase& p, const Activations& a, int expert, int which, int tile) {
  const Places& places = t.scratch.places;
  PairProduct product{};
  product.stride = a.stride;
  product.out_next = 16;
  product.out_stride = t.program.low_rank;
  for (int place = places.first[expert]; place < places.first[expert + 1];) {
    const int at = places.run_of[place], first = place;
    while (place < places.first[expert + 1] && places.run_of[place] == at) place++;
    if (at < 0) continue;
    const PkMatrix& down = t.batch.runs[at].adapter[p.low_rank + 3 * expert + which].down;
    const int given = pk::padded(down.outputs, 16) / 16 - tile;
    if (!down.tiles || given < 1) continue;
    product.x = a.floats + static_cast<size_t>(first) * a.stride;
    product.out = t.scratch.low[which] + static_cast<size_t>(first) * product.out_stride + 16 * tile;
    factor_product(down, product, tile, given < 2 ? given : 2, place - first, LOWERED_AHEAD);
  }
}

// LOWER of experts: of what ROUTE has gathered with gates' and ups' factors, of what EXPERTS_UP has left with downs'.
inline void lower_experts(Thread& t, const PkPhase& p) {
  const Places& places = t.scratch.places;
  const bool inner = p.source == PK_INNER;
  const Activations a = (inner ? places.inner : places.input).of_width(p.width);
  const int32_t* busy = places.busy;
  const int pairs = t.program.low_rank / 32, first = inner ? 2 : 0, each = (inner ? 1 : 2) * pairs;
  t.share_out(busy[p.experts->count] * each, [&](int unit) { lower_places(t, p, a, busy[unit / each], first + unit % each / pairs, 2 * (unit % pairs)); });
}

inline void experts_up(Thread& t, const PkPhase& p) {
  const PkExperts& e = *p.experts;
  const Activations inner = t.scratch.places.inner.of_width(e.downs[0].inputs);
  Activations a = t.scratch.places.input.of_width(e.ups[0].inputs);
  by_experts(t, e, pk::padded(e.ups[0].outputs, 32) / 32, [&](int expert, int unit, int place, int count) {
    a.first = first_of(t, a, expert);
    inner_unit(t, p, e.gates ? &e.gates[expert] : nullptr, e.ups[expert], a, inner, unit, place, count, raised_by_expert(t, p, expert), nullptr, e.weighs_input ? t.scratch.places.factors + place : nullptr);
  });
  const Places& places = t.scratch.places;
  t.finish_rows(inner, p.forms, places.here[places.first[e.count]], [&](int i) { return places.here[i]; });
}

inline float* result_at(const Thread& t, int place) {
  return t.scratch.places.results + static_cast<size_t>(place) * pk::padded(t.program.widths[PK_RESIDUAL], 32);
}

inline void experts_down(Thread& t, const PkPhase& p) {
  const PkExperts& e = *p.experts;
  Activations a = t.scratch.places.inner.of_width(e.downs[0].inputs);
  const int tiles = pk::padded(e.downs[0].outputs, 16) / 16, together = tiles_together(e.downs[0]);
  by_experts(t, e, (tiles + together - 1) / together, [&](int expert, int unit, int place, int count) {
    a.first = first_of(t, a, expert);
    alignas(64) float out[2][16 * pk::ROWS];
    const int first = unit * together, some = tiles - first < together ? tiles - first : together;
    tile_products(e.downs[expert], first, some, a, place, count, out[0]);
    add_raised(t, raised_by_expert(t, p, expert), 2, first, some, place, count, out[0]);
    for (int i = 0; i < some; i++)
      for (int r = 0; r < count; r++) store(result_at(t, place + r) + p.first + 16 * (first + i), load(out[i] + 16 * r));
  });
}

// Columns that COMBINE computes.
inline int combined(const PkPhase& p) { return p.columns ? p.columns : p.experts->downs[0].outputs; }

inline void combine(Thread& t, const PkPhase& p) {
  const PkExperts& e = *p.experts;
  const Places& places = t.scratch.places;
  t.by_rows([&](int r) {
    float* target = t.row(p.target, r);
    for (int i = p.first; i < p.first + combined(p); i += 16) {
      V sum = zero();
      for (int k = r * e.active; k < (r + 1) * e.active; k++) sum = fma(load(result_at(t, places.place[k]) + i), set1(places.shares[k]), sum);
      sum = mul(sum, set1(p.scale));
      store(target + i, p.adds ? add(load(target + i), sum) : sum);
    }
  });
}

}  // namespace
