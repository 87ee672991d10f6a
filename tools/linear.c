/* Rows of x times a matrix that was packed once: for every 16 outputs, one row of 16 weights for each of the k inputs.
   A BLAS packs the whole matrix anew for each call, which with two to thirty rows is most of its work. See linear.py. */
#include <arm_neon.h>

static inline __attribute__((always_inline)) void rows(const int R, const float *x, const float *w, float *y, long n, long k) {
    float32x4_t v[4], sum[4][4];
    for (int r = 0; r < R; r++) for (int c = 0; c < 4; c++) sum[r][c] = vdupq_n_f32(0);
    for (long i = 0; i < k; i += 4) {
        for (int r = 0; r < R; r++) v[r] = vld1q_f32(x + r*k + i);
        for (int l = 0; l < 4; l++, w += 16) for (int c = 0; c < 4; c++) {
            float32x4_t b = vld1q_f32(w + 4*c);
            for (int r = 0; r < R; r++) sum[r][c] = vfmaq_n_f32(sum[r][c], b, v[r][l]);
        }
    }
    for (int r = 0; r < R; r++) for (int c = 0; c < 4; c++) vst1q_f32(y + r*n + 4*c, sum[r][c]);
}

/* x is (m, k), packed (n/16, k, 16), y (m, n); n is a multiple of 16 and k of 4 */
void linear(const float *x, const float *packed, float *y, long m, long n, long k) {
    for (long p = 0; p < n; p += 16, packed += 16*k)
        for (long r = 0; r < m; r += 4) {
            const float *from = x + r*k;
            float *to = y + r*n + p;
            switch (m - r) {
                case 1: rows(1, from, packed, to, n, k); break;
                case 2: rows(2, from, packed, to, n, k); break;
                case 3: rows(3, from, packed, to, n, k); break;
                default: rows(4, from, packed, to, n, k);
            }
        }
}
