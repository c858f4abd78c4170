// What crosses the C interface, and what the instruction sets share. No code of any of them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

extern "C" {

// How a matrix is stored. A tile is 16 outputs by all inputs; a group is 32 of its inputs.
// U4, U8: unsigned levels q, value = scale * q + minimum.  S8: value = scale * (q - 128).
// T4: levels from 0 to 15, value = scale * (IQ4[q] - 128).  F4: the same with E2M1.
// H: scale and minimum are float16.  W: they are float32.  W16: they are float32, for 16 inputs each.  B16: so are
// scales, which are bytes of type e4m3, at least 0, times the matrix's factor / 2.
// Levels of 2, 3, 5 and 6 bits are unsigned too; of S6 and S3, value = scale * (q - 32 or q - 4).
// D: the scale is float16, and the minimum -8 (U4) or -16 (U5) times it.
// K: scales and minima are signed bytes, for 32 inputs (U4, U5) or 16, times a float16 for 256 inputs of each.
enum PkKind : int32_t {
  PK_F32 = 0, PK_BF16 = 1, PK_U4H = 2, PK_U4W = 3, PK_U8H = 4, PK_U8W = 5, PK_S8H = 6, PK_S8W16 = 7, PK_U4W16 = 8,
  PK_T4H = 9, PK_T4W = 10, PK_F4W = 11, PK_F4B16 = 12, PK_U5H = 13, PK_U4D = 14, PK_U5D = 15, PK_U4K = 16,
  PK_U5K = 17, PK_S6K = 18, PK_S3K = 19, PK_U2K = 20, PK_KINDS = 21
};

// outputs, inputs: of the matrix; tiles cover them, rounded up to 16 and 32 with zeros.
// factor: of all scales of an F4B16.  tiles: 64-byte aligned.  bias: [outputs rounded up to 16] or null.
struct PkMatrix {
  int32_t kind, outputs, inputs;
  float factor;
  const uint8_t* tiles;
  const float* bias;
};

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
// another, the best that is left has its softmax over those left that are near it.
enum PkScoring : int32_t { PK_SOFTMAX = 0, PK_SIGMOID = 1, PK_SQRT_SOFTPLUS = 2, PK_SPARSE_MIXER = 3 };

// A mixture of experts. active: experts of a row, at most pk::MAX_ACTIVE.  scoring: a PkScoring.
// normalised: the chosen scores are divided by their sum.
// scale: of the chosen scores.  sum_floor: what is added to their sum.  Experts are chosen from the best
// active_groups of `groups`, whose scores are the sums of their best group_best experts' (1 or 2).
// nearness: of SPARSE_MIXER; what is below the best product by more than this share of the larger of it and the other's
// size isn't near.  Its experts have neither groups nor corrections, and no token's id chooses them.
// correction: [count] or null; added for choosing.  gates, ups, downs: [count]; gates null without a gate.
// scales: [count] or null; factors of the chosen scores.  weighs_input: an expert's input has the score as a
// factor, instead of its result.
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
//   of each head's key, which CONVOLVE turns into a decay.  strongest: what a correction of full strength is.  tiled: head
//   n has the queries and keys of head n modulo key_heads.  logistic_gate: gates are logistic instead of silu.
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
  float least_step, most_step, strongest, norm_eps;
  int64_t state, last;
  const float *conv, *conv_bias, *rate, *time_bias, *skip, *norm;
};

// What phases read and write. The first are floats, [rows, width rounded up to 32]; INPUT and INNER are
// inputs of products (see activations.h), and of a step of few rows each thread has an INPUT of its own.
enum PkBuffer : int32_t {
  PK_RESIDUAL = 0, PK_QUERIES = 1, PK_KEYS = 2, PK_MIXED = 3, PK_RESULT = 4, PK_SCORES = 5,
  PK_LAYER_INPUTS = 6, PK_STREAMS = 7,
  PK_INPUT = 8, PK_INNER = 9, PK_BUFFERS = 10
};

