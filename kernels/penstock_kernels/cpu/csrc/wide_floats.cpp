// Products of floats on AVX-512F alone, for processors on which the other kernels are those of AVX2.
// As in isa_*.cpp, nothing here may use a library's inline functions.
#include <immintrin.h>

#include "types.h"

namespace {

// M rows by T tiles.  Rows lie in groups of four, so that few registers make their addresses.
template <int M, int T> void rows_of(const float* tile, size_t next, int groups, const float* x, size_t stride, const float* bias, float* out, size_t out_next) {
  __m512 sums[M][T];
  for (int m = 0; m < M; m++)
    for (int t = 0; t < T; t++) sums[m][t] = _mm512_setzero_ps();
  const float *first = x, *second = M > 4 ? x + 4 * stride : x, *third = M > 8 ? x + 8 * stride : x;
  const size_t inputs = static_cast<size_t>(groups) * pk::GROUP;
  for (size_t k = 0; k < inputs; k++) {
    __m512 weights[T];
    for (int t = 0; t < T; t++) weights[t] = _mm512_loadu_ps(tile + t * next + 16 * k);
    for (int m = 0; m < M; m++) {
      const float* from = m < 4 ? first : m < 8 ? second : third;
      const __m512 value = _mm512_set1_ps(from[(m % 4) * stride + k]);
      for (int t = 0; t < T; t++) sums[m][t] = _mm512_fmadd_ps(weights[t], value, sums[m][t]);
    }
  }
  for (int t = 0; t < T; t++) {
    const __m512 added = bias ? _mm512_loadu_ps(bias + 16 * t) : _mm512_setzero_ps();
    for (int m = 0; m < M; m++)
      _mm512_storeu_ps(out + t * out_next + 16 * m, bias ? _mm512_add_ps(sums[m][t], added) : sums[m][t]);
  }
}

template <int T> void rows(const float* tile, size_t next, int groups, const float* x, size_t stride, int count, const float* bias, float* out, size_t out_next) {
  while (count > 0) {
    // Rows that are left are taken together: few by themselves would wait for each sum's last addition.
    const int now = count >= 12 ? 12 : count;
    switch (now) {
      case 1: rows_of<1, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 2: rows_of<2, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 3: rows_of<3, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 4: rows_of<4, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 5: rows_of<5, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 6: rows_of<6, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 7: rows_of<7, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 8: rows_of<8, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 9: rows_of<9, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 10: rows_of<10, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      case 11: rows_of<11, T>(tile, next, groups, x, stride, bias, out, out_next); break;
      default: rows_of<12, T>(tile, next, groups, x, stride, bias, out, out_next);
    }
    x += now * stride;
    out += 16 * now;
    count -= now;
  }
}

void tiles(const float* tile, size_t next, int count, int groups, const float* x, size_t stride, int row_count, const float* bias, float* out, size_t out_next) {
  if (count == 2) rows<2>(tile, next, groups, x, stride, row_count, bias, out, out_next);
  else rows<1>(tile, next, groups, x, stride, row_count, bias, out, out_next);
}

}  // namespace

namespace pk {

FloatTiles avx512_floats() { return tiles; }

}  // namespace pk
