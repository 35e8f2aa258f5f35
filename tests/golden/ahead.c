int64_t ahead_workspace_size(void);
int64_t ahead_packed_size(void);
void ahead_pack_weights(const float *w, float *packed);
int ahead(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);

/* ahead: k:32 p:2 ahead(B) > brgemm_avx512_f32_12x32 */
int ahead(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace)
{
    if (!PS_CPU_OK()) {
        return 1;
    }
    ps_args args = {.a = x, .packed = packed, .y = y, .bias = bias, .residual = residual, .clamp = clamp};
    (void)workspace;
    const uint64_t mode = ps_flush_denormals();
    const ps_args *g = &args;
    for (int64_t k0 = 0; k0 < 33; k0 += 32) {
        ahead_t0(g, -112, 144 * k0, k0, k0, 0, k0 + 32 < 72 ? 4608 : -144 * k0 + 11520);
        ahead_t1(g, 80, 144 * k0, k0 + 864, k0, 1, k0 + 32 < 72 ? 4608 : -144 * k0 + 11520);
        ahead_t2(g, 272, 144 * k0, k0 + 1728, k0, 2, k0 + 32 < 72 ? 4608 : -144 * k0 + 11520);
    }
    ahead_t3(g, -112, 9216, 64, 64, 0, 2304);
    ahead_t4(g, 80, 9216, 928, 64, 1, 2304);
    ahead_t5(g, 272, 9216, 1792, 64, 2, 2304);
    ps_restore_mode(mode);
    return 0;
}

void ahead_pack_weights(const float *restrict w, float *restrict packed)
{
    for (int64_t k0 = 0; k0 < 72; k0 += 32) {
        const int64_t width = ps_least(16 * ((-k0 + 87) / 16), 32);
        for (int64_t c0 = 0; c0 < 16; c0 += 16) {
            const int64_t deep = ps_least(-c0 + 16, 16);
            for (int64_t r0 = 0; r0 < 3; ++r0) {
                for (int64_t s0 = 0; s0 < 3; ++s0) {
                    for (int64_t i = 0; i < deep; ++i) {
                        for (int64_t j = 0; j < width; ++j) {
                            *packed++ = k0 + j < 72 ? w[3 * r0 + s0 + 144 * k0 + 144 * j + 9 * c0 + 9 * i] : 0;
                        }
                    }
                }
            }
        }
    }
}

int64_t ahead_packed_size(void)
{
    return 46080;
}

int64_t ahead_workspace_size(void)
{
    return 0;
}

