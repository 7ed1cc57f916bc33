// A few threads that go through the same phases together.

#pragma once

#include <immintrin.h>
#include <omp.h>
#include <sched.h>

#include <atomic>

namespace ds4trio {

// Looks at the others' progress before the processor is offered to somebody else: some 50 us.
constexpr int kPatience = 1000;

class Team {
 public:
  explicit Team(int size) : size_(size) {}

  // Everybody has come this far. Only then does anybody go on.
  void wait() {
    if (size_ == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int looks = 0; round_.load(std::memory_order_acquire) == round; ++looks)
      looks < kPatience ? _mm_pause() : void(sched_yield());
  }

  // Each item goes to whoever is free, for another program may hold up one of us; then all wait.
  template <typename Work>
  void share(int items, Work work) {
    if (size_ == 1) {
      for (int item = 0; item < items; ++item) work(item);
      return;
    }
    int item;
    while ((item = next_.fetch_add(1, std::memory_order_relaxed)) < items) work(item);
    wait();
  }

  int size() const { return size_; }

 private:
  const int size_;
  std::atomic<int> arrived_{0}, round_{0}, next_{0};
};

// Run by `threads` threads, of which the caller is one. Source of threads: the OpenMP that torch
// has loaded, so that both use the same ones.
template <typename Work>
inline void together(int threads, Work work) {
  Team* team = nullptr;
#pragma omp parallel num_threads(threads) shared(team)
  {
#pragma omp single
    team = new Team(omp_get_num_threads());  // perhaps fewer than asked for
    work(*team, omp_get_thread_num());
  }
  delete team;
}

}  // namespace ds4trio
