/* Attention of the queries of each request over its keys and values as they lie in the pool.

   New keys are rotated and written with their values; then each query reads the slots that it sees,
   and no others: the threads of a response see the prompt and their own tokens. Scores, weights and
   sums are float32, whatever the type of the activations; only the result is rounded. A query's
   result does not depend on the other queries of the call. All requests of a pass are one call.

   Legend: N queries (new tokens), G groups, a key/value head each, H query heads of a group,
   D head size, S slots of the pool, V slots that a query sees. */

#include "vectors.h"

typedef struct {
  const int32_t *slots;  /* the slots that each query sees, one query after the other; or null: all */
  const int32_t *starts; /* [queries + 1]: where those of each query begin */
  int64_t first_slot;    /* of its new tokens in its run */
  int64_t first_row;     /* of its new tokens in q, k, v, cos, sin, out */
  int64_t origin;        /* the slot of the pool where its run begins */
} Request;

typedef struct {
  /* of the pass */
  const Request *requests;
  const int32_t *request_of; /* [N]: each row's request */
  int64_t first_row, num_rows; /* those of all requests are consecutive */
  int64_t num_groups, num_heads, size, num_pool_slots;
  int32_t type, num_threads;
  /* of the layer; strides are those of a row and of a head, in elements */
  const void *q, *k, *v;
  int64_t q_row, q_head, k_row, k_head, v_row, v_head;
  const void *cos, *sin; /* [rows, D], the first half of sin negated; or null: rotated already */
  void *keys, *values;   /* [G, S, D] */
  void *out;             /* [rows, G, H, D] */
  float scale;
} Attention;

/* a head of a row, rotated: x * cos + (x, its halves exchanged) * sin, rounded as torch does */
static void turn(const Attention *a, const void *x, int64_t start, int64_t row, float *out) {
  int64_t size = a->size, half = size / 2, place = row * size;
  int type = a->type;
  if (!a->cos) {
    for (int64_t i = 0; i < size; i += LANES) store(out, i, load(x, start + i, type), FLOAT32);
    return;
  }
  for (int64_t i = 0; i < half; i += LANES) { /* half is a multiple of LANES */
    floats first = load(x, start + i, type), second = load(x, start + half + i, type);
    floats cos_first = load(a->cos, place + i, type), sin_first = load(a->sin, place + i, type);
    floats cos_second = load(a->cos, place + half + i, type);
    floats sin_second = load(a->sin, place + half + i, type);
    store(out, i, rounded_of(rounded_of(first * cos_first, type) + second * sin_first, type), FLOAT32);
    store(out, half + i, rounded_of(rounded_of(second * cos_second, type) + first * sin_second, type), FLOAT32);
  }
}

static void write_entry(const Attention *a, const Request *of, int64_t row, int64_t group, float *memory) {
  int64_t size = a->size, slot = of->origin + of->first_slot + row - of->first_row;
  int64_t place = (group * a->num_pool_slots + slot) * size;
  turn(a, a->k, row * a->k_row + group * a->k_head, row, memory);
  for (int64_t i = 0; i < size; i += LANES) store(a->keys, place + i, load_f32(memory + i), a->type);
  size_t width = a->type == BFLOAT16 ? 2 : 4;
  memcpy((char *)a->values + place * width,
         (const char *)a->v + (row * a->v_row + group * a->v_head) * width, size * width);
}

/* Scores become weights: exp of their distance from the largest. Returns their sum. */
static float weigh(float *scores, int64_t num, float scale) {
  int64_t end = (num + LANES - 1) / LANES * LANES;
  for (int64_t i = num; i < end; i++) scores[i] = -INFINITY; /* weighs 1e-38 */
  floats most = load_f32(scores), total = {0};
  for (int64_t i = LANES; i < end; i += LANES) {
    floats each = load_f32(scores + i);
    most = selected(each > most, each, most);
  }
  float highest = most[0];
  for (int i = 1; i < LANES; i++) highest = most[i] > highest ? most[i] : highest;
  for (int64_t i = 0; i < end; i += LANES) {
    floats weights = exp_of((load_f32(scores + i) - highest) * scale);
    store(scores, i, weights, FLOAT32);
    total += weights;
  }
  return sum(total);
}

/* Sums of STEP columns of the values with the weights of 1 to 4 heads, stride elements apart. */
#define SLOT(i) (slots ? slots[i] : (i))
#define W_BEGIN(j) floats s##j = {0}, t##j = {0}; const float *w##j = weights + j * stride;
#define W_ADD(j) s##j += u * w##j[i]; t##j += v * w##j[i];
#define W_END(j) store(out, j * size, s##j, FLOAT32); store(out, j * size + LANES, t##j, FLOAT32);
#define COLUMNS(HEADS, NAME, TYPE) \
  INLINE void columns_##NAME##_##HEADS(const TYPE *values, const int32_t *slots, int64_t num, int64_t size, \
                                       const float *weights, int64_t stride, float *out) { \
    EACH_##HEADS(W_BEGIN) \
    for (int64_t i = 0; i < num; i++) { \
      const TYPE *line = values + SLOT(i) * size; \
      floats u = load_##NAME(line), v = load_##NAME(line + LANES); \
      EACH_##HEADS(W_ADD) \
    } \
    EACH_##HEADS(W_END) \
  }
