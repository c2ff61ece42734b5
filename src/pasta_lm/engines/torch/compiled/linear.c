/* Products of a few rows with a weight as it lies in memory, with what stands before and behind.

   Decoding reads every weight for one row, or for a few. These loops read a weight once, line by
   line, at the speed of memory. A row's result does not depend on the other rows of the call: all
   rows are summed in the same order.

   What stands before a product is computed here too: a root mean square norm, or the gate of a
   feed-forward layer. Behind it: scales of 8-bit weights, a bias, a residual. Each is rounded to
   the type of the activations where the model's own operations round.

   Legend: R rows, I inputs, O outputs. */

#include "vectors.h"

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
  floats squares = {0};
  for (int64_t i = 0; i < size; i += LANES) {
    floats values = layer->type == BFLOAT16 ? load_bf16((const uint16_t *)x + start + i)
                                            : load_f32((const float *)x + start + i);
    memcpy(out + i, &values, sizeof values);
    squares += values * values;
  }
  float scale = 1.0f / sqrtf(sum(squares) / (float)size + layer->eps);
  for (int64_t i = 0; i < size; i++) {
    float value = rounded(out[i] * scale, layer->type);
    out[i] = layer->norm_weight ? rounded(value * layer->norm_weight[i], layer->type) : value;
  }
}

static void gate(const Linear *layer, const void *x, int64_t start, float *out) {
  int64_t size = layer->num_inputs;
  int type = layer->type;
  for (int64_t i = 0; i < size; i += LANES) {
    float gates[LANES];
    for (int j = 0; j < LANES; j++) gates[j] = read(x, start + i + j, type);
    floats g;
    memcpy(&g, gates, sizeof g);
    /* gelu by tanh: g * sigmoid(2 * sqrt(2 / pi) * (g + 0.044715 g^3)) */
    floats slope = layer->before == SILU_GATE ? g : 1.59576912f * (g + 0.044715f * g * g * g);
    floats active = g / (1.0f + exp_of(-slope));
    memcpy(gates, &active, sizeof g);
    for (int j = 0; j < LANES; j++)
      out[i + j] = rounded(rounded(gates[j], type) * read(x, start + size + i + j, type), type);
  }
}

static void prepare(const Linear *layer, const void *x, int64_t start, float *out) {
  if (layer->before == RMS_NORM) norm(layer, x, start, out);
  else if (layer->before != PLAIN) gate(layer, x, start, out);
  else for (int64_t i = 0; i < layer->num_inputs; i++) out[i] = read(x, start + i, layer->type);
}

/* x: rows of activations, stride elements apart; residual [R, O] or null; out [R, O], both of the
   type of the activations. Returns 0, or 1 without memory. */
int linear(const Linear *layer, const void *x, int64_t stride, const void *residual, void *out,
           int64_t num_rows, int num_threads) {
  int64_t inputs = layer->num_inputs, outputs = layer->num_outputs;
  int type = layer->type, uses_dot = HAS_DOT && layer->weight_type == BFLOAT16 && type == BFLOAT16;
  float *rows = scratch(num_rows * (inputs + outputs));
  if (!rows) return 1;
  float *sums = rows + num_rows * inputs;
  for (int64_t r = 0; r < num_rows; r++) prepare(layer, x, r * stride, rows + r * inputs);
  uint16_t *narrow = (uint16_t *)rows; /* exact: every value is one of bfloat16 */
  if (uses_dot)
    for (int64_t i = 0; i < num_rows * inputs; i++) narrow[i] = narrowed(rows[i]);
#pragma omp parallel for num_threads(num_threads) schedule(static) if (num_threads > 1)
  for (int64_t o = 0; o < outputs; o++) {
    const char *line = (const char *)layer->weight;
    float *sum_of = sums + o;
    if (layer->weight_type == INT8)
      rows_int8((const int8_t *)line + o * inputs, rows, num_rows, inputs, sum_of, outputs);
    else if (layer->weight_type == FLOAT32)
      rows_f32((const float *)line + o * inputs, rows, num_rows, inputs, sum_of, outputs);
#if HAS_DOT
    else if (uses_dot)
      rows_dot((const uint16_t *)line + o * inputs, narrow, num_rows, inputs, sum_of, outputs);
#endif
    else rows_bf16((const uint16_t *)line + o * inputs, rows, num_rows, inputs, sum_of, outputs);
  }
  for (int64_t r = 0; r < num_rows; r++)
    for (int64_t o = 0; o < outputs; o++) {
      float value = sums[r * outputs + o];
      if (layer->scales) value *= layer->scales[o];
      if (layer->bias) value += layer->bias[o];
      value = rounded(value, type);
      if (residual) value += read(residual, r * outputs + o, type);
      write(out, r * outputs + o, value, type);
    }
  return 0;
}
