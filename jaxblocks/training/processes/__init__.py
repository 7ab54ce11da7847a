"""Several processes and devices: agreement of the processes of a run, and the communication of a step.

Read `processes` first. `communication` reports what a step sends between devices.
"""

from jaxblocks.training.processes.communication import ShardingReport, sharding_report

__all__ = ["ShardingReport", "sharding_report"]
