// Products with weights of 4 or 8 bits, on AVX-512 VNNI; and how such weights are made.
//
// A weight of N outputs and K inputs is stored in blocks of 16 outputs (one for each 32-bit lane). In a block, a vector
// of 64 bytes holds 4 bytes for each output: at 8 bits inputs k..k+3; at 4 bits inputs k..k+3 in the low halves and
// k+4..k+7 in the high halves. Scales (bfloat16) and zero points (one byte) are [block][group][16].
//
// The input is quantized on the fly to 8 bits, symmetric, with a scale for each row and group, so that a product of a
// group is exact in 32-bit integers. Memory is read once, in order; everything else is meant to hide behind that.
//
// Threads come from the OpenMP runtime that PyTorch has loaded (a second one would fight with it for the cores), through
// the addresses of its functions; without them one thread does it all.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

namespace {

constexpr int kTile = 8;  // rows of x that share a pass over a block: accumulators fit the registers
constexpr int64_t kAhead = 2048;  // bytes of codes that are fetched ahead: the processor alone is late from 5 rows on
constexpr int kRows = 64;  // rows of x that are quantized at a time, to stay in the second-level cache

using Body = void (*)(void*);
void (*gomp_parallel)(Body, void*, unsigned, unsigned) = nullptr;
int (*thread_number)() = nullptr;
int (*thread_count)() = nullptr;

struct Range {
  int64_t begin, end;
};

Range share(int64_t items, int64_t number, int64_t count) {
  return {items * number / count, items * (number + 1) / count};
}

// Calls work(range) with the shares of [0, items) on up to `threads` threads.
template <typename Work>
void parallel(int64_t items, int threads, const Work& work) {
  threads = static_cast<int>(std::min<int64_t>(threads, items));
  if (threads <= 1 || !gomp_parallel) return work(Range{0, items});
  struct Job {
    const Work& work;
    int64_t items;
  } job{work, items};
  gomp_parallel(
      [](void* data) {
        const Job& job = *static_cast<Job*>(data);
        job.work(share(job.items, thread_number(), thread_count()));
      },
      &job, static_cast<unsigned>(threads), 0);
}

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_bfloat16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace

// As `_Weight` in native.py.
struct Weight {
  int64_t outputs, inputs, group, bits;
  uint8_t* codes;
  uint16_t* scales;
  uint8_t* zeros;
  const float* multiply_weight;  // [inputs] or null: the weight is quantized times this,
  const float* multiply_input;   // [inputs] or null: and the input is multiplied by this
};

namespace {

int64_t block_bytes(const Weight& weight) { return kLanes * weight.inputs * weight.bits / 8; }

// Quantizes one group of one output into its lane. False where a value is not finite.
bool quantize_group(const Weight& weight, const void* source, Type type, int64_t output, int64_t group) {
  const int64_t first = output * weight.inputs + group * weight.group;
  const int64_t vectors = weight.group / kLanes;
  const float top = static_cast<float>((1 << weight.bits) - 1);
  __m512 values[8];
  __m512 low = _mm512_setzero_ps(), high = low, wrong = low;
  for (int64_t i = 0; i < vectors; ++i) {
    values[i] = load(source, first + i * kLanes, type);
    if (weight.multiply_weight) {
      const float* factor = weight.multiply_weight + group * weight.group + i * kLanes;
      values[i] = _mm512_mul_ps(values[i], _mm512_loadu_ps(factor));
    }
    low = _mm512_min_ps(low, values[i]);
    high = _mm512_max_ps(high, values[i]);
    wrong = _mm512_fmadd_ps(values[i], _mm512_setzero_ps(), wrong);  // NaN and infinity times 0 are NaN
  }
  const float least = _mm512_reduce_min_ps(low), most = _mm512_reduce_max_ps(high);
  const float range = most - least;
  if (_mm512_cmp_ps_mask(wrong, wrong, _CMP_UNORD_Q) || !(range <= 3.4028235e38f)) return false;

  uint16_t scale = to_bfloat16(range / top);
  if (!(from_bfloat16(scale) > 0)) scale = to_bfloat16(1.0f);
  const float step = from_bfloat16(scale);
  const float zero = std::min(std::max(__builtin_rintf(-least / step), 0.0f), top);
  const int64_t block = output / kLanes, lane = output % kLanes;
  const int64_t place = (block * (weight.inputs / weight.group) + group) * kLanes + lane;
  weight.scales[place] = scale;
  weight.zeros[place] = static_cast<uint8_t>(zero);

  uint8_t* to = weight.codes + block * block_bytes(weight) + group * kLanes * weight.group * weight.bits / 8 + lane * 4;
  for (int64_t i = 0; i < vectors; ++i) {
    const __m512 rounded = _mm512_roundscale_ps(_mm512_div_ps(values[i], _mm512_set1_ps(step)), _MM_FROUND_TO_NEAREST_INT);
    const __m512 code = _mm512_min_ps(
        _mm512_max_ps(_mm512_add_ps(rounded, _mm512_set1_ps(zero)), _mm512_setzero_ps()), _mm512_set1_ps(top));
    alignas(16) uint32_t four[4];
    _mm_store_si128(reinterpret_cast<__m128i*>(four), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(code)));
    if (weight.bits == 4) {
      for (int pair = 0; pair < 2; ++pair, to += 64) {
        const uint32_t both = four[2 * pair] | four[2 * pair + 1] << 4;
        std::memcpy(to, &both, 4);
      }
    } else {
      for (int one = 0; one < 4; ++one, to += 64) std::memcpy(to, &four[one], 4);
    }
  }
  return true;
}

// Rows of x as 8-bit integers. `sums` are those of the quantized values times their scale.
struct Rows {
  int64_t stride, groups;
  std::vector<int8_t> values;
  std::vector<float> scales, sums;

