"""NSLM, "Just Add Functions: A Neural-Symbolic Language Model": numbers and places from micro-models.

Read ``model.py`` first; docs/papers/nslm.md says which equation is where.
"""

from lit_ctg import when_used

__all__ = [
    "Blend",
    "ClassTable",
    "Density",
    "Evidence",
    "MetricFunction",
    "MicroModel",
    "NSLMModule",
    "Occurrences",
    "Recogniser",
    "Selection",
    "class_table",
    "make_recogniser",
    "micro_models",
    "read_classes",
    "select",
]

__getattr__ = when_used(
    __name__,
    {
        "classes": ["ClassTable", "Recogniser", "class_table", "make_recogniser", "read_classes"],
        "from_text": ["micro_models"],
        "micro_model": ["Blend", "Density", "MetricFunction", "MicroModel"],
        "model": ["NSLMModule"],
        "occurrences": ["Evidence", "Occurrences"],
        "selection": ["Selection", "select"],
    },
)
