/* Functions of tensors that are no loops over scalar expressions.  Each is called once for every
 * item, a row or a region, of which it alone writes the results; tensors lie in row-major order.
 * Whatever numbers tensors hold, nothing outside of them is read or written. */
#include <stdint.h>

/* Element `at` of x as a whole number: numbers of a type are in the order of those of its elements,
 * equal ones where these are equal, and a NaN's is the largest. */
PS_SCALAR int64_t ps_key(const void *x, int kind, int64_t at)
{
    int64_t bits = 0;
    switch (kind) {
    case 0: {
        const float value = ((const float *)x)[at];
        const int32_t half = (int32_t)ps_bits_of(value);
        if (value != value)
            return INT64_MAX;
        bits = half < 0 ? half ^ INT32_MAX : half;
        return value == 0.0f ? 0 : bits;
    }
#ifndef PS_NO_DOUBLE
    case 1: {
        const double value = ((const double *)x)[at];
        if (value != value)
            return INT64_MAX;
        bits = (int64_t)ps_wide_bits_of(value);
        return value == 0.0 ? 0 : bits < 0 ? bits ^ INT64_MAX : bits;
    }
#endif
    case 2: return ((const int8_t *)x)[at];
    case 3: return ((const int16_t *)x)[at];
    case 4: return ((const int32_t *)x)[at];
    case 5: return ((const int64_t *)x)[at];
    case 7: return ((const uint16_t *)x)[at];
    case 8: return ((const uint32_t *)x)[at];
    case 9: return (int64_t)(((const uint64_t *)x)[at] ^ (uint64_t)INT64_MIN);
    default: return ((const uint8_t *)x)[at]; /* 6, and 10: bool */
    }
}

/* An element that is ranked: those of larger keys come first, of equal ones the first of all. */
typedef struct {
    int64_t key, place;
} ps_ranked;

PS_SCALAR int ps_precedes(ps_ranked x, ps_ranked y)
{
    return x.key == y.key ? x.place < y.place : x.key > y.key;
}

/* Keys of neighbours along an axis. */
typedef struct {
    int64_t key[32];
} ps_keys;

/* The keys of `count` elements of x from `first` on, `step` apart; `flip` is -1 where the smallest
 * element comes first, else 0. */
PS_INLINE ps_keys ps_keys_of(const void *x, int kind, int64_t first, int64_t step, int64_t count,
                             int64_t flip)
{
    _Alignas(64) ps_keys keys;
    if (kind == 0 && step == 1) /* one type at a time becomes a loop of vectors */
        for (int64_t i = 0; i < count; ++i)
            keys.key[i] = ps_key(x, 0, first + i) ^ flip;
    else
        for (int64_t i = 0; i < count; ++i)
            keys.key[i] = ps_key(x, kind, first + i * step) ^ flip;
    return keys;
}

/* Moves an element down from the root of a heap of `count`, below those that come after it. */
PS_SCALAR void ps_sink(ps_ranked *heap, int64_t root, int64_t count, ps_ranked sinking)
{
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        child += child + 1 < count && ps_precedes(heap[child], heap[child + 1]);
        if (!ps_precedes(sinking, heap[child]))
            break;
        heap[root] = heap[child];
    }
    heap[root] = sinking;
}

/* Whether any of `count` neighbours in x may come before the last of those that were kept. */
PS_INLINE int ps_any_before(const float *x, int64_t count, float last, int largest)
{
    int any = 0;
    if (largest)
        for (int64_t i = 0; i < count; ++i)
            any |= !(x[i] <= last);
    else
        for (int64_t i = 0; i < count; ++i)
            any |= !(x[i] >= last);
    return any;
}

/* y: the first k elements in order, along an axis of `size` elements that lie `inner` apart.  They
 * are kept in a heap, the last of them at its root. */