// What a phase does, and the fields that it reads besides the common ones.
// EMBED: target = rows of matrices[0] times scale.
// MAKE_INPUT: INPUT = norm of the source's `width` numbers from `first` on, in `forms` (see pk::Form).  With
//   attention, the source is what that attention has left, whose splits are folded first; with `gates`, it is
//   multiplied by the logistic function of so many numbers of RESULT, each of which weighs as many of its own; with
//   `soft_gates` by their softplus.  With recurrent, the source is what that scan has left, which is gated and normed
//   first.  Of INNER, the floats are read.
// HEADS: matrices (query, key, value) times INPUT; queries and keys get the norms `norm` and `other_norm`
//   over each head, then rotate; values get `third_norm`.  With `limit`, all of them are first kept within it.  Queries become QUERIES; keys and values go to the
//   cache.  With `whole`, queries and keys become QUERIES and KEYS as they are, for PLACE.  Without a matrix of
//   values, these are what keys are before the norm; without one of keys, too, nothing goes to the cache.
// PLACE: norms over all heads of QUERIES and of KEYS, rotation, and keys to the cache.
// ATTEND: MIXED = attention of QUERIES.
// PRODUCT: matrices[0] times source, times scale; added to the target, or (`adds` is 0) put there.
// GATE_UP: INNER = activation(matrices[0] times INPUT) * (matrices[1] times INPUT), in `forms`; where
//   matrices[0] has no tiles, activation(matrices[1] times INPUT).  With `weighed`, a row is multiplied by
//   the logistic function of its first number in SCORES.  With `limit`, that is the most that the activation gives, and
//   what it is multiplied by is between -limit and limit.  With `gate_limit`, the same holds before the activation.
// ADD_NORM: target += norm of the source's `width` numbers, times scale.
// LOGITS: matrices[0] times norm of the source, times scale, then capped; of the rows wanted.
// ROUTE: chooses experts for each row by SCORES, the router's products, and gathers INPUT by experts.
// EXPERTS_UP, EXPERTS_DOWN: as GATE_UP and PRODUCT, each expert with the rows that chose it.
// COMBINE: a row's experts' results, each times its score, in the experts' order; times scale, and added
//   to the target or (`adds` is 0) put there.
// PLACE_LATENT: of attention over latents (see penstock.model.layer_spec).  The source's rows, value_dim + rotary_dims
//   numbers, are a latent, which gets the norm, and what rotates: keys are the latter and then the latent,
//   values are the latent.  The last rotary_dims of each `width` numbers of MIXED rotate, and become the
//   first numbers of a head of QUERIES, times their query_factors, as BY_HEAD does it with a head's others.
// BY_HEAD: target = a product of each head's numbers of the source; with attention, the source is what that
//   has left.
// PLACE_INDEX: of attention with an index (DeepSeek-AI, "DeepSeek-V3.2", 2025).  Of the source's rows, index_dim numbers are
//   a token's key of the index, which gets the norm, rotates in its first numbers as a key does, and goes to the cache;
//   the index_heads numbers behind it are weights of the heads.  The target's rows are index_heads queries, which rotate.
//   With blocks (MiniMax, "MiniMax M3", 2026) there are no weights, and the queries get other_norm before, head by head.
// INDEX: source, target: as of PLACE_INDEX.  A token's score for a key is the sum over the heads of weight times the part
//   above 0 of query times key.  Where threads share the splits of a row's keys; else CHOOSE does it.
// CHOOSE: of the keys that a token sees, if they are more than `most`, those with the highest scores; of equal ones the
//   first.  Holds for ATTEND until the next CHOOSE.
//   With blocks, each head's own: a block's score is the largest product of the head's query with a key in it.
//   With `entries` these are the keys: the target's queries are rotated already, and the source has the weights alone.
// PLACE_ENTRIES: of attention to entries, or in such a model.  The source's rows are a token's key, which gets the norm,
//   rotates in its last numbers, and goes to the cache, and behind it what the token gives to entries.  The target's
//   queries get other_norm, head by head, and rotate; so do those of the index, `beside`, without a norm.
// MAKE_ENTRIES: those whose last token is the step's.
// ATTEND_ENTRIES: MIXED = attention of QUERIES, whose heads' results are turned back.
// EXCHANGE: hands `width` columns of the source to the caller, who completes what other ranks have computed
//   of them.  With attention, the source is what that attention has left, whose splits are folded first.
//   With experts, the source is what EXPERTS_UP has left.  Of that and of INNER the floats are handed out,
//   and `forms` made of them afterwards.
// LOOK_UP: target += the rows of matrices[0] at `first` plus the row's position; with `first` below 0, at its type.
// NORM: target = norm of the source's `width` numbers.
// LOWER: of the rows that have adapters, the products of the source's `width` numbers with A of each of the three matrices
//   from `low_rank` on.  Phases with the same `low_rank`, behind it, add B times these to what their matrices give:
//   HEADS, PRODUCT, and GATE_UP.  EMBED and LOGITS do both by themselves.  With experts, each of them has three targets,
//   for gate, up and down; the source, of the places that ROUTE gave, is INPUT for the first two and INNER for the last;
//   EXPERTS_UP and EXPERTS_DOWN add.
// TAKE_ROWS: of the rows for which the batch brings numbers, `width` of these from `first` on; added to the target, or
//   (`adds` is 0) put there.
// CONVOLVE: of a recurrent layer that isn't a SHORT_CONV, the convolved features in the place of those that are, as silu
//   has them; queries and keys of a GATED_DELTA become vectors of one length, and queries are scaled.
// SCAN: MIXED = what a recurrent layer's scan gives; its state goes on.
// ROWS: the rows wanted, `width` numbers of the source as the norm has them, as what the step gives.
// SCALE: target's `width` numbers times scale.
// INPUTS_OF_LAYERS: matrices[0] has a row for each token id (for one beyond it, its first), times scale.  Each
//   `width` numbers of the target become their norm, plus those of the token's row, divided by the root of 2.
// GATE_BY: INNER = activation(matrices[0] times INPUT) * `beside`, in `forms`, or where that has no tiles,
//   activation(`beside`) * (matrices[1] times INPUT).  Of `beside`, the numbers from `first` on.
// CUT_GATE: of the target's `width` numbers, what is above their mean plus scale times their deviation; else 0.
// BEGIN_STREAMS: STREAMS' first is the source, and the others get its root mean square.
// PREDICT: STREAMS are mixed by what the active one says, as the norm has it; it becomes the target.
// JOIN_PATH: target = (target + norm of the source + other_norm of the target + third_norm of `beside`) * scale.
// CORRECT: what the target differs by from the active one of STREAMS is added to each, in parts that the
//   target says, as the norm has it.  Then the target becomes the active one, times output_scale.
// ADD_TO_OTHERS: the norm of the source is added to all STREAMS but the first.
// END_STREAM: the source gets the root mean square of STREAMS' first, and is added to the target or (`adds` is
//   0) to that; times scale, this becomes the target.
// SPREAD: all of STREAMS' residuals (see PkMixing) become the source.
// MIX_LOGITS: target = the products of the residuals with `product`.
// MIX_READ: target = the residuals' weighed sum.  Of the source's logits, the weights and the matrix are made as well.
// MIX_WRITE: the residuals are mixed, and the source is added to each.
enum PkPhaseKind : int32_t {
  PK_EMBED = 0, PK_MAKE_INPUT = 1, PK_HEADS = 2, PK_PLACE = 3, PK_ATTEND = 4, PK_PRODUCT = 5, PK_GATE_UP = 6, PK_ADD_NORM = 7,
  PK_LOGITS = 8, PK_ROUTE = 9, PK_EXPERTS_UP = 10, PK_EXPERTS_DOWN = 11, PK_COMBINE = 12, PK_PLACE_LATENT = 13,
  PK_BY_HEAD = 14, PK_EXCHANGE = 15, PK_LOOK_UP = 16, PK_NORM = 17, PK_ROWS = 18, PK_SCALE = 19,
  PK_INPUTS_OF_LAYERS = 20, PK_GATE_BY = 21, PK_CUT_GATE = 22, PK_BEGIN_STREAMS = 23, PK_PREDICT = 24,
  PK_JOIN_PATH = 25, PK_CORRECT = 26, PK_ADD_TO_OTHERS = 27, PK_END_STREAM = 28, PK_CONVOLVE = 29, PK_SCAN = 30,
  PK_TAKE_ROWS = 31, PK_LOWER = 32, PK_PLACE_INDEX = 33, PK_INDEX = 34, PK_CHOOSE = 35,
  PK_SPREAD = 36, PK_MIX_LOGITS = 37, PK_MIX_READ = 38, PK_MIX_WRITE = 39, PK_PLACE_ENTRIES = 40, PK_MAKE_ENTRIES = 41,
  PK_ATTEND_ENTRIES = 42, PK_PHASE_KINDS = 43
};

