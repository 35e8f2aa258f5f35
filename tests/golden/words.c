int64_t words_workspace_size(void);
int64_t words_packed_size(void);
void words_pack_weights(const uint16_t *w, void *packed);
int words(const uint16_t *x, const void *packed, uint16_t *y, const float *bias,
        const uint16_t *residual, const float *clamp, void *workspace);

/* words: p k:16 > brgemm_avx512bf16_bf16_8x16 */
int words(const uint16_t *x, const void *packed, uint16_t *y, const float *bias,
        const uint16_t *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t p0 = 0; p0 < 8; ++p0) {
        words_t0(g, 152 * p0 - 171, 0, 160 * p0, 0, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 9)));
        words_t1(g, 152 * p0 - 171, 2880, 160 * p0 + 16, 16, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 9)));
    }
    ps_restore_mode(mode);
    return 0;
}

void words_pack_weights(const uint16_t *restrict w, void *packed)
{
    if (!PS_CPU_OK()) {
        return;
    }
    ps_b *restrict to = packed;
    for (int64_t k0 = 0; k0 < 20; k0 += 16) {
        const int64_t width = ps_least(16 * ((-k0 + 35) / 16), 16);
        for (int64_t c0 = 0; c0 < 19; c0 += 19) {
            const int64_t deep = ps_least(-c0 + 19, 19);
            for (int64_t r0 = 0; r0 < 3; ++r0) {
                for (int64_t s0 = 0; s0 < 3; ++s0) {
                    for (int64_t i = 0; i < deep; i += 2) {
                        for (int64_t j = 0; j < width; ++j) {
                            for (int64_t e = 0; e < 2; ++e) {
                                *to++ = k0 + j < 20 && i + e < deep ? ps_b_of(w[3 * r0 + s0 + 171 * k0 + 171 * j + 9 * c0 + 9 * i + 9 * e]) : 0;
                            }
                        }
                    }
                }
            }
        }
    }
}

int64_t words_packed_size(void)
{
    return 11520;
}

int64_t words_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void words_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 8, .vecs = 1, .wrap = 8, .lanes = 16, .a_outer = 0, .a_inner = 19, .c_outer = 0, .c_inner = 20, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[8];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run(acc, t, 0xfeu, A + 152 * r0, B + 960 * r0, 9, 2);
        ps_run_part(acc, t, 0xfeu, A + 152 * r0 + 18, B + 960 * r0 + 288, 1, 2, 1);
        ps_run(acc, t, 0xffu, A + 152 * r0 + 19, B + 960 * r0 + 320, 9, 2);
        ps_run_part(acc, t, 0xffu, A + 152 * r0 + 37, B + 960 * r0 + 608, 1, 2, 1);
        ps_run(acc, t, 0x7fu, A + 152 * r0 + 38, B + 960 * r0 + 640, 9, 2);
        ps_run_part(acc, t, 0x7fu, A + 152 * r0 + 56, B + 960 * r0 + 928, 1, 2, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void words_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 8, .vecs = 1, .wrap = 8, .lanes = 4, .a_outer = 0, .a_inner = 19, .c_outer = 0, .c_inner = 20, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[8];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run(acc, t, 0xfeu, A + 152 * r0, B + 960 * r0, 9, 2);
        ps_run_part(acc, t, 0xfeu, A + 152 * r0 + 18, B + 960 * r0 + 288, 1, 2, 1);
        ps_run(acc, t, 0xffu, A + 152 * r0 + 19, B + 960 * r0 + 320, 9, 2);
        ps_run_part(acc, t, 0xffu, A + 152 * r0 + 37, B + 960 * r0 + 608, 1, 2, 1);
        ps_run(acc, t, 0x7fu, A + 152 * r0 + 38, B + 960 * r0 + 640, 9, 2);
        ps_run_part(acc, t, 0x7fu, A + 152 * r0 + 56, B + 960 * r0 + 928, 1, 2, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}
