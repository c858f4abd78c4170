// Whether a program fits its own buffers: what the kernels then read and write without looking.
#include "interface.h"

namespace {

bool floats(int buffer) { return buffer >= 0 && buffer < PK_INPUT; }

bool fits(const PkNorm& norm) {
  return norm.kind == PK_NORM_NONE || ((norm.kind == PK_NORM_RMS || norm.kind == PK_NORM_LAYER) && norm.weight);
}

bool is(const PkMatrix& matrix, int outputs, int inputs) {
  return matrix.kind >= PK_F32 && matrix.kind < PK_KINDS && matrix.tiles && matrix.outputs == outputs && matrix.inputs == inputs && outputs > 0 && inputs > 0;
}

bool activates(const PkPhase& p, bool gated) {
  if (p.limit != 0.0f && (!gated || !(p.limit > 0.0f) || p.activation == PK_CLAMPED_SWIGLU)) return false;
  if (p.gate_limit != 0.0f && (!gated || !(p.gate_limit > 0.0f) || p.activation == PK_CLAMPED_SWIGLU)) return false;
  if (p.activation == PK_XIELU) return !gated && p.kind == PK_GATE_UP;
  return p.activation == PK_CLAMPED_SWIGLU ? gated : p.activation >= PK_SILU && p.activation <= PK_QUICK_GELU;
}

bool of_distances(const PkAttention& a) { return a.distance_keys || a.distance_queries; }

// Blocks lie in whole pages of one split, a token's own among those that it reads, and the scores of a split's blocks, for
// all heads, take no more room than those of its keys.
bool fits_blocks(const PkAttention& a) {
  return a.block > 0 && a.block % 16 == 0 && pk::KEY_SPLIT % a.block == 0 && a.most > 0 && a.most % a.block == 0 && a.local > 0 && a.local <= a.most / a.block &&
         a.index_heads == a.kv_heads && a.kv_heads <= a.block && a.index_dim > 0 && a.index_dim % 16 == 0 && a.index_dim <= pk::MAX_HEAD_DIM && a.rotary_dims <= a.index_dim &&
         !a.window && !a.chunk && !a.both_ways && !a.through && !a.biases && !of_distances(a) && !a.entries;
}

// Tokens that read chosen keys see all before them, whose values are the ends of keys.
bool fits_index(const PkAttention& a) {
  if (!a.most) return !a.index_heads && !a.index_dim && !a.block;
  if (a.block) return fits_blocks(a);
  if (a.most < 0 || a.kv_heads != 1 || a.head_dim != a.value_dim + a.rotary_dims || a.rotary_dims % 2 || a.window || a.chunk || a.both_ways || a.through || of_distances(a)) return false;
  if (!a.index_heads) return !a.index_dim;
  return a.index_heads > 0 && a.index_heads <= pk::MAX_INDEX_HEADS && a.index_dim > 0 && a.index_dim % 16 == 0 && a.index_dim <= pk::MAX_HEAD_DIM && a.rotary_dims <= a.index_dim;
}

// Whether a token's one key is its value, which turns at its end, and the layer's entries fit that.
bool fits_entries(const PkAttention& a) {
  if (a.kv_heads != 1 || a.value_dim != a.head_dim || !a.rotary_dims || a.axes || a.most || a.chunk || a.both_ways || a.through || a.biases || of_distances(a)) return false;
  const PkEntries* e = a.entries;
  if (!e) return true;
  if (e->rate < 1 || e->rate > pk::MAX_RATE || e->series < 1 || e->series > 2 || !e->bias || !e->norm.kind || !fits(e->norm)) return false;
  if (!e->most) return !e->index_heads && !e->index_dim;
  return e->most > 0 && e->index_heads > 0 && e->index_heads <= pk::MAX_INDEX_HEADS && e->index_dim > 0 && e->index_dim % 16 == 0 && e->index_dim <= pk::MAX_HEAD_DIM &&
         a.rotary_dims <= e->index_dim && e->index_bias && e->index_norm.kind && fits(e->index_norm);
}

bool fits(const PkAttention* a) {
  return a && a->kv_heads > 0 && a->heads > 0 && a->heads % a->kv_heads == 0 && a->heads / a->kv_heads <= pk::MAX_GROUP &&
         a->head_dim > 0 && a->head_dim % 16 == 0 && a->head_dim <= pk::MAX_HEAD_DIM && a->value_dim > 0 && a->value_dim % 16 == 0 && a->value_dim <= pk::MAX_HEAD_DIM &&
         a->rotary_dims >= 0 && a->rotary_dims % 2 == 0 &&
         a->rotary_dims <= a->head_dim && (!a->rotary_dims || (a->cosines && a->sines)) && a->window >= 0 && a->chunk >= 0 && a->through >= 0 && !(a->through && (a->window || a->chunk || a->both_ways)) && !(a->both_ways && (a->chunk || a->causal)) && a->keys && a->values && fits_index(*a) && (!a->entries || fits_entries(*a));
}

bool fits_axes(const PkAttention& a) {
  for (int i = 0; a.axes && i < a.rotary_dims / 2; i++)
    if (a.axes[i] > 2) return false;
  return true;
}

bool fits(const PkExperts* e) {
  return e && e->count > 0 && e->count <= pk::MAX_EXPERTS && e->active > 0 && e->active <= pk::MAX_ACTIVE && e->active <= e->count &&
         e->groups > 0 && e->count % e->groups == 0 && e->active_groups > 0 && e->active_groups <= e->groups &&
         e->scoring >= PK_SOFTMAX && e->scoring <= PK_GIVEN && (e->by_token ? e->tokens > 0 : e->scoring != PK_GIVEN) &&
         (e->scoring != PK_SPARSE_MIXER || (e->nearness >= 0.0f && e->groups == 1 && !e->correction && !e->by_token)) && e->group_best >= 1 && e->group_best <= 2 && e->active <= e->count / e->groups * e->active_groups && e->ups && e->downs;
}

bool fits(const PkRecurrent* l, const PkProgram& m) {
  if (!l || l->kind < PK_SHORT_CONV || l->kind > PK_MAMBA1 || l->kernel < 1 || l->kernel > pk::MAX_KERNEL || l->channels < 1 || l->width < 1 || !l->conv) return false;
  int64_t numbers = static_cast<int64_t>(l->kernel - 1) * l->channels;
  const int64_t features = m.widths[PK_QUERIES], channels = l->channels;
  const auto inside = [&](int first, int64_t count) { return first >= 0 && first + count <= features; };
  if (l->kind == PK_SHORT_CONV) {
    if (l->width != l->channels || !inside(l->strength, channels)) return false;
  } else if (l->kind == PK_MAMBA1) {
    if (l->key_heads != 1 || l->heads != 1 || l->by_channel || l->key_dim < 1 || l->key_dim > pk::MAX_KEY_DIM || l->value_dim != l->width || channels != l->width || l->values != l->first ||
        !inside(l->time, l->width) || !inside(l->strength, 2 * static_cast<int64_t>(l->key_dim)) || !l->rate || !l->time_bias || !l->skip)
      return false;
    numbers += static_cast<int64_t>(l->width) * l->key_dim;
  } else {
    if (l->key_heads < 1 || l->heads < l->key_heads || l->heads % l->key_heads || l->heads > pk::MAX_STATE_HEADS || l->key_dim < 1 || l->key_dim > pk::MAX_KEY_DIM ||
        l->value_dim < 1 || l->width != static_cast<int64_t>(l->heads) * l->value_dim || !inside(l->time, static_cast<int64_t>(l->heads) * (l->by_channel ? l->key_dim : 1)) || !l->rate || !l->time_bias || !l->norm)
      return false;
    if (channels != l->width + 2 * static_cast<int64_t>(l->key_heads) * l->key_dim) return false;
    const int64_t keys = static_cast<int64_t>(l->key_heads) * l->key_dim;
    if (l->kind == PK_GATED_DELTA ? !inside(l->strength, l->heads) || !inside(l->first, keys) || !inside(l->keys, keys) || !inside(l->values, l->width) : (l->by_channel || l->values != l->first || !l->skip || l->norm_groups < 1 || l->width % l->norm_groups)) return false;
    numbers += static_cast<int64_t>(l->width) * l->key_dim;
  }
  return (l->kind == PK_GATED_DELTA || inside(l->first, channels)) && inside(l->gate, pk::padded(l->width, 16)) && l->state >= 0 && l->state + numbers <= m.state_numbers && l->last >= 0 &&
         l->last + l->width <= m.last_numbers;
}

// Goes through a program as a step does.
class Reader {
 public:
  explicit Reader(const PkProgram& program) : m_(program) {}

