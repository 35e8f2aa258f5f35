/* Copies random rows of pixels into boxes and compares with plain loops.  Before this text: what
 * microkernels.c needs, and that file. */
#include <string.h>

#define PACKING
#define VALUE_X GLUE(value, TYPE_X)

static PS_KERNEL void pack(ps_a *box, const ps_x *x, ps_row row, int64_t first, int64_t channels,
                           ps_a zero)
{
    ps_pack_row(box, x, row, first, channels, zero);
}

/* Channels contiguous, pixels next to each other, or neither. */
static ps_row any_row(int64_t channels)
{
    const int kind = (int)below(3);
    ps_row row = {.pixels = 1 + below(40), .channels = channels, .limit = 1 + below(40)};
    row.step = kind == 1 ? 1 : 1 + below(3);
    row.box_pixel = channels + below(2) * below(5);
    row.x_pixel = kind == 0 ? channels + below(2) * below(5) : kind == 1 ? 1 : 2 + below(2);
    row.x_channel = kind == 0 ? 1 : row.x_pixel * row.limit + below(5);
    return row;
}

static int64_t source(ps_row row, int64_t first, int64_t i) { return first + i * row.step; }

static int real(ps_row row, int64_t first, int64_t i)
{
    return source(row, first, i) >= 0 && source(row, first, i) < row.limit;
}

/* First element that is read, and one past the last. */
static void reach_x(ps_row row, int64_t first, int64_t channels, int64_t *low, int64_t *high)
{
    *low = INT64_MAX, *high = 0;
    for (int64_t i = 0; i < row.pixels; ++i)
        if (real(row, first, i)) {
            const int64_t at = source(row, first, i) * row.x_pixel;
            *low = ps_least(*low, at);
            *high = ps_most(*high, at + (channels - 1) * row.x_channel + 1);
        }
    if (*low > *high)
        *low = 0;
}

static int same(ps_a got, ps_a want)
{
    const double x = VALUE_A(got), y = VALUE_A(want);
    return !memcmp(&got, &want, sizeof got) || (isnan(x) && isnan(y)) ||
           (COPY_FLUSHES && x == 0 && fabs(y) < 0x1p-126);
}

static int misplaced(const region *regions, char *message, size_t room)
{
    const int64_t channels = 1 + below(40), first = below(14) - 7;
    const ps_row row = any_row(channels);
    const uint32_t ends = (uint32_t)below(4), padding = !below(8);
    int64_t low, high, slack, idle, size = (row.pixels - 1) * row.box_pixel + channels, wrong = -1;
    reach_x(row, first, channels, &low, &high);
    ps_x *x = placed(regions[OF_A], high - low, sizeof *x, ends & 1, &idle);
    ps_a *box = placed(regions[OF_C], size, sizeof *box, ends & 2, &slack);
    ps_a *around = ends & 2 ? box - slack : box, zero = NEAREST_A(any(ANY, X_LOW, X_HIGH));
    ps_a *want = malloc((size_t)(size + slack) * sizeof *want), *inside = want + (box - around);
    for (int64_t i = 0; i < (high - low) * (int64_t)sizeof *x; ++i)
        ((unsigned char *)x)[i] = (unsigned char)below(256);
    untouched(around, (size + slack) * (int64_t)sizeof *box);
    memcpy(want, around, (size_t)(size + slack) * sizeof *want);
    for (int64_t i = 0; i < row.pixels; ++i)
        for (int64_t c = 0; c < channels; ++c) {
            const int64_t at = source(row, first, i) * row.x_pixel + c * row.x_channel - low;
            const int filled = padding || !real(row, first, i);
            inside[i * row.box_pixel + c] = filled ? zero : (ps_a)NEAREST_A(VALUE_X(x[at]));
        }
    pack(box, padding ? 0 : x - low, row, first, channels, zero);
    for (int64_t at = 0; at < size + slack && wrong < 0; ++at)
        if (!same(around[at], want[at]))
            wrong = at;
    if (wrong >= 0)
        snprintf(message, room,
                 "ps_pack_row pixels=%d channels=%d step=%d limit=%d first=%d x_pixel=%d "
                 "x_channel=%d: box at %d: expected %g, got %g", (int)row.pixels, (int)channels,
                 (int)row.step, (int)row.limit, (int)first, (int)row.x_pixel, (int)row.x_channel,
                 (int)(wrong - (box - around)), VALUE_A(want[wrong]), VALUE_A(around[wrong]));
    free(want), freed(x), freed(box);
    return wrong >= 0;
}

int check_packing(int times, const region *regions, char *message, size_t room);

/* 0 if every row is packed as it should be, else 1 and what differed. */
int check_packing(int times, const region *regions, char *message, size_t room)
{
    state = 1;
    for (int time = 0; time < times; ++time)
        if (misplaced(regions, message, room))
            return 1;
    return 0;
}
