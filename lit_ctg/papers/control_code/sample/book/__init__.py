"""The sample library: one module a book, each with its ``BOOK``, written in a voice of its own."""
