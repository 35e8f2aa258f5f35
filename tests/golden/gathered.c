int64_t gathered_workspace_size(void);
int64_t gathered_packed_size(void);
void gathered_pack_weights(const float *w, float *packed);
int gathered(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* gathered: swap(A,B) pack(A) k > brgemm_avx512_f32_1x32 */
int gathered(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    gathered_pack(x, workspace, 0, 0, 8);
    args.a = workspace;
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t k0 = 0; k0 < 9; ++k0) {
        gathered_t0(g, 8 * k0, 0, 25 * k0, k0);
    }
    ps_restore_mode(mode);
    return 0;
}

void gathered_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t k0 = 0; k0 < 9; ++k0) {
        const int64_t width = ps_least(-k0 + 9, 1);
        for (int64_t c0 = 0; c0 < 8; c0 += 8) {
            const int64_t deep = ps_least(-c0 + 8, 8);
            for (int64_t i = 0; i < deep; ++i) {
                for (int64_t r0 = 0; r0 < 1; ++r0) {
                    for (int64_t s0 = 0; s0 < 1; ++s0) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = k0 + j < 9 ? w[r0 + s0 + 8 * k0 + 8 * j + c0 + i] : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t gathered_packed_size(void)
{
    return 288;
}

int64_t gathered_workspace_size(void)
{
    return 832;
}

static PS_KERNEL void gathered_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 1, .vecs = 2, .wrap = 1, .lanes = 9, .a_outer = 0, .a_inner = 1, .c_outer = 0, .c_inner = 0, .c_col = 1, .diagonal = 0};
    const ps_b *restrict A = g->packed + a;
    const ps_a *restrict B = (const ps_a *)g->a + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[2];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run_rows(acc, t, A, B, 8, 25, 0);
    ps_end_rows(acc, t, g->y + c, &e);
}

static PS_KERNEL void gathered_pack(const ps_x *restrict x, ps_a *restrict box, ps_a zero, int64_t first, int64_t last)
{
    static const ps_row shape = {.pixels = 5, .channels = 5, .step = 2, .limit = 9, .box_pixel = 5, .x_pixel = 9, .x_channel = 2};
    (void)zero;
    for (int64_t row = first; row < last; ++row) {
        const int64_t at1_ = row % 8;
        const int64_t at0_ = 0;
        const ps_x *from = at0_ >= 0 && at0_ < 1 && at1_ >= 0 && at1_ < 8 ? x + 648 * at0_ + 81 * at1_ : 0;
        ps_gather_image(box + 25 * row, from, shape);
    }
}
