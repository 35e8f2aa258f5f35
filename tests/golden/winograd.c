int64_t winograd_workspace_size(void);
int64_t winograd_packed_size(void);
void winograd_pack_weights(const float *w, float *packed);
int winograd(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

static const ps_winograd winograd_shape = {.tall = 4, .wide = 4, .rows = 6, .columns = 6, .tall_step = 1, .wide_step = 1, .tall_stride = 1, .wide_stride = 1, .across = 2, .down = 2, .height = 8, .width = 8, .channels = 16, .top = 1, .left = 1, .depth = 16, .planes = 1, .plane_stride = 1, .plane_step = 1, .front = 0, .deep = 1, .images = 1, .p = 8, .q = 8, .filters = 20, .x_image = 1024, .x_plane = 0, .x_row = 128, .x_col = 16, .x_channel = 1, .y_image = 1280, .y_plane = 0, .y_row = 160, .y_col = 20, .y_channel = 1, .v_point = 48, .v_tile = 16, .m_point = 48, .m_tile = 16, .block = 16, .cols = 16};

/* winograd: t:3* winograd(4) k:16 > brgemm_avx2_f32_3x16 */
int winograd(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    const ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    const ps_args *g = &args;
#ifdef _OPENMP
#pragma omp parallel for num_threads(2) schedule(static)
#endif
    for (int64_t thread = 0; thread < 2; ++thread) {
        const uint64_t mode = ps_flush_denormals();
        float *v = (float *)workspace + 1728 * thread;
        float *sums = (float *)workspace + 1728 * thread + 3456;
        for (int64_t task = (2 * thread) / 2; task < (2 * thread + 2) / 2; ++task) {
            const int64_t t0 = 3 * (task % 2);
            winograd_input(x, v, t0, ps_least(4, t0 + 3));
            for (int64_t k0 = 0; k0 < 32; k0 += 16) {
                winograd_block(g, v, sums, t0, k0);
            }
        }
        ps_restore_mode(mode);
    }
    return 0;
}

int64_t winograd_workspace_size(void)
{
    return 27648;
}

int64_t winograd_packed_size(void)
{
    return 73728;
}

void winograd_pack_weights(const float *restrict w, float *restrict packed)
{
    if (!PS_CPU_OK()) {
        return;
    }
    ps_winograd_weights(winograd_shape, w, packed);
}

static PS_KERNEL void winograd_t3(const float *v, const ps_b *u, float *out)
{
    static const ps_tile t = {.rows = 3, .vecs = 2, .wrap = 3, .lanes = 8, .a_inner = 16, .c_inner = 16, .c_col = 1};
    _Alignas(64) ps_vec acc[6];
    ps_begin(acc, t, out, 0);
    ps_run(acc, t, 0x7u, v, u, 16, 1);
    ps_end(acc, t, out, 0);
}

static PS_KERNEL void winograd_t1(const float *v, const ps_b *u, float *out)
{
    static const ps_tile t = {.rows = 1, .vecs = 2, .wrap = 1, .lanes = 8, .a_inner = 16, .c_inner = 16, .c_col = 1};
    _Alignas(64) ps_vec acc[2];
    ps_begin(acc, t, out, 0);
    ps_run(acc, t, 0x1u, v, u, 16, 1);
    ps_end(acc, t, out, 0);
}

static PS_KERNEL void winograd_input(const float *x, float *v, int64_t t0, int64_t t1)
{
    ps_winograd_input(winograd_shape, x, v, t0, t1);
}

static PS_KERNEL void winograd_output(const ps_args *g, const float *sums, int64_t t0, int64_t t1, int64_t k0, int64_t count)
{
    ps_winograd_output(winograd_shape, g, sums, t0, t1, k0, count, 0);
}

static PS_KERNEL void winograd_multiply(const float *v, const ps_b *u, float *sums, int64_t tiles, int64_t width)
{
    const int64_t whole = 3 * (tiles / 3);
    for (int64_t point = 0; point < 36; ++point) {
        for (int64_t k = 0; k < width; k += 16) {
            const float *a = v + 48 * point;
            float *c = sums + 48 * point + k;
            for (int64_t row = 0; row < whole; row += 3) {
                winograd_t3(a + 16 * row, u, c + 16 * row);
            }
            if (tiles - whole == 1) {
                winograd_t1(a + 16 * whole, u, c + 16 * whole);
            }
            u += 256;
        }
    }
}

static PS_KERNEL void winograd_block(const ps_args *g, const float *v, float *sums, int64_t t0, int64_t k0)
{
    const int64_t t1 = ps_least(4, t0 + 3);
    const int64_t width = ps_least(16, -k0 + 32);
    winograd_multiply(v, g->packed + 576 * k0, sums, t1 - t0, width);
    winograd_output(g, sums, t0, t1, k0, ps_least(width, -k0 + 20));
}
