"""A tensor notation, that of Tensor Comprehensions: text -> ranges -> graph."""
