int64_t streamed_workspace_size(void);
int64_t streamed_packed_size(void);
void streamed_pack_weights(const float *w, float *packed);
int streamed(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* streamed: p* k:32 stream(C) > brgemm_avx512_f32_8x32 */
int streamed(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    args.aligned = (uintptr_t)y % 64 == 0;
    (void)workspace;
#ifdef _OPENMP
#pragma omp parallel for num_threads(2) schedule(static)
#endif
    for (int64_t thread = 0; thread < 2; ++thread) {
        const uint64_t mode = ps_flush_denormals();
        ps_args local = args;
        const ps_args *g = &local;
        for (int64_t task = (8 * thread) / 2; task < (8 * thread + 8) / 2; ++task) {
            const int64_t p0 = task % 8;
            for (int64_t k0 = 0; k0 < 33; k0 += 32) {
                streamed_t0(g, 192 * p0, 24 * k0, 512 * p0 + k0, k0);
            }
        }
        ps_fence();
        ps_restore_mode(mode);
    }
    return 0;
}

void streamed_pack_weights(const float *restrict w, float *restrict packed)
{
    if (!PS_CPU_OK()) {
        return;
    }
    for (int64_t k0 = 0; k0 < 64; k0 += 32) {
        const int64_t width = ps_least(16 * ((-k0 + 79) / 16), 32);
        for (int64_t c0 = 0; c0 < 24; c0 += 24) {
            const int64_t deep = ps_least(-c0 + 24, 24);
            for (int64_t r0 = 0; r0 < 1; ++r0) {
                for (int64_t s0 = 0; s0 < 1; ++s0) {
                    ps_panel_turned(packed, w + r0 + s0 + 24 * k0 + c0, 24, deep, width, -k0 + 64);
                    packed += deep * width;
                }
            }
        }
    }
}

int64_t streamed_packed_size(void)
{
    return 6144;
}

int64_t streamed_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void streamed_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 8, .vecs = 2, .wrap = 8, .lanes = 16, .a_outer = 0, .a_inner = 24, .c_outer = 0, .c_inner = 64, .c_col = 1, .diagonal = 0, .stream = 1};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[16];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0xffu, A, B, 24, 1);
    ps_end(acc, t, g->y + c, &e);
}
