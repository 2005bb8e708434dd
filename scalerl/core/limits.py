"""Every time limit that does not come from the configuration, and how many deaths in a row end a run.

Limits that depend on a machine or a model are fields of the configuration (`placement`, `scoring`). Intervals and
pauses, such as those of polls, stand where they are used. vllm/guard.py and tasks/sandbox/guest have limits of their
own, because these programs run without scalerl. docs/operating.md has the table.
"""

from __future__ import annotations

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

# ----------------------------------------------------------------------------------------------------- other processes

MOST_DEATHS = 3
"""Deaths in a row, without a result in between, of an engine, the evaluation process, a scorer or a process that judges
completions. It is replaced until then; after the last one, the caller gets an error."""
PROCESS_END_S = 30.0
"""Seconds in which the system reports how a process ended whose pipe is closed; a busy machine takes some."""

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
COMPILE_S = 60.0
"""Seconds of the C compiler; it takes about one."""
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
DATABASE_LOCK_S = 10.0
"""Seconds that such a database may be locked by its writer."""
TRACKER_REQUEST_S = 30.0
"""Seconds for a request to the API of W&B."""

# ------------------------------------------------------------------------------------------------ doctor, rehearsal

DOCTOR_START_S = 300.0
"""Seconds in which a process must have loaded torch, or a server vLLM. From a disk that is shared and cold, this takes
minutes; warm, 5 to 30 s."""
DOCTOR_CALL_S = 45.0
"""Seconds of a call to a process of a check, which has at most three."""
DOCTOR_SWAPS_S = 90.0
"""Seconds of the swaps of vLLM's check."""
TCP_CONNECT_S = 5.0
"""Seconds for one TCP connection to another host."""
REHEARSAL_S = 3600.0
"""Seconds of a rehearsal, which takes one to four minutes for an 8B model."""