  bool fits_in(const PkPhase& p) {
    if (p.ends_layer && !p.waits) return false;
    if (!only_wanted(p)) return false;
    if (!part(p)) return false;
    if (!(fits(p.norm) && fits(p.other_norm) && fits(p.third_norm)) || (p.attention && !(fits(p.attention) && fits_axes(*p.attention) && in_blocks(*p.attention) && fits_distances(*p.attention))) || (p.experts && !fits(p.experts)) || (p.recurrent && !fits(p.recurrent, m_))) return false;
    if (p.streams && !streams(p)) return false;
    if (p.mixing && !mixing(p)) return false;
    if (!low_rank(p)) return false;
    switch (p.kind) {
      case PK_EMBED: return floats(p.target) && (p.part || p.matrices[0].outputs >= m_.vocab) && is(p.matrices[0], p.matrices[0].outputs, width(p.target));
      case PK_MAKE_INPUT: return made(p);
      case PK_HEADS: return heads(p);
      case PK_PLACE: return placed(p);
      case PK_ATTEND: return p.attention && (!p.attention->most || p.attention->most == chosen_) && p.source == PK_QUERIES && p.target == PK_MIXED && holds(PK_QUERIES, p.first + queries(p)) && holds(PK_MIXED, p.first + values(p));
      case PK_PRODUCT: return product(p);
      case PK_GATE_UP: return gate_up(p);
      case PK_ADD_NORM:
        return floats(p.source) && floats(p.target) && p.norm.kind && p.width > 0 && holds(p.source, p.width) && holds(p.target, p.width);
      case PK_LOGITS:
        return floats(p.source) && p.norm.kind && is(p.matrices[0], p.part ? p.matrices[0].outputs : m_.vocab, width(p.source)) &&
               p.first + static_cast<int64_t>(p.matrices[0].outputs) <= m_.vocab && holds(PK_INPUT, width(p.source));
      case PK_ROUTE:
        placed_forms_[0] = p.forms;
        return p.experts && holds(PK_SCORES, p.experts->count) && p.experts->ups[0].inputs == width_[0] && p.forms && (forms_[0] & p.forms) == p.forms;
      case PK_EXPERTS_UP:
        placed_forms_[1] = p.forms;
        return experts(p) && activates(p, p.experts->gates);
      case PK_EXPERTS_DOWN: return experts(p);
      case PK_COMBINE:
        // Of the residual, all numbers.
        if (!experts(p) || (p.target == PK_RESIDUAL && !p.part && p.experts->downs[0].outputs != width(PK_RESIDUAL))) return false;
        return floats(p.target) && holds(p.target, p.first + results(p));
      case PK_LOOK_UP: return floats(p.target) && is(p.matrices[0], p.matrices[0].outputs, width(p.target));
      case PK_NORM:
        return floats(p.source) && floats(p.target) && p.norm.kind && p.width > 0 && holds(p.source, p.width) && holds(p.target, p.width);
      case PK_CONVOLVE: return p.recurrent && p.recurrent->kind != PK_SHORT_CONV && p.source == PK_QUERIES;
      case PK_SCAN: return p.recurrent && p.source == PK_QUERIES && p.target == PK_MIXED && holds(PK_MIXED, p.recurrent->width);
      case PK_ROWS: return floats(p.source) && p.width > 0 && p.width == m_.outputs && holds(p.source, p.width);
      case PK_TAKE_ROWS: return floats(p.target) && p.width > 0 && holds(p.target, p.width);
      case PK_SCALE: return floats(p.target) && p.width > 0 && holds(p.target, p.width);
      case PK_INPUTS_OF_LAYERS: return inputs_of_layers(p);
      case PK_GATE_BY: return gate_by(p);
      case PK_CUT_GATE: return floats(p.target) && p.width > 0 && holds(p.target, p.width);
      case PK_BEGIN_STREAMS: return p.streams && row_of(p.source, p.width);
      case PK_PREDICT: return p.streams && p.norm.kind && p.streams->router && p.streams->prediction && row_of(p.target, p.width);
      case PK_CORRECT: return p.streams && p.norm.kind && p.streams->router && p.streams->correction && row_of(p.target, p.width);
      case PK_ADD_TO_OTHERS: return p.streams && p.norm.kind && row_of(p.source, p.width);
      case PK_END_STREAM: return p.streams && p.source != p.target && row_of(p.source, p.width) && row_of(p.target, p.width);
      case PK_JOIN_PATH:
        return p.norm.kind && p.other_norm.kind && p.third_norm.kind && row_of(p.source, p.width) && row_of(p.target, p.width) && row_of(p.beside, p.width) &&
               p.source != p.target && p.beside != p.target && p.source != p.beside;
      case PK_PLACE_LATENT: return latent(p);
      case PK_BY_HEAD: return by_head(p);
      case PK_PLACE_INDEX: return p.norm.kind && index(p) && (p.other_norm.kind != 0) == (p.attention->block != 0);
      case PK_INDEX: return index(p);
      case PK_CHOOSE: return index(p) && (p.attention->entries ? chooses(p.attention->entries->most, p.attention->entries->rate) : chooses(p.attention->most, 1));
      case PK_SPREAD: return p.mixing && row_of(p.source, p.width);
      case PK_MIX_LOGITS: return p.mixing && row_of(p.target, logits(*p.mixing));
      case PK_MIX_READ: return p.mixing && p.source != p.target && row_of(p.source, logits(*p.mixing)) && row_of(p.target, p.width);
      case PK_MIX_WRITE: return p.mixing && p.mixing->rounds && row_of(p.source, p.width);
      case PK_PLACE_ENTRIES: return places_entries(p);
      case PK_MAKE_ENTRIES: return p.attention && p.attention->entries;
      case PK_ATTEND_ENTRIES: return attends_entries(p);
      case PK_EXCHANGE: return exchanged(p);
      case PK_LOWER: return lowered(p);
      default: return false;
    }
  }

