// A step of a decoder of the Llama family over quantised weights, in one call.
//
// Shapes: T tokens of all spans, N hidden size, Q query heads, K key and value heads, D features of
// a head. A span is the next tokens of one sequence. The plain path in torch is the reference.

#include "attention.h"
#include "pack.h"
#include "quantised.h"
#include "team.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

using namespace ds4trio;

extern "C" {

struct Layer {
  const float *attention_norm, *mlp_norm;  // (N)
  const float* qk_norm;                    // (Q + K, D), or null
  Matrix qkv, output, gate_up, down;
};

struct Decoder {
  int32_t hidden, inner, query_heads, kv_heads, head_dim, layers;
  float eps, rope_scale;
  const float* frequencies;  // (D / 2), radians a position
  const float* norm;         // (N)
  Matrix embedding, head;
  const Layer* layer;
};

struct Span {
  int32_t start, size, past, logit_rows;
  uint16_t* kv;                        // (layers, 2 * K, room, D) halves, keys first
  int64_t layer_stride, head_stride;  // in halves
};

}  // extern "C"

namespace {

// Where a token is: its span's memory and its position in the sequence.
struct Place {
  const Span* span;
  int position;
};

// Neighbouring tokens of a span and query heads that share a key head: what `attend` takes at once.
struct Tile {
  const Span* span;
  int token, tokens, head, heads;
};

class Room {  // hands out parts of the caller's memory; of none, it only counts what is wanted
 public:
  explicit Room(uint8_t* base) : base_(base) {}

  template <typename T>
  T* take(size_t count) {
    T* here = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return here;
  }

  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

// The quantised activations of all tokens, as wide as the widest use of them.
struct Activations {
  int8_t* codes;
  float *scales, *sums;

  Activations(int tokens, int width, Room& room) {
    const size_t padded = size_t(tokens + kTokensMax - 1) / kTokensMax * kTokensMax;
    codes = room.take<int8_t>(padded * width);
    scales = room.take<float>(padded * width / kBlock);
    sums = room.take<float>(padded * width / kBlock);
  }

  // The group that a token is in.
  Activation of(int token, int width) const {
    const size_t block = size_t(token / kTokensMax) * kTokensMax * (width / kBlock);
    return {codes + kBlock * block, scales + block, sums + block};
  }

  void put(const float* x, int token, int width, int block) const {
    quantise_block(x, of(token, width), token % kTokensMax, block);
  }
};

class Step {
 public:
  Step(const Decoder& d, int tokens, int threads, Room& room)
      : d_(d),
        tokens_(tokens),
        seen_(d.query_heads * d.head_dim),
        in_(tokens, std::max(d.hidden, seen_), room),
        mid_(tokens, d.inner, room) {
    x_ = room.take<float>(size_t(tokens) * d.hidden);
    queries_ = room.take<float>(size_t(tokens) * seen_);
    turns_ = room.take<float>(size_t(tokens) * d.head_dim);
    places_ = room.take<Place>(tokens);
    tiles_ = room.take<Tile>(size_t(tokens) * d.query_heads);
    rows_ = room.take<int>(tokens);
    normed_ = room.take<float>(size_t(threads) * d.hidden);
    scratch_ = room.take<AttentionScratch>(threads);
  }

  void plan(const int32_t* ids, const Span* spans, int count) {
    ids_ = ids;
    const int group = d_.query_heads / d_.kv_heads, heads = std::min(group, kQueriesMax);
    const int tokens = kQueriesMax / heads;
    for (const Span* span = spans; span != spans + count; ++span) {
      for (int i = 0; i < span->size; ++i) places_[span->start + i] = {span, span->past + i};
      for (int i = span->size - span->logit_rows; i < span->size; ++i)
        rows_[row_count_++] = span->start + i;
      for (int key_head = 0; key_head < d_.kv_heads; ++key_head)
        for (int head = 0; head < group; head += heads)
          for (int i = 0; i < span->size; i += tokens)
            tiles_[tile_count_++] = {span, span->start + i, std::min(tokens, span->size - i),
                                     key_head * group + head, std::min(heads, group - head)};
    }
  }

