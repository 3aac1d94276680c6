"""The worker core: every scheduling decision of a worker, without its model.

Commands and finished steps go in; step plans, block copies and reports come out. `WorkerCore` does no I/O,
reads no clock (times are arguments) and knows no torch: the live step loop (`engine.execution`) and the
simulator (`sim.workers`) drive the same code.

The core owns the groups of sequences and their phases, the queues, admission by memory and rows, preemption,
the block tables, and the columns of the running batch that scheduling needs (positions, output counts, due
times). An executor owns tensors, sampling, text, tokens and the copies of blocks. It hands in

    pool          `BlockPool`: physical blocks (`BlockManager`), or counts of them in a simulation
    names         `BlockNames`: chained hashes of tokens, or a trace's shared prefixes
    swap          `SwapMemory`: copies blocks to host memory and back
    tiers         `KVTiers`: have blocks that left the pool; optional
    adapters      `AdapterSlots`: which LoRA adapters are in the model, and which can be loaded; optional
    rows          `RowTable`: the executor's columns, which follow each change of rows
    new_choice    makes a choice with what the executor keeps for it
    refuse        returns why the model cannot run a sequence

and calls, turn by turn:

    apply(command)                  for every command that has come
    grow_rows, start_waiting        running choices first, then those that wait
      adopt, go_on                  for groups that came with their KV; grow_rows again
    plan → begin                    the policy's step
      launch: cover                 blocks for all that it writes
        skip                        tokens that grammars force, with the newest of their rows
        choose_drafts, plan_drafts  how many drafted tokens it verifies
        join, advance               rows that get a token, before it is known; copies to make
      over: mark_written            KV is there
        count_tokens                tokens are known
      finish                        what filled blocks, what ended
    take_report, load               what happened

With several micro-batches the next steps are planned, begun and launched before the first is over.

Its folders are floors; a module imports what stands on its own floor or below:

    turns/      `WorkerCore`, which is called as above
    groups/     groups come in, run, give their blocks up and end
    memory/     the blocks that groups hold, and for which groups there is room
    here        `commands` and `report` (in and out), `sequence` (groups and phases), `batch` and `due_times`
                (running choices, and steps), `adapters`, and `admission` (limits, and what they refuse)

The package imports `model_output`, `scheduling` and numpy, and nothing else of `engine`.
"""
