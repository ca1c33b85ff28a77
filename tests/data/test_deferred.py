import torch

from ssl_vision.data import Batch, Views
from ssl_vision.data.augment.deferred import DeferredViews


def test_deferred_views_are_those_of_each_epoch_whatever_the_autocast():
    g = torch.Generator().manual_seed(0)
    images = torch.randint(256, (7, 3, 20, 20), generator=g, dtype=torch.uint8)
    batch = Batch(images, torch.zeros(7), torch.arange(20, 27))
    views = Views(size=16, degrees=30.0, blur=0.3)
    of_epoch = {0: views, 1: views, 7: Views(size=8)}
    deferred = DeferredViews(of_epoch.__getitem__, seed=5, dtype=torch.float32, device=torch.device("cpu"))
    for epoch in (0, 1, 1, 7):
        deferred.set_epoch(epoch)
        with torch.autocast("cpu", torch.bfloat16):
            made = deferred(batch)
        assert made.images is images
        assert torch.equal(made.views, of_epoch[epoch](images, batch.indices, seed=5, epoch=epoch))
