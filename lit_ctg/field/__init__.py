"""The level field: one model, one set of prompts and the same measures for every control (docs/field.md)."""
