"""C text -> verified shared object -> loaded library; the only place that starts processes."""
