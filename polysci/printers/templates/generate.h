/* Tokens of a sequence, which the state counts: @CAPACITY_TEXT@. */
enum { @UPPER@_FULL = 2, @UPPER@_NO_TOKENS = 3 };

/* How many tokens the state of a context holds. */
int64_t @NAME@_position(const @NAME@_context *context);

/* Read tokens of a prompt, any number from 1 on, in runs of @LENGTHS@ at a time, and fill `results` with
 * the @UPPER@_RESULTS numbers of the last one; decode reads one token, as the one generated last. They
 * return 0; @UPPER@_FULL where the state has no room for so many, @UPPER@_NO_TOKENS for fewer than one,
 * and then nothing was done. */
#define @UPPER@_RESULTS @RESULTS@
int @NAME@_prefill(@NAME@_context *context, const @TOKEN@ *tokens, int64_t count, @RESULT@ *results);
int @NAME@_decode(@NAME@_context *context, @TOKEN@ token, @RESULT@ *results);
