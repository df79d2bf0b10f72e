"""Faster forms of the equations in ``model.py``, with the same values and gradients."""
