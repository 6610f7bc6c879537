"""Progress on a terminal, drawn the same by every command that takes long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]


@contextmanager
def draw_progress() -> Iterator[Progress]:
    """Draws one bar per step on standard error while the block runs, from the first step that is told on.

    The function given takes a step's name, how much of it is done, and of how much.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars, tasks = Bars(*columns, console=Console(stderr=True)), dict[str, TaskID]()

    def show(step: str, done: int, total: int) -> None:
        # Of several processes only the one that tells its progress draws any.
        bars.start()
        if step not in tasks:
            tasks[step] = bars.add_task(step, total=total)
        bars.update(tasks[step], completed=done, total=total)

    try:
        yield show
    finally:
        bars.stop()
