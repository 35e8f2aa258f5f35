/* Where the state holds each output of a run but the loss. */
static const size_t places[OUTPUTS + 1] = {@PLACES@};
