// matmul, conv2d, grouped_gemm: one work-item an element of the result. Sums are made of sums of
// 64 products: in one long row the error of fp32 grows with its length, and 1,024 products are too many.
// Built with T (element type of the operands) and ACC (of sum and result).

#define PART 64L

kernel void matmul(global const T *a, long ao, global const T *b, long bo, global ACC *y, long yo,
                   global const long *m, long M, long K, long N, long batch) {
    // m: rank of the batch, its lengths, strides of A over it, strides of B
    int rank = m[0];
    long n = batch * M * N;
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        long column = i % N, row = i / N % M, left = i / N / M, one = ao + row * K, other = bo + column;
        for (int axis = rank; axis >= 1; axis--) {
            long at = left % m[axis];
            left /= m[axis];
            one += at * m[rank + axis];
            other += at * m[2 * rank + axis];
        }
        ACC sum = 0;
        for (long from = 0; from < K; from += PART) {
            ACC part = 0;
            for (long k = from; k < min(from + PART, K); k++) part += (ACC)a[one + k] * (ACC)b[other + k * N];
            sum += part;
        }
        y[yo + i] = sum;
    }
}

#ifdef FLOATS
kernel void conv2d(global const float *x, long xo, global const float *w, long wo, global const float *bias, long bo,
                   int biased, global float *y, long yo, long batch, long C, long H, long W, long O, long KH, long KW,
                   long OH, long OW, long SH, long SW, long PH, long PW, long DH, long DW, long group) {
    long n = batch * O * OH * OW;
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        long inner = C / group;
        long ow = i % OW, oh = i / OW % OH, o = i / OW / OH % O, image = i / OW / OH / O;
        long from = o / (O / group) * inner;
        float sum = 0;
        for (long c = 0; c < inner; c++) {
            float part = 0;
            for (long u = 0; u < KH; u++) {
                long h = oh * SH - PH + u * DH;
                if (h < 0 || h >= H) continue;
                for (long v = 0; v < KW; v++) {
                    long at = ow * SW - PW + v * DW;
                    if (at < 0 || at >= W) continue;
                    part += x[xo + ((image * C + from + c) * H + h) * W + at] * w[wo + ((o * inner + c) * KH + u) * KW + v];
                }
            }
            sum += part;
        }
        y[yo + i] = biased ? sum + bias[bo + o] : sum;
    }
}

kernel void grouped_gemm(global const float *a, long ao, global const float *b, long bo, global const int *offs,
                         long oo, global float *y, long yo, long rows, long K, long N, long groups,
                         global int *fault) {
    for (long g = 0; g < groups; g++)
        if (offs[oo + g] < (g ? offs[oo + g - 1] : 0) || offs[oo + g] > rows) {
            *fault = 3;
            return;
        }
    for (long i = get_global_id(0); i < rows * N; i += get_global_size(0)) {
        long column = i % N, row = i / N, group = 0;
        while (group < groups && offs[oo + group] <= row) group++;
        if (group == groups) continue;
        float sum = 0;
        for (long from = 0; from < K; from += PART) {
            float part = 0;
            for (long k = from; k < min(from + PART, K); k++)
                part += a[ao + row * K + k] * b[bo + (group * K + k) * N + column];
            sum += part;
        }
        y[yo + i] = sum;
    }
}
#endif
