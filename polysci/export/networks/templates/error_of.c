/* The largest difference over the largest expected number or 1; a NaN must meet a NaN. */
static double error_of(const port *p, const void *got, const void *expected)
{
    double worst = 0, top = 1;
    for (size_t i = 0; i < p->count; ++i) {
        const double a = value(p->type, got, i), b = value(p->type, expected, i);
        if (isfinite(b) && fabs(b) > top)
            top = fabs(b);
        if (a == b || (isnan(a) && isnan(b)))
            continue;
        if (!isfinite(a) || !isfinite(b))
            return INFINITY;
        if (fabs(a - b) > worst)
            worst = fabs(a - b);
    }
    return worst / top;
}