static PS_KERNEL void ahead_t0(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t call, int64_t panel)
{
    /* Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new */
    const int64_t next = panel && call < 2 ? 4 * panel + 64 * call : 0;
    const ps_tile t = {.rows = 12, .vecs = 2, .wrap = 6, .lanes = 16, .a_outer = 96, .a_inner = 16, .c_outer = 432, .c_inner = 72, .c_col = 1, .diagonal = 0, .ahead = 1, .next = next};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[24];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0xf80u, A, B, 16, 1);
    ps_run(acc, t, 0xfc0u, A + 16, B + 512, 16, 1);
    ps_run(acc, t, 0x7c0u, A + 32, B + 1024, 16, 1);
    ps_run(acc, t, 0xfbeu, A + 96, B + 1536, 16, 1);
    ps_run(acc, t, 0xfffu, A + 112, B + 2048, 16, 1);
    ps_run(acc, t, 0x7dfu, A + 128, B + 2560, 16, 1);
    ps_run(acc, t, 0xfbeu, A + 192, B + 3072, 16, 1);
    ps_run(acc, t, 0xfffu, A + 208, B + 3584, 16, 1);
    ps_run(acc, t, 0x7dfu, A + 224, B + 4096, 16, 1);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void ahead_t1(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t call, int64_t panel)
{
    /* Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new */
    const int64_t next = panel && call < 2 ? 4 * panel + 64 * call : 0;
    const ps_tile t = {.rows = 12, .vecs = 2, .wrap = 6, .lanes = 16, .a_outer = 96, .a_inner = 16, .c_outer = 432, .c_inner = 72, .c_col = 1, .diagonal = 0, .ahead = 1, .next = next};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[24];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 3; ++r0) {
        ps_run(acc, t, 0xfbeu, A + 96 * r0, B + 1536 * r0, 16, 1);
        ps_run(acc, t, 0xfffu, A + 96 * r0 + 16, B + 1536 * r0 + 512, 16, 1);
        ps_run(acc, t, 0x7dfu, A + 96 * r0 + 32, B + 1536 * r0 + 1024, 16, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void ahead_t2(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t call, int64_t panel)
{
    /* Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new */
    const int64_t next = panel && call < 2 ? 4 * panel + 64 * call : 0;
    const ps_tile t = {.rows = 12, .vecs = 2, .wrap = 6, .lanes = 16, .a_outer = 96, .a_inner = 16, .c_outer = 432, .c_inner = 72, .c_col = 1, .diagonal = 0, .ahead = 1, .next = next};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[24];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0xfbeu, A, B, 16, 1);
    ps_run(acc, t, 0xfffu, A + 16, B + 512, 16, 1);
    ps_run(acc, t, 0x7dfu, A + 32, B + 1024, 16, 1);
    ps_run(acc, t, 0xfbeu, A + 96, B + 1536, 16, 1);
    ps_run(acc, t, 0xfffu, A + 112, B + 2048, 16, 1);
    ps_run(acc, t, 0x7dfu, A + 128, B + 2560, 16, 1);
    ps_run(acc, t, 0x3eu, A + 192, B + 3072, 16, 1);
    ps_run(acc, t, 0x3fu, A + 208, B + 3584, 16, 1);
    ps_run(acc, t, 0x1fu, A + 224, B + 4096, 16, 1);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void ahead_t3(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t call, int64_t panel)
{
    /* Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new */
    const int64_t next = panel && call >= 1 && call < 2 ? 4 * panel + 64 * call - 64 : 0;
    const ps_tile t = {.rows = 12, .vecs = 1, .wrap = 6, .lanes = 8, .a_outer = 96, .a_inner = 16, .c_outer = 432, .c_inner = 72, .c_col = 1, .diagonal = 0, .ahead = 1, .next = next};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[12];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0xf80u, A, B, 16, 1);
    ps_run(acc, t, 0xfc0u, A + 16, B + 256, 16, 1);
    ps_run(acc, t, 0x7c0u, A + 32, B + 512, 16, 1);
    ps_run(acc, t, 0xfbeu, A + 96, B + 768, 16, 1);
    ps_run(acc, t, 0xfffu, A + 112, B + 1024, 16, 1);
    ps_run(acc, t, 0x7dfu, A + 128, B + 1280, 16, 1);
    ps_run(acc, t, 0xfbeu, A + 192, B + 1536, 16, 1);
    ps_run(acc, t, 0xfffu, A + 208, B + 1792, 16, 1);
    ps_run(acc, t, 0x7dfu, A + 224, B + 2048, 16, 1);
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void ahead_t4(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t call, int64_t panel)
{
    /* Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new */
    const int64_t next = panel && call >= 1 && call < 2 ? 4 * panel + 64 * call - 64 : 0;
    const ps_tile t = {.rows = 12, .vecs = 1, .wrap = 6, .lanes = 8, .a_outer = 96, .a_inner = 16, .c_outer = 432, .c_inner = 72, .c_col = 1, .diagonal = 0, .ahead = 1, .next = next};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[12];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    for (int64_t r0 = 0; r0 < 3; ++r0) {
        ps_run(acc, t, 0xfbeu, A + 96 * r0, B + 768 * r0, 16, 1);
        ps_run(acc, t, 0xfffu, A + 96 * r0 + 16, B + 768 * r0 + 256, 16, 1);
        ps_run(acc, t, 0x7dfu, A + 96 * r0 + 32, B + 768 * r0 + 512, 16, 1);
    }
    ps_end(acc, t, g->y + c, &e);
}

static PS_KERNEL void ahead_t5(const ps_args *restrict g, int64_t a, int64_t b, int64_t c, int64_t n, int64_t call, int64_t panel)
{
    /* Bytes from B to what a step prefetches of the panel that comes next; 0: nothing new */
    const int64_t next = panel && call >= 1 && call < 2 ? 4 * panel + 64 * call - 64 : 0;
    const ps_tile t = {.rows = 12, .vecs = 1, .wrap = 6, .lanes = 8, .a_outer = 96, .a_inner = 16, .c_outer = 432, .c_inner = 72, .c_col = 1, .diagonal = 0, .ahead = 1, .next = next};
    const ps_a *restrict A = (const ps_a *)g->a + a;
    const ps_b *restrict B = g->packed + b;
    const ps_epilogue e = ps_shifted(g, n, c);
    _Alignas(64) ps_acc acc[12];
    ps_begin(acc, t, g->y + c, 0);
    ps_ahead(t, e.residual);
    ps_run(acc, t, 0xfbeu, A, B, 16, 1);
    ps_run(acc, t, 0xfffu, A + 16, B + 256, 16, 1);
    ps_run(acc, t, 0x7dfu, A + 32, B + 512, 16, 1);
    ps_run(acc, t, 0xfbeu, A + 96, B + 768, 16, 1);
    ps_run(acc, t, 0xfffu, A + 112, B + 1024, 16, 1);
    ps_run(acc, t, 0x7dfu, A + 128, B + 1280, 16, 1);
    ps_run(acc, t, 0x3eu, A + 192, B + 1536, 16, 1);
    ps_run(acc, t, 0x3fu, A + 208, B + 1792, 16, 1);
    ps_run(acc, t, 0x1fu, A + 224, B + 2048, 16, 1);
    ps_end(acc, t, g->y + c, &e);
}
