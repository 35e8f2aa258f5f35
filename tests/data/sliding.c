/* Runs of depthwise tiles whose rows share pixels.  Before this text: microkernels.c, and the size of
 * a tile as SLID_ROWS and SLID_VECS, if the unit has one. */
#ifdef SLID_ROWS
#define SLIDING

/* Lines of one row or several, the last one full or not; pixels used by one tap or by several; more
 * vectors of B than registers hold. */
#define SLIDES SLIDE(3, 1, 3) SLIDE(2, 2, 3) SLIDE(1, 1, 5) SLIDE(4, 3, 2) SLIDE(2, 1, 7)
enum { STEP = 3 * PS_LANES + 1 };

#define SLIDE(wrap_, every_, taps_)                                                                \
    static PS_KERNEL void slide_##wrap_##_##every_##_##taps_(                                      \
        const test_case *v, const ps_a *a, const ps_b *b, ps_y *c, const ps_epilogue *e)           \
    {                                                                                              \
        const ps_tile t = {.rows = SLID_ROWS, .vecs = SLID_VECS, .diagonal = 1, .wrap = wrap_,     \
                           .lanes = v->lanes, .stream = v->stream, .begun = v->begun,              \
                           .a_outer = v->a_outer,                                                  \
                           .a_inner = (every_) * STEP, .c_outer = v->c_outer,                      \
                           .c_inner = v->c_inner, .c_col = v->c_col};                              \
        ps_acc acc[SLID_ROWS * SLID_VECS];                                                         \
        BEGIN(acc, t, c, e, v);                                                                    \
        if (v->filled)                                                                             \
            ps_slide_filled(acc, t, v->pixels, v->zero, a + v->a_at[0], b + v->b_at[0], taps_,     \
                            STEP);                                                                 \
        else                                                                                       \
            ps_slide(acc, t, v->pixels, a + v->a_at[0], b + v->b_at[0], taps_, STEP);              \
        ps_unpair(acc, t);                                                                         \
        ps_end(acc, t, c, e);                                                                      \
    }
SLIDES
#undef SLIDE

#define SLIDE(wrap, every, taps)                                                                   \
    {"ps_slide", slide_##wrap##_##every##_##taps, SLID_ROWS, SLID_VECS, 1, 1, 1,                   \
     {wrap, every, taps, STEP}},
static const entry slides[] = {SLIDES};

int check_sliding(int times, const region *regions, char *message, size_t room);

/* 0 if every run is right, else 1 and what differed. */
int check_sliding(int times, const region *regions, char *message, size_t room)
{
    const size_t count = sizeof slides / sizeof *slides;
    state = 1;
    for (int time = 0; time < times; ++time)
        if (failed(slides[(size_t)below((int64_t)count)], 1 + (int)below(PS_LANES), 1, regions,
                   message, room))
            return 1;
    return 0;
}
#endif
