"""Every time limit that does not come from the configuration, and who watches whom: one table, for code and docs.

Limits that depend on a machine or a model are fields of the configuration (`placement`, `scoring`). Intervals and
pauses, such as those of polls, stand where they are used. vllm/guard.py and tasks/sandbox/guest have limits of their
own, because these programs run without scalerl. docs/operating.md shows WATCHED.
"""

from __future__ import annotations

from typing import NamedTuple

# --------------------------------------------------------------------------------------------------- a requested stop

STOP_PATIENCE_S = 10.0
"""Seconds that a requested stop waits for engines that may hang, such as servers, before the run ends without them."""
STOP_ANSWER_S = 30.0
"""Seconds after that in which a process must answer, to save its part of a checkpoint."""
STOP_SUSPENDED_S = 3.0
"""Seconds that a requested stop waits for a process that SIGSTOP has stopped."""
GENERATOR_END_S = 2.0
"""Seconds in which the generator ends by itself; it has nothing left to save."""
THREAD_END_S = 5.0
"""Seconds in which a thread of the pipeline ends, once its pipe is closed."""
LOGGER_FINISH_S = 30.0
"""Seconds of a logger for sending pending data at the end of a run."""
PAGE_CLOSE_S = 5.0
"""Seconds in which the server of a page ends."""

# ------------------------------------------------------------------------------------------------------ trainer ranks

GROUP_GRACE_S = {"raised": 10.0, "failed": 2.0, "ended": 0.0}
"""Seconds that the other processes of a group have to answer, by the kind of the first bad answer. They wait for the
process that raised; one that failed may have noticed the death of another one first."""

# ------------------------------------------------------------------------------------------- vLLM servers, weights

SERVER_CONNECT_S = 10.0
"""Seconds to connect to a server; the restarter limits silence and the duration of a transfer."""
SERVER_HEALTH_S = 5.0
"""Seconds for one answer of a server that starts; it is asked again until placement.start_timeout_s."""
SERVER_PROBE_S = 120.0
"""Seconds for an answer to a check: the first request to a server triggers compilation and may take long."""
SERVER_PREFILL_S = 30.0
"""Seconds that a swap waits for the first tokens of requests already sent, so that no prompt is processed partly with
old and partly with new weights."""
SERVER_LABEL_S = 5.0
"""Seconds between two questions whether a server needs weights, and time limit of an answer."""
CONNECTION_END_S = 10.0
"""Seconds in which the thread of a connection ends; its requests are canceled."""
TRANSFER_JOIN_S = 120.0
"""Seconds in which all servers must join the transfer group over NCCL, which takes a few."""
TRANSFER_LEAVE_S = 10.0
"""Seconds in which a server must leave an earlier group. Its workers may wait for a process that died, inside NCCL."""
TRANSFER_NOTICE_S = 5.0
"""Seconds in which the request to a server breaks that died, if NCCL has noticed the death first."""
TRANSFER_ABORT_S = 30.0
"""Seconds in which vLLM's thread must end after a server has failed; aborting NCCL takes up to 5."""
ENDPOINT_REQUEST_S = 60.0
"""Seconds in which a request to the endpoint of agents must have arrived as a whole."""
PROGRAM_END_S = 10.0
"""Seconds in which the launcher of an agent's program must end the processes of the program."""
CONTRACT_S = 120.0
"""Seconds without a finished sequence after which the check of a custom engine fails."""

# ------------------------------------------------------------------------------------------------------------- Ray

ACTOR_PLACED_S = 600.0
"""Seconds within which the coordinator and the scorers must be placed; they load no model."""
ACTOR_START_SPARE_S = 60.0
"""Seconds that an actor may take longer than its server to report a start that failed."""
ACTOR_LAST_ANSWER_S = 2.0
"""Seconds in which the last answer of an actor arrives after the actor's function has ended."""
NODE_ANSWER_S = 60.0
"""Seconds in which the nodes must say how much of their /dev/shm is free; each starts a process for it."""

# -------------------------------------------------------------------------------------------------- prompts, rewards

REWARD_S = 600.0
"""Seconds of a reward function for the completions of one prompt; they then get no reward."""
HUB_REQUEST_S = 10.0
"""Seconds for a request to the hub."""
TEMPLATE_S = 10.0
"""Seconds for rendering one prompt: jinja2's sandbox limits neither time nor memory."""
SANDBOX_PROBE_S = 60.0
"""Seconds of the program that tests the sandbox at the start of a run."""
PYTHON_ANSWER_S = 60.0
"""Seconds for an answer of another Python about itself, such as its paths or packages; the machine may be busy."""
SANDBOX_START_S = 4.0
"""Seconds that a sandbox may take to start on a busy machine, in addition to the program's limit."""
SANDBOX_SPARE_S = 0.5
"""Seconds added to each deadline of a sandbox for the transfer of frames."""
SESSION_CLOSE_S = 1.0
"""Seconds for the end of a session with an environment; its server may not answer any more."""

# ------------------------------------------------------------------------------------------------------------- logs

DATABASE_S = 60.0
"""Seconds in which a database of MLflow or Trackio must give its next row."""

# ------------------------------------------------------------------------------------------------ doctor, rehearsal

DOCTOR_START_S = 300.0
"""Seconds in which a process must have loaded torch, or a server vLLM. From a disk that is shared and cold, this takes
minutes; warm, 5 to 30 s."""
DOCTOR_CALL_S = 45.0
"""Seconds of a call to a process of a check, which has at most three."""
DOCTOR_SWAPS_S = 90.0
"""Seconds of the swaps of vLLM's check."""
TCP_CONNECT_S = 5.0
"""Seconds for one TCP connection between two hosts."""
REHEARSAL_S = 3600.0
"""Seconds of a rehearsal, which takes one to four minutes for an 8B model."""


