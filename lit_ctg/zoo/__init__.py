"""Bundles of SmolLM2's controls that come with the package, found by ``control/shipped.py``, and how they are made."""
