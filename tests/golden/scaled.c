int64_t scaled_workspace_size(void);
int64_t scaled_packed_size(void);
void scaled_pack_weights(const int8_t *w, void *packed, int32_t x_zero);
int scaled(const uint8_t *x, const void *packed, uint8_t *y, const int32_t *bias,
        const uint8_t *residual, const float *clamp, const polysci_scales *to, void *workspace);

/* scaled: p k:16 > brgemm_avx512vnni_i8_6x16 */
int scaled(const uint8_t *x, const void *packed, uint8_t *y, const int32_t *bias,
        const uint8_t *residual, const float *clamp, const polysci_scales *to, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    args.offset = (const int32_t *)((const char *)packed + 3456);
    args.x_zero = args.offset[24];
    args.to = to;
    _Alignas(64) float limits[2];
    args.clamp = ps_limits(limits, clamp, to, 24);
    (void)workspace;
    const ps_args *g = &args;
    for (int64_t p0 = 0; p0 < 6; ++p0) {
        scaled_t0(g, 60 * p0 - 70, 0, 144 * p0, 0, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 7)));
        scaled_t1(g, 60 * p0 - 70, 1728, 144 * p0 + 16, 16, ps_most(0, -p0 + 1), ps_least(3, ps_most(0, -p0 + 7)));
    }
    return 0;
}

void scaled_pack_weights(const int8_t *restrict w, void *packed, int32_t x_zero)
{
    ps_b *restrict to = packed;
    for (int64_t k0 = 0; k0 < 24; k0 += 16) {
        const int64_t width = ps_least(16 * ((-k0 + 39) / 16), 16);
        for (int64_t c0 = 0; c0 < 10; c0 += 10) {
            const int64_t deep = ps_least(-c0 + 10, 10);
            for (int64_t r0 = 0; r0 < 3; ++r0) {
                for (int64_t s0 = 0; s0 < 3; ++s0) {
                    for (int64_t i = 0; i < deep; i += 4) {
                        for (int64_t j = 0; j < width; ++j) {
                            for (int64_t e = 0; e < 4; ++e) {
                                *to++ = k0 + j < 24 && i + e < deep ? ps_b_of(w[3 * r0 + s0 + 90 * k0 + 90 * j + 9 * c0 + 9 * i + 9 * e]) : 0;
                            }
                        }
                    }
                }
            }
        }
    }
    int32_t *restrict offset = (int32_t *)((char *)packed + 3456);
    for (int64_t k0 = 0; k0 < 24; ++k0) {
        uint32_t sum = 0;
        for (int64_t r0 = 0; r0 < 3; ++r0) {
            for (int64_t s0 = 0; s0 < 3; ++s0) {
                for (int64_t c0 = 0; c0 < 10; ++c0) {
                    sum = ((uint32_t)(w[3 * r0 + s0 + 90 * k0 + 9 * c0])) + sum;
                }
            }
        }
        offset[k0] = ((int32_t)(0 - ((uint32_t)(x_zero + PS_FLIP)) * sum));
    }
    offset[24] = x_zero;
}

int64_t scaled_packed_size(void)
{
    return 3556;
}

