// copy, relu, add, silu_and_mul, rope. One work-item an element (rope: a pair), striding over what exceeds the grid.
//
// Element types are arguments, 1 fp32, 2 fp16, 3 bf16, 4 int8, 5 int32, 6 uint8: one program for all pairs of them is
// built once, before anybody waits for it. fp16 is only loaded and stored (vload_half, vstore_half: core OpenCL), never
// computed with.

#define FLOATING(T) ((T) <= 3)

// A whole number as a float that rounds further as the number itself would: to odd where it is not exact.
float odd(int v) {
    float f = convert_float_rtz(v);
    return convert_long_rtz(f) == (long)v ? f : as_float(as_uint(f) | 1);
}

float real(global const void *p, long i, int type) {
    switch (type) {
    case 1: return ((global const float *)p)[i];
    case 2: return vload_half(i, (global const half *)p);
    default: return as_float((uint)((global const ushort *)p)[i] << 16);
    }
}

int whole(global const void *p, long i, int type) {
    switch (type) {
    case 4: return ((global const char *)p)[i];
    case 5: return ((global const int *)p)[i];
    default: return ((global const uchar *)p)[i];
    }
}

ushort bf16(float f) {
    uint u = as_uint(f);
    return isnan(f) ? (ushort)(u >> 16 | 0x40) : (ushort)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void put_real(global void *p, long i, int type, float f) {
    float number = isnan(f) ? 0.0f : f;  // for whole numbers
    switch (type) {
    case 1: ((global float *)p)[i] = f; break;
    case 2: vstore_half_rte(f, i, (global half *)p); break;
    case 3: ((global ushort *)p)[i] = bf16(f); break;
    case 4: ((global char *)p)[i] = convert_char_sat_rtz(number); break;
    case 5: ((global int *)p)[i] = convert_int_sat_rtz(number); break;
    default: ((global uchar *)p)[i] = convert_uchar_sat_rtz(number);
    }
}

void put_whole(global void *p, long i, int type, int v) {
    switch (type) {
    case 1: ((global float *)p)[i] = convert_float_rte(v); break;
    case 2: case 3: put_real(p, i, type, odd(v)); break;
    case 4: ((global char *)p)[i] = convert_char_sat(v); break;
    case 5: ((global int *)p)[i] = v; break;
    default: ((global uchar *)p)[i] = convert_uchar_sat(v);
    }
}

// m: rank, lengths of Y, strides of X, strides of Y.
kernel void copy(global const void *x, long xo, global void *y, long yo, int in, int out, global const long *m, long n) {
    int rank = m[0];
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        long left = i, from = xo, to = yo;
        for (int axis = rank; axis >= 1; axis--) {
            long at = left % m[axis];
            left /= m[axis];
            from += at * m[rank + axis];
            to += at * m[2 * rank + axis];
        }
        if (FLOATING(in)) put_real(y, to, out, real(x, from, in));
        else put_whole(y, to, out, whole(x, from, in));
    }
}

// fp32 or a whole number.
kernel void relu(global const void *x, long xo, global void *y, long yo, int type, long n) {
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        if (type == 1) {
            float v = real(x, xo + i, 1);
            put_real(y, yo + i, 1, v < 0 ? 0.0f : v);  // NaN is not below 0
        } else {
            put_whole(y, yo + i, type, max(whole(x, xo + i, type), 0));
        }
    }
}

// m: rank, lengths of C, strides of A, strides of B. fp32 or whole numbers, which wrap.
kernel void add(global const void *a, long ao, global const void *b, long bo, global void *c, long co, int type,
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
        if (type == 1) {
            put_real(c, co + i, 1, real(a, one, 1) + alpha * real(b, other, 1));
        } else {
            uint sum = (uint)whole(a, one, type) + (uint)factor * (uint)whole(b, other, type);
            put_whole(c, co + i, type, type == 4 ? (char)sum : type == 5 ? (int)sum : (uchar)sum);
        }
    }
}

kernel void silu_and_mul(global const float *x, long xo, global float *y, long yo, long n, long half_row) {
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        long at = xo + i / half_row * 2 * half_row + i % half_row;
        float gate = x[at], up = x[at + half_row];
        float small = exp(-fabs(gate));
        y[yo + i] = gate * ((gate < 0 ? small : 1.0f) / (1.0f + small)) * up;
    }
}

// One work-item a pair; dims behind `turned` are copied by the pairs' first ones. rates: the angle of a pair at
// position 1, a whole turn being 2^64, so that products wrap where angles do.
kernel void rope(global const float *x, long xo, global const int *positions, long po, global float *y, long yo,
                 long rows, long heads, long dim, long turned, global const ulong *rates, int interleaved) {
    long pairs = turned / 2, n = rows * heads * max(pairs, 1L);
    for (long i = get_global_id(0); i < n; i += get_global_size(0)) {
        long pair = pairs ? i % pairs : 0, head = pairs ? i / pairs : i;
        long at = head * dim;
        if (pairs) {
            long first = interleaved ? 2 * pair : pair, second = interleaved ? 2 * pair + 1 : pair + pairs;
            long turn = (long)((ulong)(long)positions[po + head / heads] * rates[pair]);
            float half_turns = (float)turn * 0x1p-63f;
            float s = sinpi(half_turns), c = cospi(half_turns);
            float one = x[xo + at + first], other = x[xo + at + second];
            y[yo + at + first] = one * c - other * s;
            y[yo + at + second] = other * c + one * s;
        }
        if (pair == 0)
            for (long d = turned; d < dim; d++) y[yo + at + d] = x[xo + at + d];
    }
}
