/* One step of 16 words on one tile of each: C += A x B for 16 x 16 of C.  Before this text: the
 * steps of brgemm_amx.h. */

void product(const ps_a *a, const ps_b *b, ps_y *c);
PS_KERNEL void product(const ps_a *a, const ps_b *b, ps_y *c)
{
    static const ps_tile t = {.rows = 16, .vecs = 1, .wrap = 16, .lanes = 16,
                              .a_inner = 16 * PS_WORD, .c_inner = 16, .c_col = 1};
    ps_acc acc[16];
    int configured = 0;
    ps_tiles_configure(&configured, t);
    ps_begin(acc, t, c, 1);
    ps_run(acc, t, 0xffff, a, b, 16, PS_WORD);
    ps_end(acc, t, c, 0);
    ps_tiles_release(&configured);
}

/* Bits: tiles may be used; what the CPU says twice is the same. */
int allowed(void);
int allowed(void)
{
    const int first = ps_has_amx();
    return first | (ps_has_amx() == first) << 1;
}
