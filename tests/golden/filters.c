int64_t filters_workspace_size(void);
int64_t filters_packed_size(void);
void filters_pack_weights(const float *w, float *packed);
int filters(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);
static const ps_winograd filters_shape = {.m = 2, .across = 4, .down = 4, .height = 8, .width = 8, .channels = 16, .top = 1, .left = 1, .p = 8, .q = 8, .filters = 40, .x_image = 1024, .x_row = 128, .x_col = 16, .x_channel = 1, .y_image = 2560, .y_row = 320, .y_col = 40, .y_channel = 1, .v_point = 256, .v_tile = 16, .m_point = 256, .m_tile = 16, .block = 16, .cols = 16};

/* filters: winograd(2) k:16 ahead(B) > brgemm_avx512_f32_4x16 */
int filters(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    const ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    const ps_args *g = &args;
    const uint64_t mode = ps_flush_denormals();
    float *v = (float *)workspace;
    filters_input(x, v, 0, 16);
    float *sums = (float *)workspace + 4096;
    for (int64_t k0 = 0; k0 < 48; k0 += 16) {
        filters_block(g, v, sums, 0, k0);
    }
    ps_restore_mode(mode);
    return 0;
}

int64_t filters_workspace_size(void)
{
    return 32768;
}

int64_t filters_packed_size(void)
{
    return 49152;
}

void filters_pack_weights(const float *restrict w, float *restrict packed)
{
    ps_winograd_weights(filters_shape, w, packed);
}

static PS_KERNEL void filters_t4(const float *v, const float *u, float *out, int64_t next)
{
    const ps_tile t = {.rows = 4, .vecs = 1, .wrap = 4, .lanes = 16, .a_inner = 16, .c_inner = 16, .c_col = 1, .ahead = 1, .next = next};
    _Alignas(64) ps_vec acc[4];
    ps_begin(acc, t, out, 0);
    ps_run(acc, t, 0xfu, v, u, 16, 1);
    ps_end(acc, t, out, 0);
}

static PS_KERNEL void filters_input(const float *x, float *v, int64_t t0, int64_t t1)
{
    ps_winograd_input(filters_shape, x, v, t0, t1);
}

static PS_KERNEL void filters_output(const ps_args *g, const float *sums, int64_t t0, int64_t t1, int64_t k0, int64_t count)
{
    ps_winograd_output(filters_shape, g, sums, t0, t1, k0, count, 0);
}

static PS_KERNEL void filters_multiply(const float *v, const float *u, float *sums, int64_t tiles, int64_t width)
{
    const int64_t whole = 4 * (tiles / 4);
    for (int64_t point = 0; point < 16; ++point) {
        for (int64_t k = 0; k < width; k += 16) {
            const float *a = v + 256 * point;
            float *c = sums + 256 * point + k;
            for (int64_t row = 0; row < whole; row += 4) {
                filters_t4(a + 16 * row, u, c + 16 * row, row >= 4 && row < 8 ? 64 * (row / 4) + 960 : 0);
            }
            u += 256;
        }
    }
}

static PS_KERNEL void filters_block(const ps_args *g, const float *v, float *sums, int64_t t0, int64_t k0)
{
    const int64_t t1 = ps_least(16, t0 + 16);
    const int64_t width = ps_least(16, -k0 + 48);
    filters_multiply(v, g->packed + 256 * k0, sums, t1 - t0, width);
    filters_output(g, sums, t0, t1, k0, ps_least(width, -k0 + 40));
}
