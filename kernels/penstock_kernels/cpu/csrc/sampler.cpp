// Choosing each row's token from its logits, without sorting the vocabulary.
//
// A row is one thread's, and every sum has one order: its blocks of SUM_BLOCK places, or the order
// of its ids.  So a row's choice depends on that row alone.  Quick sums in float32, whose order may be another, decide only
// where no exact ones could say otherwise.
#include <omp.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "candidates.h"
#include "interface.h"

namespace {

constexpr int64_t ENTRIES_PER_THREAD = 1 << 16;  // less isn't worth waking a thread
constexpr int LEAST_ESTIMATED = 1024;            // weights of fewer are sooner added up
constexpr double COOLEST = 0.01, WARMEST = 100;  // temperatures with which floats can tell
constexpr int UNTOLD = -1;

// As a float that is no further away than the largest, but for -inf.
float rounded(double x) {
  if (x == -HUGE_VAL) return -HUGE_VALF;
  return static_cast<float>(std::clamp(x, -static_cast<double>(FLT_MAX), static_cast<double>(FLT_MAX)));
}

// What a row's log-probabilities are measured from: its largest logit, and the logarithm of the sum
// of all e^(logit - largest).  Apart, so that nothing is lost of the second beside a huge first.
struct Level {
  double largest, log_total;
  float log_probability(float logit) const { return static_cast<float>((logit - largest) - log_total); }
};

class RowSampler {
 public:
  RowSampler(const pk::Kernels& kernels, const PkSampling& batch, char* work) : kernels_(kernels), batch_(batch), vocab_(batch.vocab) {
    place(room_, vocab_, work);
  }

  void run(int row) {
    const PkDraw& draw = batch_.draws[row];
    const float* logits = batch_.logits + static_cast<size_t>(row) * vocab_;
    if (!kernels_.survey(logits, vocab_, room_.maxima)) {
      batch_.tokens[row] = -1;
      return;
    }
    // Log-probabilities are of the row as it is: before anything is changed.
    Level level{};
    if (draw.logprobs >= 0) level = report_top(logits, draw);
    const int token = draw.given >= 0 ? draw.given : choose(adjusted(logits, draw), draw);
    batch_.tokens[row] = token;
    if (draw.logprobs >= 0) batch_.logprobs[row] = level.log_probability(logits[token]);
  }

 private:
  const pk::Kernels& kernels_;
  const PkSampling& batch_;
  const int vocab_;
  Room room_;
  // The candidates: their number; and whether room_.ids says which they are, else 0 to count - 1.
  int count_ = 0;
  bool listed_ = false;
  double total_ = 0.0;

  int groups() const { return parts(vocab_, pk::VOCAB_GROUP); }

  float largest() const { return *std::max_element(room_.maxima, room_.maxima + groups()); }

  // The row with what was asked for one request alone; `logits` itself where that is nothing.
  // room_.maxima are those of what is returned.
  const float* adjusted(const float* logits, const PkDraw& draw) {
    if (!draw.num_held && draw.edit < 0) return logits;
    std::copy(logits, logits + vocab_, room_.logits);
    if (draw.num_held) hold_back(logits, draw);
    if (draw.edit >= 0) {
      bias(batch_.edits[draw.edit]);
      penalise(batch_.edits[draw.edit]);
      kernels_.survey(room_.logits, vocab_, room_.maxima);
    }
    return room_.logits;
  }

  void hold_back(const float* logits, const PkDraw& draw) {
    for (int i = 0; i < draw.num_held; i++) {
      const int32_t id = batch_.held_back[draw.first_held + i];
      if (id >= 0 && id < vocab_) room_.logits[id] = -HUGE_VALF;
    }
    kernels_.survey(room_.logits, vocab_, room_.maxima);
    if (largest() > -HUGE_VALF) return;
    std::copy(logits, logits + vocab_, room_.logits);  // No id would be left.
    kernels_.survey(room_.logits, vocab_, room_.maxima);
  }

