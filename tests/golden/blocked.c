int64_t blocked_workspace_size(void);
int64_t blocked_packed_size(void);
void blocked_pack_weights(const float *w, float *packed);
int blocked(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* blocked: n c:20 k:8 p:2 > brgemm_avx2_f32_14x8 */
int blocked(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t n0 = 0; n0 < 2; ++n0) {
        for (int64_t c0 = 0; c0 < 21; c0 += 20) {
            for (int64_t k0 = 0; k0 < 17; k0 += 8) {
                blocked_t0(g, 2352 * n0 + 49 * c0 - 8, 72 * c0 + 432 * k0, 1176 * n0 + 49 * k0, k0, c0 == 0, c0 + 20 == 48);
                for (int64_t p0 = 2; p0 < 5; p0 += 2) {
                    blocked_t2(g, 2352 * n0 + 49 * c0 + 7 * p0 - 8, 72 * c0 + 432 * k0, 1176 * n0 + 49 * k0 + 7 * p0, k0, c0 == 0, c0 + 20 == 48);
                }
                blocked_t4(g, 2352 * n0 + 49 * c0 + 34, 72 * c0 + 432 * k0, 1176 * n0 + 49 * k0 + 42, k0, c0 == 0, c0 + 20 == 48);
            }
        }
        for (int64_t k0 = 0; k0 < 17; k0 += 8) {
            blocked_t1(g, 2352 * n0 + 1952, 432 * k0 + 2880, 1176 * n0 + 49 * k0, k0, 0, 1);
            for (int64_t p0 = 2; p0 < 5; p0 += 2) {
                blocked_t3(g, 2352 * n0 + 7 * p0 + 1952, 432 * k0 + 2880, 1176 * n0 + 49 * k0 + 7 * p0, k0, 0, 1);
            }
            blocked_t5(g, 2352 * n0 + 1994, 432 * k0 + 2880, 1176 * n0 + 49 * k0 + 42, k0, 0, 1);
        }
    }
    ps_restore_mode(mode);
    return 0;
}

void blocked_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t k0 = 0; k0 < 24; k0 += 8) {
        const int64_t width = ps_least(8 * ((-k0 + 31) / 8), 8);
        for (int64_t c0 = 0; c0 < 48; c0 += 20) {
            const int64_t deep = ps_least(-c0 + 48, 20);
            for (int64_t r0 = 0; r0 < 3; ++r0) {
                for (int64_t s0 = 0; s0 < 3; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = k0 + j < 24 ? w[3 * r0 + s0 + 432 * k0 + 432 * j + 9 * c0 + 9 * i] : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t blocked_packed_size(void)
{
    return 41472;
}

int64_t blocked_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void blocked_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int first, int last)
{
    static const ps_tile t = {.rows = 14, .vecs = 1, .wrap = 7, .lanes = 8, .a_outer = 7, .a_inner = 1, .c_outer = 7, .c_inner = 1, .c_col = 49, .diagonal = 0, .soon = 8};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[14];
    ps_begin(acc, t, g->y + c, !first);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0x3f00u, A, B, 20, 49);
    ps_run(acc, t, 0x3f80u, A + 1, B + 160, 20, 49);
    ps_run(acc, t, 0x1f80u, A + 2, B + 320, 20, 49);
    ps_run(acc, t, 0x3f7eu, A + 7, B + 480, 20, 49);
    ps_run(acc, t, 0x3fffu, A + 8, B + 640, 20, 49);
    ps_run(acc, t, 0x1fbfu, A + 9, B + 800, 20, 49);
    ps_run(acc, t, 0x3f7eu, A + 14, B + 960, 20, 49);
    ps_run(acc, t, 0x3fffu, A + 15, B + 1120, 20, 49);
    ps_run(acc, t, 0x1fbfu, A + 16, B + 1280, 20, 49);
    ps_end(acc, t, g->y + c, last ? &e : 0);
}

static PS_KERNEL void blocked_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int first, int last)
{
    static const ps_tile t = {.rows = 14, .vecs = 1, .wrap = 7, .lanes = 8, .a_outer = 7, .a_inner = 1, .c_outer = 7, .c_inner = 1, .c_col = 49, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[14];
    ps_begin(acc, t, g->y + c, !first);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0x3f00u, A, B, 8, 49);
    ps_run(acc, t, 0x3f80u, A + 1, B + 64, 8, 49);
    ps_run(acc, t, 0x1f80u, A + 2, B + 128, 8, 49);
    ps_run(acc, t, 0x3f7eu, A + 7, B + 192, 8, 49);
    ps_run(acc, t, 0x3fffu, A + 8, B + 256, 8, 49);
    ps_run(acc, t, 0x1fbfu, A + 9, B + 320, 8, 49);
    ps_run(acc, t, 0x3f7eu, A + 14, B + 384, 8, 49);
    ps_run(acc, t, 0x3fffu, A + 15, B + 448, 8, 49);
    ps_run(acc, t, 0x1fbfu, A + 16, B + 512, 8, 49);
    ps_end(acc, t, g->y + c, last ? &e : 0);
}

static PS_KERNEL void blocked_t2(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int first, int last)
{
    static const ps_tile t = {.rows = 14, .vecs = 1, .wrap = 7, .lanes = 8, .a_outer = 7, .a_inner = 1, .c_outer = 7, .c_inner = 1, .c_col = 49, .diagonal = 0, .soon = 8};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[14];
    ps_begin(acc, t, g->y + c, !first);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 3; ++r0) {
        ps_run(acc, t, 0x3f7eu, A + 7 * r0, B + 480 * r0, 20, 49);
        ps_run(acc, t, 0x3fffu, A + 7 * r0 + 1, B + 480 * r0 + 160, 20, 49);
        ps_run(acc, t, 0x1fbfu, A + 7 * r0 + 2, B + 480 * r0 + 320, 20, 49);
    }
    ps_end(acc, t, g->y + c, last ? &e : 0);
}