// waits: all threads wait for each other behind the phase (behind MAKE_INPUT they do by themselves, where they
// share it).  ends_layer: it is counted, and looked whether the step is given up; needs `waits`.
// part: the phase computes some columns of its target, those from `first` on (EMBED: the rows of tokens from
// `first` on; the others become zeros).  The target then has `width` columns in all.  Of HEADS and PLACE these
// are QUERIES, and KEYS have `key_width` columns, of which those from `first_key` on are computed.
// low_rank: which of an adapter's targets belongs to matrices[0], the next ones to the others; -1: none.
// only_wanted: rows that the batch doesn't want, of which no later phase reads anything, may be left out; HEADS computes
// all keys and values still.  Such phases are a program's last ones, but for LOWER and what gives the rows.
struct PkPhase {
  int32_t kind, source, target, width, forms, waits, ends_layer, whole, adds, activation, weighed;
  int32_t part, first, first_key, key_width, beside, gates, low_rank, only_wanted, soft_gates;
  float scale, soft_cap, limit, gate_limit, xielu[4];
  PkNorm norm, other_norm, third_norm;
  const PkAttention* attention;
  const PkExperts* experts;
  const PkByHead* by_head;
  const PkStreams* streams;
  const PkRecurrent* recurrent;
  const PkMixing* mixing;
  PkMatrix matrices[3];
};

