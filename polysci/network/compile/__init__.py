"""From a model to a compiled network, by all passes in their order."""
