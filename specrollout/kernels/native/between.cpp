// What is between the products of a decoder layer, for the few rows of a draft step: norms, rotary embedding, gates.
// PyTorch takes 5 to 20 operators for each, and a draft step is made of little else. One thread; numbers in float32,
// rounded once, at the end.

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "vectors.h"

namespace {

// e^x to 2e-7, relative: 2^n by the exponent, 2^f on [-1/2, 1/2] by the series of e^(f ln 2).
__m512 exponential(__m512 x) {
  x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(88.0f));
  const __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 whole = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT);
  const __m512 rest = _mm512_mul_ps(_mm512_sub_ps(scaled, whole), _mm512_set1_ps(0.69314718f));
  __m512 sum = _mm512_set1_ps(1.0f / 720);
  for (const float factor : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
  return _mm512_scalef_ps(sum, whole);
}

template <typename Value>
float read(const void* from, int64_t index) {
  Value value;
  std::memcpy(&value, static_cast<const Value*>(from) + index, sizeof value);
  if (sizeof(Value) == 4) {
    float same;
    std::memcpy(&same, &value, 4);
    return same;
  }
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

float read(const void* from, int64_t index, Type type) {
  return type == kFloat32 ? read<uint32_t>(from, index) : read<uint16_t>(from, index);
}

void write(void* to, int64_t index, Type type, float value) {
  store(to, index, type, 1, _mm512_set1_ps(value));
}

}  // namespace

// out = x / rms(x) * weight, [rows, size]. With a residual x is x + residual, and that is written to `sum`.
EXPORT void april_rms_norm(const void* x, const void* residual, const void* weight, void* out, void* sum, int64_t rows,
                           int64_t size, float epsilon, int32_t type, int32_t weight_type) {
  const Type t = static_cast<Type>(type);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = row * size;
    __m512 squares = _mm512_setzero_ps();
    const auto value = [&](int64_t i, __mmask16 mask) {
      const __m512 own = load(x, first + i, t, mask);
      return residual ? _mm512_add_ps(own, load(residual, first + i, t, mask)) : own;
    };
    for (int64_t i = 0; i < size; i += kLanes) {
      const __mmask16 mask = lanes(size - i);
      const __m512 v = value(i, mask);
      squares = _mm512_fmadd_ps(v, v, squares);
    }
    const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(size);
    const __m512 inverse = _mm512_set1_ps(1.0f / std::sqrt(mean + epsilon));
    for (int64_t i = 0; i < size; i += kLanes) {
      const __mmask16 mask = lanes(size - i);
      const __m512 v = value(i, mask);
      const __m512 w = load(weight, i, static_cast<Type>(weight_type), mask);
      store(out, first + i, t, mask, _mm512_mul_ps(_mm512_mul_ps(v, inverse), w));
      if (residual) store(sum, first + i, t, mask, v);
    }
  }
}

// out [rows, size] = silu(x[:, :size]) * x[:, size:].
EXPORT void april_silu_and_mul(const void* x, void* out, int64_t rows, int64_t size, int32_t type) {
  const Type t = static_cast<Type>(type);
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < size; i += kLanes) {
      const __mmask16 mask = lanes(size - i);
      const __m512 gate = load(x, 2 * row * size + i, t, mask), up = load(x, (2 * row + 1) * size + i, t, mask);
      const __m512 below = _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), gate)));
      store(out, row * size + i, t, mask, _mm512_mul_ps(_mm512_div_ps(gate, below), up));
    }
}

// Rotates the first `turned` of each head's `size` elements; x is [tokens, heads * size] with `stride` elements from a
// token to the next, out has no gaps. The table holds cosines, then sines, [positions, turned].
EXPORT void april_rotate(const int64_t* positions, const void* x, void* out, const void* table, int64_t tokens,
                         int64_t heads, int64_t size, int64_t turned, int64_t stride, int32_t halves, int32_t type,
                         int32_t table_type) {
  const Type t = static_cast<Type>(type), tt = static_cast<Type>(table_type);
  const int64_t half = turned / 2;
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t at = positions[token] * turned;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t from = token * stride + head * size, to = (token * heads + head) * size;
      int64_t i = 0;
      if (halves)  // the pair of i is i + half
        for (; i < half; i += kLanes) {
          const __mmask16 mask = lanes(half - i);
          const __m512 cosine = load(table, at + i, tt, mask), sine = load(table, at + half + i, tt, mask);
          const __m512 a = load(x, from + i, t, mask), b = load(x, from + half + i, t, mask);
          store(out, to + i, t, mask, _mm512_fmsub_ps(a, cosine, _mm512_mul_ps(b, sine)));
          store(out, to + half + i, t, mask, _mm512_fmadd_ps(b, cosine, _mm512_mul_ps(a, sine)));
        }
      else  // the pair of 2i is 2i + 1
        for (; i < half; ++i) {
          const float cosine = read(table, at + i, tt), sine = read(table, at + half + i, tt);
          const float a = read(x, from + 2 * i, t), b = read(x, from + 2 * i + 1, t);
          write(out, to + 2 * i, t, a * cosine - b * sine);
          write(out, to + 2 * i + 1, t, b * cosine + a * sine);
        }
      for (i = turned; i < size; i += kLanes) {
        const __mmask16 mask = lanes(size - i);
        store(out, to + i, t, mask, load(x, from + i, t, mask));
      }
    }
  }
}