static PS_KERNEL __attribute__((unused)) void ps_top(int64_t item, int64_t *y, const void *x,
                                                     int kind, int64_t size, int64_t inner,
                                                     int64_t k, int largest)
{
    const int64_t first = item / inner * size * inner + item % inner, flip = largest ? 0 : -1;
    const float *floats = kind == 0 && inner == 1 ? (const float *)x + first : 0;
    ps_ranked *heap = (ps_ranked *)y + item * k;
    for (int64_t i = 0, count; i < size; i += count) {
        count = ps_least(32, i < k ? k - i : size - i);
        if (i >= k && floats &&
            !ps_any_before(floats + i, count, floats[heap[0].place], largest))
            continue;
        _Alignas(64) const ps_keys keys = ps_keys_of(x, kind, first + i * inner, inner, count, flip);
        if (i >= k) {
            for (int64_t j = 0; j < count; ++j)
                if (keys.key[j] > heap[0].key) /* of equal ones that in the heap comes first */
                    ps_sink(heap, 0, k, (ps_ranked){keys.key[j], i + j});
            continue;
        }
        for (int64_t j = 0; j < count; ++j)
            heap[i + j] = (ps_ranked){keys.key[j], i + j};
        for (int64_t root = k / 2; i + count == k && root-- > 0;)
            ps_sink(heap, root, k, heap[root]);
    }
    for (int64_t last = k - 1; last > 0; --last) {
        const ps_ranked sinking = heap[last];
        heap[last] = heap[0];
        ps_sink(heap, 0, last, sinking);
    }
}

/* The nearest number from low to high; low for a NaN. */
PS_SCALAR float ps_limit(float x, float low, float high)
{
    return x > low ? x < high ? x : high : low;
}

/* The four pixels around a point: their places in the image and their shares, which are 0 beyond
 * one pixel outside. */
typedef struct {
    int64_t at[4];
    float share[4];
} ps_quad;

PS_SCALAR ps_quad ps_around(int64_t height, int64_t width, float row, float column)
{
    const int inside = row >= -1.0f && row <= (float)height && column >= -1.0f &&
                       column <= (float)width;
    row = ps_limit(row, 0.0f, (float)(height - 1));
    column = ps_limit(column, 0.0f, (float)(width - 1));
    const int64_t top = (int64_t)row, left = (int64_t)column;
    const int64_t low = top + (top + 1 < height), right = left + (left + 1 < width);
    const float down = row - (float)top, across = column - (float)left;
    const float above = inside ? 1.0f - down : 0.0f, below = inside ? down : 0.0f;
    return (ps_quad){
        {top * width + left, top * width + right, low * width + left, low * width + right},
        {above * (1.0f - across), above * across, below * (1.0f - across), below * across}};
}

/* How many points a cell of a region has along an axis: as many as it has pixels if `samples` is
 * 0; 4096 at most, so that no data takes forever. */
PS_SCALAR int64_t ps_points(int64_t samples, float cell)
{
    return samples > 0 ? samples : (int64_t)ps_limit(__builtin_ceilf(cell), 0.0f, 4096.0f);
}

/* A cell of a region (left, top, right, bottom) of image `batch`, of rows x columns cells, in all
 * channels: the mean of the points in it, or the largest share of a pixel in one of them. */
PS_SCALAR void ps_roi_align(int64_t item, float *y, const float *x, const float *rois,
                            const int64_t *batch, int64_t images, int64_t channels, int64_t height,
                            int64_t width, int64_t rows, int64_t columns, int64_t samples,
                            int largest, float offset, float scale)
{
    const int64_t cells = rows * columns, region = item / cells, cell = item % cells;
    const int64_t image = ps_least(ps_most(batch[region], 0), images - 1), size = height * width;
    const float *roi = rois + region * 4, *planes = x + image * channels * size;
    const float left = roi[0] * scale - offset, top = roi[1] * scale - offset;
    const float least = offset > 0.0f ? -__builtin_inff() : 1.0f;
    const float wide = roi[2] * scale - offset - left, high = roi[3] * scale - offset - top;
    const float cell_w = (wide > least ? wide : least) / (float)columns;
    const float cell_h = (high > least ? high : least) / (float)rows;
    const int64_t down = ps_points(samples, cell_h), across = ps_points(samples, cell_w);
    const float first_h = top + (float)(cell / columns) * cell_h;
    const float first_w = left + (float)(cell % columns) * cell_w;
    const float start = largest && down * across > 0 ? -__builtin_inff() : 0.0f;
    const float count = largest ? 1.0f : (float)ps_most(down * across, 1);
    y += region * channels * cells + cell;
    for (int64_t c = 0; c < channels; ++c)
        y[c * cells] = start;
    for (int64_t at = 0; at < down * across; ++at) {
        const float row = ((float)(at / across) + 0.5f) * cell_h / (float)down;
        const float column = ((float)(at % across) + 0.5f) * cell_w / (float)across;
        _Alignas(64) const ps_quad quad = ps_around(height, width, first_h + row, first_w + column);
        for (int64_t c = 0; c < channels; ++c)
            for (int i = 0; i < 4; ++i) {
                const float share = quad.share[i] * planes[c * size + quad.at[i]];
                const float sum = y[c * cells] + share;
                const float most = share > y[c * cells] ? share : y[c * cells];
                y[c * cells] = largest ? most : sum;
            }
    }
    for (int64_t c = 0; c < channels; ++c)
        y[c * cells] /= count;
}

