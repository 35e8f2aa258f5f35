int64_t grouped_workspace_size(void);
int64_t grouped_packed_size(void);
void grouped_pack_weights(const float *w, float *packed);
int grouped(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* grouped: p g:4 q:3 > grouped4_avx512_f32_3x16 */
int grouped(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t p0 = 0; p0 < 6; ++p0) {
        grouped_t0(g, 144 * p0 - 168, 0, 144 * p0, 0, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 7)));
        grouped_t1(g, 144 * p0 - 96, 0, 144 * p0 + 72, 0, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 7)));
        grouped_t2(g, 144 * p0 - 152, 576, 144 * p0 + 16, 16, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 7)));
        grouped_t3(g, 144 * p0 - 80, 576, 144 * p0 + 88, 16, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 7)));
    }
    ps_restore_mode(mode);
    return 0;
}

void grouped_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t g0 = 0; g0 < 24; g0 += 16) {
        const int64_t width = ps_least(16 * ((-g0 + 39) / 16), 16);
        for (int64_t r0 = 0; r0 < 3; ++r0) {
            for (int64_t s0 = 0; s0 < 3; ++s0) {
                for (int64_t d = 0; d < 4; ++d) {
                    for (int64_t j = 0; j < width; ++j) {
                        *packed++ = g0 + j < 24 ? w[3 * r0 + s0 + 36 * ((g0 + j) ^ d) + 9 * ((g0 + j) % 4)] : 0;
                    }
                }
            }
        }
    }
}

int64_t grouped_packed_size(void)
{
    return 4608;
}

int64_t grouped_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void grouped_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 3, .vecs = 1, .wrap = 3, .lanes = 16, .a_outer = 0, .a_inner = 24, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 1, .shifts = 4};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[12];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run_grouped(acc, t, 0x6u, A + 144 * r0, B + 192 * r0, 1, 24);
        ps_run_grouped(acc, t, 0x7u, A + 144 * r0 + 24, B + 192 * r0 + 64, 2, 24);
    }
    ps_unshift(acc, t);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void grouped_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 3, .vecs = 1, .wrap = 3, .lanes = 16, .a_outer = 0, .a_inner = 24, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 1, .shifts = 4};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[12];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run_grouped(acc, t, 0x7u, A + 144 * r0, B + 192 * r0, 2, 24);
        ps_run_grouped(acc, t, 0x3u, A + 144 * r0 + 48, B + 192 * r0 + 128, 1, 24);
    }
    ps_unshift(acc, t);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void grouped_t2(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 3, .vecs = 1, .wrap = 3, .lanes = 8, .a_outer = 0, .a_inner = 24, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 1, .shifts = 4};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[12];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run_grouped(acc, t, 0x6u, A + 144 * r0, B + 192 * r0, 1, 24);
        ps_run_grouped(acc, t, 0x7u, A + 144 * r0 + 24, B + 192 * r0 + 64, 2, 24);
    }
    ps_unshift(acc, t);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void grouped_t3(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 3, .vecs = 1, .wrap = 3, .lanes = 8, .a_outer = 0, .a_inner = 24, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 1, .shifts = 4};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[12];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run_grouped(acc, t, 0x7u, A + 144 * r0, B + 192 * r0, 2, 24);
        ps_run_grouped(acc, t, 0x3u, A + 144 * r0 + 48, B + 192 * r0 + 128, 1, 24);
    }
    ps_unshift(acc, t);
    ps_end(acc, t, g->y + c, &e);
}
