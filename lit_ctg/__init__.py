"""lit_ctg: five papers on controlled text generation, as published and corrected, on Lightning and Hydra."""

__version__ = "0.1.0"
