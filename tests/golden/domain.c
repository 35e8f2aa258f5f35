int64_t domain_workspace_size(void);
int64_t domain_packed_size(void);
void domain_pack_weights(const float *w, float *packed);
int domain(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);
static const ps_winograd domain_shape = {.m = 2, .across = 4, .down = 4, .height = 7, .width = 7, .channels = 5, .top = 1, .left = 1, .p = 7, .q = 7, .filters = 9, .x_image = 245, .x_row = 7, .x_col = 1, .x_channel = 49, .y_image = 441, .y_row = 7, .y_col = 1, .y_channel = 49, .v_point = 128, .v_tile = 8, .m_point = 48, .m_tile = 8, .block = 8, .cols = 8};

/* domain: winograd(2) k:8* t:6 > brgemm_avx2_f32_4x8 */
int domain(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    const ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    const ps_args *g = &args;
    float *v = (float *)workspace;
#ifdef _OPENMP
#pragma omp parallel for num_threads(2) schedule(static)
#endif
    for (int64_t thread = 0; thread < 2; ++thread) {
        const uint64_t mode = ps_flush_denormals();
        const int64_t t0 = (16 * thread) / 2;
        const int64_t t1 = (16 * thread + 16) / 2;
        domain_input(x, v + 8 * t0, t0, t1);
        ps_restore_mode(mode);
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads(2) schedule(static)
#endif
    for (int64_t thread = 0; thread < 2; ++thread) {
        const uint64_t mode = ps_flush_denormals();
        float *sums = (float *)workspace + 768 * thread + 2048;
        for (int64_t task = (2 * thread) / 2; task < (2 * thread + 2) / 2; ++task) {
            const int64_t k0 = 8 * (task % 2);
            for (int64_t t0 = 0; t0 < 16; t0 += 6) {
                domain_block(g, v + 8 * t0, sums, t0, k0);
            }
        }
        ps_restore_mode(mode);
    }
    return 0;
}

int64_t domain_workspace_size(void)
{
    return 14336;
}

int64_t domain_packed_size(void)
{
    return 5120;
}

void domain_pack_weights(const float *restrict w, float *restrict packed)
{
    ps_winograd_weights(domain_shape, w, packed);
}

static PS_KERNEL void domain_t4(const float *v, const float *u, float *out)
{
    static const ps_tile t = {.rows = 4, .vecs = 1, .wrap = 4, .lanes = 8, .a_inner = 8, .c_inner = 8, .c_col = 1};
    _Alignas(64) ps_vec acc[4];
    ps_begin(acc, t, out, 0);
    ps_run(acc, t, 0xfu, v, u, 5, 1);
    ps_end(acc, t, out, 0);
}

static PS_KERNEL void domain_t2(const float *v, const float *u, float *out)
{
    static const ps_tile t = {.rows = 2, .vecs = 1, .wrap = 2, .lanes = 8, .a_inner = 8, .c_inner = 8, .c_col = 1};
    _Alignas(64) ps_vec acc[2];
    ps_begin(acc, t, out, 0);
    ps_run(acc, t, 0x3u, v, u, 5, 1);
    ps_end(acc, t, out, 0);
}

static PS_KERNEL void domain_input(const float *x, float *v, int64_t t0, int64_t t1)
{
    ps_winograd_input(domain_shape, x, v, t0, t1);
}

static PS_KERNEL void domain_output(const ps_args *g, const float *sums, int64_t t0, int64_t t1, int64_t k0, int64_t count)
{
    ps_winograd_output(domain_shape, g, sums, t0, t1, k0, count, 0);
}

static PS_KERNEL void domain_multiply(const float *v, const float *u, float *sums, int64_t tiles, int64_t width)
{
    const int64_t whole = 4 * (tiles / 4);
    for (int64_t point = 0; point < 16; ++point) {
        for (int64_t k = 0; k < width; k += 8) {
            const float *a = v + 128 * point;
            float *c = sums + 48 * point + k;
            for (int64_t row = 0; row < whole; row += 4) {
                domain_t4(a + 8 * row, u, c + 8 * row);
            }
            if (tiles - whole == 2) {
                domain_t2(a + 8 * whole, u, c + 8 * whole);
            }
            u += 40;
        }
    }
}

static PS_KERNEL void domain_block(const ps_args *g, const float *v, float *sums, int64_t t0, int64_t k0)
{
    const int64_t t1 = ps_least(16, t0 + 6);
    const int64_t width = ps_least(8, -k0 + 16);
    domain_multiply(v, g->packed + 80 * k0, sums, t1 - t0, width);
    domain_output(g, sums, t0, t1, k0, ps_least(width, -k0 + 9));
}
