// From float32 weights to codes.

#pragma once

#include "quantised.h"

namespace ds4trio {

struct Codes {
  float d, m;  // as they will be read back from half precision
  alignas(32) int32_t code[kBlock];
  float error;  // the largest, of a weight
};

inline void code(const float* w, float d, float m, int least, int most, Codes* out) {
  out->d = from_half(to_half(d));
  out->m = from_half(to_half(m));
  const __m256 scale = _mm256_set1_ps(out->d), offset = _mm256_set1_ps(out->m);
  const __m256 divisor = _mm256_set1_ps(out->d != 0 ? out->d : 1);
  const __m256 low = _mm256_set1_ps(float(least)), high = _mm256_set1_ps(float(most));
  __m256 error = _mm256_setzero_ps();
  for (int k = 0; k < kBlock; k += 8) {
    const __m256 exact = _mm256_loadu_ps(w + k);
    __m256 q = _mm256_div_ps(_mm256_sub_ps(exact, offset), divisor);
    q = _mm256_round_ps(q, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    q = _mm256_min_ps(_mm256_max_ps(q, low), high);
    const __m256 off = _mm256_sub_ps(_mm256_fmadd_ps(q, scale, offset), exact);
    error = _mm256_max_ps(error, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), off));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out->code + k), _mm256_cvtps_epi32(q));
  }
  out->error = max_of(error);
}

struct Range {
  float low, high;
};

inline Range range_of(const float* w) {
  __m256 low = _mm256_loadu_ps(w), high = low;
  for (int k = 8; k < kBlock; k += 8) {
    low = _mm256_min_ps(low, _mm256_loadu_ps(w + k));
    high = _mm256_max_ps(high, _mm256_loadu_ps(w + k));
  }
  return {-max_of(_mm256_sub_ps(_mm256_setzero_ps(), low)), max_of(high)};
}

// The better of two ways, those of GGUF's Q4_1 and Q4_0: what was made with either comes out as it
// was, code by code.
struct Coder4 {
  void operator()(const float* w, const Range& range, Codes* out) const {
    code(w, (range.high - range.low) / 15, range.low, 0, 15, out);
    if (out->error == 0) return;
    const float extreme = -range.low > range.high ? range.low : range.high;
    Codes centred;
    code(w, extreme / -8, extreme, 0, 15, &centred);
    if (centred.error < out->error) *out = centred;
  }
};

// As GGUF's Q8_0.
struct Coder8 {
  void operator()(const float* w, const Range& range, Codes* out) const {
    code(w, std::max(-range.low, range.high) / 127, 0, -127, 127, out);
  }
};

inline void put(Block4& block, int lane, const Codes& codes) {
  block.d[lane] = to_half(codes.d);
  block.m[lane] = to_half(codes.m);
  for (int k = 0; k < 16; ++k)
    block.codes[k / 4][4 * lane + k % 4] = uint8_t(codes.code[k] | codes.code[k + 16] << 4);
}

inline void put(Block8& block, int lane, const Codes& codes) {
  block.d[lane] = to_half(codes.d);
  for (int k = 0; k < kBlock; ++k) block.codes[k / 4][4 * lane + k % 4] = int8_t(codes.code[k]);
}

// Eight rows, of which those beyond the matrix are zero. Returns the largest error of a weight, as a
// share of the largest weight of its block.
template <typename Block, typename Coder>
inline float pack_group(const float* w, int rows, int cols, int group, Block* to, Coder coder) {
  const int blocks = cols / kBlock;
  float error = 0;
  std::memset(to + size_t(group) * blocks, 0, blocks * sizeof(Block));
  for (int lane = 0; lane < kRows && kRows * group + lane < rows; ++lane)
    for (int b = 0; b < blocks; ++b) {
      const float* from = w + size_t(kRows * group + lane) * cols + kBlock * b;
      const Range range = range_of(from);
      const float largest = std::max(-range.low, range.high);
      Codes codes;
      coder(from, range, &codes);
      put(to[size_t(group) * blocks + b], lane, codes);
      if (largest > 0) error = std::max(error, codes.error / largest);
    }
  return error;
}

}  // namespace ds4trio
