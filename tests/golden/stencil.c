int64_t stencil_workspace_size(void);
int64_t stencil_packed_size(void);
void stencil_pack_weights(const float *w, float *packed);
int stencil(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* stencil: n* g p:5 > stencil_avx512_f32_5x16 */
int stencil(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
#ifdef _OPENMP
#pragma omp parallel for num_threads(2) schedule(static)
#endif
    for (int64_t thread = 0; thread < 2; ++thread) {
        const uint64_t mode = ps_flush_denormals();
        ps_args local = args;
        const ps_args *g = &local;
        for (int64_t task = (2 * thread) / 2; task < (2 * thread + 2) / 2; ++task) {
            const int64_t n0 = task % 2;
            for (int64_t g0 = 0; g0 < 3; ++g0) {
                stencil_t0(g, 363 * n0 + 121 * g0 - 12, 9 * g0, 363 * n0 + 121 * g0, g0);
                stencil_t1(g, 363 * n0 + 121 * g0 + 43, 9 * g0, 363 * n0 + 121 * g0 + 55, g0);
                stencil_t2(g, 363 * n0 + 121 * g0 + 98, 9 * g0, 363 * n0 + 121 * g0 + 110, g0);
            }
        }
        ps_restore_mode(mode);
    }
    return 0;
}

void stencil_pack_weights(const float *restrict w, float *restrict packed)
{
    if (!PS_CPU_OK()) {
        return;
    }
    for (int64_t k0 = 0; k0 < 1; ++k0) {
        for (int64_t g0 = 0; g0 < 3; ++g0) {
            const int64_t width = ps_least(-g0 + 3, 1);
            for (int64_t c0 = 0; c0 < 1; ++c0) {
                const int64_t deep = ps_least(-c0 + 1, 1);
                for (int64_t r0 = 0; r0 < 3; ++r0) {
                    for (int64_t s0 = 0; s0 < 3; ++s0) {
                        for (int64_t i = 0; i < deep; ++i) {
                            for (int64_t j = 0; j < width; ++j) {
                                *packed++ = g0 + j < 3 ? w[9 * k0 + 3 * r0 + s0 + 9 * g0 + 9 * j + 9 * c0 + 9 * i] : 0;
                            }
                        }
                    }
                }
            }
        }
    }
}

int64_t stencil_packed_size(void)
{
    return 108;
}

int64_t stencil_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void stencil_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 5, .vecs = 1, .wrap = 5, .lanes = 11, .a_outer = 0, .a_inner = 11, .c_outer = 0, .c_inner = 11, .c_col = 1, .diagonal = 1};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[5];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    static const ps_window f = {.taps = 3, .apart = 1, .step = 1, .every = 1, .across = 1, .top = 1, .bottom = 7, .row = 11, .b_row = 3};
    ps_run_window(acc, t, f, A, B, 3, 1, 12);
    ps_end_channel(acc, t, g->y + c, &e);
}

static PS_KERNEL void stencil_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 5, .vecs = 1, .wrap = 5, .lanes = 11, .a_outer = 0, .a_inner = 11, .c_outer = 0, .c_inner = 11, .c_col = 1, .diagonal = 1};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[5];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    static const ps_window f = {.taps = 3, .apart = 1, .step = 1, .every = 1, .across = 1, .top = 0, .bottom = 7, .row = 11, .b_row = 3};
    ps_run_window(acc, t, f, A, B, 3, 1, 12);
    ps_end_channel(acc, t, g->y + c, &e);
}

static PS_KERNEL void stencil_t2(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 1, .vecs = 1, .wrap = 1, .lanes = 11, .a_outer = 0, .a_inner = 11, .c_outer = 0, .c_inner = 11, .c_col = 1, .diagonal = 1};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[1];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    static const ps_window f = {.taps = 3, .apart = 1, .step = 1, .every = 1, .across = 1, .top = 0, .bottom = 2, .row = 11, .b_row = 3};
    ps_run_window(acc, t, f, A, B, 3, 1, 12);
    ps_end_channel(acc, t, g->y + c, &e);
}
