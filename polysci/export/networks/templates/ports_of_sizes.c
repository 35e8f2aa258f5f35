enum { INPUTS = @INPUTS@, OUTPUTS = @OUTPUTS@, ENTRIES = @ENTRY_COUNT@ };

/* Of every entry, one more than there are; `entry` is the one at hand. */
static int entry;
static const port input_ports[ENTRIES][INPUTS + 1] = {
@INPUT_ROWS@};
static const port output_ports[ENTRIES][OUTPUTS + 1] = {
@OUTPUT_ROWS@};
#define inputs input_ports[entry]
#define outputs output_ports[entry]
