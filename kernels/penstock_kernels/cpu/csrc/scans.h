// The scans of recurrent layers, token by token. A unit is a sequence, a head, and 32 of its values, whose part of the
// state stays in the first level of the cache while all rows pass. A lane is one value: no sum goes across lanes.
#pragma once
#include "recurrent.h"

namespace {

// N vectors of a head's values.
template <int N> struct Values {
  V x[N];

  static Values zeros() {
    Values v;
    for (int n = 0; n < N; n++) v.x[n] = zero();
    return v;
  }
  // `lanes` of them are there.
  static Values read(const float* from, int lanes) {
    alignas(64) float whole[16 * N] = {};
    const bool all = lanes == 16 * N;
    if (!all) copy_floats(whole, from, lanes);
    Values v;
    for (int n = 0; n < N; n++) v.x[n] = load((all ? from : whole) + 16 * n);
    return v;
  }
  void write(float* to, int lanes) const {
    alignas(64) float whole[16 * N];
    for (int n = 0; n < N; n++) store((lanes == 16 * N ? to : whole) + 16 * n, x[n]);
    if (lanes < 16 * N) copy_floats(to, whole, lanes);
  }
};

// Two sums, of even and of odd rows, since one addition waits for the one before it.
template <int N> Values<N> joined(const Values<N>& even, const Values<N>& odd) {
  Values<N> v;
  for (int n = 0; n < N; n++) v.x[n] = add(even.x[n], odd.x[n]);
  return v;
}

// The sum of the state's rows, each times its number of `by`. state: [rows, 16 N].
template <int N> Values<N> recalled(const float* state, int rows, const float* by) {
  Values<N> sums[2] = {Values<N>::zeros(), Values<N>::zeros()};
  for (int k = 0; k + 1 < rows; k += 2)
    for (int i = 0; i < 2; i++)
      for (int n = 0; n < N; n++) sums[i].x[n] = fma(load(state + 16 * (N * (k + i) + n)), set1(by[k + i]), sums[i].x[n]);
  if (rows % 2)
    for (int n = 0; n < N; n++) sums[0].x[n] = fma(load(state + 16 * (N * (rows - 1) + n)), set1(by[rows - 1]), sums[0].x[n]);
  return joined(sums[0], sums[1]);
}

// A row of the state decays and takes up its share of `added`.
template <int N> void take_up(float* row, float share, const Values<N>& added, V decay, float by, Values<N>& sums) {
  for (int n = 0; n < N; n++) {
    const V now = fma(set1(share), added.x[n], mul(load(row + 16 * n), decay));
    store(row + 16 * n, now);
    sums.x[n] = fma(now, set1(by), sums.x[n]);
  }
}

// The decay of a state's rows: of all alike, or each row's own.
struct OneDecay {
  const V factor;
  V of(int) const { return factor; }
};
struct OwnDecays {
  const float* factors;
  V of(int row) const { return set1(factors[row]); }
};

// The state decays and takes up `added` times each number of `into`. Returns the sum of its rows then, each times its
// number of `out_of`.
template <int N, class Decay> Values<N> moved_on(float* state, int rows, const Values<N>& added, const Decay& decay, const float* into, const float* out_of) {
  Values<N> sums[2] = {Values<N>::zeros(), Values<N>::zeros()};
  for (int k = 0; k + 1 < rows; k += 2)
    for (int i = 0; i < 2; i++) take_up<N>(state + 16 * N * (k + i), into[k + i], added, decay.of(k + i), out_of[k + i], sums[i]);
  if (rows % 2) take_up<N>(state + 16 * N * (rows - 1), into[rows - 1], added, decay.of(rows - 1), out_of[rows - 1], sums[0]);
  return joined(sums[0], sums[1]);
}

// A head of the layer, as one token finds it: Head(layer, number).token(features, state, values, lanes).
class DeltaHead {
 public:
  DeltaHead(const PkRecurrent& l, int number) : l_(l), number_(number) {
    const int key_head = l.tiled ? number % l.key_heads : number / (l.heads / l.key_heads);
    query_ = l.first + key_head * l.key_dim;
    key_ = l.keys + key_head * l.key_dim;
    values_ = l.values + number * l.value_dim;
  }

