int64_t residues_workspace_size(void);
int64_t residues_packed_size(void);
void residues_pack_weights(const float *w, float *packed);
int residues(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);
/* residues: n* residues(2,2) h c:16 > brgemm_avx512_f32_5x16 */
int residues(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads(2) schedule(static)
#endif
    for (int64_t thread = 0; thread < 2; ++thread) {
        const uint64_t mode = ps_flush_denormals();
        for (int64_t image = (2 * thread) / 2; image < (2 * thread + 2) / 2; ++image) {
            residues_residue0(x, packed, y + 200, bias, residual ? residual + 200 : 0, clamp, workspace, image, ps_least(2, image + 1));
            residues_residue1(x, packed + 2048, y + 20, bias, residual ? residual + 20 : 0, clamp, workspace, image, ps_least(2, image + 1));
            residues_residue2(x, packed + 3072, y + 180, bias, residual ? residual + 180 : 0, clamp, workspace, image, ps_least(2, image + 1));
            residues_residue3(x, packed + 4096, y, bias, residual, clamp, workspace, image, ps_least(2, image + 1));
        }
        ps_restore_mode(mode);
    }
    return 0;
}

void residues_pack_weights(const float *w, float *packed)
{
    residues_residue0_pack_weights(w, packed);
    residues_residue1_pack_weights(w, packed + 2048);
    residues_residue2_pack_weights(w, packed + 3072);
    residues_residue3_pack_weights(w, packed + 4096);
}

int64_t residues_packed_size(void)
{
    return 18432;
}

int64_t residues_workspace_size(void)
{
    return 0;
}
static PS_KERNEL void residues_residue0_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 4, .vecs = 1, .wrap = 4, .lanes = 16, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 40, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[4];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 2; ++r0) {
        ps_run(acc, t, 0xfu, A + 80 * r0, B + 512 * r0, 32, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void residues_residue0_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 4, .vecs = 1, .wrap = 4, .lanes = 4, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 40, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[4];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 2; ++r0) {
        ps_run(acc, t, 0xfu, A + 80 * r0, B + 512 * r0, 32, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

/* residues_residue0: n* h c:16 > brgemm_avx512_f32_5x16 */
static inline int residues_residue0(const float *x, const float *packed, float *y, const float *bias, const float *residual, const float *clamp, void *workspace, int64_t first, int64_t last)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const ps_args *g = &args;
    for (int64_t n0 = first; n0 < last; ++n0) {
        for (int64_t h0 = 0; h0 < 4; ++h0) {
            residues_residue0_t0(g, 400 * n0 + 80 * h0, 0, 1620 * n0 + 360 * h0, 0);
            residues_residue0_t1(g, 400 * n0 + 80 * h0, 1024, 1620 * n0 + 360 * h0 + 16, 16);
        }
    }
    return 0;
}

static inline void residues_residue0_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t c0 = 0; c0 < 20; c0 += 16) {
        const int64_t width = ps_least(16 * ((-c0 + 35) / 16), 16);
        for (int64_t k0 = 0; k0 < 16; k0 += 16) {
            const int64_t deep = ps_least(-k0 + 16, 16);
            for (int64_t r0 = 0; r0 < 2; ++r0) {
                for (int64_t s0 = 0; s0 < 2; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = c0 + j < 20 ? w[-6 * r0 - 2 * s0 + 9 * c0 + 9 * j + 180 * k0 + 180 * i + 8] : 0;
                        }
                    }
                }
            }
        }
    }
}

static PS_KERNEL void residues_residue1_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 4, .vecs = 1, .wrap = 4, .lanes = 16, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 40, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[4];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0xfu, A, B, 32, 1);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void residues_residue1_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 4, .vecs = 1, .wrap = 4, .lanes = 4, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 40, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[4];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0xfu, A, B, 32, 1);
    ps_end(acc, t, g->y + c, &e);
}

/* residues_residue1: n* h c:16 > brgemm_avx512_f32_5x16 */
static inline int residues_residue1(const float *x, const float *packed, float *y, const float *bias, const float *residual, const float *clamp, void *workspace, int64_t first, int64_t last)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const ps_args *g = &args;
    for (int64_t n0 = first; n0 < last; ++n0) {
        for (int64_t h0 = 0; h0 < 5; ++h0) {
            residues_residue1_t0(g, 400 * n0 + 80 * h0, 0, 1620 * n0 + 360 * h0, 0);
            residues_residue1_t1(g, 400 * n0 + 80 * h0, 512, 1620 * n0 + 360 * h0 + 16, 16);
        }
    }
    return 0;
}