 private:
  const PkProgram& m_;
  int width_[2] = {0, 0}, forms_[2] = {0, 0};  // of what INPUT and INNER hold
  int placed_forms_[2] = {0, 0};               // of what ROUTE and EXPERTS_UP have left for places
  int lowered_ = -1, lowered_of_ = -1;         // targets of the last LOWER; with experts, its source

  int chosen_ = 0, chosen_rate_ = 1;           // keys of a token that the last CHOOSE has chosen; in all layers as many
  bool few_ = false;                           // whether rows that nobody wants have been left out

  int width(int buffer) const { return m_.widths[buffer]; }
  bool holds(int buffer, int64_t width) const { return m_.widths[buffer] >= width; }
  static int64_t queries(const PkPhase& p) { return static_cast<int64_t>(p.attention->heads) * p.attention->head_dim; }
  static int64_t values(const PkPhase& p) { return static_cast<int64_t>(p.attention->heads) * p.attention->value_dim; }
  static int64_t keys(const PkPhase& p) { return static_cast<int64_t>(p.attention->kv_heads) * p.attention->head_dim; }

  // Whether the phase can leave rows out that nobody wants, and reads none that are.
  bool only_wanted(const PkPhase& p) {
    const bool gives = p.kind == PK_LOGITS || p.kind == PK_ROWS || p.kind == PK_LOWER;
    if (!p.only_wanted) return !few_ || gives;
    const bool keys = p.kind == PK_HEADS && p.matrices[1].tiles;
    if (keys && few_) return false;
    few_ = true;
    switch (p.kind) {
      case PK_HEADS: return !p.whole;
      case PK_MAKE_INPUT: case PK_ATTEND: case PK_PRODUCT: case PK_GATE_UP: case PK_ADD_NORM: case PK_ROUTE: case PK_EXPERTS_UP:
      case PK_EXPERTS_DOWN: case PK_COMBINE: case PK_NORM: case PK_SCALE: case PK_GATE_BY:
        return true;
      default: return false;
    }
  }