int64_t scaled_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void scaled_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 6, .vecs = 1, .wrap = 6, .lanes = 16, .a_outer = 0, .a_inner = 10, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 0, .begun = 1};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[6];
    ps_begin_offset(acc, t, &e);
    ps_ahead(t, e.residual);
    if (g->x_zero + PS_FLIP) {
        for (int64_t r0 = 0; r0 < ps_least(r_first, 3); ++r0) {
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0, B + 576 * r0, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 8, B + 576 * r0 + 128, 1, 4, 2);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 10, B + 576 * r0 + 192, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 18, B + 576 * r0 + 320, 1, 4, 2);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 20, B + 576 * r0 + 384, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 28, B + 576 * r0 + 512, 1, 4, 2);
        }
        for (int64_t r0 = r_first; r0 < r_last; ++r0) {
            ps_run_filled(acc, t, 0x3eu, g->x_zero, A + 60 * r0, B + 576 * r0, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x3eu, g->x_zero, A + 60 * r0 + 8, B + 576 * r0 + 128, 1, 4, 2);
            ps_run_filled(acc, t, 0x3fu, g->x_zero, A + 60 * r0 + 10, B + 576 * r0 + 192, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x3fu, g->x_zero, A + 60 * r0 + 18, B + 576 * r0 + 320, 1, 4, 2);
            ps_run_filled(acc, t, 0x1fu, g->x_zero, A + 60 * r0 + 20, B + 576 * r0 + 384, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x1fu, g->x_zero, A + 60 * r0 + 28, B + 576 * r0 + 512, 1, 4, 2);
        }
        for (int64_t r0 = ps_most(r_first, r_last); r0 < 3; ++r0) {
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0, B + 576 * r0, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 8, B + 576 * r0 + 128, 1, 4, 2);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 10, B + 576 * r0 + 192, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 18, B + 576 * r0 + 320, 1, 4, 2);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 20, B + 576 * r0 + 384, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 28, B + 576 * r0 + 512, 1, 4, 2);
        }
    }
    else
    {
        for (int64_t r0 = r_first; r0 < r_last; ++r0) {
            ps_run(acc, t, 0x3eu, A + 60 * r0, B + 576 * r0, 2, 4);
            ps_run_part(acc, t, 0x3eu, A + 60 * r0 + 8, B + 576 * r0 + 128, 1, 4, 2);
            ps_run(acc, t, 0x3fu, A + 60 * r0 + 10, B + 576 * r0 + 192, 2, 4);
            ps_run_part(acc, t, 0x3fu, A + 60 * r0 + 18, B + 576 * r0 + 320, 1, 4, 2);
            ps_run(acc, t, 0x1fu, A + 60 * r0 + 20, B + 576 * r0 + 384, 2, 4);
            ps_run_part(acc, t, 0x1fu, A + 60 * r0 + 28, B + 576 * r0 + 512, 1, 4, 2);
        }
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void scaled_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 6, .vecs = 1, .wrap = 6, .lanes = 8, .a_outer = 0, .a_inner = 10, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 0, .begun = 1};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[6];
    ps_begin_offset(acc, t, &e);
    ps_ahead(t, e.residual);
    if (g->x_zero + PS_FLIP) {
        for (int64_t r0 = 0; r0 < ps_least(r_first, 3); ++r0) {
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0, B + 576 * r0, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 8, B + 576 * r0 + 128, 1, 4, 2);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 10, B + 576 * r0 + 192, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 18, B + 576 * r0 + 320, 1, 4, 2);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 20, B + 576 * r0 + 384, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 28, B + 576 * r0 + 512, 1, 4, 2);
        }
        for (int64_t r0 = r_first; r0 < r_last; ++r0) {
            ps_run_filled(acc, t, 0x3eu, g->x_zero, A + 60 * r0, B + 576 * r0, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x3eu, g->x_zero, A + 60 * r0 + 8, B + 576 * r0 + 128, 1, 4, 2);
            ps_run_filled(acc, t, 0x3fu, g->x_zero, A + 60 * r0 + 10, B + 576 * r0 + 192, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x3fu, g->x_zero, A + 60 * r0 + 18, B + 576 * r0 + 320, 1, 4, 2);
            ps_run_filled(acc, t, 0x1fu, g->x_zero, A + 60 * r0 + 20, B + 576 * r0 + 384, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x1fu, g->x_zero, A + 60 * r0 + 28, B + 576 * r0 + 512, 1, 4, 2);
        }
        for (int64_t r0 = ps_most(r_first, r_last); r0 < 3; ++r0) {
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0, B + 576 * r0, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 8, B + 576 * r0 + 128, 1, 4, 2);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 10, B + 576 * r0 + 192, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 18, B + 576 * r0 + 320, 1, 4, 2);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 20, B + 576 * r0 + 384, 2, 4, PS_WORD);
            ps_run_filled(acc, t, 0x0u, g->x_zero, A + 60 * r0 + 28, B + 576 * r0 + 512, 1, 4, 2);
        }
    }
    else
    {
        for (int64_t r0 = r_first; r0 < r_last; ++r0) {
            ps_run(acc, t, 0x3eu, A + 60 * r0, B + 576 * r0, 2, 4);
            ps_run_part(acc, t, 0x3eu, A + 60 * r0 + 8, B + 576 * r0 + 128, 1, 4, 2);
            ps_run(acc, t, 0x3fu, A + 60 * r0 + 10, B + 576 * r0 + 192, 2, 4);
            ps_run_part(acc, t, 0x3fu, A + 60 * r0 + 18, B + 576 * r0 + 320, 1, 4, 2);
            ps_run(acc, t, 0x1fu, A + 60 * r0 + 20, B + 576 * r0 + 384, 2, 4);
            ps_run_part(acc, t, 0x1fu, A + 60 * r0 + 28, B + 576 * r0 + 512, 1, 4, 2);
        }
    }
    ps_end(acc, t, g->y + c, &e);
}
