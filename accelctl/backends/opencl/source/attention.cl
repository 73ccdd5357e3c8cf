// attention_prefill and attention_decode, H query heads over G key heads: one work-item a query of a head, one pass over the keys with a running
// maximum (the sum is rescaled when it grows), the output kept in its place in memory.

#pragma OPENCL FP_CONTRACT OFF

float dot_(global const float *a, global const float *b, long n) {
    float sum = 0;
    for (long i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

typedef struct { float top, sum; int broken; } running_t;

// One more key: what the output and the sum become. One with score -inf takes no part, whatever its value is.
void take(running_t *now, float score, global const float *value, global float *out, long n) {
    if (score == -INFINITY) return;
    if (isnan(score)) now->broken = 1;
    float top = fmax(now->top, score);
    float kept = now->top == -INFINITY ? 0.0f : exp(now->top - top), power = exp(score - top);
    now->top = top;
    now->sum = now->sum * kept + power;
    for (long i = 0; i < n; i++) out[i] = out[i] * kept + power * value[i];
}

void finish(running_t *now, global float *out, long n, global float *lse, int told) {
    for (long i = 0; i < n; i++)
        out[i] = now->broken ? NAN : now->top == -INFINITY ? 0.0f : out[i] / now->sum;
    if (told) *lse = now->broken ? NAN : now->top == -INFINITY ? -INFINITY : now->top + log(now->sum);
}

float scored(float raw, float scale, float cap) {
    float s = raw * scale;
    return cap != 0 ? cap * tanh(s / cap) : s;
}

// causal: 0 none, 1 upper left, 2 lower right. masked: 0 no, 1 floats are added, 2 bytes say who takes part.
kernel void attention_prefill(global const float *q, long qo, global const float *k, long ko, global const float *v,
                              long vo, global const float *added, global const uchar *chosen, long mo, int masked,
                              global const long *m, global float *o, long oo, global float *lse, long lo, int told,
                              long batch, long H, long G, long L, long S, long E, long F, float scale, float cap,
                              int causal, long window) {
    for (long i = get_global_id(0); i < batch * H * L; i += get_global_size(0)) {
        long row = i % L, head = i / L % H, image = i / L / H, kv = image * G + head / (H / G);
        long last = row + (causal == 1 ? 0 : S - L);
        running_t now = {-INFINITY, 0, 0};
        global float *out = o + oo + i * F;
        for (long d = 0; d < F; d++) out[d] = 0;
        for (long j = 0; j < S; j++) {
            if ((causal || window > 0) && j > last) break;
            if (window > 0 && j <= last - window) continue;
            float s = scored(dot_(q + qo + i * E, k + ko + (kv * S + j) * E, E), scale, cap);
            if (masked) {
                long at = mo + image * m[0] + head * m[1] + row * m[2] + j * m[3];
                if (masked == 2 ? !chosen[at] : added[at] == -INFINITY) continue;
                if (masked == 1) s += added[at];
            }
            take(&now, s, v + vo + (kv * S + j) * F, out, F);
        }
        finish(&now, out, F, lse + lo + i, told);
    }
}

kernel void attention_decode(global const float *q, long qo, global const float *k, long ko, global const float *v,
                             long vo, global const int *table, long to, global const int *lengths, long no,
                             global float *o, long oo, global float *lse, long lo, int told, long rows, long H, long G,
                             long E, long F, long width, long size, long blocks, float scale, float cap, long window,
                             global int *fault) {
    for (long i = get_global_id(0); i < rows * H; i += get_global_size(0)) {
        long head = i % H, row = i / H, length = lengths[no + row];
        running_t now = {-INFINITY, 0, 0};
        global float *out = o + oo + i * F;
        for (long d = 0; d < F; d++) out[d] = 0;
        if (length < 0 || length > width * size) {
            *fault = 1;
            continue;
        }
        for (long t = window > 0 ? max(0L, length - window) : 0; t < length; t++) {
            long block = table[to + row * width + t / size];
            if (block < 0 || block >= blocks) {
                *fault = 2;
                break;
            }
            long slot = (block * size + t % size) * G + head / (H / G);
            take(&now, scored(dot_(q + qo + i * E, k + ko + slot * E, E), scale, cap), v + vo + slot * F, out, F);
        }
        finish(&now, out, F, lse + lo + i, told);
    }
}