  // Whether the buffer has rows of `width` floats beside STREAMS.
  bool row_of(int buffer, int width) const { return floats(buffer) && buffer != PK_STREAMS && width > 0 && holds(buffer, width); }

  // Keys of distances are products of floats, and stand in the biases' place.
  bool fits_distances(const PkAttention& a) const {
    return !of_distances(a) || (m_.cache == PK_CACHE_F32 && !a.biases && a.soft_cap == 0.0f && a.biases_middle >= 0 && a.biases_width > a.biases_middle);
  }

  // Whether a block of the cache has room for the layer's keys, and for its values.
  bool in_blocks(const PkAttention& a) const {
    const auto block = [&](int dim) {
      const int64_t page = m_.cache == PK_CACHE_F32 ? int64_t{64} * dim : m_.cache == PK_CACHE_BF16 ? int64_t{32} * dim : 64 + int64_t{16} * dim;
      return page * (m_.block_size / 16);
    };
    const int64_t values = a.kv_heads * block(a.value_dim) + (a.index_dim ? block(a.index_dim) : 0);  // an index's keys have one head
    return a.key_block % 64 == 0 && a.value_block % 64 == 0 && a.key_block >= a.kv_heads * block(a.head_dim) && a.value_block >= values + given(a) && (!a.entries || keeps_entries(a));
  }

