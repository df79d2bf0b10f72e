"""lit_ctg: five papers on controlled text generation, as published and corrected, in one Lightning + Hydra framework."""

__version__ = "0.1.0"
