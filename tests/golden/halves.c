int64_t halves_workspace_size(void);
int64_t halves_packed_size(void);
void halves_pack_weights(const uint16_t *w, void *packed);
int halves(const uint16_t *x, const void *packed, uint16_t *y, const float *bias,
        const uint16_t *residual, const float *clamp, void *workspace);

/* halves: p:2 k:16 p > brgemm_avx512_f32_6x16 */
int halves(const uint16_t *x, const void *packed, uint16_t *y, const float *bias,
        const uint16_t *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t p0 = 0; p0 < 6; p0 += 2) {
        for (int64_t p1 = p0; p1 < p0 + 2; ++p1) {
            halves_t0(g, 48 * p1 - 56, 0, 144 * p1, 0, ps_most(0, -p1 + 1), ps_least(3, ps_most(0, -p1 + 7)));
        }
        for (int64_t p1 = p0; p1 < p0 + 2; ++p1) {
            halves_t1(g, 48 * p1 - 56, 1152, 144 * p1 + 16, 16, ps_most(0, -p1 + 1), ps_least(3, ps_most(0, -p1 + 7)));
        }
    }
    ps_restore_mode(mode);
    return 0;
}

void halves_pack_weights(const uint16_t *restrict w, void *packed)
{
    ps_b *restrict to = packed;
    for (int64_t k0 = 0; k0 < 24; k0 += 16) {
        const int64_t width = ps_least(16 * ((-k0 + 39) / 16), 16);
        for (int64_t c0 = 0; c0 < 8; c0 += 8) {
            const int64_t deep = ps_least(-c0 + 8, 8);
            for (int64_t r0 = 0; r0 < 3; ++r0) {
                for (int64_t s0 = 0; s0 < 3; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *to++ = k0 + j < 24 ? ps_b_of(w[3 * r0 + s0 + 72 * k0 + 72 * j + 9 * c0 + 9 * i]) : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t halves_packed_size(void)
{
    return 9216;
}

int64_t halves_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void halves_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 6, .vecs = 1, .wrap = 6, .lanes = 16, .a_outer = 0, .a_inner = 8, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[6];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run(acc, t, 0x3eu, A + 48 * r0, B + 384 * r0, 8, 1);
        ps_run(acc, t, 0x3fu, A + 48 * r0 + 8, B + 384 * r0 + 128, 8, 1);
        ps_run(acc, t, 0x1fu, A + 48 * r0 + 16, B + 384 * r0 + 256, 8, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void halves_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 6, .vecs = 1, .wrap = 6, .lanes = 8, .a_outer = 0, .a_inner = 8, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[6];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_run(acc, t, 0x3eu, A + 48 * r0, B + 384 * r0, 8, 1);
        ps_run(acc, t, 0x3fu, A + 48 * r0 + 8, B + 384 * r0 + 128, 8, 1);
        ps_run(acc, t, 0x1fu, A + 48 * r0 + 16, B + 384 * r0 + 256, 8, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}