  // Bytes of a block for what its tokens give to entries.
  int64_t given(const PkAttention& a) const { return a.entries ? int64_t{m_.block_size} * pk::given_numbers(*a.entries, a.head_dim) * cell() : 0; }

  bool keeps_entries(const PkAttention& a) const {
    const PkEntries& e = *a.entries;
    return e.kept && e.block % 64 == 0 && e.block >= pk::entries_of_block(e.rate, m_.block_size) * (int64_t{a.head_dim} + e.index_dim) * cell();
  }

  int cell() const { return m_.cache == PK_CACHE_F32 ? 4 : 2; }

  bool places_entries(const PkPhase& p) const {
    const PkAttention* a = p.attention;
    if (!a || m_.cache == PK_CACHE_INT8 || !fits_entries(*a) || !p.norm.kind || !p.other_norm.kind || p.source != PK_KEYS || p.target != PK_QUERIES || !holds(PK_QUERIES, queries(p))) return false;
    const PkEntries* e = a->entries;
    if (!holds(PK_KEYS, a->head_dim + int64_t{e ? pk::given_numbers(*e, a->head_dim) : 0})) return false;
    return !e || !e->most || (p.beside == PK_MIXED && holds(PK_MIXED, int64_t{e->index_heads} * e->index_dim));
  }

  bool attends_entries(const PkPhase& p) const {
    const PkAttention* a = p.attention;
    if (!a || m_.cache == PK_CACHE_INT8 || !fits_entries(*a) || p.source != PK_QUERIES || p.target != PK_MIXED || !holds(PK_QUERIES, queries(p)) || !holds(PK_MIXED, values(p))) return false;
    return !a->entries || !a->entries->most || (a->entries->most == chosen_ && a->entries->rate == chosen_rate_);
  }

  static int logits(const PkMixing& m) { return m.rounds ? m.count * (2 + m.count) : m.count; }

  bool mixing(const PkPhase& p) const {
    const PkMixing& m = *p.mixing;
    return m.count >= 1 && m.count <= pk::MAX_STREAMS && m.rounds >= 0 && m.product && m.base && m.scales && p.width > 0 &&
           holds(PK_STREAMS, m.count * int64_t{p.width} + m.count + m.count * m.count);
  }

  bool streams(const PkPhase& p) const {
    const PkStreams& s = *p.streams;
    return s.count >= 2 && s.count <= pk::MAX_STREAMS && s.active >= 0 && s.active < s.count && p.width > 0 && s.stride >= p.width && s.stride % 32 == 0 &&
           holds(PK_STREAMS, int64_t{s.count} * s.stride);
  }

  bool inputs_of_layers(const PkPhase& p) const {
    const PkMatrix& table = p.matrices[0];
    return floats(p.target) && p.width > 0 && p.norm.kind && is(table, table.outputs, table.inputs) && table.inputs % p.width == 0 && holds(p.target, table.inputs);
  }

