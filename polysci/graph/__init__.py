"""A network as data: graphs, scalar expressions, stages."""
