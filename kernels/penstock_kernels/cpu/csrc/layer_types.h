// What the parts of a layer are: norms, attention, experts, residual streams and recurrence.
#pragma once
#include "matrix_types.h"

extern "C" {

enum PkCache : int32_t { PK_CACHE_F32 = 0, PK_CACHE_BF16 = 1, PK_CACHE_INT8 = 2 };

// How rows are normalised: NONE as they are, RMS by their root mean square, LAYER by mean and deviation.
// weight: [width], not null but for NONE.  bias: [width] or null; of LAYER.
enum PkNormKind : int32_t { PK_NORM_NONE = 0, PK_NORM_RMS = 1, PK_NORM_LAYER = 2 };
struct PkNorm {
  int32_t kind;
  float eps;
  const float *weight, *bias;
};

enum PkActivation : int32_t { PK_SILU = 0, PK_GELU = 1, PK_GELU_TANH = 2, PK_RELU2 = 3, PK_CLAMPED_SWIGLU = 4, PK_QUICK_GELU = 5, PK_XIELU = 6 };

// Attention of a layer, and its cache (see cache.h).
// value_dim: numbers of a head's value; head_dim, but where values are latents.
// rotary_dims: numbers of a head that rotate, its first ones; 0: none.  window: keys that a token sees,
// its own included; 0: all before it.  chunk: a token sees the keys of its own run of so many positions;
// 0: there are none.  both_ways: a token sees those behind it as well, in a window of as many.
// causal: a token sees no further than itself, whatever the batch says.
// through: a token sees the sequence's first keys alone, so many, and none behind them; 0: it isn't so.
// norms_behind: norms of queries and keys stand behind the rotation.
// soft_cap: 0 is off.  cosines, sines: [positions, rotary_dims / 2].
// sinks: [heads] or null.  query_factors: [positions] or null; of rotated queries.
// key_block, value_block: bytes from a KV block's keys or values to the next block's, in which layers with
// larger heads may lie besides.
// group: of the tables of a step's sequences, which one it has.
// axes: [rotary_dims / 2] or null; by which of a row's three positions (see PkBatch) each pair turns.
// most: a token with as many before it reads so many keys only, itself perhaps not among them: those that the last CHOOSE
// has chosen; 0: all.  Of latents only, but for blocks.
// index_heads, index_dim: of the index that chooses them (see PLACE_INDEX); 0: the layer has none of its own.  Its keys, one
// for each token, lie behind the values of a KV block.
// block: what is chosen are blocks of so many positions, `most` in all, which each head of the index chooses for a KV head;
// 0: keys.  local: so many of them are the token's own and those before it.
// entries: what a token sees besides the tokens of its window; null: nothing.
// biases: [heads, biases_width] or null; what the score of a key gets that lies d tokens behind the query is number
// d + biases_middle of its head's.  A row has 16 numbers more than there are distances.
// distance_keys, distance_queries: [heads, head_dim, biases_width] or null; a score also gets the query times the key of the
// distance, and the key times the query of the distance.  Without biases; a cache of floats only.
struct PkEntries;
struct PkAttention {
  int32_t heads, kv_heads, head_dim, value_dim, rotary_dims, window, chunk, both_ways, causal, group, through, most, index_heads, index_dim, block, local, norms_behind;
  float scale, soft_cap;
  const float *cosines, *sines, *sinks, *query_factors;
  const uint8_t* axes;
  void *keys, *values;
  int64_t key_block, value_block;
  const float* biases;
  int32_t biases_width, biases_middle;
  const float *distance_keys, *distance_queries;
  const PkEntries* entries;
};

// Entries that stand for several tokens each, in attention whose one key of a token is its value (see CompressedSpec in
// penstock.model.layer_spec).  rate: tokens of an entry.  series: values and logits that a token has for each number of an
// entry; the first of two are for the entry behind its own.  most: a token reads so many at most, chosen by an index;
// 0: all that it sees.
// Behind the values of a KV block lies, as cells one behind another, what each token gives to entries, [values, then
// logits, series * head_dim each; the same of index_dim for their keys in the index].
// kept: of blocks of the first group, `block` bytes apart, the entries whose last tokens are the block's, and behind them
// these keys.
// bias, index_bias: [rate, series * head_dim or index_dim], are added to logits.  norm, index_norm: of what is made.
struct PkEntries {
  int32_t rate, series, most, index_heads, index_dim, reserved;
  const float *bias, *index_bias;
  PkNorm norm, index_norm;
  void* kept;
  int64_t block;
};

// What makes scores of a router's products. SQRT_SOFTPLUS: the root of ln(1 + e^x).  SPARSE_MIXER: one choice after
// another, the best that is left has its softmax over those left that are near it.  GIVEN: they are scores already, of experts
// that a token's id chooses.
enum PkScoring : int32_t { PK_SOFTMAX = 0, PK_SIGMOID = 1, PK_SQRT_SOFTPLUS = 2, PK_SPARSE_MIXER = 3, PK_GIVEN = 4 };

// A mixture of experts. active: experts of a row, at most pk::MAX_ACTIVE.  scoring: a PkScoring.
// normalised: the chosen scores are divided by their sum.
// scale: of the chosen scores.  sum_floor: what is added to their sum.  Experts are chosen from the best
// active_groups of `groups`, whose scores are the sums of their best group_best experts' (1 or 2).
// nearness: of SPARSE_MIXER; what is below the best product by more than this share of the larger of it and the other's
// size isn't near.  Its experts have neither groups nor corrections, and no token's id chooses them.
// correction: [count] or null; added for choosing.  gates, ups, downs: [count]; gates null without a gate.
// scales: [count] or null; factors of the chosen scores.  weighs_input: an expert's input has the score as a
// factor, instead of its result.
// Where gates, ups and downs of an expert have no tiles, another rank computes it.
// by_token: [tokens][active] or null; the experts of each token id (of one beyond these, the first one's), whatever their
// scores are.
struct PkExperts {
  int32_t count, active, groups, active_groups, group_best, scoring, normalised, weighs_input;
  float scale, sum_floor, nearness;
  const float* correction;
  const PkMatrix *gates, *ups, *downs;
  const float* scales;
  const int32_t* by_token;
  int64_t tokens;
};

// Several residuals that both halves of each layer mix (see HyperConnectionsSpec in penstock.model.layer_spec), side by
// side in the rows of STREAMS, each of the phase's `width` numbers.  Behind them lie the weights by which each takes up
// what the half gives, and the matrix [count][count] that mixes them.
// product: [logits][count * width], base: [logits].  Logits are those of what is read, [count], then of these weights and
// of the matrix; or with `rounds` 0, behind the last layer, the first alone.  scales: a factor of each of the three.
// rounds: how often the matrix's columns are normalised.  eps: is added to sums, and to weights of what is read.
struct PkMixing {
  int32_t count, rounds;
  float eps, norm_eps;
  const float *product, *base, *scales;
};

// Several residuals, side by side in the rows of STREAMS, `stride` numbers apart, of which the layers compute
// one. router: [count][width].  prediction: [count * count][count].  correction: [count][count].
// output_scale: [stride] or null; of the computed one, where a layer's own input is made.
struct PkStreams {
  int32_t count, active, stride, reserved;
  const float *router, *prediction, *correction, *output_scale;
};

// A product of its own for each head. Head h reads `inputs` of matrices[h] from source_stride * h +
// source_first on, and writes its outputs from target_stride * h + target_first on.
// query_factors: [positions] or null; of a row's outputs.
struct PkByHead {
  int32_t count, source_stride, source_first, target_stride, target_first, reserved;
  const PkMatrix* matrices;
  const float* query_factors;
};

enum PkRecurrentKind : int32_t { PK_SHORT_CONV = 0, PK_GATED_DELTA = 1, PK_MAMBA2 = 2, PK_MAMBA1 = 3 };

// What stands in the attention's place in a recurrent layer (see penstock.model.recurrent_spec). Of a row's features,
// which are numbers of QUERIES, those from `first` on are convolved, each of the `channels` by itself over `kernel`
// rows of a sequence.  width: numbers of what the scan gives.
// SHORT_CONV: what is convolved is multiplied by the features from `gate` on before, and by those from `strength` on
//   afterwards.
// GATED_DELTA: the channels are the queries and the keys of key_heads, then the values of `heads`, which are the features
//   from `first`, `keys` and `values` on.  strength, time: the heads' features; by_channel: a step in time for each number
//   of each head's key, which CONVOLVE turns into a decay, whose logarithm is above decay_bound if that isn't 0.
//   strongest: what a correction of full strength is.  tiled: head n has the queries and keys of head n modulo key_heads.
//   logistic_gate: gates are logistic instead of silu.
// MAMBA2: the channels are the inputs of `heads`, then for each of key_heads (groups) the map into the state, then the
//   maps out of it; key_dim is the size of the state of each of a head's value_dim numbers.  time: the heads' features,
//   which become steps from least_step to most_step.
// MAMBA1: the channels are the values of one head, of which each has a step in time, from `time` on, and rates of its own.
//   The maps into the state and out of it are 2 key_dim features from `strength` on, which get the norm, each by itself,
//   if there is one.
// What MAMBA1 gives is gated by the features from `gate` on. What the other two give is normed besides: GATED_DELTA
// each head, before it is gated; MAMBA2 in norm_groups parts, afterwards.
// state, last: where the layer's numbers begin in PkStates.  A layer's state is the convolution's last inputs, [kernel -
// 1, channels], then for each head, and for each 32 of its values, a matrix [key_dim, those values].
// conv: [kernel, channels rounded up to 16, and 16 more]; conv_bias: a row of it, or null.  rate, skip: [heads], and so
// is time_bias, but by_channel [heads, key_dim].  norm: [value_dim], or of MAMBA2 [width].  Of MAMBA1, rate: [key_dim,
// width]; time_bias, skip: [width]; norm: [2, key_dim], or null.
struct PkRecurrent {
  int32_t kind, kernel, channels, width, key_heads, heads, key_dim, value_dim, tiled, norm_groups;
  int32_t first, keys, values, gate, strength, time, by_channel, logistic_gate;
  float least_step, most_step, strongest, norm_eps, decay_bound;
  int64_t state, last;
  const float *conv, *conv_bias, *rate, *time_bias, *skip, *norm;
};

}  // extern "C"
