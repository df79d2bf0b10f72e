"""NSLM, "Just Add Functions: A Neural-Symbolic Language Model": numbers and places from micro-models.

Read ``model.py`` first; docs/papers/nslm.md says which equation is where.
"""

from lit_ctg.papers.nslm.classes import ClassTable, Recogniser, class_table, make_recogniser, read_classes
from lit_ctg.papers.nslm.from_text import micro_models
from lit_ctg.papers.nslm.micro_model import Blend, Density, MetricFunction, MicroModel
from lit_ctg.papers.nslm.model import NSLMModule
from lit_ctg.papers.nslm.occurrences import Evidence, Occurrences
from lit_ctg.papers.nslm.selection import Selection, select

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