// Exchanges a buffer's floats with other ranks, [rows, stride]: called by one thread, for phase number `phase`.
// Not 0: the step is given up at once.
typedef int32_t (*PkExchange)(int32_t phase, float* values, int32_t rows, int32_t stride);

// A model: what a step does, in order.  widths: of the buffers; 0 for one that isn't used.
// low_rank: numbers that the products with an adapter's A may have, a multiple of 32; 0: there are no adapters.
// low_targets: of each adapter.  two_parts: inputs of products have twice as many bits (see activations.h).
// block_size: tokens per KV block, a multiple of 16.  outputs: numbers of a row that ROWS gives.  exchange: null
// where no phase needs it.  state_numbers, last_numbers: of a sequence, in all recurrent layers (see PkStates).
struct PkProgram {
  int32_t num_phases, vocab, block_size, cache, threads, outputs, low_rank, low_targets, two_parts;
  int32_t widths[PK_BUFFERS];
  const PkPhase* phases;
  PkExchange exchange;
  int64_t state_numbers, last_numbers;
};

// The states of a step's sequences in recurrent layers.  slots: [sequences].  live: [slots, state_numbers], those of
// the tokens before.  last: [slots, last_numbers], what the scans gave for the last token that the state stands for.
// again: [sequences], whether the one row of the sequence is that token: it has what is in `last`.
// Checkpoints of sequence s are those from first_checkpoint[s] to first_checkpoint[s + 1]: behind row behind[i] of the
// step, ascending, the state is copied to blocks[i * pieces] and those after it.  A block's block_bytes bytes are
// divided among `parts` arrays: block b has the part_bytes[i] bytes of parts[i] from b * part_bytes[i] on.
struct PkStates {
  int32_t pieces, num_parts;
  float *live, *last;
  const int32_t *slots, *again, *first_checkpoint, *behind, *blocks;
  uint8_t* const* parts;
  const int64_t* part_bytes;
  int64_t block_bytes;
};

// What an adapter does to a product.  whole: in the place of the phase's matrix (EMBED and LOGITS), if it has tiles.
// factors, added: [outputs up to a whole tile], what the product, bias included, is multiplied by, and what is added
// then; null for neither.  up times (down times the input) is added last, without biases; nothing without tiles.
// Of EMBED, down has a row for each token, which stands for its product.  The other factors' tiles lie as low_rank.h says.
struct PkLowRank {
  PkMatrix down, up, whole;
  const float *factors, *added;
};

// Neighbouring rows with the same adapter. adapter: [low_targets].
struct PkRun {
  int32_t first, rows;
  const PkLowRank* adapter;
};