  void run(Team& team, int me, float* logits) {
    team.share(tokens_, [&](int t) { begin(t); });
    for (int index = 0; index < d_.layers; ++index) {
      const Layer& layer = d_.layer[index];
      team.share(tokens_, [&](int t) { normalise(t, t, layer.attention_norm, me); });
      team.share(d_.query_heads + 2 * d_.kv_heads, [&](int h) { project(layer, index, h); });
      team.share(tile_count_, [&](int i) { look(tiles_[i], index, me); });
      add(team, layer.output, in_, seen_);
      team.share(tokens_, [&](int t) { normalise(t, t, layer.mlp_norm, me); });
      team.share(d_.inner / kBlock, [&](int block) { gate(layer, block); });
      add(team, layer.down, mid_, d_.inner);
    }
    team.share(row_count_, [&](int row) { normalise(rows_[row], row, d_.norm, me); });
    const int vocabulary = d_.head.rows;
    product(team, d_.head, in_, d_.hidden, row_count_, [&](int row, int first, __m256 y) {
      float* to = logits + size_t(row) * vocabulary + first;
      if (first + kRows <= vocabulary) return _mm256_storeu_ps(to, y);
      alignas(32) float last[kRows];
      _mm256_store_ps(last, y);
      std::memcpy(to, last, (vocabulary - first) * sizeof(float));
    });
  }

 private:
  // A token's embedding, and how far its heads turn.
  void begin(int t) {
    expand_row(d_.embedding, ids_[t], x_ + size_t(t) * d_.hidden);
    const int half = d_.head_dim / 2;
    float* turn = turns_ + size_t(t) * d_.head_dim;
    for (int i = 0; i < half; ++i) {
      const float angle = float(places_[t].position) * d_.frequencies[i];
      turn[i] = std::cos(angle) * d_.rope_scale;
      turn[half + i] = std::sin(angle) * d_.rope_scale;
    }
  }

