"""Just Add Functions: micro-models for numbers and places in a hierarchical language model (NSLM)."""