// One step. Rows belong to the sequences in order.  first_row: [sequences + 1].  starts: tokens
// computed before.  tables: physical blocks of all sequences in each KV group, those of sequence s in
// group g from first_block[g * sequences + s] on; what no row of the step sees is not read.
// types: [rows], for LOOK_UP; may be null: all 0.
// taken_rows: [num_taken], each once.  taken: [num_taken, taken_width], what TAKE_ROWS reads for them.
// turns: [3, rows], positions by which pairs turn whose attention has `axes`; null: all three are the row's own.
// last_seen: [rows], the last position that each row sees, not before its own, nor before that of the row in front of it
// in the sequence, whose end it doesn't pass; null: its own.  An encoder's attention takes no notice.
// between: [rows], 1 for rows that see none behind themselves, whatever last_seen says, and that no row before them sees; null: none.
// wanted: rows whose logits are asked for.  logits: [num_wanted, vocab], or [num_wanted, outputs] of ROWS.
// likeliest: [num_wanted] or null; what LOGITS gives in place of logits: the token of a row's largest logit, of equal ones
// the lowest, or -1 where a logit is not a finite number.
// states: null of a program without recurrent layers.
// runs: [num_runs], of rows that have adapters, ascending.  run_of: [rows], the run of each row, or -1; null without runs.
// layers_done: counted up after each layer, for other threads to read; may be null.  cancelled: looked
// at after each layer; once it isn't 0 the step is given up, and its logits mean nothing; may be null.
// threads: that compute it, the program's at most; 0: these.  lost: nanoseconds that they waited for
// each other beyond spinning, of all of them together; may be null.
// ticks: [threads of the program, num_phases, 2], to which each thread adds the nanoseconds that it computed in each
// phase and those that it waited for the others; null: nobody looks at a clock.
struct PkBatch {
  int32_t rows, sequences, num_wanted, threads, num_taken, taken_width;
  const int32_t *tokens, *first_row, *starts, *tables, *first_block, *wanted, *types, *taken_rows, *turns, *last_seen;
  const uint8_t* between;
  const float* taken;
  float* logits;
  int32_t* likeliest;
  volatile int64_t* layers_done;
  const volatile int32_t* cancelled;
  const PkStates* states;
  int64_t* lost;
  const PkRun* runs;
  const int32_t* run_of;
  int64_t num_runs;
  int64_t* ticks;
};

// How one row's token is chosen, and where what is said about it goes.
// temperature: 0 takes the likeliest.  top_k: 0 is off.  draw: in [0, 1).  logprobs: the number of
// alternatives, or -1 where no log-probabilities are wanted; they go to top_ids and top_logprobs
// from first_top on, min(logprobs, vocab) of them.  num_held ids from held_back[first_held] on can't
// be chosen, unless no other is left.  given: the token, where it is known and only its
// log-probability is wanted; else -1.  edit: which PkEdit changes the row; -1: none.
struct PkDraw {
  double temperature, top_p, min_p, draw;
  int32_t top_k, logprobs, first_held, num_held, first_top, given, edit, reserved;
};

// How one row's logits are changed: biased, then penalised.
// num_biased of biases and of biased_ids, from first_biased on: what is added to the logits of ids.
// num_seen of seen_ids and seen_counts, from first_seen on: ids that prompt or output hold, each
// once, and how often the output holds them.  repetition: divides the positive of their logits and
// multiplies the others; frequency: is taken off as often as the output holds them; presence: once,
// where it does.
struct PkEdit {
  double presence, frequency, repetition;
  int32_t first_biased, num_biased, first_seen, num_seen;
};

// logits: [rows, vocab].  tokens: [rows]; -1 for a row that isn't finite, of which nothing more is
// said.  logprobs: [rows], of the tokens; set where wanted.  Ids of edits lie in the vocabulary.
struct PkSampling {
  int32_t rows, vocab, threads, reserved;
  const float* logits;
  const PkDraw* draws;
  const int32_t* held_back;
  const PkEdit* edits;
  const int32_t* biased_ids;
  const double* biases;
  const int32_t *seen_ids, *seen_counts;
  int32_t* tokens;
  float* logprobs;
  int32_t* top_ids;
  float* top_logprobs;
};

}  // extern "C"