  // What is held back stays so: it is -inf, whatever is done to it.
  void bias(const PkEdit& edit) {
    for (int i = edit.first_biased; i < edit.first_biased + edit.num_biased; i++) {
      float& logit = room_.logits[batch_.biased_ids[i]];
      logit = rounded(logit + batch_.biases[i]);
    }
  }

  void penalise(const PkEdit& edit) {
    for (int i = edit.first_seen; i < edit.first_seen + edit.num_seen; i++) {
      float& logit = room_.logits[batch_.seen_ids[i]];
      double x = logit;
      x = x > 0.0 ? x / edit.repetition : x * edit.repetition;
      if (const int count = batch_.seen_counts[i]) x = (x - edit.frequency * count) - edit.presence;
      logit = rounded(x);
    }
  }

  int choose(const float* logits, const PkDraw& draw) {
    if (draw.temperature == 0.0) return likeliest(logits);
    list_everything();
    if (draw.top_k > 0 && draw.top_k < vocab_) {
      logits = cut_top_k(logits, draw.top_k);
    } else if (vocab_ >= LEAST_ESTIMATED && draw.temperature >= COOLEST && draw.temperature <= WARMEST) {
      const int token = choose_by_estimate(logits, draw);
      if (token != UNTOLD) return token;
      list_everything();
    }
    weigh(logits, draw.temperature);
    if (draw.top_p < 1.0) cut_top_p(draw.top_p);
    if (draw.min_p > 0.0) cut_min_p(draw.min_p);
    const int place = inverse_cumulative(draw.draw);
    return listed_ ? room_.ids[place] : place;
  }

  // Of equals, the lowest id.
  int likeliest(const float* logits) const {
    const float most = largest();
    const int group = static_cast<int>(std::find(room_.maxima, room_.maxima + groups(), most) - room_.maxima);
    return static_cast<int>(std::find(logits + group * pk::VOCAB_GROUP, logits + vocab_, most) - logits);
  }

  void list_everything() {
    count_ = vocab_;
    listed_ = false;
  }

  // Returns the candidates' logits.  Ids ascend, and none is less than its place: the row may be
  // room_.logits itself.
  const float* cut_top_k(const float* logits, int top_k) {
    find_largest(logits, top_k);
    count_ = top_k;
    listed_ = true;
    for (int i = 0; i < top_k; i++) {
      room_.ids[i] = static_cast<int32_t>(room_.items[i].id);
      room_.logits[i] = logits[room_.ids[i]];
    }
    return room_.logits;
  }

  // Puts the `wanted` <= vocab largest logits, of equals those of lower ids, into room_.items, in
  // the order of their ids.
  void find_largest(const float* logits, int wanted) {
    const float floor = floor_of_largest(wanted);
    int count = 0;
    for (int group = 0; group < groups(); group++) {
      if (room_.maxima[group] < floor) continue;
      const int end = std::min(vocab_, (group + 1) * pk::VOCAB_GROUP);
      for (int id = group * pk::VOCAB_GROUP; id < end; id++)
        if (logits[id] >= floor) room_.items[count++] = {key_of(logits[id]), id};
    }
    keep_likeliest(count, wanted, one);
  }

  // What the `wanted` largest logits are at least: as many groups have a logit of at least that.
  float floor_of_largest(int wanted) {
    if (wanted > groups()) return -HUGE_VALF;
    for (int group = 0; group < groups(); group++) room_.items[group] = {key_of(room_.maxima[group]), group};
    return room_.maxima[last_kept(room_.items, groups(), wanted, one).id];
  }

  // Of room_.items, keeps the likeliest that together have `wanted` mass. Returns their number.
  template <class Mass> int keep_likeliest(int count, double wanted, Mass mass) {
    std::copy(room_.items, room_.items + count, room_.spare);
    const Item last = last_kept(room_.spare, count, wanted, mass);
    const auto end = std::remove_if(room_.items, room_.items + count, [&](const Item& item) { return comes_before(last, item); });
    return static_cast<int>(end - room_.items);
  }

  // Sets the weights, and their sums.  logits: [count_].  The likeliest's weight is 1.
  void weigh(const float* logits, double temperature) {
    const double most = largest();
    sum_blocks([&](int start, int size) { kernels_.weigh(logits + start, size, most, temperature, room_.weights + start); });
  }

