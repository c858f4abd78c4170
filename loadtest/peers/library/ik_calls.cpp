// ik_llama.cpp's C interface as a few functions that take plain numbers, so that runner.py needs to
// know none of its structs. install.sh compiles it beside that library. One model, one context.
#include <algorithm>
#include <cstdint>

#include "llama.h"

namespace {

llama_model* model = nullptr;
llama_context* context = nullptr;
llama_batch batch;
int32_t threads = 1;

}  // namespace

extern "C" {

// All return 0, or something else for a failure.
int32_t ik_load(const char* path, int32_t count) {
  llama_backend_init();
  threads = count;
  model = llama_model_load_from_file(path, llama_model_default_params());
  return model == nullptr;
}

// A context in the place of the last; tokens: of all sequences.  most: rows of a call.
int32_t ik_open(int32_t sequences, int32_t tokens, int32_t most) {
  if (context) {
    llama_free(context);
    llama_batch_free(batch);
  }
  llama_context_params params = llama_context_default_params();
  params.n_ctx = tokens;
  params.n_batch = most;
  params.n_seq_max = sequences;
  params.n_threads = params.n_threads_batch = threads;
  context = llama_init_from_model(model, params);
  batch = llama_batch_init(most, 0, 1);
  return context == nullptr;
}

// What the first sequence has from `position` on.
void ik_forget(int32_t position) { llama_kv_cache_seq_rm(context, 0, position, -1); }

// rows: token, position, sequence, whether its successor is asked for.  Returns how many likeliest
// successors it has written to `found`; -1 for a failure.
int32_t ik_decode(int32_t count, const int32_t* rows, int32_t* found) {
  batch.n_tokens = count;
  for (int32_t i = 0; i < count; i++) {
    const int32_t* row = rows + 4 * i;
    batch.token[i] = row[0];
    batch.pos[i] = row[1];
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = row[2];
    batch.logits[i] = row[3] != 0;
  }
  if (llama_decode(context, batch)) return -1;
  const int32_t words = llama_n_vocab(model);
  int32_t written = 0;
  for (int32_t i = 0; i < count; i++) {
    if (!rows[4 * i + 3]) continue;
    const float* logits = llama_get_logits_ith(context, i);
    found[written++] = std::max_element(logits, logits + words) - logits;
  }
  return written;
}

}  // extern "C"
