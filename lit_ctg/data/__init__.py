"""Corpora, tokenizers and LightningDataModules."""