#define MIX(NAME, TYPE) \
  COLUMNS(1, NAME, TYPE) COLUMNS(2, NAME, TYPE) COLUMNS(3, NAME, TYPE) COLUMNS(4, NAME, TYPE) \
  static void mix_##NAME(const TYPE *values, const int32_t *slots, int64_t num, int64_t size, \
                         const float *weights, int64_t stride, int64_t heads, float *out) { \
    for (int64_t d = 0; d < size; d += STEP) { \
      int64_t h = 0; \
      for (; h + 4 <= heads; h += 4) columns_##NAME##_4(values + d, slots, num, size, weights + h * stride, stride, out + h * size + d); \
      if (heads - h == 3) columns_##NAME##_3(values + d, slots, num, size, weights + h * stride, stride, out + h * size + d); \
      else if (heads - h == 2) columns_##NAME##_2(values + d, slots, num, size, weights + h * stride, stride, out + h * size + d); \
      else if (heads - h == 1) columns_##NAME##_1(values + d, slots, num, size, weights + h * stride, stride, out + h * size + d); \
    } \
  }
MIX(f32, float)
MIX(bf16, uint16_t)

/* Scores of LINES slots at a time; a slot behind the last one is the last one again. */
#define SCORES(NAME, TYPE, INPUT) \
  static void scores_##NAME(const TYPE *keys, const int32_t *slots, int64_t num, int64_t size, \
                            const INPUT *q, int64_t heads, float *scores, int64_t stride) { \
    for (int64_t i = 0; i < num; i += LINES) { \
      const TYPE *w[LINES]; \
      for (int64_t l = 0; l < LINES; l++) w[l] = keys + SLOT(i + l < num ? i + l : num - 1) * size; \
      tiles_##NAME(w, q, heads, size, scores + i, stride, NULL); \
    } \
  }
SCORES(f32, float, float)
#if HAS_DOT
SCORES(dot, uint16_t, uint16_t)
#else
SCORES(bf16, uint16_t, float)
#endif

/* one query in one group: rows [H, D] of the result */
static int attend_one(const Attention *a, const Request *of, int64_t row, int64_t group) {
  int64_t size = a->size, heads = a->num_heads, query = row - of->first_row;
  const int32_t *slots = of->slots ? of->slots + of->starts[query] : NULL;
  int64_t num = slots ? of->starts[query + 1] - of->starts[query] : of->first_slot + query + 1;
  int64_t stride = (num + LANES - 1) / LANES * LANES;
  float *q = scratch(heads * (2 * size + stride));
  if (!q) return 1;
  float *out = q + heads * size, *scores = out + heads * size;
  for (int64_t h = 0; h < heads; h++)
    turn(a, a->q, row * a->q_row + (group * heads + h) * a->q_head, row, q + h * size);
  int64_t place = (group * a->num_pool_slots + of->origin) * size;
  if (a->type == FLOAT32) {
    scores_f32((const float *)a->keys + place, slots, num, size, q, heads, scores, stride);
  } else {
    const uint16_t *keys = (const uint16_t *)a->keys + place;
#if HAS_DOT
    uint16_t *narrow = (uint16_t *)q; /* exact: every value is one of bfloat16 */
    for (int64_t i = 0; i < heads * size; i += LANES) store(narrow, i, load_f32(q + i), BFLOAT16);
    scores_dot(keys, slots, num, size, narrow, heads, scores, stride);
#else
    scores_bf16(keys, slots, num, size, q, heads, scores, stride);
#endif
  }
  float sums[heads];
  for (int64_t h = 0; h < heads; h++) sums[h] = weigh(scores + h * stride, num, a->scale);
  if (a->type == FLOAT32)
    mix_f32((const float *)a->values + place, slots, num, size, scores, stride, heads, out);
  else mix_bf16((const uint16_t *)a->values + place, slots, num, size, scores, stride, heads, out);
  int64_t first = (row * a->num_groups + group) * heads * size;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < size; i += LANES)
      store(a->out, first + h * size + i, load_f32(out + h * size + i) / sums[h], a->type);
  return 0;
}

/* Returns 0, or 1 without memory. */
int attend(const Attention *a) {
  int64_t rows = a->num_rows, units = rows * a->num_groups;
  float *memory = scratch(a->size);
  if (!memory) return 1;
#define UNIT(unit) a->requests + a->request_of[(unit) % rows], a->first_row + (unit) % rows, (unit) / rows
  for (int64_t unit = 0; unit < units; unit++) write_entry(a, UNIT(unit), memory);
  int failed = 0; /* a request's keys of a group serve its queries one after the other */
#pragma omp parallel for num_threads(a->num_threads) schedule(dynamic) reduction(| : failed) if (a->num_threads > 1)
  for (int64_t unit = 0; unit < units; unit++) failed |= attend_one(a, UNIT(unit));
  return failed;
}
