// Vectors of 16 floats, in memory as float32 or bfloat16.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

constexpr int64_t kLanes = 16;

enum Type : int32_t { kFloat32 = 0, kBfloat16 = 1 };

inline __m512 load(const void* from, int64_t index, Type type) {
  if (type == kFloat32) return _mm512_loadu_ps(static_cast<const float*>(from) + index);
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(from) + index));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline __m256i to_bfloat16(__m512 value) {  // to nearest, ties to even; not for NaN
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

// The first lanes of a row's end: all of them but in the last vector.
inline __mmask16 lanes(int64_t left) { return left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1); }

inline __m512 load(const void* from, int64_t index, Type type, __mmask16 mask) {
  if (type == kFloat32) return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(from) + index);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(from) + index);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline void store(void* to, int64_t index, Type type, __mmask16 mask, __m512 value) {
  if (type == kFloat32) return _mm512_mask_storeu_ps(static_cast<float*>(to) + index, mask, value);
  _mm256_mask_storeu_epi16(static_cast<uint16_t*>(to) + index, mask, to_bfloat16(value));
}