  template <int N> Values<N> token(const float* features, float* state, int first, int lanes) const {
    const float *key = features + key_, *query = features + query_;
    if (l_.by_channel) {
      const float* decays = features + l_.time + number_ * l_.key_dim;
      float decayed[pk::MAX_KEY_DIM];
      for (int k = 0; k < l_.key_dim; k++) decayed[k] = key[k] * decays[k];
      const Values<N> known = recalled<N>(state, l_.key_dim, decayed);
      return moved_on<N>(state, l_.key_dim, missing<N>(features, known, first, lanes), OwnDecays{decays}, key, query);
    }
    const float decay = decay_by(l_.rate[number_] * softplus(features[l_.time + number_] + l_.time_bias[number_]));
    Values<N> known = recalled<N>(state, l_.key_dim, key);
    for (int n = 0; n < N; n++) known.x[n] = mul(known.x[n], set1(decay));
    return moved_on<N>(state, l_.key_dim, missing<N>(features, known, first, lanes), OneDecay{set1(decay)}, key, query);
  }

 private:
  // What the value is more than what is known of it, times the correction's strength.
  template <int N> Values<N> missing(const float* features, const Values<N>& known, int first, int lanes) const {
    const float strength = l_.strongest * logistic(features[l_.strength + number_]);
    const Values<N> value = Values<N>::read(features + values_ + first, lanes);
    Values<N> found;
    for (int n = 0; n < N; n++) found.x[n] = mul(sub(value.x[n], known.x[n]), set1(strength));
    return found;
  }

  const PkRecurrent& l_;
  int number_, query_, key_, values_;
};

class MambaHead {
 public:
  MambaHead(const PkRecurrent& l, int number) : l_(l), number_(number) {
    const int group = number / (l.heads / l.key_heads);
    values_ = l.first + number * l.value_dim;
    into_ = l.first + l.width + group * l.key_dim;
    out_of_ = into_ + l.key_heads * l.key_dim;
  }

  template <int N> Values<N> token(const float* features, float* state, int first, int lanes) const {
    float step = softplus(features[l_.time + number_] + l_.time_bias[number_]);
    step = step < l_.least_step ? l_.least_step : step > l_.most_step ? l_.most_step : step;
    const Values<N> x = Values<N>::read(features + values_ + first, lanes);
    Values<N> taken;
    for (int n = 0; n < N; n++) taken.x[n] = mul(x.x[n], set1(step));
    Values<N> found = moved_on<N>(state, l_.key_dim, taken, OneDecay{set1(decay_by(l_.rate[number_] * step))}, features + into_, features + out_of_);
    for (int n = 0; n < N; n++) found.x[n] = fma(x.x[n], set1(l_.skip[number_]), found.x[n]);
    return found;
  }

 private:
  const PkRecurrent& l_;
  int number_, values_, into_, out_of_;
};

// All values of Mamba 1: each has a step in time and rates of decay of its own.
class MambaChannels {
 public:
  MambaChannels(const PkRecurrent& l, int) : l_(l) {}

