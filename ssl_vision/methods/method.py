"""Base class of the methods: encoder, projection head, objective, optimizer and the steps of training."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Self, get_args

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from ssl_vision.data import fold
from ssl_vision.data.images import Batch
from ssl_vision.data.loading.loader import Batches
from ssl_vision.data.module import ImageData, image_data
from ssl_vision.descriptions import DescribedMetric
from ssl_vision.encoders import Encoder, ResNet, as_encoder, build, floating_dtype
from ssl_vision.errors import InputError, check, check_choice
from ssl_vision.lightning_private import create_train_loader
from ssl_vision.methods.checks import check_images, check_objective, check_shapes, prepare_objective
from ssl_vision.methods.cuda_graph import GraphedTraining, count_step
from ssl_vision.methods.optimizer import OptimizerRule
from ssl_vision.methods.outputs import Layers, ViewOutputs
from ssl_vision.methods.parameter_groups import evaluate_frozen, freeze
from ssl_vision.methods.projection import HeadBatchNorm, last_relu, projection_head
from ssl_vision.objectives import InfoNCE, Objective, PairSet, as_objective, in_chunks
from ssl_vision.objectives.gather import equal_shares, is_distributed

EncoderStatistics = Literal["batch", "fixed"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]

_ADAM = OptimizerRule()


class Method(pl.LightningModule, ABC):
    """Base class of methods, which combine an encoder, a projection head, an objective and an optimizer.

    A subclass defines `loss`, the computation of one training step:

        class SimCLR(Method):
            def loss(self, batch):
                first, second = self.embed_views(batch.views).embeddings
                return self.objective(first, second)

    The base class runs it eagerly, with gradient caching (``chunk_size``), compiled (``compile_mode``) or as
    a CUDA graph (``cuda_graph``). The names of parameters are the same in all cases. Create additional
    networks of a subclass inside ``with self.seeded(1):``. Batches have two views of each image; a subclass
    that makes more of them passes their number to `embed_views`.

    The initial weights depend only on the run's seed, and not on the objective or on other random numbers
    drawn before. A module that is passed as an object keeps its weights.

    ``load_from_checkpoint`` rebuilds the network of a checkpoint written from Python if the encoder, the
    objective and the optimizer are passed again. A checkpoint of ``ssl-vision fit`` needs none of them.

    Args:
        objective: module that maps the embeddings of two views, each (N, ``output_dim``), to the loss: one of
            ``ssl_vision.objectives``, an `Objective` of your own, or any other module of this form. None uses
            ``InfoNCE``, and ``DualTemperature`` in ``SimCo`` and ``SimMoCo``.
        encoder: class or function without arguments that builds the encoder, or a module: one of
            ``ssl_vision.encoders`` or any module that maps images (N, 3, H, W) to features (N, F). On the
            command line, ``--model.encoder ResNet --model.encoder.depth 50``.
        hidden_dim: width of the projection head's hidden layers.
        output_dim: width of the embeddings.
        head_layers: number of linear layers in the projection head, 2 or more.
        head_batch_norm: BatchNorm in the projection head: ``"hidden"``, ``"all"`` or ``"none"``. It follows
            each hidden layer, every layer (as in lightly), or no layer (as in solo-learn). A layer without it
            has a bias.
        bn: BatchNorm over both views, ``"joint"``, or over each view, ``"per_view"``. The views are one batch
            for the network and share statistics, or each has its own (as in lightly and solo-learn). With
            several processes, statistics are computed per process unless ``trainer.sync_batchnorm`` is set.
        encoder_statistics: statistics with which BatchNorm layers of the encoder normalise in training:
            ``"batch"``, those of the batch, or ``"fixed"``, the running statistics of the initial weights,
            which then do not change. Weights and biases of these layers are trained in both cases.
            ``ssl-vision fit`` uses ``"fixed"`` if training starts from given weights, because new statistics
            can harm the encoder. Random initial weights require ``"batch"``.
        chunk_size: number of images that pass through the network at a time; None disables chunks. It reduces
            the memory of a large batch. The objective uses the whole batch, and BatchNorm one chunk.
        compile_mode: mode of ``torch.compile`` for the encoder; None does not compile it. ``"default"``,
            ``"reduce-overhead"`` (CUDA graphs, for small batches), ``"max-autotune"`` or
            ``"max-autotune-no-cudagraphs"``. Compilation takes a minute at the start and does not help on a
            CPU. Validation is not compiled.
        compile_loss: compile the loss as a whole (encoder, projection head and objective) instead of the
            encoder. This launches fewer kernels. Losses can differ in their last bits from those of the
            encoder alone, and all similarities of a batch are one matrix. Only the encoder is compiled, with
            a warning, if the loss cannot be traced, the objective reads the epoch or several processes train.
        compile_options: settings of Inductor in addition to those of ``compile_mode``, such as
            ``{"coordinate_descent_tuning": True, "combo_kernels": True}``.
        cuda_graph: launch views, forward, loss, backward and update as one CUDA graph, so that the device
            does not wait for the host. On an H100, a step of a ResNet-18 with 256 images of 32 pixels then
            takes half of its time. Requires one CUDA device, float32 or bfloat16, and no clipping,
            accumulation, chunks or hooks between the parts of a step. Callbacks then receive batches without
            views.
        optimizer: optimizer and schedule.
        seed: seed of the initial weights; None uses the seed of ``seed_everything``.

    Attributes:
        backbone: The encoder.
        head: The projection head.
        features: (V, N, F) encoder features of the views in the last training step, without a gradient.

    Raises:
        InputError: a size is out of range, head_batch_norm, bn or encoder_statistics is unknown, the encoder
            does not have the feature maps that the objective requires, or the objective does not accept two
            embeddings; in training, an option or the objective does not support cuda_graph or compile_mode,
            or the objective cannot be prepared.

    Example:
        >>> import torch
        >>> from ssl_vision.objectives import DCL
        >>> class TwoViewMethod(Method):
        ...     def loss(self, batch):
        ...         first, second = self.embed_views(batch.views).embeddings
        ...         return self.objective(first, second)
        >>> method = TwoViewMethod(objective=DCL(), output_dim=64, seed=0)
        >>> method.embed_views(torch.rand(8, 3, 32, 32)).embeddings.shape
        torch.Size([2, 4, 64])
    """

    available_inputs: ClassVar[frozenset[str]] = frozenset({"labels", "indices", "features", "shallow"})
    """Required inputs of objectives that `objective_inputs` can give."""
    pairs: ClassVar[tuple[PairSet, ...]] = get_args(PairSet)
    """Supported ``pairs`` of objectives of the InfoNCE family; the first is used unless they set others."""

    default_objective: ClassVar[type[nn.Module]] = InfoNCE
    """Class of the objective if none is given."""

    features: Tensor

    def __init__(
        self,
        *,
        objective: nn.Module | None = None,
        encoder: Callable[[], Encoder] | Callable[[], nn.Module] = ResNet,
        hidden_dim: int = 512,
        output_dim: int = 128,
        head_layers: int = 2,
        head_batch_norm: HeadBatchNorm = "hidden",
        bn: Literal["joint", "per_view"] = "joint",
        encoder_statistics: EncoderStatistics = "batch",
        chunk_size: int | None = None,
        compile_mode: CompileMode | None = None,
        compile_loss: bool = False,
        compile_options: Mapping[str, bool | int] | None = None,
        cuda_graph: bool = False,
        optimizer: OptimizerRule = _ADAM,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check("hidden_dim", hidden_dim, at_least=1, at_most=2**20)
        check("output_dim", output_dim, at_least=1, at_most=2**20)
        check("chunk_size", chunk_size, at_least=1, at_most=2**20)
        check_choice("head_batch_norm", head_batch_norm, get_args(HeadBatchNorm))
        check_choice("bn", bn, ("joint", "per_view"))
        check_choice("encoder_statistics", encoder_statistics, get_args(EncoderStatistics))
        self.save_hyperparameters(ignore=["encoder", "objective", "optimizer"])
        self.hidden_dim = hidden_dim
        self.output_dim = output_dim
        self.bn = bn
        self.encoder_statistics = encoder_statistics
        self.chunk_size = chunk_size
        self.compile_mode = compile_mode
        self.compile_loss = compile_loss
        self.compile_options = dict(compile_options or {})
        self.cuda_graph = cuda_graph
        self.automatic_optimization = not cuda_graph
        self.optimizer_rule = optimizer
        self._seed = torch.initial_seed() if seed is None else seed
        self._graphed: GraphedTraining | None = None
        self._compiled_loss: Callable[[Batch], Tensor] | None = None
        self._equal_shares = False
        self._lr: float | Tensor = 0.0
        self.objective = self.default_objective() if objective is None else objective
        check_objective(self)
        with self.seeded():
            self.backbone = as_encoder(build(encoder))
            self.head = projection_head(
                self.backbone.num_features, hidden_dim, output_dim, head_batch_norm, layers=head_layers
            )
        needs_shallow = "shallow" in self._contract.required_inputs
        self._shallow_features = self._measured_shallow() if needs_shallow else 0
        self._hidden_layers = last_relu(self.head)
        self._keep_evaluation_mode()
        self.to(memory_format=self.backbone.memory_format)

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch, a scalar with a gradient.

        It depends only on the batch and the module's state. It logs nothing, and requires neither a trainer
        nor an optimizer.

        Args:
            batch: batch with ``views``, on the module's device.
        """

    def after_update(self) -> None:
        """Update state that depends on the trained weights, such as a momentum encoder.

        It is called after every update, before callbacks can save a checkpoint.
        """

    def after_backward(self) -> None:
        """Update state that depends on the batch, such as a queue of embeddings.

        It is called after the backward pass of every batch, before the update. With ``cuda_graph`` it is part
        of the graph, so it must change tensors in place, and Python values are fixed when it is recorded.
        """

    def after_initial_weights(self) -> None:
        """Copy weights to networks that must start equal, after encoder and head were loaded from a file."""

    def forward(self, images: Tensor) -> Layers:
        """Compute the three representations of normalised images (N, 3, H, W)."""
        return self._projected(self._encode(images, self.backbone), self.head)

    def embed_views(self, images: Tensor | None, views: int = 2) -> ViewOutputs:
        """Compute embeddings and features of the views of a batch, according to ``bn`` and ``chunk_size``.

        Args:
            images: (V N, 3, S, S), all first views, then all second views.
            views: number of views of each image, V.

        Raises:
            ValueError: there are no views.
        """
        outputs = self.embed(self.checked_views(images), self.backbone, self.head, views)
        self.features = outputs.features.detach()
        return outputs

    def embed(self, images: Tensor, backbone: Encoder, head: nn.Module, views: int = 1) -> ViewOutputs:
        """Compute the outputs of a network, according to ``bn`` and ``chunk_size``.

        Args:
            images: normalised images (V N, 3, S, S), all first views, then all second views.
            backbone: the encoder.
            head: a projection head like that of the method.
            views: number of views of each image, V.
        """

        def network(images: Tensor) -> tuple[Tensor, ...]:
            if self._shallow_features:
                features, *shallow = backbone.forward_shallow(self._as_input(images))
            else:
                features, shallow = self._encode(images, backbone), []
            return self._projected(features, head).projector, features, *shallow

        def stacked(*images: Tensor) -> tuple[Tensor, ...]:
            whole = images[0] if len(images) == 1 else torch.cat(images)
            if self.bn == "joint" or views == 1:
                return tuple(rows.unflatten(0, (views, -1)) for rows in network(whole))
            return tuple(map(torch.stack, zip(*map(network, whole.chunk(views)), strict=True)))

        if self.chunk_size is None:
            return ViewOutputs(*stacked(images))
        return ViewOutputs(*in_chunks(self, *images.chunk(views), size=self.chunk_size, call=stacked, dim=1))

    def checked_views(self, views: Tensor | None) -> Tensor:
        """Return the views of a batch, (2N, 3, S, S).

        Raises:
            ValueError: there are no views.
        """
        if views is None:
            raise ValueError(
                "the batch has no views: a data loader of your own must yield ((first, second), labels), two "
                "normalised views (N, C, H, W) of the same images and their labels"
            )
        return views

    def objective_inputs(self, batch: Batch, outputs: ViewOutputs | None = None) -> dict[str, Any]:
        """Return the keyword arguments that the objective requires in addition to the embeddings."""
        inputs = batch._asdict() if outputs is None else batch._asdict() | outputs._asdict()
        return {name: inputs[name] for name in self._contract.required_inputs}

    @contextmanager
    def seeded(self, stream: int = 0) -> Iterator[None]:
        """Draw initial weights from the seed of the method, and restore the random number generator.

        Args:
            stream: number that distinguishes several networks; 0 is that of encoder and head.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(fold(self._seed, stream) if stream else self._seed)
            yield

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; frozen modules and fixed statistics remain in evaluation mode."""
        super().train(mode)
        self._keep_evaluation_mode()
        return self

    def on_train_start(self) -> None:
        """Prepare the CUDA graph, and the objective of a run that continues within an epoch."""
        self._set_epoch()
        loader = self.trainer.train_dataloader
        self._equal_shares = isinstance(loader, Batches) and loader.equal_shares
        if self.cuda_graph:
            self._graphed = GraphedTraining.of_run(self)
        else:
            GraphedTraining.suggest(self)

    def on_train_epoch_start(self) -> None:
        """Set the epoch of the objective, of frozen encoders and of the CUDA graph."""
        self._set_epoch()
        if self._graphed is not None:
            self._graphed.start_epoch(self.current_epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Store the learning rate of the step, which the schedule changes at its end."""
        lr = self.trainer.optimizers[0].param_groups[0]["lr"]
        self._lr = lr.clone() if isinstance(lr, Tensor) else lr

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Run `loss`, or replay its CUDA graph.

        Args:
            batch: a `Batch`, or ``((first, second), labels)`` from a data loader of your own.
            batch_idx: position of the batch in the epoch.
        """
        batch = Batch.of(batch)
        if self._graphed is not None:
            loss = self._graphed(batch)
            self.after_update()
            count_step(self)
            return loss
        with equal_shares(self._equal_shares):
            return self.compiled_loss(batch)

    def compiled_loss(self, batch: Batch) -> Tensor:
        """Compute `loss`, compiled as a whole if ``compile_loss`` is set and it can be traced."""
        if self._compiled_loss is not None:
            try:
                return self._compiled_loss(batch)
            except torch._dynamo.exc.TorchDynamoException as error:
                self._compile_encoders(str(error).strip().split("\n")[0])
        return self.loss(batch)

    def on_after_backward(self) -> None:
        """Call `after_backward`."""
        with equal_shares(self._equal_shares):
            self.after_backward()

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Update the weights, then call `after_update`."""
        super().optimizer_step(*args, **kwargs)
        self.after_update()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log loss and learning rate, only at the steps that the trainer logs, to avoid synchronisations."""
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self.trainer.global_step % every == 0:
            loss = outputs["loss"] * self.trainer.accumulate_grad_batches  # Lightning has divided it
            # On the host, because Lightning reads the loss for its progress bar at every following step.
            self.log("train/loss", loss.cpu(), batch_size=len(batch[1]), prog_bar=True)
            self.log("train/lr", torch.as_tensor(self._lr, dtype=torch.float64, device="cpu"))

    def validation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, dict[str, Tensor]]:
        """Return the representations of a batch's plain images and, if it has views, of its two views."""
        batch = Batch.of(batch)
        out = {"plain": self(batch.images)._asdict()}
        if batch.views is not None:
            out["views"] = self(batch.views)._asdict()
        return out

    def setup(self, stage: str) -> None:
        """Prepare the objective; compile the encoder or the loss."""
        if stage != "fit":
            return
        freeze(self, self.optimizer_rule.freeze)
        prepare_objective(self, self._data, shallow=self._shallow_features or None)
        if self._data is not None:
            check_images(self.backbone, self._data)
        if self.cuda_graph:
            GraphedTraining.check(self)
        if self.compile_mode is None:
            if self.compile_loss or self.compile_options:
                raise InputError("model.compile_loss and model.compile_options require model.compile_mode")
        elif self._shallow_features:
            raise InputError("model.compile_mode does not support objectives of the encoder's feature maps")
        elif self.compile_loss and not self._contract.reads_epoch and not is_distributed():
            self._compiled_loss = torch.compile(self.loss, **self._compilation())
        else:
            reason = "the objective reads the epoch, or there are several processes"
            self._compile_encoders(reason if self.compile_loss else "")

    def configure_optimizers(self) -> Any:
        """Return the optimizer and the schedule."""
        rule = self.optimizer_rule
        if rule.lr_scaling != "none":
            rule = rule.scaled(self._images_per_step())
            rank_zero_info(f"learning rate {rule.lr:g}: {self.optimizer_rule.lr:g} scaled to the batch size")
        optimizer = rule.optimizer(self, capturable=self.cuda_graph)
        if rule.schedule == "constant" and not rule.freeze_epochs:
            return optimizer
        steps: Any = self.trainer.estimated_stepping_batches
        if rule.schedule == "cosine":
            steps = self.steps_of_run("optimizer.schedule")
        batches = self.trainer.num_training_batches
        if batches == math.inf and rule.warmup_epochs + rule.freeze_epochs > 0:
            raise InputError("optimizer.warmup_epochs and freeze_epochs need a data loader of known length")
        per_epoch = 0 if batches == math.inf else math.ceil(batches / self.trainer.accumulate_grad_batches)
        scheduler = rule.scheduler(optimizer, steps=steps, steps_per_epoch=per_epoch)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def steps_of_run(self, option: str) -> int:
        """Return the number of updates of the run, which a cosine schedule needs.

        Args:
            option: option of the schedule, for the message.

        Raises:
            InputError: the run has no end.
        """
        steps = self.trainer.estimated_stepping_batches
        if steps in (math.inf, -1):  # -1 for epochs of unknown length
            raise InputError(
                f"{option} 'cosine' needs an end: set trainer.max_steps, or trainer.max_epochs with a data "
                "loader of known length"
            )
        return int(steps)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the objective's non-persistent buffers, such as the memory bank of another library's loss."""
        buffers = self.objective.named_buffers(prefix="objective")
        if unsaved := {name: each for name, each in buffers if name not in checkpoint["state_dict"]}:
            checkpoint["objective_buffers"] = unsaved

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load non-persistent buffers of the objective, and check that the tensors' shapes are the model's.

        Raises:
            InputError: a shape differs, such as that of a memory bank if the number of images has changed.
        """
        check_shapes(checkpoint["state_dict"], self.state_dict(), method=type(self).__name__)
        saved = checkpoint.get("objective_buffers", {})
        for name, buffer in list(self.named_buffers()):
            if name in saved:
                path, _, own_name = name.rpartition(".")
                setattr(self.get_submodule(path), own_name, saved[name].to(buffer.device))

    @property
    def reads_labels(self) -> bool:
        """True if training reads labels, by default if the objective does; see `ImageData.leaves_one_out`."""
        return "labels" in self._contract.required_inputs

    @property
    def _contract(self) -> Objective:
        return as_objective(self.objective)

    @property
    def _data(self) -> ImageData | None:
        try:
            return image_data(self.trainer)
        except RuntimeError:  # a plain loop has no trainer
            return None

    def _set_epoch(self) -> None:
        """Set the epoch of the objective, and the mode of the encoders that it determines."""
        self._contract.set_epoch(self.current_epoch)
        if frozen := self.optimizer_rule.freeze_epochs:
            for encoder in self._encoders():
                encoder.train(self.current_epoch >= frozen)
            self._keep_evaluation_mode()

    def _keep_evaluation_mode(self) -> None:
        """Put modules that never leave evaluation mode into it."""
        evaluate_frozen(self, self.optimizer_rule.freeze)
        if self.encoder_statistics == "fixed":
            for encoder in self._encoders():
                for layer in encoder.modules():
                    if isinstance(layer, _BatchNorm):
                        layer.eval()

    def _encoders(self) -> list[Encoder]:
        """Return the encoder and, if there is one, that of the momentum network."""
        return [module for module in self.children() if isinstance(module, Encoder)]

    def _images_per_step(self) -> int:
        """Return the number of images per optimizer step, over all processes and accumulated batches.

        Raises:
            InputError: the data loader does not state its batch size.
        """
        trainer = self.trainer
        batches = trainer.world_size * trainer.accumulate_grad_batches
        if self._data is not None:
            return self._data.batch_size * batches
        create_train_loader(trainer)
        loader = trainer.train_dataloader
        if not isinstance(loader, DataLoader) or loader.batch_size is None:
            raise InputError("optimizer.lr_scaling needs a DataLoader with a batch_size")
        return loader.batch_size * batches

    def _encode(self, images: Tensor, backbone: Encoder) -> Tensor:
        compiled = self.training or self.compile_mode is None
        features: Tensor = (backbone if compiled else backbone.forward)(self._as_input(images))
        return features

    def _as_input(self, images: Tensor) -> Tensor:
        """Return images in the encoder's dtype and memory format."""
        autocast = torch.is_autocast_enabled(images.device.type)
        dtype = images.dtype if autocast else floating_dtype(self.backbone, images.dtype)
        return images.to(dtype, memory_format=self.backbone.memory_format)

    def _projected(self, features: Tensor, head: nn.Module) -> Layers:
        layers: Any = head.layers
        hidden = layers[: self._hidden_layers](features)
        return Layers(features, hidden, layers[self._hidden_layers :](hidden))

    def _compilation(self) -> dict[str, Any]:
        """Return the arguments of ``torch.compile``."""
        if unknown := self.compile_options.keys() - set(torch._inductor.list_options()):
            raise InputError(f"model.compile_options: Inductor has no option {', '.join(sorted(unknown))}")
        settings = torch._inductor.list_mode_options(self.compile_mode) | self.compile_options
        return {"options": settings, "fullgraph": True, "dynamic": False}

    def _compile_encoders(self, reason: str = "") -> None:
        """Compile the encoders in place, which keeps the names of their parameters.

        Args:
            reason: why ``compile_loss`` does not compile the whole loss, for a warning.
        """
        if reason:
            rank_zero_warn(f"model.compile_loss compiles only the encoder: {reason}")
        self._compiled_loss = None
        for encoder in self._encoders():
            encoder.compile(**self._compilation())

    def _measured_shallow(self) -> int:
        try:
            return self.backbone.shallow_features()
        except NotImplementedError as error:
            raise InputError(
                f"model.objective {type(self.objective).__name__} needs the encoder's feature maps: {error}"
            ) from error


class TrainingLoss(DescribedMetric):
    """Loss of a training step."""

    metric_name = "train/loss"
    title = "loss"
    sections = ("curves", "progress")
    note = "This is the mean over the training batch; compare it only between runs of the same objective."
    order = 10


class LearningRate(DescribedMetric):
    """Learning rate of a training step."""

    metric_name = "train/lr"
    title = "learning rate"
    sections = ()
    note = "This is the learning rate of the step, after scaling and scheduling."
