"""The same controls inside vLLM: ``batch`` knows controls and requests, ``processor``, ``network`` and ``plugin`` vLLM.

vLLM finds the entry points of ``pyproject.toml`` by itself. docs/serve.md is the page.
"""
