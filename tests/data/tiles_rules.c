/* What the emulated tile instructions demand.  Before this text: tiles_emulated.h and the steps. */

/* Configures 16 rows x 64 bytes for every tile, with row counts and bytes of two tiles changed, then
 * does one dot; returns the configurations counted. */
int64_t dot_with(int rows_of_sum, int rows_of_a, int bytes_of_a, int rows_of_b);
int64_t dot_with(int rows_of_sum, int rows_of_a, int bytes_of_a, int rows_of_b)
{
    ps_tile_config config = {.palette = 1};
    for (int n = 0; n < 8; ++n)
        config.rows[n] = 16, config.row_bytes[n] = 64;
    config.rows[0] = (uint8_t)rows_of_sum;
    config.rows[4] = (uint8_t)rows_of_a;
    config.row_bytes[4] = (uint16_t)bytes_of_a;
    config.rows[6] = (uint8_t)rows_of_b;
    ps_tile_configure(&config);
    ps_tile_dot(0, 4, 6);
    ps_tile_release();
    return ps_tiles_configured;
}

int zero_unconfigured(void);
int zero_unconfigured(void)
{
    ps_tile_release();
    ps_tile_zero(0);
    return 0;
}

/* Configurations for a call sequence of 2x2, 2x2, 1x1, 2x2 and, after a release, 2x2. */
int64_t configurations(void);
PS_KERNEL int64_t configurations(void)
{
    const ps_tile large = {.rows = 28, .vecs = 2, .wrap = 28, .a_inner = 64};
    const ps_tile small = {.rows = 3, .vecs = 1, .wrap = 3, .a_inner = 64};
    const int64_t before = ps_tiles_configured;
    int configured = 0;
    ps_tiles_configure(&configured, large);
    ps_tiles_configure(&configured, large);
    ps_tiles_configure(&configured, small);
    ps_tiles_configure(&configured, large);
    ps_tiles_release(&configured);
    ps_tiles_configure(&configured, large);
    ps_tiles_release(&configured);
    return ps_tiles_now.palette ? -1 : ps_tiles_configured - before;
}
