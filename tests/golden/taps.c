int64_t taps_workspace_size(void);
int64_t taps_packed_size(void);
void taps_pack_weights(const float *w, float *packed);
int taps(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* taps: swap(A,B) n* q:32 pack(A) k:4 q:16 > brgemm_avx512_f32_4x16 */
int taps(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
#ifdef _OPENMP
#pragma omp parallel for num_threads(2) schedule(static)
#endif
    for (int64_t thread = 0; thread < 2; ++thread) {
        const uint64_t mode = ps_flush_denormals();
        ps_args local = args;
        const ps_args *g = &local;
        for (int64_t task = (2 * thread) / 2; task < (2 * thread + 2) / 2; ++task) {
            const int64_t n0 = task % 2;
            for (int64_t q0 = 0; q0 < 64; q0 += 32) {
                local.a = (ps_a *)workspace + 336 * thread;
                taps_pack(x, (ps_a *)workspace + 336 * thread, 0, 0, 6, n0, q0);
                for (int64_t q1 = q0; q1 < q0 + 32; q1 += 16) {
                    taps_t0(g, 0, q1 % 32, 567 * n0 + 9 * (q1 / 10) + ps_least(q1 % 10, 9), 0, q1 % 10);
                }
                for (int64_t q1 = q0; q1 < q0 + 32; q1 += 16) {
                    taps_t2(g, 216, q1 % 32, 567 * n0 + 9 * (q1 / 10) + ps_least(q1 % 10, 9) + 324, 4, q1 % 10);
                }
            }
            local.a = (ps_a *)workspace + 336 * thread;
            taps_pack(x, (ps_a *)workspace + 336 * thread, 0, 0, 6, n0, 64);
            taps_t0(g, 0, 0, 567 * n0 + 58, 0, 4);
            taps_t1(g, 0, 16, 567 * n0 + 72, 0, 0);
            taps_t2(g, 216, 0, 567 * n0 + 382, 4, 4);
            taps_t3(g, 216, 16, 567 * n0 + 396, 4, 0);
        }
        ps_restore_mode(mode);
    }
    return 0;
}

void taps_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t k0 = 0; k0 < 7; k0 += 4) {
        const int64_t width = ps_least(-k0 + 7, 4);
        for (int64_t c0 = 0; c0 < 6; c0 += 6) {
            const int64_t deep = ps_least(-c0 + 6, 6);
            for (int64_t i = 0; i < deep; ++i) {
                for (int64_t r0 = 0; r0 < 3; ++r0) {
                    for (int64_t s0 = 0; s0 < 3; ++s0) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = k0 + j < 7 ? w[3 * r0 + s0 + 54 * k0 + 54 * j + 9 * c0 + 9 * i] : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t taps_packed_size(void)
{
    return 1512;
}

int64_t taps_workspace_size(void)
{
    return 2688;
}

static PS_KERNEL void taps_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t phase)
{
    static const ps_tile t = {.rows = 4, .vecs = 1, .wrap = 4, .lanes = 16, .a_outer = 0, .a_inner = 1, .c_outer = 0, .c_inner = 81, .c_col = 1, .diagonal = 0};
    const ps_b *restrict A = g->packed + a;
    const ps_a *restrict B = (const ps_a *)g->a + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[4];
    const ps_gaps gaps = {.pitch = 10, .columns = 9, .phase = phase};
    ps_begin_gaps(acc, t, g->y + c, 0, gaps);
    ps_ahead(t, e.residual);
    static const ps_tap taps[2] = {{3, 10}, {3, 1}};
    ps_run_taps(acc, t, A, B, 6, 54, taps);
    ps_end_gaps(acc, t, g->y + c, &e, gaps);
}

static PS_KERNEL void taps_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t phase)
{
    static const ps_tile t = {.rows = 4, .vecs = 1, .wrap = 4, .lanes = 9, .a_outer = 0, .a_inner = 1, .c_outer = 0, .c_inner = 81, .c_col = 1, .diagonal = 0};
    const ps_b *restrict A = g->packed + a;
    const ps_a *restrict B = (const ps_a *)g->a + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[4];
    const ps_gaps gaps = {.pitch = 10, .columns = 9, .phase = phase};
    ps_begin_gaps(acc, t, g->y + c, 0, gaps);
    ps_ahead(t, e.residual);
    static const ps_tap taps[2] = {{3, 10}, {3, 1}};
    ps_run_taps(acc, t, A, B, 6, 54, taps);
    ps_end_gaps(acc, t, g->y + c, &e, gaps);
}

static PS_KERNEL void taps_t2(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t phase)
{
    static const ps_tile t = {.rows = 3, .vecs = 1, .wrap = 3, .lanes = 16, .a_outer = 0, .a_inner = 1, .c_outer = 0, .c_inner = 81, .c_col = 1, .diagonal = 0};
    const ps_b *restrict A = g->packed + a;
    const ps_a *restrict B = (const ps_a *)g->a + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[3];
    const ps_gaps gaps = {.pitch = 10, .columns = 9, .phase = phase};
    ps_begin_gaps(acc, t, g->y + c, 0, gaps);
    ps_ahead(t, e.residual);
    static const ps_tap taps[2] = {{3, 10}, {3, 1}};
    ps_run_taps(acc, t, A, B, 6, 54, taps);
    ps_end_gaps(acc, t, g->y + c, &e, gaps);
}

static PS_KERNEL void taps_t3(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t phase)
{
    static const ps_tile t = {.rows = 3, .vecs = 1, .wrap = 3, .lanes = 9, .a_outer = 0, .a_inner = 1, .c_outer = 0, .c_inner = 81, .c_col = 1, .diagonal = 0};
    const ps_b *restrict A = g->packed + a;
    const ps_a *restrict B = (const ps_a *)g->a + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[3];
    const ps_gaps gaps = {.pitch = 10, .columns = 9, .phase = phase};
    ps_begin_gaps(acc, t, g->y + c, 0, gaps);
    ps_ahead(t, e.residual);
    static const ps_tap taps[2] = {{3, 10}, {3, 1}};
    ps_run_taps(acc, t, A, B, 6, 54, taps);
    ps_end_gaps(acc, t, g->y + c, &e, gaps);
}

static PS_KERNEL void taps_pack(const ps_x *restrict x, ps_a *restrict box, ps_a zero, int64_t first, int64_t last, int64_t n0, int64_t q0)
{
    static const ps_image shape = {.height = 9, .width = 9, .top = 1, .left = 1, .pitch = 10, .x_row = 9};
    (void)zero;
    for (int64_t row = first; row < last; ++row) {
        const int64_t at2_ = 0;
        const int64_t at1_ = row % 6;
        const int64_t at0_ = n0;
        if (at0_ >= 0 && at0_ < 2 && at1_ >= 0 && at1_ < 6 && at2_ >= 0 && at2_ < 1) {
            ps_copy_image(box + 54 * row, x + 486 * at0_ + 81 * at1_ + 9 * at2_, shape, q0, 54);
        }
    }
}
