import pytest
import torch

from ssl_vision.data.images import Images, RowFile
from ssl_vision.errors import InputError

PIXELS = torch.randint(0, 256, (50, 3, 5, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "rows").write_bytes(PIXELS.numpy().tobytes())
    return RowFile(tmp_path / "rows", (50, 3, 5, 5))


def test_read_returns_requested_rows(file):
    rows = torch.tensor([49, 3, 3, 0])
    assert torch.equal(file.read(rows), PIXELS[rows])
    assert torch.equal(file.memory_map(), PIXELS)
    assert len(file.read(rows[:0])) == 0


def test_rows_of_a_selection_are_read_from_the_file(file, monkeypatch):
    images = Images(file.memory_map(), torch.zeros(50, dtype=torch.int64), ("a",), file=file)
    even = images.select(torch.arange(50) % 2 == 0).select(torch.tensor([20, 3, 4]))
    read, rows_read = RowFile.read, []

    def record(self, rows, **options):
        rows_read.append(rows.tolist())
        return read(self, rows, **options)

    monkeypatch.setattr(RowFile, "read", record)
    assert torch.equal(even.at(torch.tensor([2, 0])), PIXELS[[8, 40]])
    assert rows_read == [[8, 40]]
    assert torch.equal(even.images, PIXELS[[40, 6, 8]])
    assert even.store.data_ptr() == images.store.data_ptr()


def test_row_file_stays_readable_after_deletion(file):
    mapped = file.memory_map()
    file.path.unlink()
    assert torch.equal(file.read(torch.arange(50)), PIXELS)
    assert torch.equal(mapped, PIXELS)


def test_row_file_of_wrong_size_raises_input_error(file):
    with pytest.raises(InputError, match=r"rows is damaged; delete it"):
        RowFile(file.path, (51, 3, 5, 5))
    with file.path.open("r+b") as writer:
        writer.truncate(100)
    with pytest.raises(InputError, match=r"rows is damaged; delete it"):
        file.read(torch.arange(50))
