int64_t stencil2_workspace_size(void);
int64_t stencil2_packed_size(void);
void stencil2_pack_weights(const float *w, float *packed);
int stencil2(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* stencil2: g k p:4 > stencil2_avx2_f32_4x8 */
int stencil2(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t g0 = 0; g0 < 3; ++g0) {
        for (int64_t k0 = 0; k0 < 2; ++k0) {
            stencil2_t0(g, 169 * g0 - 28, 50 * g0 + 25 * k0, 98 * g0 + 49 * k0, 2 * g0 + k0);
            stencil2_t1(g, 169 * g0 + 76, 50 * g0 + 25 * k0, 98 * g0 + 49 * k0 + 28, 2 * g0 + k0);
        }
    }
    ps_restore_mode(mode);
    return 0;
}

void stencil2_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t g0 = 0; g0 < 3; ++g0) {
        for (int64_t k0 = 0; k0 < 2; ++k0) {
            const int64_t width = ps_least(-k0 + 2, 1);
            for (int64_t c0 = 0; c0 < 1; ++c0) {
                const int64_t deep = ps_least(-c0 + 1, 1);
                for (int64_t r0 = 0; r0 < 5; ++r0) {
                    for (int64_t s0 = 0; s0 < 5; ++s0) {
                        for (int64_t i = 0; i < deep; ++i) {
                            for (int64_t j = 0; j < width; ++j) {
                                *packed++ = k0 + j < 2 ? w[50 * g0 + 5 * r0 + s0 + 25 * k0 + 25 * j + 25 * c0 + 25 * i] : 0;
                            }
                        }
                    }
                }
            }
        }
    }
}

int64_t stencil2_packed_size(void)
{
    return 600;
}

int64_t stencil2_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void stencil2_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 4, .vecs = 1, .wrap = 4, .lanes = 7, .a_outer = 0, .a_inner = 26, .c_outer = 0, .c_inner = 7, .c_col = 1, .diagonal = 1};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[4];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    static const ps_window f = {.taps = 5, .apart = 1, .step = 2, .every = 2, .across = 1, .top = 2, .bottom = 11, .row = 13, .b_row = 5};
    ps_run_window(acc, t, f, A, B, 2, 2, 14);
    ps_run_window(acc, t, f, A + 2, B + 2, 2, 0, 13);
    ps_run_window(acc, t, f, A + 4, B + 4, 1, 0, 11);
    ps_end_channel(acc, t, g->y + c, &e);
}

static PS_KERNEL void stencil2_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 3, .vecs = 1, .wrap = 3, .lanes = 7, .a_outer = 0, .a_inner = 26, .c_outer = 0, .c_inner = 7, .c_col = 1, .diagonal = 1};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[3];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    static const ps_window f = {.taps = 5, .apart = 1, .step = 2, .every = 2, .across = 1, .top = 0, .bottom = 7, .row = 13, .b_row = 5};
    ps_run_window(acc, t, f, A, B, 2, 2, 14);
    ps_run_window(acc, t, f, A + 2, B + 2, 2, 0, 13);
    ps_run_window(acc, t, f, A + 4, B + 4, 1, 0, 11);
    ps_end_channel(acc, t, g->y + c, &e);
}
