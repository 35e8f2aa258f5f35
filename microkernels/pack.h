/* Copying a row of pixels into a packed box: channels contiguous, in the elements that kernels read;
 * the padding holds what x holds for zero. */

/* Asks for what a copy reads soon: caches follow one long stream, not many of short rows. */
enum { PS_COPY_AHEAD = 4096 }; /* bytes */
PS_INLINE void ps_copy_ahead(const void *from)
{
    __builtin_prefetch((const char *)from + PS_COPY_AHEAD);
}

typedef struct {
    int64_t pixels, channels;   /* of the row in the box */
    int64_t step, limit;        /* pixel i is source pixel first + i * step, real if 0 <= it < limit */
    int64_t box_pixel;          /* strides in elements */
    int64_t x_pixel, x_channel;
    int64_t panel, panel_size; /* 0, or of how many channels a panel is, and elements of it */
} ps_row;

/* Pixels next to each other in x become channels next to each other in the box: a block of
 * PS_LANES pixels x PS_LANES channels at a time, in registers. */
PS_INLINE void ps_turn(ps_a *restrict box, int64_t box_pixel, const ps_x *restrict x,
                       int64_t x_channel, int64_t pixels, int64_t channels)
{
    for (int64_t c0 = 0; c0 < channels; c0 += PS_LANES) {
        const int deep = (int)ps_least(channels - c0, PS_LANES);
        for (int64_t i0 = 0; i0 < pixels; i0 += PS_LANES) {
            const int wide = (int)ps_least(pixels - i0, PS_LANES);
            const ps_x *from = x + i0 + c0 * x_channel;
            ps_a *to = box + i0 * box_pixel + c0;
            _Alignas(64) ps_vec block[PS_LANES];
            PS_UNROLL
            for (int c = 0; c < PS_LANES; ++c)
                block[c] = c < deep ? ps_x_bits(from + c * x_channel, wide) : ps_zero();
            ps_transpose(block);
            PS_UNROLL
            for (int i = 0; i < PS_LANES; ++i)
                if (i < wide)
                    ps_a_store(to + i * box_pixel, block[i], deep);
        }
    }
}

/* The same for pixels that do not touch. */
PS_INLINE void ps_pick(ps_a *restrict box, int64_t box_pixel, const ps_x *restrict x,
                       int64_t x_pixel, int64_t x_channel, int64_t pixels, int64_t channels)
{
    for (int64_t c0 = 0; c0 < channels; c0 += 16) /* a cache line of x serves several pixels */
        for (int64_t i = 0; i < pixels; ++i)
            for (int64_t c = c0; c < ps_least(channels, c0 + 16); ++c)
                box[i * box_pixel + c] = ps_a_of(x[i * x_pixel + c * x_channel]);
}

/* Neighbours in both: floats that the copy widens go by vectors, which convert at once. */
PS_INLINE void ps_copy(ps_a *restrict box, const ps_x *restrict x, int64_t count)
{
    if (PS_WORD > 1 || sizeof *box == sizeof *x) {
        for (int64_t i = 0; i < count; ++i)
            box[i] = ps_a_of(x[i]);
        return;
    }
    const int rest = (int)(count % PS_LANES);
    const int64_t whole = count - rest;
    for (int64_t i = 0; i < whole; i += PS_LANES)
        ps_a_store(box + i, ps_x_bits(x + i, PS_LANES), PS_LANES);
    if (rest)
        ps_a_store(box + whole, ps_x_bits(x + whole, rest), rest);
}

/* Pixels first..last-1 of a row, which lie in the padding. */
PS_INLINE void ps_pad(ps_a *restrict box, int64_t box_pixel, int64_t first, int64_t last,
                      int64_t channels, ps_a zero)
{
    for (int64_t i = first; i < last; ++i)
        for (int64_t c = 0; c < channels; ++c)
            box[i * box_pixel + c] = zero;
}

/* One pixel's channels, neighbours in x, `panel` of them in each panel. */
PS_INLINE void ps_copy_panels(ps_a *restrict box, const ps_x *restrict x, ps_row row,
                              int64_t channels)
{
    int64_t c0 = 0;
    for (; c0 + row.panel <= channels; c0 += row.panel, box += row.panel_size) {
        ps_copy_ahead(x + c0);
        for (int64_t c = 0; c < row.panel; ++c)
            box[c] = ps_a_of(x[c0 + c]);
    }
    for (int64_t c = 0; c0 + c < channels; ++c)
        box[c] = ps_a_of(x[c0 + c]);
}

/* x points at source pixel 0 of the row, or is null for a row of padding. */
PS_INLINE void ps_pack_row(ps_a *restrict box, const ps_x *restrict x, ps_row row, int64_t first,
                           int64_t channels, ps_a zero)
{
    const int64_t inside = ps_most(0, ps_ceil_div(row.limit - first, row.step));
    const int64_t count = x ? ps_least(row.pixels, inside) : 0;
    const int64_t skip = ps_least(count, ps_most(0, ps_ceil_div(-first, row.step)));
    const int64_t end = ps_most(skip, count);
    const int64_t width = row.panel ? row.panel : channels;
    for (int64_t c = 0, at = 0; c < channels; c += width, at += row.panel_size) {
        ps_pad(box + at, row.box_pixel, 0, skip, width, zero);
        ps_pad(box + at, row.box_pixel, end, row.pixels, width, zero);
    }
    if (count <= skip)
        return;
    x += (first + skip * row.step) * row.x_pixel;
    box += skip * row.box_pixel;
    int64_t pixels = count - skip;
    if (row.panel) {
        for (int64_t i = 0; i < pixels; ++i)
            ps_copy_panels(box + i * row.box_pixel, x + i * row.step * row.x_pixel, row, channels);
    } else if (row.x_channel == 1) {
        if (row.step * row.x_pixel == channels && row.box_pixel == channels)
            channels *= pixels, pixels = 1; /* neither side has gaps */
        for (int64_t i = 0; i < pixels; ++i)
            ps_copy(box + i * row.box_pixel, x + i * row.step * row.x_pixel, channels);
    } else if (row.step * row.x_pixel == 1) {
        ps_turn(box, row.box_pixel, x, row.x_channel, pixels, channels);
    } else {
        ps_pick(box, row.box_pixel, x, row.step * row.x_pixel, row.x_channel, pixels, channels);
    }
}