  bool gate_by(const PkPhase& p) {
    const PkMatrix& matrix = p.matrices[p.matrices[0].tiles ? 0 : 1];
    if (p.source != PK_INPUT || p.target != PK_INNER || !activates(p, false) || !reads(p.source, matrix, matrix.outputs)) return false;
    if (!floats(p.beside) || !holds(p.beside, p.first + static_cast<int64_t>(matrix.outputs)) || !holds(PK_INNER, matrix.outputs)) return false;
    width_[1] = matrix.outputs;
    forms_[1] = p.forms;
    return true;
  }

  // Whether the phase's targets are an adapter's, of a kind of phase that has them, and lowered before.
  bool low_rank(const PkPhase& p) const {
    if (p.low_rank < 0) return p.kind != PK_LOWER;
    const bool by_expert = p.kind == PK_EXPERTS_UP || p.kind == PK_EXPERTS_DOWN;
    if (m_.low_rank < 32 || m_.low_rank % 32 || p.low_rank + int64_t{3} * (p.experts ? p.experts->count : 1) > m_.low_targets) return false;
    if (by_expert) return p.low_rank == lowered_ && lowered_of_ == (p.kind == PK_EXPERTS_UP ? PK_INPUT : PK_INNER);
    return p.kind == PK_LOWER || p.kind == PK_EMBED || p.kind == PK_LOGITS || ((p.kind == PK_HEADS || p.kind == PK_PRODUCT || p.kind == PK_GATE_UP) && p.low_rank == lowered_ && lowered_of_ < 0);
  }

  bool lowered(const PkPhase& p) {
    if ((p.source != PK_INPUT && p.source != PK_INNER) || !p.waits) return false;
    lowered_ = p.low_rank;
    lowered_of_ = p.experts ? p.source : -1;
    const int at = p.source - PK_INPUT;
    if (p.experts) return experts(p) && p.width == (at ? p.experts->downs : p.experts->ups)[0].inputs && (placed_forms_[at] & pk::FLOATS);
    return p.width > 0 && p.width == width_[at] && (forms_[at] & pk::FLOATS);
  }

  // Whether the matrix can multiply what INPUT or INNER holds.
  bool reads(int buffer, const PkMatrix& matrix, int64_t outputs) const {
    if (buffer != PK_INPUT && buffer != PK_INNER) return false;
    const int at = buffer - PK_INPUT;
    return outputs <= INT32_MAX && is(matrix, static_cast<int>(outputs), width_[at]) && (forms_[at] & pk::form_of(matrix.kind)) == pk::form_of(matrix.kind);
  }

  // Whether what a phase computes begins at a whole tile; of GATE_UP, at a whole group.
  static bool part(const PkPhase& p) {
    if (p.kind == PK_EXCHANGE) return p.part && p.first >= 0;
    if (p.kind == PK_LOOK_UP) return !p.part && p.first_key == 0;
    if (p.kind == PK_GATE_BY || p.kind == PK_MAKE_INPUT || p.kind == PK_TAKE_ROWS) return !p.part && p.first >= 0 && p.first_key == 0;
    if (!p.part) return p.first == 0 && p.first_key == 0;
    if (p.first < 0 || p.first_key < 0 || p.width < 0 || p.key_width < 0) return false;
    if (p.kind == PK_EMBED) return true;
    return p.first % (p.kind == PK_GATE_UP || p.kind == PK_EXPERTS_UP ? 32 : 16) == 0 && p.first_key % 16 == 0;
  }

  bool exchanged(const PkPhase& p) {
    if (!m_.exchange || p.width < 1) return false;
    if (p.experts && p.source == PK_RESIDUAL) return experts(p) && p.width == p.experts->downs[0].outputs && holds(PK_RESIDUAL, p.width);
    if (p.experts) {
      if (p.source != PK_INNER) return false;
      placed_forms_[1] = p.forms;
      return experts(p) && p.width == p.experts->downs[0].inputs && p.forms;
    }
    if (p.attention && (p.source != PK_MIXED || p.first + values(p) > p.width)) return false;
    if (p.source != PK_INNER) return floats(p.source) && holds(p.source, p.width);
    forms_[1] = p.forms;
    return p.width == width_[1] && p.forms;
  }