  // Root mean square of a token of the residual stream, quantised to where `to` says.
  void normalise(int token, int to, const float* weight, int me) {
    const float* x = x_ + size_t(token) * d_.hidden;
    float* out = normed_ + size_t(me) * d_.hidden;
    __m256 squares = _mm256_setzero_ps();
    for (int i = 0; i < d_.hidden; i += 8) {
      const __m256 v = _mm256_loadu_ps(x + i);
      squares = _mm256_fmadd_ps(v, v, squares);
    }
    const __m256 scale = _mm256_set1_ps(1 / std::sqrt(sum_of(squares) / d_.hidden + d_.eps));
    for (int i = 0; i < d_.hidden; i += 8)
      _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), scale),
                                              _mm256_loadu_ps(weight + i)));
    for (int b = 0; b < d_.hidden / kBlock; ++b) in_.put(out + kBlock * b, to, d_.hidden, b);
  }

  // One head's queries, keys or values of all tokens.
  void project(const Layer& layer, int index, int head) {
    const int size = d_.head_dim;
    alignas(32) float out[kTokensMax][8 * kVectorsMax];
    for (int t = 0; t < tokens_; t += kTokensMax) {
      const int count = std::min(kTokensMax, tokens_ - t);
      const Activation x = in_.of(t, d_.hidden);
      for (int first = 0; first < size; first += kRows) {
        __m256 y[kTokensMax];
        multiply(layer.qkv, (head * size + first) / kRows, x, count, y);
        for (int i = 0; i < count; ++i) _mm256_store_ps(out[i] + first, y[i]);
      }
      for (int i = 0; i < count; ++i) place(layer, index, head, t + i, out[i]);
    }
  }

  // Turn a head of a token, then put it where queries, keys or values are.
  void place(const Layer& layer, int index, int head, int t, float* y) {
    const int size = d_.head_dim, key = head - d_.query_heads;
    if (key < d_.kv_heads) {
      if (layer.qk_norm) normalise_head(y, layer.qk_norm + size_t(head) * size);
      turn(y, turns_ + size_t(t) * size);
    }
    if (key < 0) {
      const __m256 scale = _mm256_set1_ps(1 / std::sqrt(float(size)));
      float* to = queries_ + size_t(t) * seen_ + head * size;
      for (int i = 0; i < size; i += 8)
        _mm256_storeu_ps(to + i, _mm256_mul_ps(_mm256_load_ps(y + i), scale));
      return;
    }
    uint16_t* to = heads_of(*places_[t].span, index, key) + size_t(places_[t].position) * size;
    for (int i = 0; i < size; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_load_ps(y + i), _MM_FROUND_TO_NEAREST_INT));
  }

  void normalise_head(float* y, const float* weight) const {
    float squares = 0;
    for (int i = 0; i < d_.head_dim; ++i) squares += y[i] * y[i];
    const float scale = 1 / std::sqrt(squares / d_.head_dim + d_.eps);
    for (int i = 0; i < d_.head_dim; ++i) y[i] = y[i] * scale * weight[i];
  }

  void turn(float* y, const float* by) const {
    const int half = d_.head_dim / 2;
    for (int i = 0; i < half; ++i) {
      const float a = y[i], b = y[half + i], cosine = by[i], sine = by[half + i];
      y[i] = a * cosine - b * sine;
      y[half + i] = b * cosine + a * sine;
    }
  }

  uint16_t* heads_of(const Span& span, int index, int head) const {
    return span.kv + index * span.layer_stride + head * span.head_stride;
  }

  void look(const Tile& tile, int index, int me) {
    const int size = d_.head_dim, key_head = tile.head / (d_.query_heads / d_.kv_heads);
    const float* queries[kQueriesMax];
    int visible[kQueriesMax], rows = 0;
    for (int t = tile.token; t < tile.token + tile.tokens; ++t)
      for (int h = tile.head; h < tile.head + tile.heads; ++h) {
        queries[rows] = queries_ + size_t(t) * seen_ + h * size;
        visible[rows++] = places_[t].position + 1;
      }
    AttentionScratch& scratch = scratch_[me];
    attend(size, queries, rows, visible, heads_of(*tile.span, index, key_head),
           heads_of(*tile.span, index, d_.kv_heads + key_head), scratch);
    for (int r = 0; r < rows; ++r) {
      const int token = tile.token + r / tile.heads;
      const int first = (tile.head + r % tile.heads) * size / kBlock;
      for (int b = 0; b < size / kBlock; ++b)
        in_.put(scratch.out[r] + kBlock * b, token, seen_, first + b);
    }
  }

  // A product of some tokens with every row of a matrix; `take(token, row, y)` gets eight rows.
  template <typename Take>
  void product(Team& team, const Matrix& w, const Activations& from, int width, int tokens, Take take) {
    const int groups = (w.rows + kRows - 1) / kRows;
    const int part = std::max(1, groups / (8 * team.size()));
    team.share((groups + part - 1) / part, [&](int item) {
      for (int g = item * part; g < std::min(groups, (item + 1) * part); ++g)
        for (int t = 0; t < tokens; t += kTokensMax) {
          const int count = std::min(kTokensMax, tokens - t);
          __m256 y[kTokensMax];
          multiply(w, g, from.of(t, width), count, y);
          for (int i = 0; i < count; ++i) take(t + i, kRows * g, y[i]);
        }
    });
  }

  // A product, added to the residual stream.
  void add(Team& team, const Matrix& w, const Activations& from, int width) {
    product(team, w, from, width, tokens_, [&](int t, int first, __m256 y) {
      float* x = x_ + size_t(t) * d_.hidden + first;
      _mm256_storeu_ps(x, _mm256_add_ps(_mm256_loadu_ps(x), y));
    });
  }

  // 32 features of the gated MLP of all tokens: just what shares a scale.
  void gate(const Layer& layer, int block) {
    alignas(32) float out[kTokensMax][kBlock];
    for (int t = 0; t < tokens_; t += kTokensMax) {
      const int count = std::min(kTokensMax, tokens_ - t);
      const Activation x = in_.of(t, d_.hidden);
      for (int first = 0; first < kBlock; first += kRows) {
        const int group = (kBlock * block + first) / kRows;
        __m256 gates[kTokensMax], ups[kTokensMax];
        multiply(layer.gate_up, group, x, count, gates);
        multiply(layer.gate_up, d_.inner / kRows + group, x, count, ups);
        for (int i = 0; i < count; ++i)
          _mm256_store_ps(out[i] + first, _mm256_mul_ps(silu(gates[i]), ups[i]));
      }
      for (int i = 0; i < count; ++i) mid_.put(out[i], t + i, d_.inner, block);
    }
  }

  static __m256 silu(__m256 x) {  // x / (1 + e^-x), from the side where the power is at most 1
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1);
    const __m256 e = exponential(_mm256_or_ps(x, _mm256_set1_ps(-0.0f)));
    const __m256 upper = _mm256_cmp_ps(x, zero, _CMP_LT_OQ);
    const __m256 weight = _mm256_blendv_ps(one, e, upper);
    return _mm256_div_ps(_mm256_mul_ps(x, weight), _mm256_add_ps(one, e));
  }

  const Decoder& d_;
  const int tokens_, seen_;
  Activations in_;   // what the next product reads: N or Q * D wide
  Activations mid_;  // inside the MLP
  float *x_, *queries_, *turns_, *normed_;
  Place* places_;
  Tile* tiles_;
  int* rows_;  // tokens whose logits are wanted
  AttentionScratch* scratch_;  // one a thread
  const int32_t* ids_ = nullptr;
  int tile_count_ = 0, row_count_ = 0;
};

}  // namespace

