// Attention's products by AMX: of queries with a split's keys, and of softmax weights with values, where both are bfloat16.
//
// A page of keys is what a register takes, 16 tokens and 32 numbers of a head at a time; of a page of values, whose tokens
// are fewer, it takes half of one. A score is summed up in the order of the head's numbers, and a row's values in the order
// of pages, each from nothing: neither depends on the rows that are multiplied besides.
#pragma once
#include "scores.h"

namespace {

// Whether a cache's numbers are multiplied as bfloat16.
template <class Cache> constexpr bool in_halves = sizeof(typename Cache::Query) == sizeof(uint16_t);

// Rows of queries, scores and weights that may be read or written behind the last one.
constexpr int ROWS_BEYOND = AMX_ROWS - 1;

// scores: [rows][KEY_SPLIT] of one panel of queries or two, against one page or two.
template <int PANELS, int PAGES> inline void amx_scores(const uint16_t* panel, const uint16_t* const* pages, int dim, float* scores) {
  constexpr size_t from_query = QUERY_STRIDE * sizeof *panel, from_row = pk::KEY_SPLIT * sizeof *scores;
  const uint16_t* second = panel + AMX_ROWS * QUERY_STRIDE;
  amx_zero_sums();
  int d = 0;
  for (; d + 32 <= dim; d += 32) {
    amx_load<4>(panel + d, from_query);
    amx_load<5>(pages[0] + 16 * d, AMX_WIDTH);
    amx_add_products<0>();
    if (PAGES == 2) {
      amx_load<5>(pages[1] + 16 * d, AMX_WIDTH);
      amx_add_products<1>();
    }
    if (PANELS == 1) continue;
    amx_load<4>(second + d, from_query);
    amx_add_products<1 + PAGES>();
    if (PAGES == 2) {
      amx_load<5>(pages[0] + 16 * d, AMX_WIDTH);
      amx_add_products<2>();
    }
  }
  if (d < dim) {
    amx_load<6>(panel + d, from_query);
    amx_load<7>(pages[0] + 16 * d, AMX_WIDTH);
    amx_add_half_products<0>();
    if (PAGES == 2) {
      amx_load<7>(pages[1] + 16 * d, AMX_WIDTH);
      amx_add_half_products<1>();
    }
    if (PANELS == 2) {
      amx_load<6>(second + d, from_query);
      amx_add_half_products<1 + PAGES>();
      if (PAGES == 2) {
        amx_load<7>(pages[0] + 16 * d, AMX_WIDTH);
        amx_add_half_products<2>();
      }
    }
  }
  amx_store<0>(scores, from_row);
  if (PAGES == 2) amx_store<1>(scores + 16, from_row);
  if (PANELS == 2) amx_store<2>(scores + AMX_ROWS * pk::KEY_SPLIT, from_row);
  if (PANELS == 2 && PAGES == 2) amx_store<3>(scores + AMX_ROWS * pk::KEY_SPLIT + 16, from_row);
}

// As split_scores.
template <class Cache> inline void amx_split_scores(const uint16_t* panel, int rows, const PagesToRead<typename Cache::Cell>& pages, int dim, float* scores) {
  typename Cache::Reader reader;
  const AtOnce<typename Cache::Cell> asking(pages, rows);
  for (int p = pages.first; p < pages.end; p += SCORE_PAGES) {
    const int count = pages.end - p < SCORE_PAGES ? pages.end - p : SCORE_PAGES;
    const uint16_t* open[SCORE_PAGES];
    for (int i = 0; i < count; i++) {
      asking.begin(p + i);
      open[i] = reader.keys(pages.keys[p + i], dim, i);
    }
    for (int r = 0; r < rows; r += 2 * AMX_ROWS) {
      const uint16_t* queries = panel + static_cast<size_t>(r) * QUERY_STRIDE;
      float* to = scores + static_cast<size_t>(r) * pk::KEY_SPLIT + 16 * p;
      const bool two = rows - r > AMX_ROWS;
      if (count == 2) two ? amx_scores<2, 2>(queries, open, dim, to) : amx_scores<1, 2>(queries, open, dim, to);
      else two ? amx_scores<2, 1>(queries, open, dim, to) : amx_scores<1, 1>(queries, open, dim, to);
    }
  }
}

// sums: [VECTORS][16 rows][16], of so many pages; `stride` numbers from two tokens' values to the next two's.
template <int VECTORS> inline void amx_page_values(const uint16_t* weights, const uint16_t* const* values, size_t stride, int pages, float (*sums)[AMX_ROWS][16]) {
  amx_zero_sums();
  for (int p = 0; p < pages; p++) {
    amx_load<6>(weights + 16 * p, pk::KEY_SPLIT * sizeof *weights);
    amx_load<7>(values[p], stride * sizeof *weights);
    amx_add_half_products<0>();
    if (VECTORS > 1) {
      amx_load<7>(values[p] + 32, stride * sizeof *weights);
      amx_add_half_products<1>();
    }
    if (VECTORS > 2) {
      amx_load<7>(values[p] + 64, stride * sizeof *weights);
      amx_add_half_products<2>();
    }
    if (VECTORS > 3) {
      amx_load<7>(values[p] + 96, stride * sizeof *weights);
      amx_add_half_products<3>();
    }
  }
  amx_store<0>(sums[0], AMX_WIDTH);
  if (VECTORS > 1) amx_store<1>(sums[1], AMX_WIDTH);
  if (VECTORS > 2) amx_store<2>(sums[2], AMX_WIDTH);
  if (VECTORS > 3) amx_store<3>(sums[3], AMX_WIDTH);
}

// VECTORS vectors of the head, from number d on, of whole pages. out: [rows][out_stride], which they are the first to fill.
template <class Cache, int VECTORS>
inline void amx_values_of(const uint16_t* weights, int rows, const typename Cache::Cell* const* pages, int count, int dim, int d, float* out, int out_stride) {
  alignas(64) float sums[VECTORS][AMX_ROWS][16];
  alignas(64) uint16_t memory[Cache::PAIRED ? 1 : pk::KEY_SPLIT * 16 * VECTORS];
  const uint16_t* values[pk::KEY_SPLIT / 16];
  for (int p = 0; p < count; p++) values[p] = Cache::template pairs_of_values<VECTORS>(pages[p], dim, d, memory + static_cast<size_t>(p) * 256 * VECTORS);
  const size_t stride = Cache::PAIRED ? 2 * dim : 32 * VECTORS;
  for (int r = 0; r < rows; r += AMX_ROWS) {
    amx_page_values<VECTORS>(weights + static_cast<size_t>(r) * pk::KEY_SPLIT, values, stride, count, sums);
    for (int m = 0; m < AMX_ROWS && r + m < rows; m++)
      for (int c = 0; c < VECTORS; c++) store(out + static_cast<size_t>(r + m) * out_stride + d + 16 * c, load(sums[c][m]));
  }
}

template <class Cache>
inline void amx_values(const uint16_t* weights, int rows, const typename Cache::Cell* const* pages, int count, int dim, float* out, int out_stride) {
  int d = 0;
  for (; d + 64 <= dim; d += 64) amx_values_of<Cache, 4>(weights, rows, pages, count, dim, d, out, out_stride);
  for (; d + 32 <= dim; d += 32) amx_values_of<Cache, 2>(weights, rows, pages, count, dim, d, out, out_stride);
  if (d < dim) amx_values_of<Cache, 1>(weights, rows, pages, count, dim, d, out, out_stride);
}

}  // namespace