static inline void residues_residue1_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t c0 = 0; c0 < 20; c0 += 16) {
        const int64_t width = ps_least(16 * ((-c0 + 35) / 16), 16);
        for (int64_t k0 = 0; k0 < 16; k0 += 16) {
            const int64_t deep = ps_least(-k0 + 16, 16);
            for (int64_t r0 = 0; r0 < 1; ++r0) {
                for (int64_t s0 = 0; s0 < 2; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = c0 + j < 20 ? w[-6 * r0 - 2 * s0 + 9 * c0 + 9 * j + 180 * k0 + 180 * i + 5] : 0;
                        }
                    }
                }
            }
        }
    }
}

static PS_KERNEL void residues_residue2_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 5, .vecs = 1, .wrap = 5, .lanes = 16, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 40, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[5];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 2; ++r0) {
        ps_run(acc, t, 0x1fu, A + 80 * r0, B + 256 * r0, 16, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void residues_residue2_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 5, .vecs = 1, .wrap = 5, .lanes = 4, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 40, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[5];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 2; ++r0) {
        ps_run(acc, t, 0x1fu, A + 80 * r0, B + 256 * r0, 16, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

/* residues_residue2: n* h c:16 > brgemm_avx512_f32_5x16 */
static inline int residues_residue2(const float *x, const float *packed, float *y, const float *bias, const float *residual, const float *clamp, void *workspace, int64_t first, int64_t last)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const ps_args *g = &args;
    for (int64_t n0 = first; n0 < last; ++n0) {
        for (int64_t h0 = 0; h0 < 4; ++h0) {
            residues_residue2_t0(g, 400 * n0 + 80 * h0, 0, 1620 * n0 + 360 * h0, 0);
            residues_residue2_t1(g, 400 * n0 + 80 * h0, 512, 1620 * n0 + 360 * h0 + 16, 16);
        }
    }
    return 0;
}

static inline void residues_residue2_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t c0 = 0; c0 < 20; c0 += 16) {
        const int64_t width = ps_least(16 * ((-c0 + 35) / 16), 16);
        for (int64_t k0 = 0; k0 < 16; k0 += 16) {
            const int64_t deep = ps_least(-k0 + 16, 16);
            for (int64_t r0 = 0; r0 < 2; ++r0) {
                for (int64_t s0 = 0; s0 < 1; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = c0 + j < 20 ? w[-6 * r0 - 2 * s0 + 9 * c0 + 9 * j + 180 * k0 + 180 * i + 7] : 0;
                        }
                    }
                }
            }
        }
    }
}

static PS_KERNEL void residues_residue3_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 5, .vecs = 1, .wrap = 5, .lanes = 16, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 40, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[5];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0x1fu, A, B, 16, 1);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void residues_residue3_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n)
{
    static const ps_tile t = {.rows = 5, .vecs = 1, .wrap = 5, .lanes = 4, .a_outer = 0, .a_inner = 16, .c_outer = 0, .c_inner = 40, .c_col = 1, .diagonal = 0};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[5];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0x1fu, A, B, 16, 1);
    ps_end(acc, t, g->y + c, &e);
}

/* residues_residue3: n* h c:16 > brgemm_avx512_f32_5x16 */
static inline int residues_residue3(const float *x, const float *packed, float *y, const float *bias, const float *residual, const float *clamp, void *workspace, int64_t first, int64_t last)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const ps_args *g = &args;
    for (int64_t n0 = first; n0 < last; ++n0) {
        for (int64_t h0 = 0; h0 < 5; ++h0) {
            residues_residue3_t0(g, 400 * n0 + 80 * h0, 0, 1620 * n0 + 360 * h0, 0);
            residues_residue3_t1(g, 400 * n0 + 80 * h0, 256, 1620 * n0 + 360 * h0 + 16, 16);
        }
    }
    return 0;
}

static inline void residues_residue3_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t c0 = 0; c0 < 20; c0 += 16) {
        const int64_t width = ps_least(16 * ((-c0 + 35) / 16), 16);
        for (int64_t k0 = 0; k0 < 16; k0 += 16) {
            const int64_t deep = ps_least(-k0 + 16, 16);
            for (int64_t r0 = 0; r0 < 1; ++r0) {
                for (int64_t s0 = 0; s0 < 1; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = c0 + j < 20 ? w[-6 * r0 - 2 * s0 + 9 * c0 + 9 * j + 180 * k0 + 180 * i + 4] : 0;
                        }
                    }
                }
            }
        }
    }
}
