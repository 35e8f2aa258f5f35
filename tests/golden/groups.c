int64_t groups_workspace_size(void);
int64_t groups_packed_size(void);
void groups_pack_weights(const float *w, float *packed);
int groups(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* groups: g* p:4 k:8 p > brgemm_avx2_f32_6x8 */
int groups(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
#ifdef _OPENMP
#pragma omp parallel for num_threads(3) schedule(static)
#endif
    for (int64_t thread = 0; thread < 3; ++thread) {
        const uint64_t mode = ps_flush_denormals();
        ps_args local = args;
        const ps_args *g = &local;
        for (int64_t task = (4 * thread) / 3; task < (4 * thread + 4) / 3; ++task) {
            const int64_t g0 = task % 4;
            for (int64_t p0 = 0; p0 < 6; p0 += 4) {
                for (int64_t p1 = p0; p1 < ps_least(5, p0 + 3) + 1; ++p1) {
                    groups_t0(g, 4 * g0 + 96 * p1 - 112, 576 * g0, 12 * g0 + 288 * p1, 12 * g0, ps_most(0, -p1 + 1), ps_least(3, ps_most(0, -p1 + 7)));
                }
                for (int64_t p1 = p0; p1 < ps_least(5, p0 + 3) + 1; ++p1) {
                    groups_t1(g, 4 * g0 + 96 * p1 - 112, 576 * g0 + 288, 12 * g0 + 288 * p1 + 8, 12 * g0 + 8, ps_most(0, -p1 + 1), ps_least(3, ps_most(0, -p1 + 7)));
                }
            }
        }
        ps_restore_mode(mode);
    }
    return 0;
}

void groups_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t g0 = 0; g0 < 4; ++g0) {
        for (int64_t k0 = 0; k0 < 12; k0 += 8) {
            const int64_t width = ps_least(8 * ((-k0 + 19) / 8), 8);
            for (int64_t c0 = 0; c0 < 4; c0 += 4) {
                const int64_t deep = ps_least(-c0 + 4, 4);
                for (int64_t r0 = 0; r0 < 3; ++r0) {
                    for (int64_t s0 = 0; s0 < 3; ++s0) {
                        for (int64_t i = 0; i < deep; ++i) {
                            for (int64_t j = 0; j < width; ++j) {
                                *packed++ = k0 + j < 12 ? w[432 * g0 + 3 * r0 + s0 + 36 * k0 + 36 * j + 9 * c0 + 9 * i] : 0;
                            }
                        }
                    }
                }
            }
        }
    }
}

int64_t groups_packed_size(void)
{
    return 9216;
}

int64_t groups_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void groups_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 6, .vecs = 1, .wrap = 6, .lanes = 8, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 48, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[6];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run(acc, t, 0x3eu, A + 96 * r0, B + 96 * r0, 4, 1);
        ps_run(acc, t, 0x3fu, A + 96 * r0 + 16, B + 96 * r0 + 32, 4, 1);
        ps_run(acc, t, 0x1fu, A + 96 * r0 + 32, B + 96 * r0 + 64, 4, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void groups_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 6, .vecs = 1, .wrap = 6, .lanes = 4, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 48, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[6];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run(acc, t, 0x3eu, A + 96 * r0, B + 96 * r0, 4, 1);
        ps_run(acc, t, 0x3fu, A + 96 * r0 + 16, B + 96 * r0 + 32, 4, 1);
        ps_run(acc, t, 0x1fu, A + 96 * r0 + 32, B + 96 * r0 + 64, 4, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}