class Watch(NamedTuple):
    """One process or call, and what happens when it ends or takes too long.

    Example: Watch("a trainer rank", "the loop", ("placement.step_timeout_s", "GROUP_GRACE_S"), "the run ends")
    """

    process: str
    watched_by: str
    limits: tuple[str, ...]
    """Names of constants above, or fields of the configuration."""
    follows: str
    """What happens after the end of the process or of its time."""


WATCHED: tuple[Watch, ...] = (
    Watch(
        "every process of a run",
        "the kernel",
        (),
        "it is killed when its parent ends, so that nothing of a run survives the loop",
    ),
    Watch(
        "generator, or coordinator on Ray",
        "the loop",
        (),
        "its end ends the run; on Ray, the run goes back to its last checkpoint, `placement.restarts` times",
    ),
    Watch(
        "a trainer rank",
        "the loop",
        ("placement.step_timeout_s", "placement.transfer_timeout_s", "GROUP_GRACE_S"),
        "all ranks end, and the run with them; on Ray, and if it was a transfer over NCCL, the run goes back to its "
        "last checkpoint, `placement.restarts` times",
    ),
    Watch(
        "the evaluation process (`evaluation.overlap`)",
        "the loop",
        (),
        "if it is killed, it is replaced and evaluates the same weights again; after three deaths in one evaluation "
        "the run ends with a checkpoint, and a resume evaluates them",
    ),
    Watch(
        "an engine on Ray, or a vLLM server",
        "its restarter, in the generator",
        ("placement.start_timeout_s", "placement.silence_timeout_s", "placement.transfer_timeout_s"),
        "it is replaced, gets the latest weights and samples its sequences again; after three deaths without a "
        "finished sequence the run ends",
    ),
    Watch(
        "a request to a vLLM server",
        "the connection, in the generator",
        ("SERVER_CONNECT_S", "SERVER_PREFILL_S", "CONNECTION_END_S"),
        "it is sent again from its last token, up to five times; then the server counts as dead",
    ),
    Watch(
        "a vLLM server that starts",
        "the process that starts it",
        ("placement.start_timeout_s", "SERVER_HEALTH_S", "SERVER_PROBE_S"),
        "the first start is an error, a later one a death",
    ),
    Watch(
        "a vLLM server in a transfer over NCCL",
        "trainer rank 0",
        ("TRANSFER_NOTICE_S", "TRANSFER_ABORT_S", "SERVER_LABEL_S"),
        "the transfer is aborted and sent again to the others; if NCCL does not end it, the rank ends",
    ),
    Watch(
        "the group of a transfer over NCCL",
        "trainer rank 0",
        ("TRANSFER_JOIN_S", "TRANSFER_LEAVE_S"),
        "a group that servers do not join is an error; a server that does not leave is left out until it is replaced",
    ),
    Watch(
        "the program of an agent",
        "its launcher, and the generator",
        ("PROGRAM_END_S",),
        "after `data.rollout_s` it is killed with everything that it started; its rollout has no reward and is counted",
    ),
    Watch(
        "a request to the endpoint of agents",
        "the generator",
        ("ENDPOINT_REQUEST_S",),
        "the connection is closed",
    ),
    Watch(
        "a vLLM server whose parent ended or ends it",
        "its guard",
        (),
        "it has 15 s to shut down, 0.5 s without a parent, and is killed",
    ),
    Watch(
        "an actor on Ray",
        "the process that starts it",
        ("ACTOR_PLACED_S", "ACTOR_START_SPARE_S", "ACTOR_LAST_ANSWER_S", "NODE_ANSWER_S"),
        "the first start is an error; an engine or scorer is replaced later",
    ),
    Watch(
        "a run that is asked to stop",
        "the loop",
        ("STOP_PATIENCE_S", "STOP_ANSWER_S", "STOP_SUSPENDED_S"),
        "engines that hang are left out of the checkpoint; if the generator does not answer, the run ends without one",
    ),
    Watch(
        "generator and threads at the end",
        "the loop",
        ("GENERATOR_END_S", "THREAD_END_S"),
        "they are killed or left to the end of the process",
    ),
    Watch(
        "a process that judges completions",
        "the loop, or a scorer",
        ("scoring.timeout_s", "REWARD_S", "SANDBOX_START_S", "SANDBOX_SPARE_S", "SESSION_CLOSE_S"),
        "it is replaced; the completion gets no reward, or is judged again if the process died",
    ),
    Watch(
        "sandbox and Python of a run that starts",
        "the loop",
        ("SANDBOX_PROBE_S", "PYTHON_ANSWER_S", "HUB_REQUEST_S", "TEMPLATE_S"),
        "an error before the first step; a hub that does not answer is not asked again",
    ),
    Watch(
        "a logger, or the server of a page, at the end",
        "its command",
        ("LOGGER_FINISH_S", "PAGE_CLOSE_S"),
        "what it has not sent is left; the run's own files are complete",
    ),
    Watch("a query of a tracker's database", "its command", ("DATABASE_S",), "an error; nothing else is lost"),
    Watch("a custom engine in its check", "`check_engine`", ("CONTRACT_S",), "the check fails"),
    Watch(
        "doctor and rehearsal",
        "their command",
        ("DOCTOR_START_S", "DOCTOR_CALL_S", "DOCTOR_SWAPS_S", "TCP_CONNECT_S", "REHEARSAL_S"),
        "the check fails with the process and the host; other checks go on",
    ),
)