  bool made(const PkPhase& p) {
    if (p.target != PK_INPUT || p.width < 1 || !holds(PK_INPUT, p.width)) return false;
    if (p.source == PK_INNER ? p.first || p.width != width_[1] || !(forms_[1] & pk::FLOATS) : !floats(p.source) || !holds(p.source, p.first + int64_t{p.width})) return false;
    if (p.attention && (p.source != PK_MIXED || p.width != values(p) || p.first)) return false;
    if (p.recurrent && (p.attention || p.first || p.source != PK_MIXED || p.width != p.recurrent->width)) return false;
    if (p.gates && (p.recurrent || !gates(p))) return false;
    width_[0] = p.width;
    forms_[0] = p.forms;
    return true;
  }

  // Whether each gate weighs one number, or so many that none is in two vectors.
  bool gates(const PkPhase& p) const {
    if (p.gates < 0 || p.width % p.gates || !holds(PK_RESULT, p.gates)) return false;
    return (p.gates == p.width && !p.soft_gates) || p.width / p.gates % 16 == 0;
  }

  bool heads(const PkPhase& p) const {
    if (!p.attention || !(p.limit >= 0.0f) || p.attention->value_dim != p.attention->head_dim || p.target != PK_QUERIES || !holds(PK_QUERIES, p.first + queries(p)) || (p.whole && !holds(PK_KEYS, p.first_key + keys(p)))) return false;
    const bool has_keys = p.matrices[1].tiles, own_values = p.matrices[2].tiles;
    if (own_values ? !has_keys : p.whole) return false;
    return reads(p.source, p.matrices[0], queries(p)) && (!has_keys || reads(p.source, p.matrices[1], keys(p))) && (!own_values || reads(p.source, p.matrices[2], keys(p)));
  }

  // Columns of experts' results that a phase writes or reads.
  static int64_t results(const PkPhase& p) { return p.kind == PK_COMBINE && p.columns ? p.columns : p.experts->downs[0].outputs; }

  // Whether a matrix has a shape and, where its expert is here, tiles.
  static bool of_expert(const PkMatrix& matrix, bool here, int outputs, int inputs) {
    if (here) return is(matrix, outputs, inputs);
    return !matrix.tiles && matrix.outputs == outputs && matrix.inputs == inputs && outputs > 0 && inputs > 0;
  }

  // Whether all experts have the shapes of the first, and results the width of what they read (or a part of it).
  bool experts(const PkPhase& p) const {
    if (!p.experts) return false;
    const PkExperts& e = *p.experts;
    const int inner = e.ups[0].outputs, hidden = e.ups[0].inputs, outputs = e.downs[0].outputs, whole = p.part ? e.downs[0].inputs : inner;
    for (int i = 0; i < e.count; i++) {
      const bool here = e.downs[i].tiles;
      if (!of_expert(e.ups[i], here, inner, hidden) || !of_expert(e.downs[i], here, outputs, whole) || (e.gates && !of_expert(e.gates[i], here, inner, hidden))) return false;
    }
    if (p.kind == PK_EXPERTS_UP && (p.first + static_cast<int64_t>(inner) > whole || (p.part && !(p.forms & pk::FLOATS)))) return false;
    if (p.columns < 0 || (p.columns && (!p.part || p.kind != PK_COMBINE || p.first + results(p) > outputs))) return false;
    if (!p.part && outputs != hidden) return false;
    const bool has_results = p.kind == PK_EXPERTS_DOWN || p.kind == PK_COMBINE;
    return holds(PK_INPUT, hidden) && (!has_results || holds(PK_RESIDUAL, p.first + results(p)));
  }

  bool placed(const PkPhase& p) const {
    if (!p.attention || !p.norm.kind || !p.other_norm.kind) return false;
    const int64_t all_queries = p.part ? p.width : queries(p), all_keys = p.part ? p.key_width : keys(p);
    return holds(PK_QUERIES, all_queries) && holds(PK_KEYS, all_keys) && p.first + queries(p) <= all_queries && p.first_key + keys(p) <= all_keys;
  }

