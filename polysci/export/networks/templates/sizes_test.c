    expect(@NAME@_run(@NO_SIZES@) == @UPPER@_NO_SIZE, "sizes without an entry were run");
