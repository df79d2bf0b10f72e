"""The web server that the download tests ask."""

from tests.data.conftest import network  # noqa: F401 - a fixture
