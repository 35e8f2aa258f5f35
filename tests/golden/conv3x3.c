int64_t conv3x3_workspace_size(void);
int64_t conv3x3_packed_size(void);
void conv3x3_pack_weights(const float *w, float *packed);
int conv3x3(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* conv3x3: p k:16 > brgemm_avx512_f32_8x16 */
int conv3x3(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t p0 = 0; p0 < 8; ++p0) {
        conv3x3_t0(g, 128 * p0 - 144, 0, 160 * p0, 0, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 9)));
        conv3x3_t1(g, 128 * p0 - 144, 2304, 160 * p0 + 16, 16, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 9)));
    }
    ps_restore_mode(mode);
    return 0;
}

void conv3x3_pack_weights(const float *restrict w, float *restrict packed)
{
    if (!PS_CPU_OK()) {
        return;
    }
    for (int64_t k0 = 0; k0 < 20; k0 += 16) {
        const int64_t width = ps_least(16 * ((-k0 + 35) / 16), 16);
        for (int64_t c0 = 0; c0 < 16; c0 += 16) {
            const int64_t deep = ps_least(-c0 + 16, 16);
            for (int64_t r0 = 0; r0 < 3; ++r0) {
                for (int64_t s0 = 0; s0 < 3; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = k0 + j < 20 ? w[3 * r0 + s0 + 144 * k0 + 144 * j + 9 * c0 + 9 * i] : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t conv3x3_packed_size(void)
{
    return 18432;
}

int64_t conv3x3_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void conv3x3_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 8, .vecs = 1, .wrap = 8, .lanes = 16, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 20, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[8];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run(acc, t, 0xfeu, A + 128 * r0, B + 768 * r0, 16, 1);
        ps_run(acc, t, 0xffu, A + 128 * r0 + 16, B + 768 * r0 + 256, 16, 1);
        ps_run(acc, t, 0x7fu, A + 128 * r0 + 32, B + 768 * r0 + 512, 16, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void conv3x3_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 8, .vecs = 1, .wrap = 8, .lanes = 4, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 20, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[8];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run(acc, t, 0xfeu, A + 128 * r0, B + 768 * r0, 16, 1);
        ps_run(acc, t, 0xffu, A + 128 * r0 + 16, B + 768 * r0 + 256, 16, 1);
        ps_run(acc, t, 0x7fu, A + 128 * r0 + 32, B + 768 * r0 + 512, 16, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}
