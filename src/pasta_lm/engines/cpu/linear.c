/* Products of a few rows with a weight as it lies in memory, with what stands before and behind.

   Decoding reads every weight for one row, or for a few. These loops read a weight once, line by
   line, at the speed of memory. A row's result does not depend on the other rows of the call: all
   rows are summed in the same order.

   What stands before a product is computed here too: a root mean square norm, or the gate of a
   feed-forward layer. Behind it: scales of 8-bit weights, a bias, a residual. Each is rounded to
   the type of the activations where the model's own operations round.

   Legend: R rows, I inputs, O outputs. */

#include "vectors.h"

#define BLOCK 64 /* outputs whose sums are in the first cache before they are rounded and written */
/* Bytes from a load to its prefetch into L2, with one or two rows and with more. */
#define AHEAD_FEW 6144
#define AHEAD_MORE 8192

enum { PLAIN = 0, RMS_NORM = 1, SILU_GATE = 2, GELU_GATE = 3 };

typedef struct {
  const void *weight;       /* [O, I] */
  const float *scales;      /* [O], or null */
  const float *bias;        /* [O], or null */
  const float *norm_weight; /* [I], or null */
  int64_t num_inputs, num_outputs;
  int32_t weight_type, type; /* type: of activations, FLOAT32 or BFLOAT16 */
  int32_t before;            /* PLAIN, RMS_NORM, SILU_GATE or GELU_GATE */
  float eps;                 /* of the norm */
} Linear;

/* What stands before a product: rows of activations as float32 [R, I] */

static void norm(const Linear *layer, const void *x, int64_t start, float *out) {
  int64_t size = layer->num_inputs;
  int type = layer->type;
  floats squares = {0};
  for (int64_t i = 0; i < size; i += LANES) {
    floats values = load(x, start + i, type);
    store(out, i, values, FLOAT32);
    squares += values * values;
  }
  float scale = 1.0f / sqrtf(sum(squares) / (float)size + layer->eps);
  for (int64_t i = 0; i < size; i += LANES) {
    floats value = rounded_of(load_f32(out + i) * scale, type);
    if (layer->norm_weight) value = rounded_of(value * load_f32(layer->norm_weight + i), type);
    store(out, i, value, FLOAT32);
  }
}

static void gate(const Linear *layer, const void *x, int64_t start, float *out) {
  int64_t size = layer->num_inputs;
  int type = layer->type;
  for (int64_t i = 0; i < size; i += LANES) {
    floats g = load(x, start + i, type);
    /* gelu by tanh: g * sigmoid(2 * sqrt(2 / pi) * (g + 0.044715 g^3)) */
    floats slope = layer->before == SILU_GATE ? g : 1.59576912f * (g + 0.044715f * g * g * g);
    floats active = rounded_of(g / (1.0f + exp_of(-slope)), type);
    store(out, i, rounded_of(active * load(x, start + size + i, type), type), FLOAT32);
  }
}

static void prepare(const Linear *layer, const void *x, int64_t start, float *out) {
  int64_t size = layer->num_inputs;
  if (layer->before == RMS_NORM) norm(layer, x, start, out);
  else if (layer->before != PLAIN) gate(layer, x, start, out);
  else for (int64_t i = 0; i < size; i += LANES) store(out, i, load(x, start + i, layer->type), FLOAT32);
}

/* sums of all rows for LINES outputs from o on; a line behind the last one is the last one again */
static void multiply(const Linear *layer, const void *rows, int64_t num_rows, int64_t o, float *sums,
                     int64_t stride, int uses_dot) {
  int64_t size = layer->num_inputs, last = layer->num_outputs - 1;
  int64_t ahead = num_rows < 3 ? AHEAD_FEW : AHEAD_MORE;
#define TILES_OF(NAME, TYPE, INPUT) \
  do { \
    const TYPE *line = (const TYPE *)layer->weight + o * size, *w[LINES]; \
    for (int64_t l = 0; l < LINES; l++) w[l] = line + (o + l > last ? last - o : l) * size; \
    tiles_##NAME(w, (const INPUT *)rows, num_rows, size, sums, stride, line + ahead / (int64_t)sizeof(TYPE)); \
  } while (0)
  if (layer->weight_type == INT8) TILES_OF(int8, int8_t, float);
  else if (layer->weight_type == FLOAT32) TILES_OF(f32, float, float);
#if HAS_DOT
  else if (uses_dot) TILES_OF(dot, uint16_t, uint16_t);
#endif
  else TILES_OF(bf16, uint16_t, float);
}

/* What stands behind: outputs from o on, of sums [rows, BLOCK]. */
static void finish(const Linear *layer, const float *sums, int64_t row, int64_t o, int64_t num,
                   const void *residual, void *out) {
  int type = layer->type;
  int64_t first = row * layer->num_outputs + o, i = 0;
  for (; i + LANES <= num; i += LANES) {
    floats value = load_f32(sums + i);
    if (layer->scales) value *= load_f32(layer->scales + o + i);
    if (layer->bias) value += load_f32(layer->bias + o + i);
    value = rounded_of(value, type);
    if (residual) value += load(residual, first + i, type);
    store(out, first + i, value, type);
  }
  for (; i < num; i++) {
    float value = sums[i];
    if (layer->scales) value *= layer->scales[o + i];
    if (layer->bias) value += layer->bias[o + i];
    value = rounded(value, type);
    if (residual) value += read(residual, first + i, type);
    write(out, first + i, value, type);
  }
}

/* x: rows of activations, stride elements apart; residual [R, O] or null; out [R, O], both of the
   type of the activations. Returns 0, or 1 without memory. */
int linear(const Linear *layer, const void *x, int64_t stride, const void *residual, void *out,
           int64_t num_rows, int num_threads) {
  int64_t inputs = layer->num_inputs, outputs = layer->num_outputs;
  int type = layer->type, uses_dot = HAS_DOT && layer->weight_type == BFLOAT16 && type == BFLOAT16;
  if (num_rows == 0) return 0; /* a pass may want no logits */
  float *rows = scratch(num_rows * inputs);
  if (!rows) return 1;
  for (int64_t r = 0; r < num_rows; r++) prepare(layer, x, r * stride, rows + r * inputs);
  if (uses_dot) /* in place, exact: every value is one of bfloat16 */
    for (int64_t i = 0; i < num_rows * inputs; i += LANES) store(rows, i, load_f32(rows + i), BFLOAT16);
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_threads > 1)
  for (int64_t start = 0; start < outputs; start += BLOCK) {
    int64_t num = outputs - start < BLOCK ? outputs - start : BLOCK;
    float sums[num_rows * BLOCK];
    for (int64_t i = 0; i < num; i += LINES)
      multiply(layer, rows, num_rows, start + i, sums + i, BLOCK, uses_dot);
    for (int64_t r = 0; r < num_rows; r++) finish(layer, sums + r * BLOCK, r, start, num, residual, out);
  }
  return 0;
}
