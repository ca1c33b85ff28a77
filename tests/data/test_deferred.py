import torch

from ssl_vision.data import Batch, Views
from ssl_vision.data.augment.deferred import DeferredViews


def test_deferred_views_match_views_of_epoch_under_autocast():
    g = torch.Generator().manual_seed(0)
    images = torch.randint(256, (7, 3, 20, 20), generator=g, dtype=torch.uint8)
    batch = Batch(images, torch.zeros(7), torch.arange(20, 27))
    views = Views(size=16, degrees=30.0, blur=0.3)
    views_by_epoch = {0: views, 1: views, 7: Views(size=8)}
    deferred = DeferredViews(
        views_by_epoch.__getitem__, seed=5, dtype=torch.float32, device=torch.device("cpu")
    )
    for epoch in (0, 1, 1, 7):
        deferred.set_epoch(epoch)
        with torch.autocast("cpu", torch.bfloat16):
            deferred_batch = deferred(batch)
        assert deferred_batch.images is images
        assert torch.equal(
            deferred_batch.views, views_by_epoch[epoch](images, batch.indices, seed=5, epoch=epoch)
        )
