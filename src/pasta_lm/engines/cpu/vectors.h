/* Numbers, vectors and sums of products, for the functions that Python calls.

   Vectors are those of GCC and Clang, so that any processor will do. They are as wide as its
   registers: wider ones are kept in memory. AVX-512 and AVX2 have instructions of their own. */

#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define HAS_AVX512 1
#define LANES 16 /* floats of a vector */
#elif defined(__AVX2__)
#include <immintrin.h>
#define HAS_AVX2 1
#define LANES 8
#else
#define LANES 4
#endif
#if HAS_AVX512 && defined(__AVX512BF16__)
#define HAS_DOT 1 /* pairs of bfloat16 are multiplied and added in float32 by one instruction */
#else
#define HAS_DOT 0
#endif

#define INLINE static inline __attribute__((always_inline))
#define STEP (2 * LANES) /* sizes that are summed over are multiples of it */

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

INLINE halves narrowed_of(floats values) { /* as narrowed */
  bits words = (bits)values, up = (words + 0x7fff + ((words >> 16) & 1)) >> 16;
  bits is_nan = (bits)((words & 0x7fffffff) > 0x7f800000);
  return __builtin_convertvector((is_nan & 0x7fc0) | (~is_nan & up), halves);
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

/* a + b * c. One rounding wherever the processor can: for some, GCC takes two in a loop of one sum. */
#if HAS_AVX512
INLINE floats plus(floats a, floats b, floats c) { return (floats)_mm512_fmadd_ps((__m512)b, (__m512)c, (__m512)a); }
#elif HAS_AVX2 && defined(__FMA__)
INLINE floats plus(floats a, floats b, floats c) { return (floats)_mm256_fmadd_ps((__m256)b, (__m256)c, (__m256)a); }
#else
INLINE floats plus(floats a, floats b, floats c) { return a + b * c; }
#endif

#if HAS_AVX512
INLINE floats load_bf16(const uint16_t *p) {
  __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return (floats)_mm512_slli_epi32(words, 16);
}
INLINE floats load_int8(const int8_t *p) {
  return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
#elif HAS_AVX2
INLINE floats load_bf16(const uint16_t *p) {
  return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}
INLINE floats load_int8(const int8_t *p) {
  return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
#else
INLINE floats load_bf16(const uint16_t *p) {
  return (floats)(__builtin_convertvector(*(const halves *)p, bits) << 16);
}
INLINE floats load_int8(const int8_t *p) {
  return __builtin_convertvector(*(const bytes *)p, floats);
}
#endif

INLINE float sum(floats v) { /* by halves: fewer roundings than one after the other */
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) v[i] += v[i + width];
  return v[0];
}

INLINE floats rounded_of(floats values, int type) {
  if (type != BFLOAT16) return values;
  return (floats)(__builtin_convertvector(narrowed_of(values), bits) << 16);
}

INLINE floats load(const void *values, int64_t index, int type) {
  return type == BFLOAT16 ? load_bf16((const uint16_t *)values + index)
                          : load_f32((const float *)values + index);
}

INLINE void store(void *values, int64_t index, floats v, int type) {
  if (type == BFLOAT16) *(halves *)((uint16_t *)values + index) = narrowed_of(v);
  else *(loose_floats *)((float *)values + index) = v;
}

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

/* The sums of four vectors, one behind the other. */
#if HAS_AVX512
INLINE void store_sums(floats a, floats b, floats c, floats d, float *out) {
  __m512 p = (__m512)a, q = (__m512)b, r = (__m512)c, s = (__m512)d;
  __m512 pq = _mm512_add_ps(_mm512_unpacklo_ps(p, q), _mm512_unpackhi_ps(p, q));
  __m512 rs = _mm512_add_ps(_mm512_unpacklo_ps(r, s), _mm512_unpackhi_ps(r, s));
  __m512 even = _mm512_shuffle_ps(pq, rs, 0x44), odd = _mm512_shuffle_ps(pq, rs, 0xee);
  __m512 all = _mm512_add_ps(even, odd); /* in each quarter the sums of its lanes of a, b, c, d */
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
#elif HAS_AVX2
INLINE void store_sums(floats a, floats b, floats c, floats d, float *out) {
  __m256 pq = _mm256_hadd_ps((__m256)a, (__m256)b), rs = _mm256_hadd_ps((__m256)c, (__m256)d);
  __m256 all = _mm256_hadd_ps(pq, rs); /* in each half the sums of its lanes of a, b, c, d */
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
#else
INLINE void store_sums(floats a, floats b, floats c, floats d, float *out) {
  out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d);
}
#endif

/* A tile: sums of products of LINES lines w [I] with 1 to TILE_ROWS rows x [rows, I]. The sums of a
   row go to out[row * stride] and behind it. Each sum adds in the same order whatever the tile, so
   a row's result does not depend on the others. Weights that are next in memory are prefetched from
   next on, at the speed at which lines are read; null: none. Sums have names, because compilers
   keep arrays of them in memory. */

#define LINES 4
#if HAS_AVX512 || defined(__aarch64__)
#define TILE_ROWS 4 /* 16 sums, 4 lines and a row fit 32 registers */
#else
#define TILE_ROWS 2 /* 8 sums, 4 lines and a row fit 16 */
#endif
#define EACH_1(DO) DO(0)
#define EACH_2(DO) DO(0) DO(1)
#define EACH_3(DO) EACH_2(DO) DO(2)
#define EACH_4(DO) EACH_3(DO) DO(3)
#define PREFETCH \
  for (int64_t ahead = 0; ahead < share; ahead++) \
    __builtin_prefetch((const char *)next + LINES * i * (int64_t)sizeof *next + 64 * ahead, 0, 3);

/* in a register: GCC would load it once for each product */
#if HAS_AVX512
#define KEEP(y) __asm__("" : "+v"(y))
#elif HAS_AVX2
#define KEEP(y) __asm__("" : "+x"(y))
#else
#define KEEP(y)
#endif
#define BEGIN(r) floats a##r = {0}, b##r = {0}, c##r = {0}, d##r = {0};
#define END(r) store_sums(a##r, b##r, c##r, d##r, out + r * stride);
#define ADD(r) { floats y = load_f32(x + r * size + i); KEEP(y); a##r = plus(a##r, p, y); b##r = plus(b##r, q, y); c##r = plus(c##r, s, y); d##r = plus(d##r, t, y); }
#define TILE(ROWS, NAME, TYPE) \
  INLINE void tile_##NAME##_##ROWS(const TYPE *const *w, const float *x, int64_t size, float *out, \
                                   int64_t stride, const TYPE *next, int share) { \
    EACH_##ROWS(BEGIN) \
    for (int64_t i = 0; i < size; i += LANES) { \
      PREFETCH \
      floats p = load_##NAME(w[0] + i), q = load_##NAME(w[1] + i); \
      floats s = load_##NAME(w[2] + i), t = load_##NAME(w[3] + i); \
      KEEP(p); KEEP(q); KEEP(s); KEEP(t); \
      EACH_##ROWS(ADD) \
    } \
    EACH_##ROWS(END) \
  }

/* A tile of one row that reads one line after the other, as memory is fetched ahead. */
#define WALK(sum, l) \
  for (int64_t i = 0; i < size; i += TURN) { \
    if (share) __builtin_prefetch(next + l * size + i, 0, 3); \
    ADD_TURN(sum, w[l] + i, x + i); \
  }
#define WALKING_TILE(NAME, TYPE) \
  INLINE void tile_##NAME##_1(const TYPE *const *w, const TYPE *x, int64_t size, float *out, \
                              int64_t stride, const TYPE *next, int share) { \
    floats a0 = {0}, b0 = {0}, c0 = {0}, d0 = {0}; \
    WALK(a0, 0) WALK(b0, 1) WALK(c0, 2) WALK(d0, 3) \
    (void)stride, store_sums(a0, b0, c0, d0, out); \
  }

/* of up to TILE_ROWS rows */
#define TILES(NAME, TYPE, INPUT) \
  TILE(2, NAME, TYPE) TILE(3, NAME, TYPE) TILE(4, NAME, TYPE) \
  INLINE void tile_##NAME(const TYPE *const *w, const INPUT *x, int64_t rows, int64_t size, float *out, \
                          int64_t stride, const TYPE *next, int share) { \
    if (rows == 1) tile_##NAME##_1(w, x, size, out, stride, next, share); \
    else if (rows == 2) tile_##NAME##_2(w, x, size, out, stride, next, share); \
    else if (rows == 3) tile_##NAME##_3(w, x, size, out, stride, next, share); \
    else tile_##NAME##_4(w, x, size, out, stride, next, share); \
  } \
  INLINE void share_##NAME(const TYPE *const *w, const INPUT *x, int64_t rows, int64_t size, float *out, \
                           int64_t stride, const TYPE *next, int share) { \
    for (int64_t r = 0; r < rows; r += TILE_ROWS, next += share * 64 / (int64_t)sizeof(TYPE)) \
      tile_##NAME(w, x + r * size, rows - r < TILE_ROWS ? rows - r : TILE_ROWS, size, out + r * stride, stride, next, share); \
  } \
  INLINE void tiles_##NAME(const TYPE *const *w, const INPUT *x, int64_t rows, int64_t size, float *out, \
                           int64_t stride, const TYPE *next) { \
    enum { BYTES = LINES * (sizeof(INPUT) == 2 ? 64 : LANES * sizeof(TYPE)), ALL = (BYTES + 63) / 64 }; \
    if (!next) share_##NAME(w, x, rows, size, out, stride, w[0], 0); \
    else if (rows <= TILE_ROWS) tile_##NAME(w, x, rows, size, out, stride, next, ALL); \
    else if (rows <= 3 * TILE_ROWS) share_##NAME(w, x, rows, size, out, stride, next, (ALL + 1) / 2); \
    else share_##NAME(w, x, rows, size, out, stride, next, (ALL + 3) / 4); \
  }

