"""Checkpoints on disk: training states that survive killed processes, full disks and flipped bits.

Read `checkpoint` first: saving and loading. `writing` and `reading` are their steps, `listing` the list of leaves that
is stored with the arrays, `leaves` and `shards` the arrays and their hashes, `names` the names in a directory, and
`array_files` the library that stores arrays. `resume` writes checkpoints during a run and starts it again, and `lock`
lets one run at a time write to a directory. A write that fails during a run becomes a warning; it is not repeated, and
the next checkpoint is written when it is due.
"""
