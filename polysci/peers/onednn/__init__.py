"""oneDNN itself, through its C API: version 3, on OpenMP."""
