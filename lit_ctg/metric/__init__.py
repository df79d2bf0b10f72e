"""Metrics: pure functions and thin torchmetrics classes, one file per metric."""
