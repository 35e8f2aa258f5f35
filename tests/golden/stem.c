int64_t stem_workspace_size(void);
int64_t stem_packed_size(void);
void stem_pack_weights(const float *w, float *packed);
int stem(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* stem: pack(A) p k:16 > brgemm_avx512_f32_10x16 */
int stem(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    stem_pack(x, workspace, 0, 0, 25);
    args.a = workspace;
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t p0 = 0; p0 < 10; ++p0) {
        stem_t0(g, 150 * p0, 0, 240 * p0, 0);
        stem_t1(g, 150 * p0, 2352, 240 * p0 + 16, 16);
    }
    ps_restore_mode(mode);
    return 0;
}

void stem_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t k0 = 0; k0 < 24; k0 += 16) {
        const int64_t width = ps_least(16 * ((-k0 + 39) / 16), 16);
        for (int64_t c0 = 0; c0 < 3; c0 += 3) {
            const int64_t deep = ps_least(-c0 + 3, 3);
            for (int64_t r0 = 0; r0 < 7; ++r0) {
                for (int64_t s0 = 0; s0 < 7; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = k0 + j < 24 ? w[7 * r0 + s0 + 147 * k0 + 147 * j + 49 * c0 + 49 * i] : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t stem_packed_size(void)
{
    return 18816;
}

int64_t stem_workspace_size(void)
{
    return 7552;
}

static PS_KERNEL void stem_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 10, .vecs = 1, .wrap = 10, .lanes = 16, .a_outer = 0, .a_inner = 6, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[10];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 7; ++r0) {
        ps_run(acc, t, 0x3ffu, A + 75 * r0, B + 336 * r0, 21, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void stem_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 10, .vecs = 1, .wrap = 10, .lanes = 8, .a_outer = 0, .a_inner = 6, .c_outer = 0, .c_inner = 24, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[10];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 7; ++r0) {
        ps_run(acc, t, 0x3ffu, A + 75 * r0, B + 336 * r0, 21, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void stem_pack(const ps_x *restrict x, ps_a *restrict box, ps_a zero, int64_t first, int64_t last)
{
    static const ps_row shape = {.pixels = 25, .channels = 3, .step = 1, .limit = 19, .box_pixel = 3, .x_pixel = 3, .x_channel = 1};
    for (int64_t row = first; row < last; ++row) {
        const int64_t at2_ = (row % 25) - 3;
        const int64_t at0_ = 0;
        const ps_x *from = at0_ >= 0 && at0_ < 1 && at2_ >= 0 && at2_ < 19 ? x + 1083 * at0_ + 57 * at2_ : 0;
        ps_pack_row(box + 75 * row, from, shape, -3, 3, zero);
    }
}
