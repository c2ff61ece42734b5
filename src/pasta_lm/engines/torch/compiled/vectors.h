/* Numbers, vectors and sums of products, for the functions that Python calls.

   Vectors are those of GCC and Clang, so that any processor will do; AVX-512 has instructions of
   its own. */

#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define HAS_AVX512 1
#endif

#define INLINE static inline __attribute__((always_inline))
#define LANES 16 /* floats of a vector; compilers split it where registers are smaller */
#define STEP (2 * LANES) /* weights of one turn of a loop: I is a multiple of it */

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef float loose_floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));
typedef int8_t bytes __attribute__((vector_size(LANES), aligned(1)));

enum { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

INLINE float widened(uint16_t half) {
  uint32_t word = (uint32_t)half << 16;
  float value;
  memcpy(&value, &word, 4);
  return value;
}

INLINE uint16_t narrowed(float value) { /* to the nearest, ties to even; a NaN stays one */
  uint32_t word;
  memcpy(&word, &value, 4);
  if ((word & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return (uint16_t)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

INLINE float rounded(float value, int type) {
  return type == BFLOAT16 ? widened(narrowed(value)) : value;
}

INLINE float read(const void *values, int64_t index, int type) {
  if (type == BFLOAT16) return widened(((const uint16_t *)values)[index]);
  return ((const float *)values)[index];
}

INLINE void write(void *values, int64_t index, float value, int type) {
  if (type == BFLOAT16) ((uint16_t *)values)[index] = narrowed(value);
  else ((float *)values)[index] = value;
}

INLINE floats load_f32(const float *p) { return *(const loose_floats *)p; }

#ifdef HAS_AVX512
INLINE floats load_bf16(const uint16_t *p) {
  __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return (floats)_mm512_slli_epi32(words, 16);
}
INLINE floats load_int8(const int8_t *p) {
  return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE float sum(floats v) { return _mm512_reduce_add_ps((__m512)v); }
#else
INLINE floats load_bf16(const uint16_t *p) {
  return (floats)(__builtin_convertvector(*(const halves *)p, bits) << 16);
}
INLINE floats load_int8(const int8_t *p) {
  return __builtin_convertvector(*(const bytes *)p, floats);
}
INLINE float sum(floats v) {
  float parts[LANES];
  memcpy(parts, &v, sizeof v);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) parts[i] += parts[i + width];
  return parts[0];
}
#endif

INLINE floats selected(ints mask, floats first, floats second) {
  return (floats)((mask & (ints)first) | (~mask & (ints)second));
}

/* exp of a vector, to about two units in the last place: 2 ** n times a polynomial */
INLINE floats exp_of(floats x) {
  floats zero = {0}, highest = zero + 88.3f, lowest = zero - 87.3f;
  x = selected(x > highest, highest, x);
  x = selected(x < lowest, lowest, x);
  floats turns = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounded to a whole number */
  ints n = __builtin_convertvector(turns, ints);
  floats r = x - turns * 0.693359375f + turns * 2.12194440e-4f;
  floats p = (floats){0} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * (floats)((n + 127) << 23);
}

/* Sums of products of one line w [I] with 1, 2, 3, 4 or 8 rows x [rows, I]; a sum goes to out[row *
   stride]. All rows are summed in the same order. Sums have names, because compilers keep arrays of
   them in memory. */

#define EACH_1(DO) DO(0)
#define EACH_2(DO) DO(0) DO(1)
#define EACH_3(DO) EACH_2(DO) DO(2)
#define EACH_4(DO) EACH_3(DO) DO(3)
#define EACH_8(DO) EACH_4(DO) DO(4) DO(5) DO(6) DO(7)
/* Bytes from a load to its prefetch into L2, by rows: best of 0.5 to 10 KiB (docs/performance.md). */
#define AHEAD_1 2048
#define AHEAD_2 2048
#define AHEAD_3 8192
#define AHEAD_4 8192
#define AHEAD_8 8192
#define PREFETCH(ROWS, p) __builtin_prefetch((const char *)(p) + AHEAD_##ROWS, 0, 2)

#define BEGIN(j) floats a##j = {0}, b##j = {0}; const float *x##j = x + j * size;
#define ADD(j) a##j += u * load_f32(x##j + i); b##j += v * load_f32(x##j + i + LANES);
#define END(j) out[j * stride] = sum(a##j + b##j);
#define LINE(ROWS, NAME, TYPE) \
  INLINE void line_##NAME##_##ROWS(const TYPE *w, const float *x, int64_t size, float *out, int64_t stride) { \
    EACH_##ROWS(BEGIN) \
    for (int64_t i = 0; i < size; i += STEP) { \
      PREFETCH(ROWS, w + i); \
      if (sizeof(TYPE) == 4) PREFETCH(ROWS, w + i + LANES); \
      floats u = load_##NAME(w + i), v = load_##NAME(w + i + LANES); \
      EACH_##ROWS(ADD) \
    } \
    EACH_##ROWS(END) \
  }

#define LINES(NAME, TYPE, INPUT) \
  LINE(1, NAME, TYPE) LINE(2, NAME, TYPE) LINE(3, NAME, TYPE) LINE(4, NAME, TYPE) LINE(8, NAME, TYPE) \
  INLINE void rows_##NAME(const TYPE *w, const INPUT *x, int64_t rows, int64_t size, float *out, int64_t stride) { \
    int64_t r = 0; \
    for (; r + 8 <= rows; r += 8) line_##NAME##_8(w, x + r * size, size, out + r * stride, stride); \
    for (; r + 4 <= rows; r += 4) line_##NAME##_4(w, x + r * size, size, out + r * stride, stride); \
    for (; r + 3 <= rows; r += 3) line_##NAME##_3(w, x + r * size, size, out + r * stride, stride); \
    for (; r + 2 <= rows; r += 2) line_##NAME##_2(w, x + r * size, size, out + r * stride, stride); \
    for (; r < rows; r++) line_##NAME##_1(w, x + r * size, size, out + r * stride, stride); \
  }

LINES(f32, float, float)
LINES(bf16, uint16_t, float)
LINES(int8, int8_t, float)

#if defined(HAS_AVX512) && defined(__AVX512BF16__)
#define HAS_DOT 1 /* pairs of bfloat16 are multiplied and added in float32 by one instruction */
#undef BEGIN
#undef ADD
#undef END
#undef LINE
#define BEGIN(j) __m512 a##j = _mm512_setzero_ps(), b##j = a##j; const uint16_t *x##j = x + j * size;
#define PAIRS(p) ((__m512bh)_mm512_loadu_si512(p))
#define ADD(j) a##j = _mm512_dpbf16_ps(a##j, u, PAIRS(x##j + i)); b##j = _mm512_dpbf16_ps(b##j, v, PAIRS(x##j + i + STEP));
#define REST(j) a##j = _mm512_dpbf16_ps(a##j, u, PAIRS(x##j + i));
#define END(j) out[j * stride] = _mm512_reduce_add_ps(_mm512_add_ps(a##j, b##j));
#define LINE(ROWS, NAME, TYPE) \
  INLINE void line_##NAME##_##ROWS(const TYPE *w, const uint16_t *x, int64_t size, float *out, int64_t stride) { \
    EACH_##ROWS(BEGIN) \
    int64_t i = 0; \
    for (; i + 2 * STEP <= size; i += 2 * STEP) { \
      PREFETCH(ROWS, w + i); \
      PREFETCH(ROWS, w + i + STEP); \
      __m512bh u = PAIRS(w + i), v = PAIRS(w + i + STEP); \
      EACH_##ROWS(ADD) \
    } \
    if (i < size) { \
      __m512bh u = PAIRS(w + i); \
      EACH_##ROWS(REST) \
    } \
    EACH_##ROWS(END) \
  }
LINES(dot, uint16_t, uint16_t)
#else
#define HAS_DOT 0
#endif

static float *scratch(int64_t size) { /* of this thread; null if there is no memory */
  static _Thread_local float *memory = NULL;
  static _Thread_local int64_t capacity = 0;
  if (size > capacity) {
    free(memory);
    memory = aligned_alloc(64, (size_t)(4 * size + 63) / 64 * 64);
    capacity = memory ? size : 0;
  }
  return memory;
}