  void take(const Weight& weight, const void* x, Type type, int64_t first, int64_t count) {
    groups = weight.inputs / weight.group;
    stride = weight.inputs + 64;  // not a power of two: rows would meet in the same sets of the cache
    if (values.size() < static_cast<size_t>(count * stride)) values.resize(count * stride);
    if (scales.size() < static_cast<size_t>(count * groups)) scales.resize(count * groups), sums.resize(count * groups);
    for (int64_t row = 0; row < count; ++row)
      for (int64_t group = 0; group < groups; ++group) quantize(weight, x, type, first, row, group);
  }

  void quantize(const Weight& weight, const void* x, Type type, int64_t first, int64_t row, int64_t group) {
    const int64_t column = group * weight.group, vectors = weight.group / kLanes;
    __m512 found[8];
    __m512 largest = _mm512_setzero_ps();
    for (int64_t i = 0; i < vectors; ++i) {
      found[i] = load(x, (first + row) * weight.inputs + column + i * kLanes, type);
      if (weight.multiply_input)
        found[i] = _mm512_mul_ps(found[i], _mm512_loadu_ps(weight.multiply_input + column + i * kLanes));
      largest = _mm512_max_ps(largest, _mm512_abs_ps(found[i]));
    }
    const float most = _mm512_reduce_max_ps(largest);
    const __m512 inverse = _mm512_set1_ps(most > 1e-30f ? 127.0f / most : 0.0f);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < vectors; ++i) {
      const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(found[i], inverse));
      sum = _mm512_add_epi32(sum, rounded);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(&values[row * stride + column + i * kLanes]),
                       _mm512_cvtsepi32_epi8(rounded));
    }
    scales[row * groups + group] = most / 127.0f;
    sums[row * groups + group] = most / 127.0f * static_cast<float>(_mm512_reduce_add_epi32(sum));
  }
};

__m512i four_inputs(const int8_t* from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  return _mm512_set1_epi32(four);
}

// 16 outputs of `kCount` rows.
template <int kBits, int kCount>
void multiply_block(const Weight& weight, const Rows& rows, int64_t block, int64_t row, __m512* out) {
  constexpr int kVectors = kBits == 4 ? 2 : 1;          // of unpacked codes in 64 bytes
  constexpr int kChains = kCount <= 4 ? kVectors : 1;  // independent sums, where there are few
  const int64_t groups = rows.groups, steps = weight.group * kBits / 32;
  const uint8_t* codes = weight.codes + block * block_bytes(weight);
  const uint16_t* scales = weight.scales + block * groups * kLanes;
  const uint8_t* zeros = weight.zeros + block * groups * kLanes;
  const int8_t* x = &rows.values[row * rows.stride];
  const __m512i low = _mm512_set1_epi8(15);
  for (int m = 0; m < kCount; ++m) out[m] = _mm512_setzero_ps();
  for (int64_t group = 0; group < groups; ++group) {
    __m512i sums[kChains][kCount];
    for (auto& chain : sums)
      for (__m512i& sum : chain) sum = _mm512_setzero_si512();
    for (int64_t step = 0; step < steps; ++step, codes += 64, x += 4 * kVectors) {
      _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead), _MM_HINT_T0);
      const __m512i vector = _mm512_loadu_si512(codes);
      __m512i unpacked[kVectors];
      unpacked[0] = kBits == 4 ? _mm512_and_si512(vector, low) : vector;
      if (kBits == 4) unpacked[kVectors - 1] = _mm512_and_si512(_mm512_srli_epi16(vector, 4), low);
      for (int half = 0; half < kVectors; ++half)
        for (int m = 0; m < kCount; ++m) {
          __m512i& sum = sums[half % kChains][m];
          sum = _mm512_dpbusd_epi32(sum, unpacked[half], four_inputs(x + m * rows.stride + 4 * half));
        }
    }
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + group * kLanes));
    const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros + group * kLanes));
    const __m512 shift = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), scale);
    for (int m = 0; m < kCount; ++m) {
      const int64_t at = (row + m) * groups + group;
      const __m512i sum = kChains == 2 ? _mm512_add_epi32(sums[0][m], sums[kChains - 1][m]) : sums[0][m];
      const __m512 step = _mm512_mul_ps(scale, _mm512_set1_ps(rows.scales[at]));
      out[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), step, out[m]);
      out[m] = _mm512_fnmadd_ps(shift, _mm512_set1_ps(rows.sums[at]), out[m]);
    }
  }
}

