// layernorm, rmsnorm, softmax: one work-item a row. Sums are compensated (Kahan): a row may have 100,000 numbers.

#pragma OPENCL FP_CONTRACT OFF
#define ADD(sum, lost, value) { float v_ = (value) - lost; float t_ = sum + v_; lost = isfinite(t_) ? (t_ - sum) - v_ : 0; sum = t_; }

kernel void layernorm(global const float *x, long xo, global const float *scale, long so, int scaled,
                      global const float *bias, long bo, int biased, global float *y, long yo, long rows, long n,
                      float epsilon) {
    for (long row = get_global_id(0); row < rows; row += get_global_size(0)) {
        global const float *r = x + xo + row * n;
        global float *out = y + yo + row * n;
        float sum = 0, lost = 0, apart = 0, square = 0;
        for (long i = 0; i < n; i++) ADD(sum, lost, r[i]);
        float mean = sum / n;
        lost = 0;
        for (long i = 0; i < n; i++) ADD(apart, lost, r[i] - mean);
        float more = apart / n;  // what rounding the mean left out: all there is of a row that is nearly constant
        lost = 0;
        for (long i = 0; i < n; i++) ADD(square, lost, (r[i] - mean - more) * (r[i] - mean - more));
        float root = sqrt(square / n + epsilon);
        for (long i = 0; i < n; i++) {
            float v = (r[i] - mean - more) / root;
            if (scaled) v *= scale[so + i];
            out[i] = biased ? v + bias[bo + i] : v;
        }
    }
}

kernel void rmsnorm(global const float *x, long xo, global const float *scale, long so, int scaled,
                    global const float *residual, long ro, int fused, global float *y, long yo,
                    global float *sums, long uo, int told, long rows, long n, float epsilon, float more) {
    for (long row = get_global_id(0); row < rows; row += get_global_size(0)) {
        long at = row * n;
        float square = 0, lost = 0;
        for (long i = at; i < at + n; i++) {
            float v = fused ? x[xo + i] + residual[ro + i] : x[xo + i];
            ADD(square, lost, v * v);
        }
        float root = sqrt(square / n + epsilon);
        for (long i = at; i < at + n; i++) {
            float v = fused ? x[xo + i] + residual[ro + i] : x[xo + i];
            if (told) sums[uo + i] = v;
            y[yo + i] = scaled ? v / root * (more + scale[so + i - at]) : v / root;
        }
    }
}

// A row along any axis: its numbers are `inner` apart.
kernel void softmax(global const float *x, long xo, global float *y, long yo, long rows, long n, long inner) {
    for (long row = get_global_id(0); row < rows; row += get_global_size(0)) {
        long at = row / inner * n * inner + row % inner;
        global const float *r = x + xo + at;
        global float *out = y + yo + at;
        float top = -INFINITY;
        int bad = 0;
        for (long i = 0; i < n; i++) {
            bad |= isnan(r[i * inner]);
            top = fmax(top, r[i * inner]);
        }
        if (bad || isinf(top)) {
            for (long i = 0; i < n; i++) out[i * inner] = NAN;
            continue;
        }
        float sum = 0, lost = 0;
        for (long i = 0; i < n; i++) ADD(sum, lost, exp(r[i * inner] - top));
        for (long i = 0; i < n; i++) out[i * inner] = exp(r[i * inner] - top) / sum;
    }
}
