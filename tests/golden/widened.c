int64_t widened_workspace_size(void);
int64_t widened_packed_size(void);
void widened_pack_weights(const uint16_t *w, void *packed);
int widened(const uint16_t *x, const void *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* widened: p:4* pack(A) p k:8 > brgemm_avx2_f32_7x8 */
int widened(const uint16_t *x, const void *packed, float *y, const float *bias,
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
        for (int64_t task = (2 * thread) / 2; task < (2 * thread + 2) / 2; ++task) {
            const int64_t p0 = 4 * (task % 2);
            local.a = (ps_a *)workspace + 256 * thread;
            widened_pack(x, (ps_a *)workspace + 256 * thread, 0, 0, 4, p0);
            for (int64_t p1 = p0; p1 < ps_least(6, p0 + 3) + 1; ++p1) {
                for (int64_t k0 = 0; k0 < 9; k0 += 8) {
                    widened_t0(g, 63 * (p1 % 4), 9 * k0, 7 * p1 + 49 * k0, k0);
                }
            }
        }
        ps_restore_mode(mode);
    }
    return 0;
}

void widened_pack_weights(const uint16_t *restrict w, void *packed)
{
    ps_b *restrict to = packed;
    for (int64_t k0 = 0; k0 < 16; k0 += 8) {
        const int64_t width = ps_least(8 * ((-k0 + 23) / 8), 8);
        for (int64_t c0 = 0; c0 < 9; c0 += 9) {
            const int64_t deep = ps_least(-c0 + 9, 9);
            for (int64_t r0 = 0; r0 < 1; ++r0) {
                for (int64_t s0 = 0; s0 < 1; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *to++ = k0 + j < 16 ? ps_b_of(w[r0 + s0 + 9 * k0 + 9 * j + c0 + i]) : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t widened_packed_size(void)
{
    return 576;
}

int64_t widened_workspace_size(void)
{
    return 2048;
}

static PS_KERNEL void widened_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 7, .vecs = 1, .wrap = 7, .lanes = 8, .a_outer = 0, .a_inner = 9, .c_outer = 0, .c_inner = 1, .c_col = 49, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[7];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0x7fu, A, B, 9, 1);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void widened_pack(const ps_x *restrict x, ps_a *restrict box, ps_a zero, int64_t first, int64_t last, int64_t p0)
{
    static const ps_row shape = {.pixels = 7, .channels = 9, .step = 1, .limit = 7, .box_pixel = 9, .x_pixel = 1, .x_channel = 49};
    for (int64_t row = first; row < last; ++row) {
        const int64_t at2_ = p0 + (row % 4);
        const int64_t at0_ = 0;
        const ps_x *from = at0_ >= 0 && at0_ < 1 && at2_ >= 0 && at2_ < 7 ? x + 441 * at0_ + 7 * at2_ : 0;
        ps_pack_row(box + 63 * row, from, shape, 0, 9, zero);
    }
}
