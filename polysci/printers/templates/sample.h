
/* Choose a token by its results: with temperature 0 the first of the largest. Else each token has a share,
 * exp(result / temperature), and the first one is chosen at which their sum passes `uniform` of the whole,
 * a random number from 0 to below 1. `top_k` above 0: of tokens whose result is among so many largest. */
int64_t @NAME@_sample(const float *results, double temperature, int64_t top_k, double uniform);

/* Read tokens, as prefill does, and choose the one behind them: the prompt first, then each token that was
 * chosen. Returns -@UPPER@_FULL or -@UPPER@_NO_TOKENS where nothing was done. */
int64_t @NAME@_next(@NAME@_context *context, const @TOKEN@ *tokens, int64_t count, double temperature,
                    int64_t top_k, double uniform);
