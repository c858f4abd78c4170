// The states of recurrent layers: which rows go through one, its checkpoints, and the convolution in front of a scan.
// A sequence's rows pass one after another, each in the same operations however they are divided into steps: a unit of
// work is a sequence and some of its channels, never some of its rows.
#pragma once
#include "thread.h"

namespace {

// Copies numbers of a slot's states, from `number` on, to their place in a checkpoint's blocks.
inline void keep(const PkStates& s, int checkpoint, int64_t number, const float* values, int count) {
  const char* from = reinterpret_cast<const char*>(values);
  int64_t at = 4 * number, left = 4 * static_cast<int64_t>(count);
  while (left > 0) {
    const int64_t block = s.blocks[checkpoint * s.pieces + at / s.block_bytes];
    int64_t inside = at % s.block_bytes;
    int part = 0;
    for (; inside >= s.part_bytes[part]; part++) inside -= s.part_bytes[part];
    const int64_t here = s.part_bytes[part] - inside < left ? s.part_bytes[part] - inside : left;
    __builtin_memcpy(s.parts[part] + block * s.part_bytes[part] + inside, from, here);
    at += here;
    from += here;
    left -= here;
  }
}

// A sequence's rows in a recurrent layer, and its state there.
struct Passage {
  const PkStates& states;
  const PkRecurrent& layer;
  const int begin, end;  // rows of the step
  const bool again;
  float *const state, *const last;
  int checkpoint, checkpoints;  // the next one, and the end

  Passage(const Thread& t, const PkRecurrent& l, int sequence)
      : states(*t.batch.states),
        layer(l),
        begin(t.batch.first_row[sequence]),
        end(t.batch.first_row[sequence + 1]),
        again(states.again[sequence]),
        state(states.live + states.slots[sequence] * t.program.state_numbers + l.state),
        last(states.last + states.slots[sequence] * t.program.last_numbers + l.last),
        checkpoint(states.first_checkpoint[sequence]),
        checkpoints(states.first_checkpoint[sequence + 1]) {}

  bool due(int row) const { return checkpoint < checkpoints && states.behind[checkpoint] == row; }

