enum { INPUTS = @INPUTS@, OUTPUTS = @OUTPUTS@ };

/* One more than there are. */
static const port inputs[INPUTS + 1] = {
@INPUT_ROWS@    {0, F32, 0},
};
static const port outputs[OUTPUTS + 1] = {
@OUTPUT_ROWS@    {0, F32, 0},
};
