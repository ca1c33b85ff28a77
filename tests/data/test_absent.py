import re
from pathlib import Path
from urllib.error import URLError

import pytest

from ssl_vision.data.loading.download import absent, fetching
from ssl_vision.errors import InputError


def test_missing_data_message_names_path_and_remedies_in_one_line():
    message = str(absent("STL-10", Path("data/stl10_binary")))
    assert "\n" not in message
    for part in ("STL-10", "data/stl10_binary", "--data.download true", "--data Digits"):
        assert part in message


@pytest.mark.parametrize("kind", [URLError, PermissionError, RuntimeError])
def test_failed_download_error_names_dataset_and_cause(kind):
    raises_input_error = pytest.raises(
        InputError, match=re.escape("CIFAR-10 could not be downloaded to data")
    )
    with raises_input_error as caught, fetching("CIFAR-10", Path("data")):
        raise kind("no\nroute")
    assert "no route" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fetching_propagates_programming_errors():
    with pytest.raises(KeyError), fetching("CIFAR-10", Path("data")):
        raise KeyError