extern "C" {

// Bytes of memory that `forward` wants for so many tokens.
int64_t workspace_bytes(const Decoder* decoder, int tokens, int threads) {
  Room room(nullptr);
  Step step(*decoder, tokens, threads, room);
  return int64_t(room.used());
}

// Advance the spans by their tokens. Shapes: ids (T), logits (sum of logit_rows, vocabulary).
void forward(const Decoder* decoder, const int32_t* ids, int tokens, const Span* spans, int count,
             float* logits, uint8_t* workspace, int threads) {
  Room room(workspace);
  Step step(*decoder, tokens, threads, room);
  step.plan(ids, spans, count);
  together(threads, [&](Team& team, int me) { step.run(team, me, logits); });
}

// Quantise a matrix. Returns the largest error of a weight, as a share of the largest weight of its
// block; once that is over `limit`, the rest is left undone.
float pack(const float* w, int rows, int cols, int bits, void* to, float limit, int threads) {
  const int groups = (rows + kRows - 1) / kRows;
  std::atomic<bool> hopeless{false};
  float error = 0;
#pragma omp parallel for num_threads(threads) reduction(max : error)
  for (int g = 0; g < groups; ++g) {
    if (hopeless.load(std::memory_order_relaxed)) continue;
    error = std::max(error, bits == 4
                                ? pack_group(w, rows, cols, g, static_cast<Block4*>(to), Coder4())
                                : pack_group(w, rows, cols, g, static_cast<Block8*>(to), Coder8()));
    if (error > limit) hopeless.store(true, std::memory_order_relaxed);
  }
  return error;
}

// Give what was freed back to the system, which glibc else keeps.
void trim_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// What a packed matrix says. Shapes: to (rows, cols).
void expand(const Matrix* matrix, float* to) {
  for (int row = 0; row < matrix->rows; ++row) expand_row(*matrix, row, to + size_t(row) * matrix->cols);
}

}  // extern "C"