  bool latent(const PkPhase& p) const {
    const PkAttention* a = p.attention;
    return a && a->kv_heads == 1 && a->rotary_dims > 0 && a->head_dim == a->value_dim + a->rotary_dims && p.norm.kind && p.width >= a->rotary_dims &&
           p.source == PK_KEYS && holds(PK_KEYS, a->head_dim) && holds(PK_QUERIES, queries(p)) && holds(PK_MIXED, static_cast<int64_t>(p.width) * a->heads);
  }

  bool index(const PkPhase& p) const {
    const PkAttention* a = p.attention;
    if (a && a->entries) {
      const PkEntries& e = *a->entries;
      return e.most && p.source != p.target && row_of(p.source, e.index_heads) && row_of(p.target, e.index_heads * e.index_dim) && p.kind != PK_PLACE_INDEX;
    }
    return a && a->index_heads > 0 && p.source != p.target && floats(p.source) && floats(p.target) && p.source != PK_STREAMS && p.target != PK_STREAMS &&
           holds(p.source, a->index_dim + static_cast<int64_t>(a->block ? 0 : a->index_heads)) && holds(p.target, static_cast<int64_t>(a->index_heads) * a->index_dim);
  }

  bool chooses(int most, int rate) {
    if (chosen_ && (most != chosen_ || rate != chosen_rate_)) return false;
    chosen_ = most;
    chosen_rate_ = rate;
    return true;
  }

  // Whether all heads have the shape of the first, and what they read and write lies in the buffers.
  bool by_head(const PkPhase& p) const {
    const PkByHead* h = p.by_head;
    if (!h || h->count < 1 || !h->matrices || !floats(p.source) || !floats(p.target) || p.source == p.target) return false;
    if (p.attention && (p.source != PK_MIXED || h->count != p.attention->heads || h->source_first || h->source_stride != p.attention->value_dim)) return false;
    const int outputs = h->matrices[0].outputs, inputs = h->matrices[0].inputs;
    for (int i = 0; i < h->count; i++)
      if (!is(h->matrices[i], outputs, inputs)) return false;
    const auto inside = [&](int buffer, int stride, int first, int size) {
      return first >= 0 && stride >= 0 && first + size <= stride && holds(buffer, static_cast<int64_t>(stride) * h->count);
    };
    return inside(p.source, h->source_stride, h->source_first, inputs) && inside(p.target, h->target_stride, h->target_first, outputs);
  }

  bool product(const PkPhase& p) const {
    const PkMatrix& matrix = p.matrices[0];
    return floats(p.target) && reads(p.source, matrix, matrix.outputs) && holds(p.target, p.first + static_cast<int64_t>(matrix.outputs));
  }

  bool gate_up(const PkPhase& p) {
    const PkMatrix &gate = p.matrices[0], &up = p.matrices[1];
    if (p.source != PK_INPUT || p.target != PK_INNER || !activates(p, gate.tiles) || (p.weighed && !holds(PK_SCORES, 1))) return false;
    if (!reads(p.source, up, up.outputs) || (gate.tiles && !reads(p.source, gate, up.outputs))) return false;
    const int whole = p.part ? p.width : up.outputs;
    if (!holds(PK_INNER, whole) || p.first + static_cast<int64_t>(up.outputs) > whole || (p.part && !(p.forms & pk::FLOATS))) return false;
    width_[1] = whole;
    forms_[1] = p.forms;
    return true;
  }
};

}  // namespace

namespace pk {

int check(const PkProgram& m) {
  const bool fine = m.num_phases > 0 && m.phases && m.vocab > 0 && m.threads > 0 && m.block_size > 0 && m.block_size % 16 == 0 &&
                    m.cache >= PK_CACHE_F32 && m.cache <= PK_CACHE_INT8 && m.state_numbers >= 0 && m.last_numbers >= 0;
  if (!fine) return m.num_phases;
  for (int i = 0; i < PK_BUFFERS; i++)
    if (m.widths[i] < 0) return m.num_phases;
  Reader reader(m);
  for (int i = 0; i < m.num_phases; i++)
    if (!reader.fits_in(m.phases[i])) return i;
  return -1;
}

}  // namespace pk
