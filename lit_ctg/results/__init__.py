"""Run records, tables and report; nothing here imports torch."""
