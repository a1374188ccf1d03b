"""The memory model: lifetimes of tensors in forward and backward, and recomputation, in bytes."""
