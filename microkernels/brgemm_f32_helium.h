/* The runs of brgemm.h on Helium: an element of A is an operand of the product in a register of the core,
 * so that all eight vectors hold sums and B. */
PS_INLINE float ps_one(const ps_a *p)
{
    return _Generic(p, const float *: *(const float *)(const void *)p, default: ps_x_value(*p));
}

PS_INLINE void ps_scalar_run(ps_acc *acc, ps_tile t, uint32_t rows, const ps_a *restrict a,
                             const ps_b *restrict b, int64_t length, int64_t a_k)
{
    if (t.diagonal) {
        ps_run(acc, t, rows, a, b, length, a_k);
        return;
    }
    for (int32_t left = (int32_t)length; left > 0; --left) {
        _Alignas(64) ps_wide bv[8];
        PS_UNROLL
        for (int v = 0; v < t.vecs; ++v)
            bv[v] = ps_panel(b + v * PS_LANES);
        PS_UNROLL
        for (int i = 0; i < t.rows; ++i) {
            if (!(rows >> i & 1))
                continue;
            const float x = ps_one(a + ps_a_row(t, i));
            PS_UNROLL
            for (int v = 0; v < t.vecs; ++v)
                acc[i * t.vecs + v] = vfmaq_n_f32(acc[i * t.vecs + v], bv[v], x);
        }
        a += a_k;
        b += t.vecs * PS_LANES;
    }
}
/* What follows is written against this name. */
#define ps_run ps_scalar_run