/* First pixel, or the one behind the last, of a cell that begins or ends at `at`. */
PS_SCALAR int64_t ps_edge(float at, float start, int64_t extent)
{
    return (int64_t)ps_limit(at + start, 0.0f, (float)extent);
}

/* A channel of a region (image, left, top, right, bottom) in rows x columns cells: the largest
 * pixel of each, 0 if it has none. */
PS_SCALAR void ps_max_roi_pool(int64_t item, float *y, const float *x, const float *rois,
                               int64_t images, int64_t channels, int64_t height, int64_t width,
                               int64_t rows, int64_t columns, float scale)
{
    const float *roi = rois + item / channels * 5;
    const int64_t image = (int64_t)ps_limit(roi[0], 0.0f, (float)(images - 1));
    const float *plane = x + (image * channels + item % channels) * height * width;
    const float left = __builtin_roundf(roi[1] * scale), top = __builtin_roundf(roi[2] * scale);
    const float wide = __builtin_roundf(roi[3] * scale) - left + 1.0f;
    const float high = __builtin_roundf(roi[4] * scale) - top + 1.0f;
    const float cell_w = (wide > 1.0f ? wide : 1.0f) / (float)columns;
    const float cell_h = (high > 1.0f ? high : 1.0f) / (float)rows;
    for (int64_t cell = 0; cell < rows * columns; ++cell) {
        const float row = (float)(cell / columns), column = (float)(cell % columns);
        const int64_t last_h = ps_edge(__builtin_ceilf((row + 1) * cell_h), top, height);
        const int64_t last_w = ps_edge(__builtin_ceilf((column + 1) * cell_w), left, width);
        const int64_t first_w = ps_edge(__builtin_floorf(column * cell_w), left, width);
        int64_t h = ps_edge(__builtin_floorf(row * cell_h), top, height);
        float most = h < last_h && first_w < last_w ? -__builtin_inff() : 0.0f;
        for (; h < last_h; ++h)
            for (int64_t w = first_w; w < last_w; ++w)
                most = plane[h * width + w] > most ? plane[h * width + w] : most;
        y[item * rows * columns + cell] = most;
    }
}

#ifndef PS_NO_DOUBLE
/* A matrix of n rows by elimination: 0 below the diagonal, and of the same determinant. */
PS_SCALAR void ps_triangle(int64_t item, double *y, const double *x, int64_t n)
{
    y += item * n * n, x += item * n * n;
    for (int64_t i = 0; i < n * n; ++i)
        y[i] = x[i];
    for (int64_t at = 0; at < n; ++at) {
        int64_t largest = at;
        for (int64_t row = at + 1; row < n; ++row)
            if (__builtin_fabs(y[row * n + at]) > __builtin_fabs(y[largest * n + at]))
                largest = row;
        for (int64_t i = 0; i < n && largest != at; ++i) { /* swapped rows change the sign */
            const double kept = y[at * n + i];
            y[at * n + i] = y[largest * n + i];
            y[largest * n + i] = -kept;
        }
        for (int64_t row = at + 1; row < n && y[at * n + at] != 0; ++row) {
            const double share = y[row * n + at] / y[at * n + at];
            for (int64_t i = at; i < n; ++i)
                y[row * n + i] -= share * y[at * n + i];
        }
    }
}
#endif

