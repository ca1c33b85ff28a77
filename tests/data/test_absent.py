import re
from pathlib import Path
from urllib.error import URLError

import pytest

from ssl_vision.data.loading.download import absent, fetching
from ssl_vision.errors import InputError


def test_absent_data_is_one_line_that_says_what_to_do():
    message = str(absent("STL-10", Path("data/stl10_binary")))
    assert "\n" not in message
    for part in ("STL-10", "data/stl10_binary", "--data.download true", "--data Digits"):
        assert part in message


@pytest.mark.parametrize("kind", [URLError, PermissionError, RuntimeError])
def test_a_failed_download_names_the_data_and_the_cause(kind):
    named = pytest.raises(InputError, match=re.escape("CIFAR-10 could not be downloaded to data"))
    with named as caught, fetching("CIFAR-10", Path("data")):
        raise kind("no\nroute")
    assert "no route" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_programming_error_is_not_hidden():
    with pytest.raises(KeyError), fetching("CIFAR-10", Path("data")):
        raise KeyError
