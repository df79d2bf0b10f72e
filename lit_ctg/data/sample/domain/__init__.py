"""The fields the sample encyclopaedia covers, one module each holding a ``DOMAIN``."""
