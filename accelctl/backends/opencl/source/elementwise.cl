// copy, relu, add, silu_and_mul. One work-item an element, striding over what exceeds the grid.
//
// Element types are set when the program is built: IN and OUT are 1 fp32, 2 fp16, 3 bf16, 4 int8, 5 int32, 6 uint8.
// fp16 is only loaded and stored (vload_half, vstore_half: core OpenCL), never computed with.

#define FLOATING(T) ((T) <= 3)

#if IN == 1
typedef float in_t;
#elif IN == 2
typedef half in_t;
#elif IN == 3
typedef ushort in_t;
#elif IN == 4
typedef char in_t;
#elif IN == 5
typedef int in_t;
#else
typedef uchar in_t;
#endif

#if OUT == 1
typedef float out_t;
#elif OUT == 2
typedef half out_t;
#elif OUT == 3
typedef ushort out_t;
#elif OUT == 4
typedef char out_t;
#elif OUT == 5
typedef int out_t;
#else
typedef uchar out_t;
#endif

// A whole number as a float that rounds further as the number itself would: to odd where it is not exact.
float odd(int v) {
    float f = convert_float_rtz(v);
    return convert_long_rtz(f) == (long)v ? f : as_float(as_uint(f) | 1);
}

#if FLOATING(IN)
typedef float value_t;
float load(global const in_t *p, long i) {
#if IN == 1
    return p[i];
#elif IN == 2
    return vload_half(i, p);
#else
    return as_float((uint)p[i] << 16);
#endif
}
#else
typedef int value_t;
int load(global const in_t *p, long i) { return p[i]; }
#endif

#if FLOATING(OUT)
void store(global out_t *p, long i, value_t v) {
#if !FLOATING(IN) && OUT == 1
    float f = convert_float_rte(v);
#elif !FLOATING(IN)
    float f = odd(v);
#else
    float f = v;
#endif
#if OUT == 1
    p[i] = f;
#elif OUT == 2
    vstore_half_rte(f, i, p);
#else
    uint u = as_uint(f);
    p[i] = isnan(f) ? (ushort)(u >> 16 | 0x40) : (ushort)((u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
}
#else
void store(global out_t *p, long i, value_t v) {
#if FLOATING(IN)
    v = isnan(v) ? 0.0f : v;
#define TO(T) convert_##T##_sat_rtz(v)
#else
#define TO(T) convert_##T##_sat(v)
#endif
#if OUT == 4
    p[i] = TO(char);
#elif OUT == 5
    p[i] = TO(int);
#else
    p[i] = TO(uchar);
#endif
}
#endif

// m: rank, lengths of Y, strides of X, strides of Y.
kernel void copy(global const in_t *x, long xo, global out_t *y, long yo, global const long *m, long n) {
    int rank = m[0];
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        long left = i, from = xo, to = yo;
        for (int axis = rank; axis >= 1; axis--) {
            long at = left % m[axis];
            left /= m[axis];
            from += at * m[rank + axis];
            to += at * m[2 * rank + axis];
        }
        store(y, to, load(x, from));
    }
}

#if IN == OUT && (IN == 1 || !FLOATING(IN))
kernel void relu(global const in_t *x, long xo, global out_t *y, long yo, long n) {
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        in_t v = x[xo + i];
        y[yo + i] = v < 0 ? (in_t)0 : v;  // NaN is not below 0
    }
}

// m: rank, lengths of C, strides of A, strides of B. Whole numbers wrap.
#if FLOATING(IN)
#define SUM(a, b) ((a) + alpha * (b))
#else
#define SUM(a, b) ((in_t)((uint)(a) + (uint)factor * (uint)(b)))
#endif
kernel void add(global const in_t *a, long ao, global const in_t *b, long bo, global out_t *c, long co,
                global const long *m, long n, float alpha, int factor) {
    int rank = m[0];
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        long left = i, one = ao, other = bo;
        for (int axis = rank; axis >= 1; axis--) {
            long at = left % m[axis];
            left /= m[axis];
            one += at * m[rank + axis];
            other += at * m[2 * rank + axis];
        }
        c[co + i] = SUM(a[one], b[other]);
    }
}
#endif

#if IN == 1 && OUT == 1
kernel void silu_and_mul(global const float *x, long xo, global float *y, long yo, long n, long half_row) {
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        long at = xo + i / half_row * 2 * half_row + i % half_row;
        float gate = x[at], up = x[at + half_row];
        float small = exp(-fabs(gate));
        y[yo + i] = gate * ((gate < 0 ? small : 1.0f) / (1.0f + small)) * up;
    }
}

// One work-item a pair; dims behind `turned` are copied by the pairs' first ones.
kernel void rope(global const float *x, long xo, global const int *positions, long po, global float *y, long yo,
                 long rows, long heads, long dim, long turned, float base, int interleaved) {
    long pairs = turned / 2, n = rows * heads * max(pairs, 1L);
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        long pair = pairs ? i % pairs : 0, head = pairs ? i / pairs : i;
        long at = head * dim;
        if (pairs) {
            long first = interleaved ? 2 * pair : pair, second = interleaved ? 2 * pair + 1 : pair + pairs;
            float angle = positions[po + head / heads] * pow(base, -2.0f * pair / turned);
            float s = sin(angle), c = cos(angle);
            float one = x[xo + at + first], other = x[xo + at + second];
            y[yo + at + first] = one * c - other * s;
            y[yo + at + second] = other * c + one * s;
        }
        if (pair == 0)
            for (long d = turned; d < dim; d++) y[yo + at + d] = x[xo + at + d];
    }
}
#endif
