
/* The bits of a number as an integer, in the order of numbers. */
static uint32_t ordered(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The `most`-th largest result, as `ordered` has it, bit by bit from the top. */
static uint32_t least_of(const float *results, int64_t most)
{
    uint32_t least = 0;
    for (int bit = 31; bit >= 0; --bit) {
        const uint32_t higher = least | (uint32_t)1 << bit;
        int64_t count = 0;
        for (int64_t i = 0; i < @RESULTS@; ++i)
            count += ordered(results[i]) >= higher;
        least = count < most ? least : higher;
    }
    return least;
}

int64_t @NAME@_sample(const float *results, double temperature, int64_t top_k, double uniform)
{
    int64_t best = 0;
    for (int64_t i = 1; i < @RESULTS@; ++i)
        best = results[i] > results[best] ? i : best;
    if (!(temperature > 0))
        return best;
    const uint32_t least = top_k > 0 && top_k < @RESULTS@ ? least_of(results, top_k) : 0;
    const double largest = results[best];
    double sum = 0, passed = 0;
    for (int64_t i = 0; i < @RESULTS@; ++i)
        if (ordered(results[i]) >= least)
            sum += exp((results[i] - largest) / temperature);
    for (int64_t i = 0; i < @RESULTS@; ++i)
        if (ordered(results[i]) >= least) {
            passed += exp((results[i] - largest) / temperature);
            if (passed > uniform * sum)
                return i;
        }
    return best;
}

int64_t @NAME@_next(@NAME@_context *context, const @TOKEN@ *tokens, int64_t count, double temperature,
                    int64_t top_k, double uniform)
{
    const float *last;
    const int why = read_tokens(context, tokens, count, &last);
    return why ? -why : @NAME@_sample(last, temperature, top_k, uniform);
}