static PS_KERNEL void blocked_t3(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int first, int last)
{
    static const ps_tile t = {.rows = 14, .vecs = 1, .wrap = 7, .lanes = 8, .a_outer = 7, .a_inner = 1, .c_outer = 7, .c_inner = 1, .c_col = 49, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[14];
    ps_begin(acc, t, g->y + c, !first);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 3; ++r0) {
        ps_run(acc, t, 0x3f7eu, A + 7 * r0, B + 192 * r0, 8, 49);
        ps_run(acc, t, 0x3fffu, A + 7 * r0 + 1, B + 192 * r0 + 64, 8, 49);
        ps_run(acc, t, 0x1fbfu, A + 7 * r0 + 2, B + 192 * r0 + 128, 8, 49);
    }
    ps_end(acc, t, g->y + c, last ? &e : 0);
}

static PS_KERNEL void blocked_t4(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int first, int last)
{
    static const ps_tile t = {.rows = 7, .vecs = 1, .wrap = 7, .lanes = 8, .a_outer = 7, .a_inner = 1, .c_outer = 7, .c_inner = 1, .c_col = 49, .diagonal = 0, .soon = 8};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[7];
    ps_begin(acc, t, g->y + c, !first);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0x7eu, A, B, 20, 49);
    ps_run(acc, t, 0x7fu, A + 1, B + 160, 20, 49);
    ps_run(acc, t, 0x3fu, A + 2, B + 320, 20, 49);
    ps_run(acc, t, 0x7eu, A + 7, B + 480, 20, 49);
    ps_run(acc, t, 0x7fu, A + 8, B + 640, 20, 49);
    ps_run(acc, t, 0x3fu, A + 9, B + 800, 20, 49);
    ps_end(acc, t, g->y + c, last ? &e : 0);
}

static PS_KERNEL void blocked_t5(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int first, int last)
{
    static const ps_tile t = {.rows = 7, .vecs = 1, .wrap = 7, .lanes = 8, .a_outer = 7, .a_inner = 1, .c_outer = 7, .c_inner = 1, .c_col = 49, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[7];
    ps_begin(acc, t, g->y + c, !first);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0x7eu, A, B, 8, 49);
    ps_run(acc, t, 0x7fu, A + 1, B + 64, 8, 49);
    ps_run(acc, t, 0x3fu, A + 2, B + 128, 8, 49);
    ps_run(acc, t, 0x7eu, A + 7, B + 192, 8, 49);
    ps_run(acc, t, 0x7fu, A + 8, B + 256, 8, 49);
    ps_run(acc, t, 0x3fu, A + 9, B + 320, 8, 49);
    ps_end(acc, t, g->y + c, last ? &e : 0);
}
