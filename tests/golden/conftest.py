"""The shipped model, loaded once."""

import pytest

from detector import Detector


@pytest.fixture(scope="session")
def detector() -> Detector:
    return Detector(threads=1)
