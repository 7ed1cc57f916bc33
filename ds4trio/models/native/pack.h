// From float32 weights to codes.

#pragma once

#include "quantised.h"

namespace ds4trio {

struct Codes {
  float d, m;  // as they will be read back from half precision
  int code[kBlock];
  float error;  // the largest, of a weight
};

inline Codes coded(const float* w, float d, float m, int least, int most) {
  Codes out;
  out.d = from_half(to_half(d));
  out.m = from_half(to_half(m));
  out.error = 0;
  for (int k = 0; k < kBlock; ++k) {
    const float exact = out.d != 0 ? (w[k] - out.m) / out.d : 0;
    out.code[k] = int(std::min(std::max(std::nearbyint(exact), float(least)), float(most)));
    out.error = std::max(out.error, std::fabs(out.d * out.code[k] + out.m - w[k]));
  }
  return out;
}

// The better of two ways, those of GGUF's Q4_1 and Q4_0: what was made with either comes out as it
// was, code by code.
inline Codes coded4(const float* w) {
  const auto [low, high] = std::minmax_element(w, w + kBlock);
  const float extreme = -*low > *high ? *low : *high;
  const Codes spread = coded(w, (*high - *low) / 15, *low, 0, 15);
  const Codes centred = coded(w, extreme / -8, extreme, 0, 15);
  return centred.error < spread.error ? centred : spread;
}

// As GGUF's Q8_0.
inline Codes coded8(const float* w) {
  float largest = 0;
  for (int k = 0; k < kBlock; ++k) largest = std::max(largest, std::fabs(w[k]));
  return coded(w, largest / 127, 0, -127, 127);
}

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

// Eight rows, of which those beyond the matrix are zero. Returns the largest error of a weight.
template <typename Block, typename Coder>
inline float pack_group(const float* w, int rows, int cols, int group, Block* to, Coder coder) {
  const int blocks = cols / kBlock;
  float error = 0;
  std::memset(to + size_t(group) * blocks, 0, blocks * sizeof(Block));
  for (int lane = 0; lane < kRows && kRows * group + lane < rows; ++lane)
    for (int b = 0; b < blocks; ++b) {
      const Codes codes = coder(w + size_t(kRows * group + lane) * cols + kBlock * b);
      put(to[size_t(group) * blocks + b], lane, codes);
      error = std::max(error, codes.error);
    }
  return error;
}

}  // namespace ds4trio
