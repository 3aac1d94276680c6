"""All actions of the core, which the shell carries out in order, or a simulator in virtual time.

- `to_clients`: events of a client's stream (Tell, Relay), and errors
- `to_store`: calls of the store
- `to_workers`: commands (Send)
- `to_shell`: timers, and what is logged and counted
"""

from router.core.actions.to_clients import (
    FinalError,
    Marks,
    Outcome,
    Promise,
    Reject,
    Relay,
    RelayRun,
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
    TellLeaving,
    TellPromptLogprobs,
    TellQueued,
    TellQuoted,
    TellRetrying,
)
from router.core.actions.to_shell import (
    AttemptFailed,
    GroupMigrated,
    GroupPreempted,
    PromiseBroken,
    RequestEnded,
    RequestRefused,
    RequestShed,
    SetTimer,
    StoreChanged,
)
from router.core.actions.to_store import (
    AskGrants,
    AskQueue,
    ChargeTenant,
    Dequeue,
    Enqueue,
    RefundTenant,
    ReleaseCredit,
    ReleaseLease,
    Renew,
    Settle,
    StoreAction,
    TakeHolds,
)
from router.core.actions.to_workers import (
    SendCancel,
    SendDecode,
    SendDrain,
    SendPreCopy,
    SendPrefill,
    SendReceive,
    SendStopAndCopy,
    WorkerCommand,
)

Action = (
    TellAccepted
    | TellQuoted
    | TellQueued
    | TellPromptLogprobs
    | Relay
    | RelayRun
    | TellChoiceFinished
    | TellFinished
    | TellLeaving
    | TellRetrying
    | Reject
    | StoreAction
    | WorkerCommand
    | SetTimer
    | RequestRefused
    | RequestEnded
    | AttemptFailed
    | RequestShed
    | PromiseBroken
    | GroupPreempted
    | GroupMigrated
    | StoreChanged
)

__all__ = [
    "Action",
    "AskGrants",
    "AskQueue",
    "AttemptFailed",
    "ChargeTenant",
    "Dequeue",
    "Enqueue",
    "FinalError",
    "GroupMigrated",
    "GroupPreempted",
    "Marks",
    "Outcome",
    "Promise",
    "PromiseBroken",
    "RefundTenant",
    "Reject",
    "Relay",
    "RelayRun",
    "ReleaseCredit",
    "ReleaseLease",
    "Renew",
    "RequestEnded",
    "RequestRefused",
    "RequestShed",
    "SendCancel",
    "SendDecode",
    "SendDrain",
    "SendPreCopy",
    "SendPrefill",
    "SendReceive",
    "SendStopAndCopy",
    "SetTimer",
    "Settle",
    "StoreAction",
    "StoreChanged",
    "TakeHolds",
    "TellAccepted",
    "TellChoiceFinished",
    "TellFinished",
    "TellLeaving",
    "TellPromptLogprobs",
    "TellQueued",
    "TellQuoted",
    "TellRetrying",
    "WorkerCommand",
]
