// matvec: a product with one column, in fp32. One work-item a row: B lies in one piece then, so both sides are read 32
// numbers at a time, into sums that do not wait for each other and are added in one order. Sums are made of sums of 64
// products at most, as in contraction.cl.

#define WIDE 32L
#define PART 2048L
#define TIMES(at) (vload8(0, left + k + at) * vload8(0, right + k + at))

kernel void matvec(global const float *a, long ao, global const float *b, long bo, global float *y, long yo, long M,
                   long K) {
    global const float *right = b + bo;
    long whole = K / WIDE * WIDE;
    for (long row = get_global_id(0); row < M; row += get_global_size(0)) {
        global const float *left = a + ao + row * K;
        float8 sum = 0;
        for (long from = 0; from < whole; from += PART) {
            float8 one = 0, two = 0, three = 0, four = 0;
            for (long k = from; k < min(from + PART, whole); k += WIDE) {
                one += TIMES(0);
                two += TIMES(8);
                three += TIMES(16);
                four += TIMES(24);
            }
            sum += (one + two) + (three + four);
        }
        float rest = 0;
        for (long k = whole; k < K; k++) rest += left[k] * right[k];
        float4 quarter = sum.lo + sum.hi;
        y[yo + row] = (quarter.x + quarter.y) + (quarter.z + quarter.w) + rest;
    }
}
