"""One process's part in a run on any number of devices, through Accelerate on top of torch.distributed."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree

from detector.errors import RecipeError
from detector.training.config import StreamedTraining
from mirage.extras import need

Model = TypeVar("Model", bound=nn.Module)
PRECISIONS = {"float32": "no", "bf16": "bf16", "fp16": "fp16"}


@dataclass(frozen=True)
class Engine:
    """What the trainer needs to know and do across processes.

    Attributes:
        accelerator: Accelerate's, already set up.
        sharded: whether weights, gradients and optimiser are split over the processes.
    """

    accelerator: Any
    sharded: bool

    @property
    def rank(self) -> int:
        """Of this process."""
        return self.accelerator.process_index

    @property
    def processes(self) -> int:
        """How many there are, on all nodes."""
        return self.accelerator.num_processes

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self.accelerator.device

    def own(self, model: Model) -> Model:
        """`model` itself, or a copy where wrapping would split its weights over processes for good."""
        return copy.deepcopy(model) if self.sharded else model

    def wrap(self, module: nn.Module) -> nn.Module:
        """`module` on the device, computing in the chosen precision and sharing its gradients."""
        self.accelerator.free_memory()
        if self.sharded:
            return self._shard(module)
        with warnings.catch_warnings():
            # The old name of the argument is the only one that all supported releases of torch know.
            warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
            return self.accelerator.prepare_model(module)

    def _shard(self, module: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # One group for everything: the losses read experts' factors outside of their own block.
        for parameter in module.parameters():
            parameter.data = parameter.data.contiguous()  # the only layout that can be split
        mesh = init_device_mesh(self.device.type, (self.processes,))
        fully_shard(module.to(self.device), mesh=mesh, reshard_after_forward=True)
        return module

    def autocast(self) -> AbstractContextManager[Any]:
        """The chosen precision, for what runs inside."""
        return self.accelerator.autocast()

    @contextmanager
    def accumulate(self, module: nn.Module, *, last: bool) -> Iterator[None]:
        """Gradients are added up inside, and shared between processes only with the `last` ones."""
        if self.sharded:
            module.set_requires_gradient_sync(last)  # type: ignore[operator]
            yield
        elif last:
            yield
        else:
            with self.accelerator.no_sync(module):
                yield

    def mean(self, values: Tensor) -> Tensor:
        """The mean of each value over the processes, on all of them."""
        return self.accelerator.reduce(values, reduction="mean")

    def gather(self, found: list[Any]) -> list[Any]:
        """The lists of all processes as one, on all of them."""
        if self.processes == 1:
            return found
        return need("accelerate.utils").gather_object(found)


@contextmanager
def open_engine(settings: StreamedTraining) -> Iterator[Engine]:
    """The engine of this process; torchrun's environment says which of how many it is.

    Raises:
        RecipeError: the precision or the strategy is not possible here.
    """
    accelerate = need("accelerate")
    cuda = torch.cuda.is_available()
    if settings.precision == "fp16" and not cuda:
        raise RecipeError("streamed.precision is fp16; without a GPU float32 and bf16 are allowed")
    alike = need("accelerate.utils").DistributedDataParallelKwargs(broadcast_buffers=False)
    accelerator = accelerate.Accelerator(
        cpu=not cuda, mixed_precision=PRECISIONS[settings.precision], kwargs_handlers=[alike]
    )
    try:
        sharded = settings.strategy == "fsdp"
        if sharded and accelerator.num_processes == 1:
            raise RecipeError("streamed.strategy is fsdp; it needs at least 2 processes, started by torchrun")
        yield Engine(accelerator, sharded)
    finally:
        accelerator.end_training()
        # The library keeps the first run's choices for the whole process otherwise.
        need("accelerate.state").AcceleratorState._reset_state(reset_partial_state=True)


def whole(tree: Any) -> Any:
    """The same nested containers with every tensor in one piece, in memory of its own, on the CPU."""

    def join(tensor: Tensor) -> Tensor:
        found = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return found.detach().to("cpu", copy=True)

    return _pytree.tree_map_only(Tensor, join, tree)


def like(tensor: Tensor, model: Tensor) -> Tensor:
    """`tensor` where and split as `model` is; one of another shape, such as a counter, as it came."""
    if tensor.shape != model.shape:
        return tensor
    moved = tensor.to(model.device)
    return (
        distribute_tensor(moved, model.device_mesh, model.placements) if isinstance(model, DTensor) else moved
    )