/* y: how many of `size` truth values hold, the places of those, and 0 for each of the others. */
PS_SCALAR void ps_places(int64_t item, int64_t *y, const uint8_t *x, int64_t size)
{
    int64_t count = 0;
    (void)item;
    for (int64_t at = 0; at < size; ++at)
        if (x[at])
            y[1 + count++] = at;
    y[0] = count;
    for (int64_t at = count; at < size; ++at)
        y[1 + at] = 0;
}

/* Ends of a box along the two axes, the lower ones first; `centered`: it is a centre and sizes. */
typedef struct {
    float low[2], high[2];
} ps_box;

PS_SCALAR ps_box ps_box_of(const float *ends, int centered)
{
    _Alignas(64) ps_box box;
    for (int at = 0; at < 2; ++at) {
        const float a = ends[at], b = ends[at + 2], half = b / 2.0f;
        box.low[at] = centered ? a - half : a < b ? a : b;
        box.high[at] = centered ? a + half : a < b ? b : a;
    }
    return box;
}

/* Whether what two boxes share is more than `share` of what they cover together. */
PS_SCALAR int ps_overlap(ps_box a, ps_box b, float share)
{
    float both = 1.0f, first = 1.0f, second = 1.0f;
    for (int at = 0; at < 2; ++at) {
        const float low = a.low[at] > b.low[at] ? a.low[at] : b.low[at];
        const float high = a.high[at] < b.high[at] ? a.high[at] : b.high[at];
        if (high <= low)
            return 0;
        both *= high - low;
        first *= a.high[at] - a.low[at];
        second *= b.high[at] - b.low[at];
    }
    return first > 0.0f && second > 0.0f && both / (first + second - both) > share;
}

/* Of the first `counted` of `total` boxes, for one of images * classes: how many remain, then the
 * keys and places of those, by falling score. */
PS_SCALAR void ps_suppress(int64_t item, int64_t *y, const float *boxes, const float *scores,
                           const int64_t *limit, const float *share, const float *least,
                           const int64_t *counted, int64_t classes, int64_t total, int centered,
                           int bounded, int64_t most)
{
    int64_t count = 0, remain = 0;
    ps_ranked *heap = (ps_ranked *)(y + item * (1 + 2 * total) + 1);
    boxes += item / classes * total * 4;
    scores += item * total;
    most = ps_least(most, limit[0]);
    for (int64_t at = 0; at < ps_least(total, counted[0]) && most > 0; ++at)
        if (!bounded || scores[at] > least[0])
            heap[count++] = (ps_ranked){ps_key(scores, 0, at), at};
    for (int64_t root = count / 2; root-- > 0;)
        ps_sink(heap, root, count, heap[root]);
    for (int64_t last = count - 1; last > 0; --last) {
        const ps_ranked sinking = heap[last];
        heap[last] = heap[0];
        ps_sink(heap, 0, last, sinking);
    }
    for (int64_t at = 0; at < count && remain < most; ++at) {
        _Alignas(64) const ps_box box = ps_box_of(boxes + heap[at].place * 4, centered);
        int64_t before = 0;
        while (before < remain &&
               !ps_overlap(box, ps_box_of(boxes + heap[before].place * 4, centered), share[0]))
            ++before;
        if (before == remain)
            heap[remain++] = heap[at];
    }
    y[item * (1 + 2 * total)] = remain;
}

/* y: how many boxes all `lists` hold; image, class and place of each; then 0. */
PS_SCALAR void ps_box_rows(int64_t item, int64_t *y, const int64_t *lists, int64_t pairs,
                           int64_t classes, int64_t total, int64_t most)
{
    int64_t count = 0;
    (void)item;
    for (int64_t pair = 0; pair < pairs; ++pair, lists += 1 + 2 * total)
        for (int64_t at = 0; at < lists[0]; ++at) {
            int64_t *row = y + 1 + 3 * count++;
            row[0] = pair / classes;
            row[1] = pair % classes;
            row[2] = lists[2 + 2 * at];
        }
    y[0] = count;
    for (int64_t at = 3 * count; at < 3 * pairs * most; ++at)
        y[1 + at] = 0;
}
