"""Shell completion, without importing torch."""