  // Of the layer's state, to the next checkpoint.
  void keep_numbers(int64_t number, const float* values, int count) const { keep(states, checkpoint, layer.state + number, values, count); }
};

// The last inputs of `count` channels from `first` on, in a sequence whose one row is asked for again.
inline void keep_inputs(Passage& of, int first, int count) {
  if (!of.due(of.begin)) return;
  for (int i = 0; i < of.layer.kernel - 1; i++) {
    const int64_t number = static_cast<int64_t>(i) * of.layer.channels + first;
    of.keep_numbers(number, of.state + number, count);
  }
}

inline void copy_floats(float* to, const float* from, int count) { __builtin_memcpy(to, from, count * sizeof(float)); }

// Convolves `count` channels from `first` on over a sequence's rows.  take(row, inputs) puts them there; give(row, sums)
// gets what becomes of them, which it may change.  Both are filled up to whole vectors.
template <class Take, class Give> void convolve_rows(Thread& t, Passage& of, int first, int count, const Take& take, const Give& give) {
  const PkRecurrent& l = of.layer;
  const int wide = pk::padded(count, 16), kernel = l.kernel, held = kernel - 1, stride = pk::conv_stride(l.channels);
  float *ring = t.own.window, *sums = ring + kernel * wide;
  for (int i = 0; i < kernel * wide; i++) ring[i] = 0.0f;
  for (int i = 0; i < held; i++) copy_floats(ring + i * wide, of.state + static_cast<size_t>(i) * l.channels + first, count);
  int oldest = 0;  // of the inputs that a row sees
  const auto input = [&](int tap) { return ring + (oldest + tap < kernel ? oldest + tap : oldest + tap - kernel) * wide; };
  for (int row = of.begin; row < of.end; row++) {
    take(row, input(held));
    for (int d = 0; d < wide; d += 16) {
      const float* weights = l.conv + first + d;
      V sum = mul(load(input(0) + d), load(weights));
      for (int tap = 1; tap < kernel; tap++) sum = fma(load(input(tap) + d), load(weights + tap * stride), sum);
      store(sums + d, l.conv_bias ? add(sum, load(l.conv_bias + first + d)) : sum);
    }
    give(row, sums);
    oldest = oldest + 1 < kernel ? oldest + 1 : 0;
    if (!of.due(row)) continue;
    for (int i = 0; i < held; i++) of.keep_numbers(static_cast<int64_t>(i) * l.channels + first, input(i), count);
    of.checkpoint++;
  }
  for (int i = 0; i < held; i++) copy_floats(of.state + static_cast<size_t>(i) * l.channels + first, input(i), count);
}

// Channels of a unit of work, where no head keeps them together.
constexpr int CHANNELS = 64;
inline int channel_units(int channels) { return (channels + CHANNELS - 1) / CHANNELS; }
inline int channels_of(int unit, int channels) { return channels - CHANNELS * unit < CHANNELS ? channels - CHANNELS * unit : CHANNELS; }

inline void short_conv(Thread& t, const PkPhase& p) {
  const PkRecurrent& l = *p.recurrent;
  const int units = channel_units(l.channels);
  t.share_out(t.batch.sequences * units, [&](int unit) {
    Passage of(t, l, unit / units);
    const int first = CHANNELS * (unit % units), count = channels_of(unit % units, l.channels);
    if (of.again) {
      copy_floats(t.row(p.target, of.begin) + first, of.last + first, count);
      return keep_inputs(of, first, count);
    }
    const auto take = [&](int row, float* inputs) {
      const float* features = t.row(p.source, row) + first;
      for (int i = 0; i < count; i++) inputs[i] = features[l.gate + i] * features[l.first + i];
    };
    convolve_rows(t, of, first, count, take, [&](int row, const float* sums) {
      const float* gate = t.row(p.source, row) + l.strength + first;
      float* out = t.row(p.target, row) + first;
      for (int i = 0; i < count; i++) out[i] = gate[i] * sums[i];
      if (row == of.end - 1) copy_floats(of.last + first, out, count);
    });
  });
}

// x / (1 + e^-x) of whole vectors, in place.
inline void activate_row(float* x, int count) {
  for (int d = 0; d < count; d += 16) store(x + d, silu(load(x + d)));
}

inline void scale_row(float* x, int count, float by) {
  for (int d = 0; d < count; d += 16) store(x + d, mul(load(x + d), set1(by)));
}

constexpr float LENGTH_EPS = 1e-6f;  // of the lengths that queries and keys are divided by

// ln(1 + e^x) of vectors, by the series of elementwise.h.
inline V softplus(V x) {
  // What may be no number comes second: AVX's maximum keeps it then.
  const V y = exponential(sub(zero(), max(x, sub(zero(), x)))), s = div(y, add(set1(2.0f), y)), square = mul(s, s);
  V sum = set1(1.0f / 15.0f);
  for (int n = 13; n > 0; n -= 2) sum = fma(sum, square, set1(1.0f / static_cast<float>(n)));
  return fma(mul(set1(2.0f), s), sum, max(zero(), x));
}

// e^x for x of at most 0, whatever its size.
inline float decay_by(float x) { return exponential(x < -100.0f ? -100.0f : x); }

// A head's steps in time become its decays.
inline void decay_channels(Thread& t, const PkPhase& p, const PkRecurrent& l, int head, int begin, int end) {
  const float* bias = l.time_bias + static_cast<size_t>(head) * l.key_dim;
  for (int row = begin; row < end; row++) {
    float* times = t.row(p.source, row) + l.time + head * l.key_dim;
    for (int i = 0; i < l.key_dim; i++) {
      const float step = times[i] + bias[i];
      times[i] = decay_by(l.decay_bound < 0.0f ? l.decay_bound * logistic(-l.rate[head] * step) : l.rate[head] * softplus(step));
    }
  }
}

// A unit is a head of queries or keys, or some of the other channels, or a head whose channels decay.
inline void convolve(Thread& t, const PkPhase& p) {
  const PkRecurrent& l = *p.recurrent;
  const int heads = l.kind == PK_GATED_DELTA ? 2 * l.key_heads : 0, rest = l.channels - heads * l.key_dim;
  const int convolved = heads + channel_units(rest), units = convolved + (l.by_channel ? l.heads : 0);
  const float dim = static_cast<float>(l.key_dim), root = 1.0f / std::sqrt(dim);
  t.share_out(t.batch.sequences * units, [&](int of_step) {
    Passage of(t, l, of_step / units);
    const int unit = of_step % units;
    if (unit >= convolved) {
      if (!of.again) decay_channels(t, p, l, unit - convolved, of.begin, of.end);
      return;
    }
    const int first = unit < heads ? unit * l.key_dim : heads * l.key_dim + CHANNELS * (unit - heads);
    const int count = unit < heads ? l.key_dim : channels_of(unit - heads, rest);
    if (of.again) return keep_inputs(of, first, count);
    const int column = unit < l.key_heads && heads ? l.first + first : unit < heads ? l.keys + first - l.key_heads * l.key_dim : l.values + first - heads * l.key_dim;
    const auto features = [&](int row) { return t.row(p.source, row) + column; };
    const auto take = [&](int row, float* inputs) { copy_floats(inputs, features(row), count); };
    convolve_rows(t, of, first, count, take, [&](int row, float* sums) {
      activate_row(sums, pk::padded(count, 16));
      if (unit < heads) {
        // x / sqrt(sum + eps) is x / sqrt(mean + eps / size), but for the factor; queries have it once more.
        const float length = inverse_rms(sums, count, LENGTH_EPS / dim) * root;
        scale_row(sums, pk::padded(count, 16), unit < l.key_heads ? length * root : length);
      }
      copy_floats(features(row), sums, count);
    });
  });
}

}  // namespace
