int64_t swapped_workspace_size(void);
int64_t swapped_packed_size(void);
void swapped_pack_weights(const float *w, float *packed);
int swapped(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* swapped: swap(A,B) n* c:20 k:4 > brgemm_avx512_f32_4x32 */
int swapped(const float *x, const float *packed, float *y, const float *bias,
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
            for (int64_t c0 = 0; c0 < 21; c0 += 20) {
                for (int64_t k0 = 0; k0 < 5; k0 += 4) {
                    swapped_t0(g, 4 * c0 + 40 * k0, 1000 * n0 + 25 * c0, 275 * n0 + 25 * k0, k0, c0 == 0, c0 + 20 == 40);
                }
                swapped_t1(g, 3 * c0 + 320, 1000 * n0 + 25 * c0, 275 * n0 + 200, 8, c0 == 0, c0 + 20 == 40);
            }
        }
        ps_restore_mode(mode);
    }
    return 0;
}

void swapped_pack_weights(const float *restrict w, float *restrict packed)
{
    if (!PS_CPU_OK()) {
        return;
    }
    for (int64_t k0 = 0; k0 < 11; k0 += 4) {
        const int64_t width = ps_least(-k0 + 11, 4);
        for (int64_t c0 = 0; c0 < 40; c0 += 20) {
            const int64_t deep = ps_least(-c0 + 40, 20);
            for (int64_t i = 0; i < deep; ++i) {
                for (int64_t r0 = 0; r0 < 1; ++r0) {
                    for (int64_t s0 = 0; s0 < 1; ++s0) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = k0 + j < 11 ? w[r0 + s0 + 40 * k0 + 40 * j + c0 + i] : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t swapped_packed_size(void)
{
    return 1760;
}

int64_t swapped_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void swapped_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int first, int last)
{
    static const ps_tile t = {.rows = 4, .vecs = 2, .wrap = 4, .lanes = 9, .a_outer = 0, .a_inner = 1, .c_outer = 0, .c_inner = 25, .c_col = 1, .diagonal = 0};
    const ps_b *restrict A = g->packed + a;
    const ps_a *restrict B = (const ps_a *)g->a + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[8];
    ps_begin(acc, t, g->y + c, !first);
    ps_ahead(t, e.residual);
    ps_run_rows(acc, t, A, B, 20, 25, 0);
    ps_end_rows(acc, t, g->y + c, last ? &e : 0);
}

static PS_KERNEL void swapped_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int first, int last)
{
    static const ps_tile t = {.rows = 3, .vecs = 2, .wrap = 3, .lanes = 9, .a_outer = 0, .a_inner = 1, .c_outer = 0, .c_inner = 25, .c_col = 1, .diagonal = 0};
    const ps_b *restrict A = g->packed + a;
    const ps_a *restrict B = (const ps_a *)g->a + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[6];
    ps_begin(acc, t, g->y + c, !first);
    ps_ahead(t, e.residual);
    ps_run_rows(acc, t, A, B, 20, 25, 0);
    ps_end_rows(acc, t, g->y + c, last ? &e : 0);
}
