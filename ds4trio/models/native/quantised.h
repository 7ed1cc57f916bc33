// Matrices of 4 or 8 bit codes, and their product with activations of 8 bits.
//
// A weight is d * code + m, a scale d (and, with 4 bits, an offset m) for 32 weights of one row.
// Eight rows lie interleaved, so that a vector holds 4 neighbouring codes of each: one broadcast of
// 4 activations meets all eight rows, and the sums need no adding across a vector.
// An activation is scale * code, a scale for 32. Every sum is taken in the same order whatever the
// number of tokens beside it, so that a batch's results are those of its members alone, bit by bit.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "needs a processor with AVX2, FMA and F16C"
#endif

namespace ds4trio {

constexpr int kBlock = 32;     // weights of a row that share a scale
constexpr int kRows = 8;       // rows interleaved
constexpr int kTokensMax = 4;  // tokens a tile computes at a time: what 16 registers hold

struct Block4 {
  uint16_t d[kRows], m[kRows];  // half precision
  uint8_t codes[4][32];         // low halves: sub-steps 0 to 3, high halves: 4 to 7
};

struct Block8 {
  uint16_t d[kRows];
  int8_t codes[8][32];
};

struct Matrix {
  const void* blocks;  // (rows / 8 rounded up, cols / 32)
  const float* bias;   // (rows), or null
  int32_t rows, cols, bits;
};

// The activations of kTokensMax tokens, block by block, so that a product reads them in order.
// Shapes: codes (cols / 32, tokens, 32), scale and sum (cols / 32, tokens).
struct Activation {
  int8_t* codes;
  float* scale;
  float* sum;  // scale times the sum of the block's codes, for the offsets
};

inline __m256 halves(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline float from_half(uint16_t half) { return _cvtsh_ss(half); }

inline uint16_t to_half(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }

inline __m256i four(const int8_t* codes) {
  int32_t value;
  std::memcpy(&value, codes, 4);
  return _mm256_set1_epi32(value);
}

inline float sum_of(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

inline float max_of(__m256 v) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

// The largest of numbers that are not negative; NaN is larger than any, because its bits are.
inline float max_of_bits(__m256i v) {
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtss_f32(_mm_castsi128_ps(s));
}

// Quantise the block of 32 activations of a token, `lane` of its group, that begins at `x`. What is
// no number makes the scale none, and so all that comes of the block: it must not get lost.
inline void quantise_block(const float* x, const Activation& to, int lane, int block) {
  __m256 v[4];
  __m256i most = _mm256_setzero_si256();
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    most = _mm256_max_epi32(most, _mm256_castps_si256(_mm256_andnot_ps(sign, v[i])));
  }
  const float largest = max_of_bits(most);
  const __m256 inverse = _mm256_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
  __m256i q[4], total = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    total = _mm256_add_epi32(total, q[i]);
  }
  __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  const int at = kTokensMax * block + lane;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.codes + kBlock * at), packed);
  to.scale[at] = largest / 127.0f;
  to.sum[at] = to.scale[at] * sum_of(_mm256_cvtepi32_ps(total));
}

// Products of pairs of an unsigned and a signed byte, added in fours to `sum`.
inline __m256i add_products(__m256i sum, __m256i u, __m256i s) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(sum, u, s);
#elif defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, u, s);
#else
  const __m256i pairs = _mm256_maddubs_epi16(u, s);  // at most 2 * 127 * 127: cannot saturate
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

// One block of eight rows times `N` tokens, as whole numbers. Shapes: x (N, 32).
template <int N>
inline void dot(const Block4& block, const int8_t* x, __m256i* sum) {
  const __m256i nibble = _mm256_set1_epi8(15);
  __m256i partial[N];
  for (int t = 0; t < N; ++t) partial[t] = _mm256_setzero_si256();
  for (int step = 0; step < 4; ++step) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.codes[step]));
    const __m256i low = _mm256_and_si256(both, nibble);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
    for (int t = 0; t < N; ++t) {
      const int8_t* codes = x + kBlock * t + 4 * step;
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
      partial[t] = add_products(partial[t], low, four(codes));
      partial[t] = add_products(partial[t], high, four(codes + 16));
#else
      // 8 times 2 * 15 * 127 fit in 16 bits.
      partial[t] = _mm256_add_epi16(partial[t], _mm256_maddubs_epi16(low, four(codes)));
      partial[t] = _mm256_add_epi16(partial[t], _mm256_maddubs_epi16(high, four(codes + 16)));
#endif
    }
  }
  for (int t = 0; t < N; ++t) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    sum[t] = partial[t];
