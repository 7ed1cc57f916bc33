// Attention of a few queries that share a key head over one sequence's keys and values.

#pragma once

#include "quantised.h"

namespace ds4trio {

constexpr int kKeys = 64;         // keys looked at together: they and their values stay in L1
constexpr int kQueriesMax = 16;   // rows of queries that share them
constexpr int kVectorsMax = 16;   // of 8 features, in a head

// e to the power of x, for x <= 0. Relative error about 2e-7; below -87 it is 0. NaN stays NaN.
inline __m256 exponential(__m256 x) {
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts: the first has few bits, so that its product is exact.
  __m256 f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  f = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), f);
  __m256 p = _mm256_set1_ps(1.0f / 720);  // Taylor's series; |f| <= ln 2 / 2
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(c));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 seen = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_NLE_UQ);
  return _mm256_and_ps(seen, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

struct AttentionScratch {
  alignas(32) float keys[kKeys * 8 * kVectorsMax];
  alignas(32) float values[kKeys * 8 * kVectorsMax];
  alignas(32) float scores[kQueriesMax][kKeys];
  alignas(32) float out[kQueriesMax][8 * kVectorsMax];
  float largest[kQueriesMax], total[kQueriesMax];
};

inline void widen(const uint16_t* from, int numbers, float* to) {
  for (int i = 0; i < numbers; i += 8) _mm256_store_ps(to + i, halves(from + i));
}

// A block of keys, for all rows; `visible[r]` of them may be seen by row r.
template <int V>
inline void attend_block(const float* const* queries, int rows, int keys, const int* visible,
                         AttentionScratch& s) {
  const __m256 minus = _mm256_set1_ps(-INFINITY);
  for (int r = 0; r < rows; ++r) {
    const int seen = std::min(keys, visible[r]);
    if (seen <= 0) continue;
    __m256 q[V];
    for (int v = 0; v < V; ++v) q[v] = _mm256_loadu_ps(queries[r] + 8 * v);
    for (int j = 0; j < seen; ++j) {
      __m256 sum = _mm256_mul_ps(q[0], _mm256_load_ps(s.keys + 8 * V * j));
      __m256 other = _mm256_mul_ps(q[1], _mm256_load_ps(s.keys + 8 * V * j + 8));
      for (int v = 2; v < V; v += 2) {
        sum = _mm256_fmadd_ps(q[v], _mm256_load_ps(s.keys + 8 * (V * j + v)), sum);
        other = _mm256_fmadd_ps(q[v + 1], _mm256_load_ps(s.keys + 8 * (V * j + v + 1)), other);
      }
      s.scores[r][j] = sum_of(_mm256_add_ps(sum, other));
    }
    for (int j = seen; j < (seen + 7) / 8 * 8; ++j) s.scores[r][j] = -INFINITY;
    __m256 most = minus;
    for (int j = 0; j < seen; j += 8) most = _mm256_max_ps(most, _mm256_load_ps(s.scores[r] + j));
    const float largest = std::max(s.largest[r], max_of(most));
    const __m256 base = _mm256_set1_ps(largest);
    __m256 total = _mm256_setzero_ps();
    for (int j = 0; j < seen; j += 8) {
      const __m256 e = exponential(_mm256_sub_ps(_mm256_load_ps(s.scores[r] + j), base));
      _mm256_store_ps(s.scores[r] + j, e);
      total = _mm256_add_ps(total, e);
    }
    const float shrink = std::exp(s.largest[r] - largest);  // 0 the first time
    s.largest[r] = largest;
    s.total[r] = s.total[r] * shrink + sum_of(total);
    __m256 out[V];
    for (int v = 0; v < V; ++v)
      out[v] = _mm256_mul_ps(_mm256_load_ps(s.out[r] + 8 * v), _mm256_set1_ps(shrink));
    for (int j = 0; j < seen; ++j) {
      const __m256 p = _mm256_set1_ps(s.scores[r][j]);
      for (int v = 0; v < V; ++v)
        out[v] = _mm256_fmadd_ps(p, _mm256_load_ps(s.values + 8 * (V * j + v)), out[v]);
    }
    for (int v = 0; v < V; ++v) _mm256_store_ps(s.out[r] + 8 * v, out[v]);
  }
}

// Rows of queries over the first `visible[r]` keys. Leaves the results in `s.out`.
// Shapes: queries rows of (8 * V), already scaled; keys and values (room, 8 * V) halves.
template <int V>
inline void attend(const float* const* queries, int rows, const int* visible, const uint16_t* keys,
                   const uint16_t* values, AttentionScratch& s) {
  int most = 0;
  for (int r = 0; r < rows; ++r) {
    most = std::max(most, visible[r]);
    s.largest[r] = -INFINITY;
    s.total[r] = 0;
    for (int v = 0; v < V; ++v) _mm256_store_ps(s.out[r] + 8 * v, _mm256_setzero_ps());
  }
  for (int first = 0; first < most; first += kKeys) {
    const int count = std::min(kKeys, most - first);
    int left[kQueriesMax];
    for (int r = 0; r < rows; ++r) left[r] = visible[r] - first;
    widen(keys + size_t(first) * 8 * V, count * 8 * V, s.keys);
    widen(values + size_t(first) * 8 * V, count * 8 * V, s.values);
    attend_block<V>(queries, rows, count, left, s);
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < V; ++v) {
      float* out = s.out[r] + 8 * v;
      _mm256_store_ps(out, _mm256_div_ps(_mm256_load_ps(out), _mm256_set1_ps(s.total[r])));
    }
}

inline bool attend(int head_dim, const float* const* queries, int rows, const int* visible,
                   const uint16_t* keys, const uint16_t* values, AttentionScratch& s) {
  switch (head_dim) {
    case 32: attend<4>(queries, rows, visible, keys, values, s); return true;
    case 64: attend<8>(queries, rows, visible, keys, values, s); return true;
    case 96: attend<12>(queries, rows, visible, keys, values, s); return true;
    case 128: attend<16>(queries, rows, visible, keys, values, s); return true;
    default: return false;
  }
}

}  // namespace ds4trio
