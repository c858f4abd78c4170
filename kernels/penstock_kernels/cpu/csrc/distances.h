// Products of queries and keys with what stands for their distance (He et al., "DeBERTa", 2021).
#pragma once
#include <type_traits>

#include "cache.h"

namespace {

// What distances have to say to the scores of a tile's rows (see PkAttention).
class DistanceProducts {
 public:
  DistanceProducts(const PkAttention& a, int position, int kv_head, int group)
      : keys_(of_head(a, a.distance_keys, kv_head * group)), queries_(of_head(a, a.distance_queries, kv_head * group)), dim_(a.head_dim), width_(a.biases_width),
        from_(a.biases_middle - position), group_(group) {}
  bool any() const { return keys_ || queries_; }

  // row: products of a row with the keys of pages, from page first_page of a split that begins at position `first` to
  // before end_page. query: of the row.
  void add(float* row, int r, const float* query, const float* const* pages, int first, int first_page, int end_page) const {
    const ptrdiff_t at = static_cast<ptrdiff_t>(r % group_) * dim_ * width_ + from_ - r / group_ + first;
    for (int p = first_page; p < end_page; p++) {
      V by_query = load(row + 16 * p), by_key = zero();
      for (int d = 0; d < dim_; d++) {
        const ptrdiff_t place = at + static_cast<ptrdiff_t>(d) * width_ + 16 * p;
        if (keys_) by_query = fma(set1(query[d]), load(keys_ + place), by_query);
        if (queries_) by_key = fma(load(pages[p] + 16 * d), load(queries_ + place), by_key);
      }
      store(row + 16 * p, ::add(by_query, by_key));
    }
  }

 private:
  const float *keys_, *queries_;
  int dim_, width_, from_, group_;

  static const float* of_head(const PkAttention& a, const float* tables, int head) {
    return tables ? tables + static_cast<ptrdiff_t>(head) * a.head_dim * a.biases_width : nullptr;
  }
};

}  // namespace
