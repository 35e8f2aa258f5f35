int64_t sums_workspace_size(void);
int64_t sums_packed_size(void);
void sums_pack_weights(const int8_t *w, void *packed, int32_t x_zero);
int sums(const int8_t *x, const void *packed, int32_t *y, const int32_t *bias,
        const int32_t *residual, const float *clamp, void *workspace);

/* sums: c:32 p k:8 > brgemm_avx2_i16_6x8 */
int sums(const int8_t *x, const void *packed, int32_t *y, const int32_t *bias,
        const int32_t *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    args.offset = (const int32_t *)((const char *)packed + 2048);
    args.x_zero = args.offset[16];
    (void)workspace;
    const ps_args *g = &args;
    for (int64_t c0 = 0; c0 < 33; c0 += 32) {
        for (int64_t p0 = 0; p0 < 6; ++p0) {
            for (int64_t k0 = 0; k0 < 9; k0 += 8) {
                sums_t0(g, c0 + 384 * p0, 8 * c0 + 64 * k0, 96 * p0 + k0, k0, c0 == 0, c0 + 32 == 64);
            }
        }
    }
    return 0;
}

void sums_pack_weights(const int8_t *restrict w, void *packed, int32_t x_zero)
{
    ps_b *restrict to = packed;
    for (int64_t k0 = 0; k0 < 16; k0 += 8) {
        const int64_t width = ps_least(8 * ((-k0 + 23) / 8), 8);
        for (int64_t c0 = 0; c0 < 64; c0 += 32) {
            const int64_t deep = ps_least(-c0 + 64, 32);
            for (int64_t r0 = 0; r0 < 1; ++r0) {
                for (int64_t s0 = 0; s0 < 1; ++s0) {
                    for (int64_t i = 0; i < deep; i += 2) {
                        for (int64_t j = 0; j < width; ++j) {
                            for (int64_t e = 0; e < 2; ++e) {
                                *to++ = k0 + j < 16 && i + e < deep ? ps_b_of(w[r0 + s0 + 64 * k0 + 64 * j + c0 + i + e]) : 0;
                            }
                        }
                    }
                }
            }
        }
    }
    int32_t *restrict offset = (int32_t *)((char *)packed + 2048);
    for (int64_t k0 = 0; k0 < 16; ++k0) {
        uint32_t sum = 0;
        for (int64_t r0 = 0; r0 < 1; ++r0) {
            for (int64_t s0 = 0; s0 < 1; ++s0) {
                for (int64_t c0 = 0; c0 < 64; ++c0) {
                    sum = ((uint32_t)(w[r0 + s0 + 64 * k0 + c0])) + sum;
                }
            }
        }
        offset[k0] = ((int32_t)(0 - ((uint32_t)(x_zero + PS_FLIP)) * sum));
    }
    offset[16] = x_zero;
}

int64_t sums_packed_size(void)
{
    return 2116;
}

int64_t sums_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void sums_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int first, int last)
{
    static const ps_tile t = {.rows = 6, .vecs = 1, .wrap = 6, .lanes = 8, .a_outer = 0, .a_inner = 64, .c_outer = 0, .c_inner = 16, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[6];
    ps_begin(acc, t, g->y + c, !first);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0x3fu, A, B, 16, 2);
    ps_end(acc, t, g->y + c, last ? &e : 0);
}
