/* FP32 loops for one CPU thread: attention of one new token, RMS norm.
 *
 * loops.py compiles this file with the C compiler of the machine. Strides count floats. The loops are written for the
 * compiler's vectorizer: sums may be reordered, but NaN and infinity keep their meaning.
 *
 * Legend: R sequences, H key-value heads, G queries per key-value head, D size, K cached positions, N rows.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16

/* Positions whose keys or values stay in the fastest cache while every query of their head uses them. */
#define BLOCK 32

/* Bias of a hidden position is -inf, or the lowest number of the type. */
#define HIDDEN -1e30f

/* e^x for x <= 0 with a relative error below 3e-7; below -87 it is 0. NaN stays NaN.
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r is its Taylor polynomial, and ln 2 is split so that n ln 2 is exact. */
INLINE float exponential(float x) {
    float y = x > -87.0f ? x : -87.0f; /* NaN too: its conversion to an integer is undefined */
    float n = rintf(y * 1.44269504f);
    float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9841270e-4f;
    p = p * r + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits = ((int32_t)n + 127) * (1 << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    float result = x < -87.0f ? 0.0f : p * power;
    return x != x ? x : result;
}

INLINE float largest(const float *s, int64_t first, int64_t last) {
    float lane[LANES], most;
    int64_t k = first;
    for (int64_t j = 0; j < LANES; j++) lane[j] = s[first];
    for (; k + LANES <= last; k += LANES)
        for (int64_t j = 0; j < LANES; j++) lane[j] = s[k + j] > lane[j] ? s[k + j] : lane[j];
    most = lane[0];
    for (int64_t j = 1; j < LANES; j++) most = lane[j] > most ? lane[j] : most;
    for (; k < last; k++) most = s[k] > most ? s[k] : most;
    return most;
}

/* Attention of the G queries of one key-value head of one sequence over its positions first <= k < last. */
INLINE void attend(const float *q, const float *key, const float *value, const float *bias, float *restrict score,
                   float *restrict out, int64_t first, int64_t last, int64_t step, int64_t D, int64_t G, float scale) {
    for (int64_t begin = first; begin < last; begin += BLOCK) {
        int64_t end = begin + BLOCK < last ? begin + BLOCK : last;
        for (int64_t g = 0; g < G; g++)
            for (int64_t k = begin; k < end; k++) {
                float sum = 0.0f;
                for (int64_t d = 0; d < D; d++) sum += q[g * D + d] * key[k * step + d];
                score[g * last + k] = sum * scale + bias[k];
            }
    }
    for (int64_t g = 0; g < G; g++) {
        float *s = score + g * last, most = largest(s, first, last), sum = 0.0f;
        for (int64_t k = first; k < last; k++) s[k] = exponential(s[k] - most);
        for (int64_t k = first; k < last; k++) sum += s[k];
        float share = 1.0f / sum;
        for (int64_t k = first; k < last; k++) s[k] *= share;
        for (int64_t d = 0; d < D; d++) out[g * D + d] = 0.0f;
    }
    for (int64_t begin = first; begin < last; begin += BLOCK) {
        int64_t end = begin + BLOCK < last ? begin + BLOCK : last;
        for (int64_t g = 0; g < G; g++)
            for (int64_t k = begin; k < end; k++)
                for (int64_t d = 0; d < D; d++) out[g * D + d] += score[g * last + k] * value[k * step + d];
    }
}

/* softmax(q k^T scale + bias) v for one new token per sequence. Each sequence reads only the positions between its first
 * and last visible one. q, out [R, H * G, D]; keys, values [R, K, H, D] with `row` floats between sequences; bias [R, K];
 * score is working memory [G, K]. */
void decode_attention(const float *q, const float *keys, const float *values, const float *bias, float *score,
                      float *out, int64_t R, int64_t H, int64_t G, int64_t D, int64_t K, int64_t row, float scale) {
    for (int64_t r = 0; r < R; r++) {
        const float *b = bias + r * K;
        int64_t first = 0, last = K;
        while (last > 1 && b[last - 1] < HIDDEN) last--;
        while (first < last - 1 && b[first] < HIDDEN) first++;
        for (int64_t h = 0; h < H; h++) {
            const float *qh = q + (r * H + h) * G * D, *kh = keys + r * row + h * D, *vh = values + r * row + h * D;
            float *oh = out + (r * H + h) * G * D;
            if (D == 64) attend(qh, kh, vh, b, score, oh, first, last, H * D, 64, G, scale); /* known sizes unroll */
            else if (D == 32) attend(qh, kh, vh, b, score, oh, first, last, H * D, 32, G, scale);
            else if (D == 128) attend(qh, kh, vh, b, score, oh, first, last, H * D, 128, G, scale);
            else attend(qh, kh, vh, b, score, oh, first, last, H * D, D, G, scale);
        }
    }
}

/* y = x s w with s = (mean(x^2) + eps)^-1/2. x, y [N, D]; w [D]; s [N]. */
void rms_norm(const float *restrict x, const float *restrict w, float *restrict y, float *restrict s, int64_t N,
              int64_t D, float eps) {
    for (int64_t n = 0; n < N; n++) {
        const float *xn = x + n * D;
        float sum = 0.0f;
        for (int64_t d = 0; d < D; d++) sum += xn[d] * xn[d];
        float scale = 1.0f / sqrtf(sum / (float)D + eps);
        s[n] = scale;
        for (int64_t d = 0; d < D; d++) y[n * D + d] = xn[d] * scale * w[d];
    }
}

/* dx = s (g w) - x s^3 / D sum(g w x) and dw = sum over n of s g x. g, x, dx [N, D]; w, dw [D]; s [N]; dw starts at 0. */
void rms_norm_backward(const float *restrict g, const float *restrict x, const float *restrict w,
                       const float *restrict s, float *restrict dx, float *restrict dw, int64_t N, int64_t D) {
    for (int64_t n = 0; n < N; n++) {
        const float *gn = g + n * D, *xn = x + n * D;
        float sum = 0.0f, scale = s[n];
        for (int64_t d = 0; d < D; d++) sum += gn[d] * w[d] * xn[d];
        float share = scale * scale * scale / (float)D * sum;
        for (int64_t d = 0; d < D; d++) {
            dx[n * D + d] = scale * gn[d] * w[d] - share * xn[d];
            dw[d] += scale * gn[d] * xn[d];
        }
    }
}
