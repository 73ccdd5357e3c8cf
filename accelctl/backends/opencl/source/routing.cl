// topk_softmax: one work-item a token. moe_align: one work-item for all, as its lists depend on each other.

#pragma OPENCL FP_CONTRACT OFF

float score(global const float *r, long i, float top, float sum, int sigmoid, int bad) {
    float g = r[i];
    if (sigmoid) {
        float small = exp(-fabs(g));
        float s = (g < 0 ? small : 1.0f) / (1.0f + small);
        return isnan(s) ? 0.0f : s;
    }
    return bad ? 0.0f : exp(g - top) / sum;
}

kernel void topk_softmax(global const float *gating, long go, global const float *bias, long bo, int biased,
                         global float *weights, long wo, global int *ids, long io, long tokens, long experts, long k,
                         int renormalize, int sigmoid) {
    for (long t = get_global_id(0); t < tokens; t += get_global_size(0)) {
        global const float *r = gating + go + t * experts;
        float top = -INFINITY, sum = 0, total = 0;
        int bad = 0;
        for (long e = 0; e < experts; e++) {
            bad |= isnan(r[e]);
            top = fmax(top, r[e]);
        }
        bad |= isinf(top);
        if (!bad)
            for (long e = 0; e < experts; e++) sum += exp(r[e] - top);
        float before = INFINITY;
        long last = -1;
        for (long n = 0; n < k; n++) {
            long best = -1;
            float most = 0;
            for (long e = 0; e < experts; e++) {
                float s = score(r, e, top, sum, sigmoid, bad);
                if (biased) s += bias[bo + e];
                if (isnan(s)) s = 0;
                if (s > before || (s == before && e <= last)) continue;  // chosen already
                if (best < 0 || s > most) {
                    best = e;
                    most = s;
                }
            }
            before = most;
            last = best;
            float w = score(r, best, top, sum, sigmoid, bad);
            weights[wo + t * k + n] = w;
            ids[io + t * k + n] = best;
            total += w;
        }
        if (renormalize && total != 0)
            for (long n = 0; n < k; n++) weights[wo + t * k + n] /= total;
    }
}

kernel void moe_align(global const int *chosen, long co, global const int *map, long mo, int mapped,
                      global int *order, long oo, global int *owners, long wo, global int *used, long uo, long slots,
                      long experts, long block, long length, long blocks) {
    if (get_global_id(0) != 0) return;
    for (long i = 0; i < length; i++) order[oo + i] = slots;
    for (long i = 0; i < blocks; i++) owners[wo + i] = 0;
    long at = 0;
    for (long e = 0; e < experts; e++) {
        long start = at;
        for (long s = 0; s < slots; s++)
            if (chosen[co + s] == e) order[oo + at++] = s;
        long full = start + (at - start + block - 1) / block * block;
        for (long b = start / block; b < full / block; b++) owners[wo + b] = mapped ? map[mo + e] : e;
        at = full;
    }
    used[uo] = at;
}
