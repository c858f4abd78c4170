// How the threads of a step wait for each other and share work out.
#pragma once
#include <atomic>

#include "types.h"

namespace {

// What a thread keeps about its waiting. lost: nanoseconds that it waited beyond spinning.
struct Patience { int sense = 0, spins = 4096; int64_t lost = 0; };

// All threads wait for each other. They spin, since phases are short; but where the system has put
// a thread aside to run another process, spinning keeps it from coming back: so a thread that spun
// in vain gives way, and spins less the next time. Giving way has no end where the missing thread
// stands in another core's queue: after some time of it a thread sleeps, which leaves its core to
// that one. Not at once: a core that falls idle takes long to wake up, most of all in a virtual
// machine.
class Barrier {
 public:
  void expect(int threads) { threads_ = threads; }

  void wait(Patience& patience) {
    if (threads_ == 1) return;
    const int sense = patience.sense ^= 1;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      sense_.store(sense);  // In one order with who goes to sleep: either sees the other.
      if (sleepers_.load()) pk::wake_all(sense_);
      return;
    }
    for (int i = 0; i < patience.spins; i++) {
      if (sense_.load(std::memory_order_acquire) == sense) {
        patience.spins = patience.spins < MOST ? 2 * patience.spins : MOST;
        return;
      }
      pk::breathe();
    }
    patience.spins = patience.spins > LEAST ? patience.spins / 4 : LEAST;
    const int64_t begun = pk::nanoseconds();
    give_way_to(sense, begun + GIVING_WAY);
    patience.lost += pk::nanoseconds() - begun;
  }

 private:
  void give_way_to(int sense, int64_t until) {
    do {
      for (int i = 0; i < YIELDS; i++) {
        if (sense_.load(std::memory_order_acquire) == sense) return;
        pk::give_way();
      }
    } while (pk::nanoseconds() < until);
    sleepers_.fetch_add(1);
    while (sense_.load() != sense) pk::sleep_on(sense_, sense ^ 1);
    sleepers_.fetch_sub(1);
  }

  static constexpr int LEAST = 64, MOST = 8192;
  static constexpr int YIELDS = 4;  // Between two looks at the clock.
  static constexpr int64_t GIVING_WAY = 500'000;  // Nanoseconds.
  int threads_ = 1;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> sense_{0};
  std::atomic<int> sleepers_{0};
};

// Units of a phase that a thread's share has given out.
struct alignas(64) Cursor { std::atomic<int> next; };

struct Share { int begin, end; };
inline Share share_of(int count, int thread, int threads) {
  return {static_cast<int>(static_cast<int64_t>(count) * thread / threads), static_cast<int>(static_cast<int64_t>(count) * (thread + 1) / threads)};
}

}  // namespace