using Multiply = void (*)(const Weight&, const Rows&, int64_t, int64_t, __m512*);

template <int kBits>
constexpr Multiply kMultiply[kTile] = {
    multiply_block<kBits, 1>, multiply_block<kBits, 2>, multiply_block<kBits, 3>, multiply_block<kBits, 4>,
    multiply_block<kBits, 5>, multiply_block<kBits, 6>, multiply_block<kBits, 7>, multiply_block<kBits, 8>,
};

void finish(const Weight& weight, const void* bias, void* y, Type type, int64_t block, int64_t row, __m512 value) {
  const int64_t column = block * kLanes;
  const __mmask16 mask = lanes(weight.outputs - column);
  if (bias) value = _mm512_add_ps(value, load(bias, column, type, mask));
  store(y, row * weight.outputs + column, type, mask, value);
}

}  // namespace

EXPORT void april_threads_from(void* parallel_function, void* number_function, void* count_function) {
  gomp_parallel = reinterpret_cast<void (*)(Body, void*, unsigned, unsigned)>(parallel_function);
  thread_number = reinterpret_cast<int (*)()>(number_function);
  thread_count = reinterpret_cast<int (*)()>(count_function);
}

// Fills codes, scales and zeros. Returns 0, or 1 where the source has a NaN or an infinity.
EXPORT int april_quantize(const Weight* weight, const void* source, int32_t type, int32_t threads) {
  const int64_t blocks = (weight->outputs + kLanes - 1) / kLanes, groups = weight->inputs / weight->group;
  std::atomic<int> wrong{0};
  parallel(blocks, threads, [&](Range range) {
    bool fine = true;
    for (int64_t block = range.begin; block < range.end; ++block) {
      const int64_t last = std::min(weight->outputs, (block + 1) * kLanes);
      for (int64_t group = 0; group < groups; ++group)
        for (int64_t output = block * kLanes; output < last; ++output)
          fine &= quantize_group(*weight, source, static_cast<Type>(type), output, group);
    }
    if (!fine) wrong = 1;
  });
  return wrong;
}

// y [count, outputs] = x [count, inputs] times the weight, plus the bias [outputs] unless that is null; one type.
EXPORT void april_multiply(const Weight* weight, const void* x, const void* bias, void* y, int64_t count, int32_t type,
                           int32_t threads) {
  const int64_t blocks = (weight->outputs + kLanes - 1) / kLanes;
  const Multiply* kernels = weight->bits == 4 ? kMultiply<4> : kMultiply<8>;
  parallel(blocks, threads, [&](Range range) {
    static thread_local Rows rows;
    for (int64_t first = 0; first < count; first += kRows) {
      const int64_t some = std::min<int64_t>(kRows, count - first);
      rows.take(*weight, x, static_cast<Type>(type), first, some);
      for (int64_t block = range.begin; block < range.end; ++block)
        for (int64_t row = 0; row < some; row += kTile) {
          const int tile = static_cast<int>(std::min<int64_t>(kTile, some - row));
          __m512 out[kTile];
          kernels[tile - 1](*weight, rows, block, row, out);
          for (int m = 0; m < tile; ++m) finish(*weight, bias, y, static_cast<Type>(type), block, first + row + m, out[m]);
        }
    }
  });
}