#else
    sum[t] = _mm256_madd_epi16(partial[t], _mm256_set1_epi16(1));
#endif
  }
}

template <int N>
inline void dot(const Block8& block, const int8_t* x, __m256i* sum) {
  for (int t = 0; t < N; ++t) sum[t] = _mm256_setzero_si256();
  for (int step = 0; step < 8; ++step) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.codes[step]));
    const __m256i size = _mm256_abs_epi8(codes);
    for (int t = 0; t < N; ++t) {
      const __m256i signs = _mm256_sign_epi8(four(x + kBlock * t + 4 * step), codes);
      sum[t] = add_products(sum[t], size, signs);
    }
  }
}

inline __m256 offsets(const Block4& block) { return halves(block.m); }
inline __m256 offsets(const Block8&) { return _mm256_setzero_ps(); }

// Eight rows times `N` tokens. Shapes: row (cols / 32 blocks), out (N).
template <typename Block, int N>
inline void tile(const Block* row, int blocks, const Activation& x, __m256* out) {
  for (int t = 0; t < N; ++t) out[t] = _mm256_setzero_ps();
  for (int b = 0; b < blocks; ++b) {
    __m256i sum[N];
    const int first = kTokensMax * b;
    dot<N>(row[b], x.codes + kBlock * first, sum);
    const __m256 d = halves(row[b].d);
    const __m256 m = offsets(row[b]);
    for (int t = 0; t < N; ++t) {
      const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(x.scale[first + t]));
      out[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t]), scale, out[t]);
      if (sizeof(Block) == sizeof(Block4))
        out[t] = _mm256_fmadd_ps(m, _mm256_set1_ps(x.sum[first + t]), out[t]);
    }
  }
}

template <typename Block>
inline void tiles(const Block* row, int blocks, const Activation& x, int tokens, __m256* out) {
  switch (tokens) {
    case 1: return tile<Block, 1>(row, blocks, x, out);
    case 2: return tile<Block, 2>(row, blocks, x, out);
    case 3: return tile<Block, 3>(row, blocks, x, out);
    default: return tile<Block, kTokensMax>(row, blocks, x, out);
  }
}

// Rows 8 * group to 8 * group + 7 of a matrix, for the first `tokens` of a group.
inline void multiply(const Matrix& w, int group, const Activation& x, int tokens, __m256* out) {
  const int blocks = w.cols / kBlock;
  const size_t first = size_t(group) * blocks;
  if (w.bits == 4)
    tiles(static_cast<const Block4*>(w.blocks) + first, blocks, x, tokens, out);
  else
    tiles(static_cast<const Block8*>(w.blocks) + first, blocks, x, tokens, out);
  if (w.bias) {
    const __m256 bias = _mm256_loadu_ps(w.bias + kRows * group);
    for (int t = 0; t < tokens; ++t) out[t] = _mm256_add_ps(out[t], bias);
  }
}

// One row of a matrix as it is meant. Shapes: to (cols).
inline void expand_row(const Matrix& w, int row, float* to) {
  const int blocks = w.cols / kBlock, lane = row % kRows;
  const size_t first = size_t(row / kRows) * blocks;
  for (int b = 0; b < blocks; ++b)
    for (int k = 0; k < kBlock; ++k, ++to) {
      const int step = k / 4, at = 4 * lane + k % 4;
      if (w.bits == 4) {
        const Block4& block = static_cast<const Block4*>(w.blocks)[first + b];
        const int code = block.codes[step % 4][at] >> (step < 4 ? 0 : 4) & 15;
        *to = from_half(block.d[lane]) * code + from_half(block.m[lane]);
      } else {
        const Block8& block = static_cast<const Block8*>(w.blocks)[first + b];
        *to = from_half(block.d[lane]) * block.codes[step][at];
      }
    }
}

}  // namespace ds4trio
