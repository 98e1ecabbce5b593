"""An executor that can let go of a task which it has lost."""

from __future__ import annotations

from typing import Any

from airflow.executors import local_executor


class LocalExecutor(local_executor.LocalExecutor):
    """Airflow's own, with what it lacks to let the scheduler queue a task again.

    A scheduler that hears of two tries of a task at once, as when its clock has jumped, may believe the older one: the
    task is then `queued` and nobody works on it, so its run is active for ever. After `[scheduler] task_queued_timeout`
    the scheduler would queue such a task again, but skips every executor that cannot revoke it. One that was not lost
    and only waited may then start twice; Airflow's API lets one of the two go on.
    """

    def revoke_task(self, *, ti: Any) -> None:
        """Forget the task; whoever works on it is not told."""
        self.queued_tasks.pop(ti.key, None)
        self.running.discard(ti.key)