  // prepare(start, size) may still set the weights of a block.
  template <class Prepare> void sum_blocks(Prepare prepare) {
    total_ = 0.0;
    for (int start = 0; start < count_; start += SUM_BLOCK) {
      const int size = std::min(SUM_BLOCK, count_ - start);
      prepare(start, size);
      total_ += room_.sums[start / SUM_BLOCK] = sum_of(room_.weights + start, size);
    }
  }

  // The token that exact sums give, where sums that are nearly right leave no doubt; else UNTOLD.  Most of the vocabulary
  // has next to no weight: it is added up by floats, and only likely candidates are weighed as they are.
  int choose_by_estimate(const float* logits, const PkDraw& draw) {
    const double temperature = draw.temperature;
    if (draw.top_p >= 1.0 && draw.min_p > 0.0) {
      list(find_likely(logits, temperature, draw.min_p));
    } else {
      estimate(logits, vocab_, largest(), static_cast<float>(M_LOG2E / temperature), room_.estimates);
      double total = 0.0;
      for (int group = 0; group < groups(); group++) total += room_.estimates[group];
      if (draw.top_p >= 1.0) return draw_by_estimate(logits, temperature, draw.draw * total, DOUBT * total);
      if (!cut_top_p_by_estimate(logits, temperature, draw.top_p, total)) return UNTOLD;
      if (draw.min_p > 0.0) cut_min_p(draw.min_p);
    }
    return room_.ids[inverse_cumulative(draw.draw)];
  }

  // How far two sums of weights may be apart, one of them estimated, as a part of the total.  Sums in another order differ
  // by less than 1e-10 of it.
  static constexpr double DOUBT = 2.5 * ESTIMATED;

  // As `cut_top_p`: whoever adds up the weights, in whatever order, the same candidate is the first with which the mass is
  // reached.
  bool cut_top_p_by_estimate(const float* logits, double temperature, double top_p, double total) {
    const double wanted = top_p * total, doubt = DOUBT * total;
    // If the last one that is kept weighs less, there is doubt in any case.
    const int found = find_likely(logits, temperature, 2.0 * doubt);
    if (held_by(found).mass < wanted + doubt) return false;
    const int count = keep_likeliest(found, wanted, weight_of);
    const Held held = held_by(count);
    if (held.mass < wanted + doubt || held.mass - held.least > wanted - doubt) return false;
    list(count);
    return true;
  }

  // What the first of room_.items weigh together, and the least of them.
  struct Held { double mass, least; };
  Held held_by(int count) const {
    Held held{0.0, 1.0};
    for (int i = 0; i < count; i++) {
      const double weight = weight_of(room_.items[i].key);
      held.mass += weight;
      held.least = std::min(held.least, weight);
    }
    return held;
  }

  // As `inverse_cumulative` of the whole vocabulary.
  int draw_by_estimate(const float* logits, double temperature, double target, double doubt) {
    double cumulative = 0.0;
    int group = 0;
    while (group < groups() && cumulative + room_.estimates[group] <= target) cumulative += room_.estimates[group++];
    if (group == groups()) return UNTOLD;
    const int start = group * pk::VOCAB_GROUP, size = std::min(vocab_ - start, pk::VOCAB_GROUP);
    kernels_.weigh(logits + start, size, largest(), temperature, room_.weights);
    int i = 0;
    while (i < size && cumulative + room_.weights[i] <= target) cumulative += room_.weights[i++];
    if (i == size || cumulative > target - doubt || cumulative + room_.weights[i] < target + doubt) return UNTOLD;
    return start + i;
  }