#define TURN LANES
#define ADD_TURN(sum, w, x) sum = plus(sum, load_f32(w), load_f32(x))
WALKING_TILE(f32, float)
TILES(f32, float, float)
TILE(1, bf16, uint16_t)
TILES(bf16, uint16_t, float)
TILE(1, int8, int8_t)
TILES(int8, int8_t, float)

#if HAS_DOT
#undef ADD
#undef TILE
#define PAIRS(p) ((__m512bh)_mm512_loadu_si512(p))
#define DOT(sum, line) sum = (floats)_mm512_dpbf16_ps((__m512)sum, line, y)
#define ADD(r) { __m512bh y = PAIRS(x + r * size + i); KEEP(y); DOT(a##r, p); DOT(b##r, q); DOT(c##r, s); DOT(d##r, t); }
#define TILE(ROWS, NAME, TYPE) \
  INLINE void tile_##NAME##_##ROWS(const TYPE *const *w, const TYPE *x, int64_t size, float *out, \
                                   int64_t stride, const TYPE *next, int share) { \
    EACH_##ROWS(BEGIN) \
    for (int64_t i = 0; i < size; i += STEP) { \
      PREFETCH \
      __m512bh p = PAIRS(w[0] + i), q = PAIRS(w[1] + i), s = PAIRS(w[2] + i), t = PAIRS(w[3] + i); \
      KEEP(p); KEEP(q); KEEP(s); KEEP(t); \
      EACH_##ROWS(ADD) \
    } \
    EACH_##ROWS(END) \
  }
#undef TURN
#undef ADD_TURN
#define TURN STEP
#define ADD_TURN(sum, w, x) sum = (floats)_mm512_dpbf16_ps((__m512)sum, PAIRS(w), PAIRS(x))
WALKING_TILE(dot, uint16_t)
TILES(dot, uint16_t, uint16_t)
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
