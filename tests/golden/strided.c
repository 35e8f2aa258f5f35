int64_t strided_workspace_size(void);
int64_t strided_packed_size(void);
void strided_pack_weights(const float *w, float *packed);
int strided(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* strided: p* pack(A)+16 k:32 > brgemm_avx512_f32_5x32 */
int strided(const float *x, const float *packed, float *y, const float *bias,
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
        for (int64_t task = (5 * thread) / 2; task < (5 * thread + 5) / 2; ++task) {
            const int64_t p0 = task % 5;
            local.a = (ps_a *)workspace + 400 * thread;
            strided_pack(x, (ps_a *)workspace + 400 * thread, 0, 0, 1, p0);
            for (int64_t k0 = 0; k0 < 33; k0 += 32) {
                strided_t0(g, 0, 64 * k0, 320 * p0 + k0, k0);
            }
        }
        ps_restore_mode(mode);
    }
    return 0;
}

void strided_pack_weights(const float *restrict w, float *restrict packed)
{
    if (!PS_CPU_OK()) {
        return;
    }
    for (int64_t k0 = 0; k0 < 64; k0 += 32) {
        const int64_t width = ps_least(16 * ((-k0 + 79) / 16), 32);
        for (int64_t c0 = 0; c0 < 64; c0 += 64) {
            const int64_t deep = ps_least(-c0 + 64, 64);
            for (int64_t r0 = 0; r0 < 1; ++r0) {
                for (int64_t s0 = 0; s0 < 1; ++s0) {
                    ps_panel_turned(packed, w + r0 + s0 + 64 * k0 + c0, 64, deep, width, -k0 + 64);
                    packed += deep * width;
                }
            }
        }
    }
}

int64_t strided_packed_size(void)
{
    return 16384;
}

int64_t strided_workspace_size(void)
{
    return 3200;
}

static PS_KERNEL void strided_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 5, .vecs = 2, .wrap = 5, .lanes = 16, .a_outer = 0, .a_inner = 80, .c_outer = 0, .c_inner = 64, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[10];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0x1fu, A, B, 64, 1);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void strided_pack(const ps_x *restrict x, ps_a *restrict box, ps_a zero, int64_t first, int64_t last, int64_t p0)
{
    static const ps_row shape = {.pixels = 5, .channels = 64, .step = 2, .limit = 9, .box_pixel = 80, .x_pixel = 64, .x_channel = 1};
    for (int64_t row = first; row < last; ++row) {
        const int64_t at2_ = 2 * p0;
        const int64_t at0_ = 0;
        const ps_x *from = at0_ >= 0 && at0_ < 1 && at2_ >= 0 && at2_ < 9 ? x + 5184 * at0_ + 576 * at2_ : 0;
        ps_pack_row(box + 400 * row, from, shape, 0, 64, zero);
    }
}
