int64_t depthwise_workspace_size(void);
int64_t depthwise_packed_size(void);
void depthwise_pack_weights(const float *w, float *packed);
int depthwise(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* depthwise: p:3 pack(A) p > depthwise_avx2_f32_6x16 */
int depthwise(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t p0 = 0; p0 < 6; p0 += 3) {
        args.a = (ps_a *)workspace;
        depthwise_pack(x, (ps_a *)workspace, 0, 0, 5, p0);
        for (int64_t p1 = p0; p1 < p0 + 3; ++p1) {
            depthwise_t0(g, 72 * (p1 % 3), 0, 6 * p1, 0, ps_most(0, -p1 + 1), ps_least(3, ps_most(0, -p1 + 7)));
        }
    }
    ps_restore_mode(mode);
    return 0;
}

void depthwise_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t g0 = 0; g0 < 9; g0 += 9) {
        const int64_t width = ps_least(8 * ((-g0 + 16) / 8), 16);
        for (int64_t c0 = 0; c0 < 1; ++c0) {
            const int64_t deep = ps_least(-c0 + 1, 1);
            for (int64_t r0 = 0; r0 < 3; ++r0) {
                for (int64_t s0 = 0; s0 < 3; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = g0 + j < 9 ? w[3 * r0 + s0 + 9 * g0 + 9 * j + 9 * c0 + 9 * i] : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t depthwise_packed_size(void)
{
    return 576;
}

int64_t depthwise_workspace_size(void)
{
    return 1472;
}

static PS_KERNEL void depthwise_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t r_first, int64_t r_last)
{
    static const ps_tile t = {.rows = 6, .vecs = 2, .wrap = 6, .lanes = 1, .a_outer = 0, .a_inner = 9, .c_outer = 0, .c_inner = 1, .c_col = 36, .diagonal = 1};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[12];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = r_first; r0 < r_last; ++r0) {
        ps_slide(acc, t, UINT64_C(0x7e), A + 72 * r0, B + 48 * r0, 3, 9);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void depthwise_pack(const ps_x *restrict x, ps_a *restrict box, ps_a zero, int64_t first, int64_t last, int64_t p0)
{
    static const ps_row shape = {.pixels = 8, .channels = 9, .step = 1, .limit = 6, .box_pixel = 9, .x_pixel = 1, .x_channel = 36};
    for (int64_t row = first; row < last; ++row) {
        const int64_t at2_ = p0 + (row % 5) - 1;
        const int64_t at0_ = 0;
        const ps_x *from = at0_ >= 0 && at0_ < 1 && at2_ >= 0 && at2_ < 6 ? x + 324 * at0_ + 6 * at2_ : 0;
        ps_pack_row(box + 72 * row, from, shape, -1, 9, zero);
    }
}
