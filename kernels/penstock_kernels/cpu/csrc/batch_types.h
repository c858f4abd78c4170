// What one step computes: its rows, their states and adapters, and how tokens are chosen from its logits.
#pragma once
#include "matrix_types.h"

extern "C" {

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