namespace pk {

constexpr int LANES = 16;      // outputs per tile
constexpr int GROUP = 32;      // inputs that share a scale
constexpr int KEY_SPLIT = 256; // token positions per attention split; part of the numbers
constexpr int MAX_HEAD_DIM = 1024;
constexpr int MAX_GROUP = 128;  // query heads that share a KV head
// Query positions of a sequence that share the reading of keys: so many at least, and of few heads to a KV head up to 32,
// where they are multiplied so fast that reading would take longer. A row is one of these heads' query.
constexpr int TILE_QUERIES = 8;
#if defined(__AMX_INT8__)
constexpr int MOST_TILE_QUERIES = 32, TILE_ROWS = 64;
#else
constexpr int MOST_TILE_QUERIES = TILE_QUERIES, TILE_ROWS = 64;
#endif
constexpr int MAX_TILE_ROWS = TILE_QUERIES * MAX_GROUP;
constexpr int MAX_INDEX_HEADS = 1024;
// Rows of a product that pass a tile of weights while it lies in the nearest cache; on AMX as many as make it worth while
// to turn weights into what its registers multiply.
#if defined(__AMX_INT8__)
constexpr int ROWS = 128;
#else
constexpr int ROWS = 32;
#endif

constexpr int MAX_EXPERTS = 1024, MAX_ACTIVE = 64, MAX_STREAMS = 64;
constexpr int MAX_KERNEL = 64, MAX_KEY_DIM = 4096, MAX_STATE_HEADS = 4096;  // of recurrent layers
constexpr int STATE_LANES = 32;  // values of a head whose state lies together
constexpr int VOCAB_GROUP = 128; // logits that the sampler surveys together

constexpr int MAX_RATE = 1 << 16;  // tokens of an entry

constexpr int padded(int n, int unit) { return (n + unit - 1) / unit * unit; }
// Numbers that a token gives to entries, and entries for which a block has room (see penstock.model.kv_layout).
constexpr int given_numbers(const PkEntries& e, int head_dim) { return 2 * e.series * (head_dim + e.index_dim); }
constexpr int entries_of_block(int rate, int block_size) { return block_size % rate == 0 ? block_size / rate : rate % block_size == 0 ? 1 : block_size; }
// Floats of a row of a convolution's weights: sixteen can be read from any channel on.
constexpr int conv_stride(int channels) { return padded(channels, 16) + 16; }

// What four-bit levels stand for, plus 128: in GGUF's IQ4_NL and IQ4_XS, and (twice) in MXFP4 and NVFP4.
constexpr uint8_t IQ4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t E2M1[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

// Bits of a value, or of a level.
constexpr int level_bits(int kind) {
  switch (kind) {
    case PK_F32: return 32;
    case PK_BF16: return 16;
    case PK_U4H: case PK_U4W: case PK_U4W16: case PK_T4H: case PK_T4W: case PK_F4W: case PK_F4B16: case PK_U4D: case PK_U4K: return 4;
    case PK_U5H: case PK_U5D: case PK_U5K: return 5;
    case PK_S6K: return 6;
    case PK_S3K: return 3;
    case PK_U2K: return 2;
    default: return 8;
  }
}
// Bytes of a group's levels (or values).
constexpr int level_bytes(int kind) { return LANES * GROUP * level_bits(kind) / 8; }
// Bytes of a group's scales and minima.
constexpr int scale_bytes(int kind) {
  switch (kind) {
    case PK_F32: case PK_BF16: return 0;
    case PK_U4H: case PK_U8H: case PK_U5H: return 4 * LANES;
    case PK_U4W: case PK_U8W: return 8 * LANES;
    case PK_S8H: case PK_T4H: case PK_F4B16: case PK_U4D: case PK_U5D: return 2 * LANES;
    case PK_U4K: case PK_U5K: case PK_S6K: case PK_S3K: return 2 * LANES;
    case PK_T4W: case PK_F4W: case PK_U2K: return 4 * LANES;
    case PK_U4W16: return 16 * LANES;
    default: return 8 * LANES;
  }
}
// Groups that have float16 factors in common, which lie in front of the first one's scales, and their bytes.
constexpr int SUPER_GROUPS = 8;
constexpr int super_bytes(int kind) {
  switch (kind) {
    case PK_U4K: case PK_U5K: case PK_U2K: return 4 * LANES;
    case PK_S6K: case PK_S3K: return 2 * LANES;
    default: return 0;
  }
}
// Bytes from a tile's first scales, or the factors in front of them, to those of group g, and back from these to their
// factors.
constexpr size_t scale_offset(int kind, int g) {
  return static_cast<size_t>(g) * scale_bytes(kind) + static_cast<size_t>(g / SUPER_GROUPS + 1) * super_bytes(kind);
}
constexpr int factors_before(int kind, int g) { return super_bytes(kind) + g % SUPER_GROUPS * scale_bytes(kind); }

// Where levels of 2 to 8 bits lie: four inputs of all outputs are a vector of 64 bytes. Vectors 0 to 7 of a group lie one
// behind another (8 bits), two in a byte (4 bits), or four (2 bits); behind these come the third bits of eight vectors,
// the fifth ones, or two more bits of four vectors each.
// at: byte 4 * output + input % 4, of the vector input / 4.
constexpr int low_bits(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : 2; }
inline int level_at(const uint8_t* q, int bits, int vector, int at) {
  const int low = low_bits(bits), share = 8 / low, more = bits - low;
  int level = (q[64 * (vector / share) + at] >> (low * (vector % share))) & ((1 << low) - 1);
  const uint8_t* rest = q + 64 * low;
  if (more == 1) level |= ((rest[at] >> vector) & 1) << low;
  if (more == 2) level |= ((rest[64 * (vector / 4) + at] >> (2 * (vector % 4))) & 3) << low;
  return level;
}
// Forms of a product's input that a matrix of some kind reads; a set of bits.
// HALF_GROUPS: with levels, their sums over each 16 inputs.  SUPER_LEVELS: levels that have a scale for all inputs of eight
// groups, on instruction sets that gain by it (see activations.h); on all others it is LEVELS.
enum Form { FLOATS = 1, HALVES = 2, LEVELS = 4, HALF_GROUPS = 8, SUPER_LEVELS = 16 };
constexpr int form_of(int kind) {
  switch (kind) {
    case PK_F32: return FLOATS;
    case PK_BF16: return HALVES;
    case PK_S8W16: case PK_U4W16: case PK_F4B16: case PK_S3K: case PK_U2K: return LEVELS | HALF_GROUPS;
    case PK_U4K: case PK_U5K: return SUPER_LEVELS;
    case PK_S6K: return SUPER_LEVELS | HALF_GROUPS;
    default: return LEVELS;
  }
}

// A tile is its groups' levels, then its groups' scales and minima, rounded up to 64 bytes.
constexpr size_t tile_bytes(int kind, int groups) {
  const size_t scales = groups ? scale_offset(kind, groups - 1) + scale_bytes(kind) : 0;
  return (static_cast<size_t>(groups) * level_bytes(kind) + scales + 63) / 64 * 64;
}

// Asks for memory that will be read soon, into the second level of the cache: its queue is several
// times as long as the first level's, which alone doesn't keep the memory busy.
inline void prefetch(const uint8_t* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

// Products of `rows` rows of x, [rows, stride], with one tile of floats or two, `next` floats apart, of so many groups,
// plus bias (16 numbers each, or null). A sum goes through the inputs in order.  out: [rows][16] of each tile, `out_next`
// floats apart.
using FloatTiles = void (*)(const float* tile, size_t next, int tiles, int groups, const float* x, size_t stride, int rows, const float* bias, float* out, size_t out_next);
// For kernels with narrower registers than the processor has; null where there are none, or where an instruction
// set was chosen by name.
extern std::atomic<FloatTiles> wide_floats;
FloatTiles avx512_floats();

// One instruction set's entry points.
struct Kernels {
  const char* name;
  // Both return the bytes of 64-byte aligned scratch that they need, and run only if given it.
  // out: [rows, outputs] = x [rows, inputs] times the matrix, plus bias.
  // parts: of x's rows, see activations.h.
  size_t (*product)(const PkMatrix&, const float* x, int rows, int parts, float* out, int threads, void* work);
  size_t (*forward)(const PkProgram&, const PkBatch&, void* work);
  // The sampler's passes over a row, see distribution.h.
  bool (*survey)(const float* logits, int count, float* maxima);
  void (*weigh)(const float* logits, int count, double largest, double temperature, double* weights);
};

// Lets another thread run while this one waits.
void give_way();

// The number of the processor that the calling thread runs on, or -1.
int processor();

// Moves the calling thread to a processor that is none of `taken`, [count], if it may use one; it may use those that it
// might before. Returns the number of the one that it is on.
int move_from(const int* taken, int count);

// Of a clock that only goes on.
int64_t nanoseconds();

// Sleeps while the variable has this value, until `wake_all`; may end for no reason.
void sleep_on(std::atomic<int>& variable, int value);
void wake_all(std::atomic<int>& variable);

// A moment's rest between two looks at a shared variable.
inline void breathe() {
#if defined(PK_X86)
  __builtin_ia32_pause();
#elif defined(PK_ARM)
  asm volatile("isb");  // Takes as long as x86's pause; `yield` takes no time.
#endif
}

const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx512vnni_kernels();
const Kernels* avx512_kernels();
const Kernels* amx_kernels();
const Kernels* neon_kernels();
const Kernels* neoni8mm_kernels();

}  // namespace pk