  template <int N> Values<N> token(const float* features, float* state, int first, int lanes) const {
    const int rows = l_.key_dim;
    const float* maps = features + l_.strength;
    float normed[2 * pk::MAX_KEY_DIM];
    if (l_.norm) {
      for (int i = 0; i < 2; i++) root_mean_square(maps + i * rows, l_.norm + i * rows, rows, l_.norm_eps, normed + i * rows);
      maps = normed;
    }
    const Values<N> x = Values<N>::read(features + l_.first + first, lanes), skip = Values<N>::read(l_.skip + first, lanes);
    const Values<N> time = Values<N>::read(features + l_.time + first, lanes), bias = Values<N>::read(l_.time_bias + first, lanes);
    Values<N> step, taken, sums[2] = {Values<N>::zeros(), Values<N>::zeros()};
    for (int n = 0; n < N; n++) {
      step.x[n] = softplus(add(time.x[n], bias.x[n]));
      taken.x[n] = mul(x.x[n], step.x[n]);
    }
    for (int k = 0; k < rows; k++) {
      const Values<N> rate = Values<N>::read(l_.rate + static_cast<size_t>(k) * l_.width + first, lanes);
      for (int n = 0; n < N; n++) {
        float* at = state + 16 * (N * k + n);
        const V decay = exponential(max(set1(-100.0f), mul(step.x[n], rate.x[n])));
        const V now = fma(set1(maps[k]), taken.x[n], mul(load(at), decay));
        store(at, now);
        sums[k % 2].x[n] = fma(now, set1(maps[rows + k]), sums[k % 2].x[n]);
      }
    }
    Values<N> found = joined(sums[0], sums[1]);
    for (int n = 0; n < N; n++) found.x[n] = fma(x.x[n], skip.x[n], found.x[n]);
    return found;
  }

 private:
  const PkRecurrent& l_;
};

// All rows of a sequence through a head's values from `first` on. stored: their part of the state, [key_dim, lanes].
template <int N, class Head> void scan_rows(Thread& t, const PkPhase& p, Passage& of, int number, int first, int lanes, float* stored) {
  const PkRecurrent& l = of.layer;
  const Head head(l, number);
  const bool whole = lanes == 16 * N;
  float* state = whole ? stored : t.own.state;
  for (int k = 0; k < (whole ? 0 : l.key_dim); k++) Values<N>::read(stored + k * lanes, lanes).write(state + 16 * N * k, 16 * N);
  const auto put_back = [&] {
    for (int k = 0; k < (whole ? 0 : l.key_dim); k++) copy_floats(stored + k * lanes, state + 16 * N * k, lanes);
  };
  const int at = number * l.value_dim + first;
  for (int row = of.begin; row < of.end; row++) {
    const Values<N> found = head.template token<N>(t.row(p.source, row), state, first, lanes);
    found.write(t.row(p.target, row) + at, lanes);
    if (row == of.end - 1) found.write(of.last + at, lanes);
    if (!of.due(row)) continue;
    put_back();
    of.keep_numbers(stored - of.state, stored, l.key_dim * lanes);
    of.checkpoint++;
  }
  put_back();
}

template <class Head> void scan_heads(Thread& t, const PkPhase& p) {
  const PkRecurrent& l = *p.recurrent;
  const int tiles = (l.value_dim + pk::STATE_LANES - 1) / pk::STATE_LANES, units = l.heads * tiles;
  t.share_out(t.batch.sequences * units, [&](int unit) {
    Passage of(t, l, unit / units);
    const int number = unit % units / tiles, first = unit % tiles * pk::STATE_LANES;
    const int lanes = l.value_dim - first < pk::STATE_LANES ? l.value_dim - first : pk::STATE_LANES;
    const size_t matrices = static_cast<size_t>(l.kernel - 1) * l.channels;
    float* stored = of.state + matrices + static_cast<size_t>(l.key_dim) * (number * l.value_dim + first);
    if (of.again) {
      copy_floats(t.row(p.target, of.begin) + number * l.value_dim + first, of.last + number * l.value_dim + first, lanes);
      if (of.due(of.begin)) of.keep_numbers(stored - of.state, stored, l.key_dim * lanes);
      return;
    }
    if (lanes > 16) scan_rows<2, Head>(t, p, of, number, first, lanes, stored);
    else scan_rows<1, Head>(t, p, of, number, first, lanes, stored);
  });
}

inline void scan(Thread& t, const PkPhase& p) {
  if (p.recurrent->kind == PK_SHORT_CONV) return short_conv(t, p);
  if (p.recurrent->kind == PK_GATED_DELTA) return scan_heads<DeltaHead>(t, p);
  if (p.recurrent->kind == PK_MAMBA1) return scan_heads<MambaChannels>(t, p);
  scan_heads<MambaHead>(t, p);
}

}  // namespace
