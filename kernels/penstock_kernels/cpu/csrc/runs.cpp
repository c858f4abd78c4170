// Where runs of tokens have been, and what mostly followed them.
//
// penstock_worker/speculation has the same in Python (token_index, matches, suffix), which says what
// is meant; tests compare the two.
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "interface.h"

namespace {

constexpr int CANDIDATES = 24;   // earlier runs that are looked at, in each index
constexpr int ENOUGH = 8;        // matches as long as can be, behind which no others are looked for
constexpr int STRETCH = 2;       // drafts for each token of a match that isn't as long as can be
constexpr double LIKELY = 0.3;   // less likely drafts are left out
constexpr int32_t SEPARATOR = -1;
constexpr uint64_t MULTIPLIER = 0x9E3779B97F4A7C15ull;

// Chains of equal runs, newest first.  A table of places leads to the newest run of each kind; runs
// are told apart by their tokens, which are there anyway.
class Runs {
 public:
  // base: has the first `at` tokens, and is not extended any more.
  Runs(int width, const Runs* base, int at)
      : width_(width), base_(base), at_(base ? at : 0), first_(std::max(at_, width - 1)), end_(first_) {}

  void extend(const int32_t* tokens, int count, int end) {
    tokens_.insert(tokens_.end(), tokens, tokens + count);
    for (; end_ < std::min(end, size()); end_++) {
      if (2 * (older_.size() + 1) > table_.size()) grow();
      int32_t& held = table_[slot(hash(end_), end_)];
      const int own = held - 1;
      older_.push_back(own < 0 && base_ ? base_->newest(*this, end_) : own);
      held = end_ + 1;
    }
  }

  int size() const { return at_ + static_cast<int>(tokens_.size()); }
  int32_t token(int at) const { return at < at_ ? base_->token(at) : tokens_[at - at_]; }
  int width() const { return width_; }

  // The last token of the newest run that equals the one that ends at `place` of `other`; -1: none.
  int newest(const Runs& other, int place) const {
    const int own = table_.empty() ? -1 : table_[slot(other.hash(place), place, &other)] - 1;
    return own < 0 && base_ ? base_->newest(other, place) : own;
  }

  int before(int place) const {
    if (place >= first_) return older_[place - first_];
    return base_ ? base_->before(place) : -1;
  }

 private:
  uint64_t hash(int place) const {
    uint64_t key = 0;
    for (int at = place + 1 - width_; at <= place; at++) key = (key + static_cast<uint32_t>(token(at))) * MULTIPLIER;
    return key ^ key >> 32;
  }

  bool equal(int place, const Runs& other, int there) const {
    for (int back = 0; back < width_; back++)
      if (token(place - back) != other.token(there - back)) return false;
    return true;
  }

  // Of the table, where the run is, or would be.
  size_t slot(uint64_t hash, int place, const Runs* other = nullptr) const {
    const Runs& has = other ? *other : *this;
    size_t at = hash & (table_.size() - 1);
    while (table_[at] && !equal(table_[at] - 1, has, place)) at = (at + 1) & (table_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<int32_t> held(std::max<size_t>(64, 2 * table_.size()));
    held.swap(table_);
    for (const int32_t place : held)
      if (place) table_[slot(hash(place - 1), place - 1)] = place;
  }

  const int width_;
  const Runs* const base_;
  const int at_;     // tokens that are the base's
  const int first_;  // the last token of the first run that may be its own
  int end_;          // runs that end before this token are indexed
  std::vector<int32_t> tokens_, older_, table_;
};

struct Match {
  int length, place;
  const Runs* runs;
};

// What followed a match, as if the text went on with itself behind its end.
struct Following {
  const Runs* runs;
  int begin, period;  // period: tokens that there are

  Following(const Match& match, int most) : runs(match.runs), begin(match.place + 1) {
    const int end = std::min(begin + most, runs->size());
    period = std::max(0, end - begin);
    count = period ? most : 0;
    for (int at = 0; at < period; at++)
      if (runs->token(begin + at) == SEPARATOR) {
        count = at;
        break;
      }
  }
  int32_t operator[](int at) const { return runs->token(begin + at % period); }
  int count;
};

// Adds the longest matches of one index, the newest first.
void match(const Runs& runs, const Runs& tail, std::vector<Match>& all) {
  const int length = tail.size();
  int best = runs.width();
  const size_t from = all.size();
  int place = runs.newest(tail, length - 1);
  for (int seen = 0; seen < CANDIDATES && place >= 0; seen++, place = runs.before(place)) {
    const int most = std::min(length, place + 1);
    int same = 0;
    while (same < most && runs.token(place - same) == tail.token(length - 1 - same)) same++;
    if (same > best) {
      best = same;
      all.resize(from, Match{});
    }
    if (same != best) continue;
    all.push_back({same, place, &runs});
    if (same == length && static_cast<int>(all.size() - from) == ENOUGH) break;
  }
}

// The continuation that most agree on, token by token.
int vote(std::vector<Following>& voters, int most, int32_t* ids) {
  double likely = 1.0;
  for (int at = 0; at < most; at++) {
    int32_t token = 0;
    int votes = 0;
    for (const Following& voter : voters) {
      if (at >= voter.count || (votes && voter[at] == token)) continue;
      int found = 0;
      for (const Following& other : voters) found += at < other.count && other[at] == voter[at];
      // Of those that are equally frequent, the first one.
      if (found > votes) votes = found, token = voter[at];
    }
    if (!votes) return at;
    likely *= static_cast<double>(votes) / static_cast<double>(voters.size());
    if (likely < LIKELY) return at;
    ids[at] = token;
    voters.erase(
        std::remove_if(voters.begin(), voters.end(), [&](const Following& voter) { return at >= voter.count || voter[at] != token; }),
        voters.end());
  }
  return most;
}

int guess(const Runs* const* indexes, int count, const Runs& tail, int longest, int most, bool votes, int32_t* ids) {
  std::vector<Match> found;
  found.reserve(static_cast<size_t>(count) * CANDIDATES);
  for (int at = 0; at < count; at++) match(*indexes[at], tail, found);
  int length = 0;
  for (const Match& each : found) length = std::max(length, each.length);
  if (votes && length < longest) most = std::min(most, STRETCH * length);
  std::vector<Following> voters;
  for (const Match& each : found)
    if (each.length == length && (votes || voters.empty())) voters.emplace_back(each, most);
  return voters.empty() ? 0 : vote(voters, most, ids);
}

}  // namespace

extern "C" void* pk_runs_new(int width, const void* base, int at) {
  return new (std::nothrow) Runs(width, static_cast<const Runs*>(base), at);
}

extern "C" void pk_runs_free(void* runs) { delete static_cast<Runs*>(runs); }

extern "C" int pk_runs_extend(void* runs, const int32_t* tokens, int count, int end) {
  try {
    static_cast<Runs*>(runs)->extend(tokens, count, end);
    return 0;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

extern "C" int pk_runs_guess(const void* const* runs, int count, const int32_t* tail, int length, int longest, int most, int votes, int32_t* ids) {
  try {
    const Runs* const* known = reinterpret_cast<const Runs* const*>(runs);
    Runs last(known[0]->width(), nullptr, 0);
    last.extend(tail, length, 0);
    return guess(known, count, last, longest, most, votes != 0, ids);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
