import pytest
import torch
from PIL import Image
from torchvision.transforms.functional import center_crop, pil_to_tensor, resize

from ssl_vision.data import ImageFolder
from ssl_vision.errors import InputError


def save(path, shade=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 12), (shade, 0, 255 - shade)).save(path)


def folder(root, **options):
    return ImageFolder(root=root, **{"image_size": 8} | options)


@pytest.fixture
def labelled(tmp_path):
    for number, name in enumerate(("cat/2.png", "cat/1.jpg", "ant/deep/x.PNG", "loose.png")):
        save(tmp_path / "train" / name, shade=50 * number)
    save(tmp_path / "test" / "ant" / "t.png")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_a_class_is_the_first_subfolder(labelled):
    data = folder(labelled)
    train, test = data.split("train"), data.split("test")
    assert train.classes == test.classes == ("ant", "cat")
    assert train.labels.tolist() == [0, 1, 1, -1]  # ant/deep/x.PNG, cat/1.jpg, cat/2.png, loose.png
    assert train.images[[0, 2, 3], 0, 4, 4].tolist() == [100, 0, 150]
    assert test.labels.tolist() == [0]
    assert data.split("pretrain") is train


def test_without_a_train_folder_the_root_is_used_but_not_the_test_images(tmp_path):
    for name in ("b/1.png", "a/1.png", "test/a/1.png"):
        save(tmp_path / name)
    train = folder(tmp_path).split("train")
    assert train.classes == ("a", "b")
    assert train.labels.tolist() == [0, 1]


def test_flat_images_have_no_label(tmp_path):
    for number in range(20):
        save(tmp_path / f"{number:02}.png", shade=number)
    data = folder(tmp_path, batch_size=4)
    images = data.split("pretrain")
    assert images.images[:, 0, 0, 0].tolist() == list(range(20))
    assert not images.labelled.any()
    assert data.num_classes == 0
    assert [len(loader.data) for loader in data.val_dataloader()] == [2]


def test_images_are_resized_cropped_and_made_rgb(tmp_path):
    pixels = torch.arange(40).view(1, 40).repeat(20, 1) * 6
    image = Image.fromarray(pixels.to(torch.uint8).numpy())
    image.save(tmp_path / "wide.png")
    stored = folder(tmp_path, image_size=10).split("train").images[0]
    expected = center_crop(resize(pil_to_tensor(image), [10], antialias=True), [10])
    assert stored.shape == (3, 10, 10)
    assert (stored.int() - expected.int()).abs().max() <= 1


def test_photos_are_turned_upright(tmp_path):
    image = Image.new("RGB", (10, 10))
    image.paste((255, 255, 255), (0, 0, 10, 5))  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "x.png", exif=exif)
    stored = folder(tmp_path, image_size=10).split("train").images[0]
    assert stored[:, :4].max() == 0
    assert stored[:, 6:].min() == 255


def test_a_corrupt_file_stops_or_is_skipped_with_one_warning(labelled):
    for name in ("bad1.png", "bad2.jpg"):
        (labelled / "train" / "ant" / name).write_bytes(b"\x89PNG not an image")
    with pytest.raises(InputError, match=r"bad1\.png cannot be decoded .* skip_corrupt") as caught:
        folder(labelled).split("train")
    assert "\n" not in str(caught.value)
    with pytest.warns(UserWarning, match=r"skipped 2 of 6 images.*bad1\.png, .*bad2\.jpg$") as warned:
        train = folder(labelled, skip_corrupt=True).split("train")
    assert len(warned) == 1
    assert train.labels.tolist() == [0, 1, 1, -1]
    assert train.images[[0, 2, 3], 0, 4, 4].tolist() == [100, 0, 150]


def test_nothing_but_corrupt_files_is_refused(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"none of the 1 images .*bad\.png"):
        folder(tmp_path, skip_corrupt=True).split("train")


def test_wrong_folders_are_refused_by_name(labelled, tmp_path):
    (labelled / "empty").mkdir()
    save(labelled / "other" / "dog" / "1.png")
    cases = [
        (folder(tmp_path / "nowhere"), "train", "no folder .*nowhere$"),
        (folder(labelled, train="empty"), "train", "no images in .*empty: looked for .*png"),
        (folder(labelled, train="trian"), "train", "no folder .*trian for the train split"),
        (folder(labelled, test="tset"), "test", "no folder .*tset for the test split"),
        (folder(labelled, test="other"), "test", "dog is a class that the train split does not have"),
    ]
    for data, split, message in cases:
        with pytest.raises(InputError, match=message):
            data.split(split)


def test_the_stored_size_must_be_positive(tmp_path):
    with pytest.raises(InputError, match="image_size must be 1 or more, not 0"):
        folder(tmp_path, image_size=0)