  // Puts the tokens with weights of at least `floor` into room_.items.  Returns their number.
  int find_likely(const float* logits, double temperature, double floor) {
    const double most = largest(), lowest = most + temperature * (std::log(floor) - 1e-3);
    const float least = rounded(lowest - 1e-6 * std::abs(lowest));
    int found = 0;
    for (int group = 0; group < groups(); group++) {
      if (room_.maxima[group] < least) continue;
      const int end = std::min(vocab_, (group + 1) * pk::VOCAB_GROUP);
      for (int id = group * pk::VOCAB_GROUP; id < end; id++) {  // Without a branch.
        room_.places[found] = id;
        room_.some[found] = logits[id];
        found += logits[id] >= least;
      }
    }
    kernels_.weigh(room_.some, found, most, temperature, room_.weights);
    int count = 0;
    for (int i = 0; i < found; i++)
      if (room_.weights[i] >= floor) room_.items[count++] = {key_of(room_.weights[i]), room_.places[i]};
    return count;
  }

  // Weights below `floor` can't be among the likeliest that have top_p of the total: all of them
  // together are less than the rest of it.  The half is room for rounding.
  void cut_top_p(double top_p) {
    const double floor = 0.5 * (1.0 - top_p) * total_ / count_;
    list(keep_likeliest(find_weights(floor), top_p * total_, weight_of));
  }

  // The likeliest, whose weight is 1, is among the candidates whatever was cut before.
  void cut_min_p(double min_p) { list(find_weights(min_p)); }

  // Puts the candidates with weights of at least `floor` into room_.items. Returns their number.
  int find_weights(double floor) {
    int found = 0;
    for (int i = 0; i < count_; i++) {  // Without a branch, and with little to write.
      room_.places[found] = i;
      found += room_.weights[i] >= floor;
    }
    for (int i = 0; i < found; i++) {
      const int place = room_.places[i];
      room_.items[i] = {key_of(room_.weights[place]), listed_ ? room_.ids[place] : place};
    }
    return found;
  }

  // Makes room_.items the candidates.
  void list(int count) {
    for (int i = 0; i < count; i++) {
      room_.ids[i] = static_cast<int32_t>(room_.items[i].id);
      room_.weights[i] = weight_of(room_.items[i].key);
    }
    count_ = count;
    listed_ = true;
    sum_blocks([](int, int) {});
  }

  // The first place whose cumulative weight exceeds draw * total.
  int inverse_cumulative(double draw) const {
    const double target = draw * total_;
    double cumulative = 0.0;
    int start = 0;
    for (; start + SUM_BLOCK < count_; start += SUM_BLOCK) {
      const double next = cumulative + room_.sums[start / SUM_BLOCK];
      if (next > target) break;
      cumulative = next;
    }
    const int end = std::min(count_, start + SUM_BLOCK);
    for (int i = start; i < end; i++)
      if ((cumulative += room_.weights[i]) > target) return i;
    // Rounding: place by place the sum comes out smaller, or draw * total is the total.
    int last = end - 1;
    while (last > 0 && room_.weights[last] == 0.0) last--;
    return last;
  }

  // Writes the row's likeliest ids with their log-probabilities.
  Level report_top(const float* logits, const PkDraw& draw) {
    list_everything();
    weigh(logits, 1.0);
    const Level level{largest(), std::log(total_)};
    const int wanted = std::min(draw.logprobs, vocab_);
    if (!wanted) return level;
    find_largest(logits, wanted);
    std::sort(room_.items, room_.items + wanted, comes_before);
    for (int i = 0; i < wanted; i++) {
      const auto id = static_cast<int32_t>(room_.items[i].id);
      batch_.top_ids[draw.first_top + i] = id;
      batch_.top_logprobs[draw.first_top + i] = level.log_probability(logits[id]);
    }
    return level;
  }
};

}  // namespace

namespace pk {

size_t sample(const Kernels& kernels, const PkSampling& batch, void* work) {
  const int64_t entries = static_cast<int64_t>(batch.rows) * batch.vocab;
  const int threads = static_cast<int>(std::clamp<int64_t>(entries / ENTRIES_PER_THREAD, 1, std::min(batch.threads, batch.rows)));
  const size_t bytes = room_bytes(batch.vocab);
  if (!work) return bytes * threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    RowSampler sampler(kernels, batch, static_cast<char*>(work) + bytes * omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
    for (int row = 0; row < batch.rows; row++) sampler.run(row);
  }
  return bytes * threads;
}

}  // namespace pk
