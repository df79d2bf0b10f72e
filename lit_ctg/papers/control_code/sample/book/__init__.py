"""The sample library: one module per book, each with its ``BOOK``, written in its own voice."""
