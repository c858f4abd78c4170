// A program: its phases, the buffers that they read and write, and what each does.
#pragma once
#include "layer_types.h"

extern "C" {

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
//   attention, the source is what that attention has left, whose splits are folded first; with `gates`, the source is
//   multiplied by the logistic function of so many numbers of RESULT, each of which weighs as many of its own; with
//   `soft_gates` by their softplus.  With recurrent, the source is what that scan has left, which is gated and normed
//   first.  Of INNER, the floats are read.
// HEADS: matrices (query, key, value) times INPUT; queries and keys get the norms `norm` and `other_norm`
//   over each head, then rotate; values get `third_norm`.  With `limit`, all of them are first kept within it.  Queries
//   become QUERIES; keys and values go to the cache.  With `whole`, queries and keys become QUERIES and KEYS as they are, for PLACE.  Without a matrix of
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
//   With experts and the source INNER, that is what EXPERTS_UP has left.  Of that and of INNER the floats are handed
//   out, and `forms` made of them afterwards.  With experts and another source, EXPERTS_DOWN's results are completed, of
//   all places; the caller is told where each expert's begin.
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
// columns: how many COMBINE computes; 0: as many as experts give.
// low_rank: which of an adapter's targets belongs to matrices[0], the next ones to the others; -1: none.
// only_wanted: rows that the batch doesn't want, of which no later phase reads anything, may be left out; HEADS computes
// all keys and values still.  Such phases are a program's last ones, but for LOWER and what gives the rows.
struct PkPhase {
  int32_t kind, source, target, width, forms, waits, ends_layer, whole, adds, activation, weighed;
  int32_t part, first, first_key, key_width, beside, gates, low_rank, only_wanted, soft_gates, columns;
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
// first: [experts + 1], the row at which each expert's results begin, where these are exchanged; else null.
// Not 0: the step is given up at once.
typedef int32_t (*PkExchange)(int32_t phase, float* values, int32_t rows, int32_t stride, const int32_t* first);

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

}  // extern "C"
