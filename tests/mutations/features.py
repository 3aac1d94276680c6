"""Guards against failures of what a user may switch on: disks, loans, adapters, drafts, several processes."""

from __future__ import annotations

from tests.mutations.guard import Failure, Guard

FEATURES = (
    Failure(
        "disk",
        "Rapid-MLX#187",
        "KV that a crash or a disk had damaged was read again, and all that followed was garbage",
        (
            Guard(
                "kvtransfer/tiers/block_files.py",
                "        if not is_right:\n",
                "        if False:\n",
                "tests/kvtransfer/tiers/test_disk.py::test_nothing_is_read_into_the_pool_that_was_not_verified",
            ),
            Guard(
                "kvtransfer/tiers/host_memory.py",
                "        return checksum(self.data(slot)) == self._sums[slot]\n",
                "        return True\n",
                "tests/kvtransfer/tiers/test_host_memory.py"
                "::test_a_damaged_block_is_refused_and_what_follows_it_does_not_come",
            ),
            Guard(
                "kvtransfer/tiers/block_files.py",
                "_HEADER.pack(_MAGIC, self._identity, block_hash, ",
                "_HEADER.pack(_MAGIC, self._identity, bytes(16), ",
                "tests/kvtransfer/tiers/test_disk.py::test_a_block_under_the_name_of_another_is_refused",
            ),
            Guard(
                "kvtransfer/tiers/reads.py",
                "            if self._is_stopped:\n                return False\n",
                "",
                "tests/kvtransfer/tiers/test_disk.py::test_a_read_that_is_stopped_writes_nothing_more",
            ),
        ),
    ),
    Failure(
        "loans",
        "vllm#46283, dynamo#7489",
        "a transfer whose client went kept its blocks for good, until nothing was admitted",
        (
            Guard(
                "kvtransfer/sending/lending.py",
                "            self.on_over(handle)\n            if isinstance",
                "            if isinstance",
                "tests/kvtransfer/sending/test_lending.py::test_a_borrower_that_leaves_ends_the_loan",
            ),
            Guard(
                "kvtransfer/sending/lending.py",
                "limits = SenderLimits(GRACE_S, loan.limit_s + GRACE_S)",
                "limits = SenderLimits(3600.0, 3600.0)",
                "tests/kvtransfer/sending/test_lending.py::test_the_loan_of_a_borrower_that_dies_ends_in_time",
            ),
            Guard(
                "engine/core/groups/outgoing.py",
                "        if loan.is_reading:\n            return False\n",
                "",
                "tests/engine/core/test_step_loop_loans.py"
                "::test_a_loan_that_is_given_up_keeps_its_blocks_until_its_read_ends",
            ),
        ),
    ),
    Failure(
        "borrowed garbage",
        "vllm#52234",
        "blocks that came damaged from another process were used",
        (
            Guard(
                "kvtransfer/receiver_handoff.py",
                "        if found != copy.checksum:\n",
                "        if False:\n",
                "tests/kvtransfer/sending/test_lending.py::test_a_damaged_block_and_what_follows_are_not_used",
            ),
        ),
    ),
    Failure(
        "dead follower",
        "sglang-omni#270, vllm-rbln#1094",
        "one process of a group died, and the others waited for it in a step without end",
        (
            Guard(
                "worker/startup/group/followers.py",
                "            self._leave(self._pidfds[ended[0]])\n\n    def _leave",
                "            pass\n\n    def _leave",
                "tests/worker/startup/group/test_followers.py::test_the_leader_ends_with_a_follower_that_is_killed",
            ),
            Guard(
                "engine/group/leader.py",
                '        return "ended while it started", "a process that starts"\n',
                "        return None\n",
                "tests/engine/group/test_group.py::test_a_follower_that_ends_while_it_loads_is_noticed",
            ),
        ),
    ),
    Failure(
        "other weights",
        "Baton itself",
        "processes computed parts of different weights, and summed them up",
        (
            Guard(
                "engine/group/leader.py",
                "    if fingerprint is None or theirs == fingerprint:\n",
                "    if True:\n",
                "tests/engine/group/test_group.py::test_a_follower_with_other_weights_is_refused",
            ),
        ),
    ),
    Failure(
        "adapters",
        "vllm#3264, vllm#30931",
        "a prompt was continued from KV that another LoRA adapter had computed",
        (
            Guard(
                "scheduling/memory/block_hash.py",
                "digest_size=HASH_BYTES, key=adapter.encode())",
                "digest_size=HASH_BYTES)",
                "tests/scheduling/memory/test_block_hash.py"
                "::test_no_adapter_shares_a_chain_with_another_or_the_base",
            ),
            Guard(
                "engine/core/memory/block_tables.py",
                "spec.cache_salt, spec.adapter)",
                "spec.cache_salt)",
                "tests/engine/execution/test_step_loop_adapters.py::test_kv_of_another_adapter_is_never_reused",
            ),
            Guard(
                "engine/model/adapters/attaching.py",
                "        if (down.shape[1], up.shape[0]) != (inputs, outputs):\n",
                "        if False:\n",
                "tests/engine/model/adapters/test_checkpoint.py::test_an_adapter_of_another_base_is_refused",
            ),
        ),
    ),
    Failure(
        "drafts",
        "lattice#243, mlx-lm#1423",
        "drafted tokens were accepted that the model would not have drawn",
        (
            Guard(
                "engine/execution/drafting.py",
                "        if is_broken[place + 1] or drawn[place] != token_id:\n",
                "        if is_broken[place + 1]:\n",
                "tests/engine/execution/test_acceptance.py"
                "::test_a_draft_is_accepted_up_to_the_first_other_token",
            ),
            Guard(
                "engine/execution/drafting.py",
                "        if is_broken[place + 1] or drawn[place] != token_id:\n",
                "        if drawn[place] != token_id:\n",
                "tests/engine/execution/test_acceptance.py"
                "::test_no_draft_is_accepted_in_front_of_a_row_without_tokens",
            ),
            Guard(
                "engine/execution/flight.py",
                "        kept = {new: old for new, old in enumerate(running) if old in self.drafts}\n",
                "        kept = {old: old for old in running if old in self.drafts}\n",
                "tests/engine/core/test_step_loop_pipeline_drafts.py"
                "::test_a_choice_that_is_cancelled_leaves_the_drafts_of_others_alone",
            ),
            Guard(
                "engine/core/turns/worker_core.py",
                "        return load if is_all else replace(",
                "        return load if True else replace(",
                "tests/engine/core/test_step_loop_pipeline_drafts.py"
                "::test_no_draft_makes_another_micro_batch_later_than_it_is",
            ),
        ),
    ),
    Failure(
        "stale sockets",
        "Baton itself",
        "a worker that started removed the socket of another one that was about to listen",
        (
            Guard(
                "kvtransfer/transports/shm.py",
                "self.path.with_name(STARTING_PREFIX + self.path.name.removeprefix(SOCKET_PREFIX))",
                "self.path",
                "tests/kvtransfer/transports/test_shm.py"
                "::test_a_server_that_starts_beside_another_keeps_its_socket",
            ),
        ),
    ),
    Failure(
        "downloads",
        "huggingface_hub",
        "a download began anew after each interruption, or left a file that was not what the hub has",
        (
            Guard(
                "runtime/hub/blobs.py",
                '        if content not in {blob.etag, ""}:\n',
                "        if False:\n",
                "tests/runtime/hub/test_snapshot.py"
                "::test_wrong_content_is_refused_and_nothing_of_it_is_kept[model.safetensors]",
            ),
            Guard(
                "runtime/hub/blobs.py",
                "    with _locked(blob.lock, stopping):\n",
                "    with ExitStack():\n",
                "tests/runtime/hub/test_snapshot.py"
                "::test_several_processes_that_start_at_once_fetch_each_file_once",
            ),
            Guard(
                "runtime/hub/blobs.py",
                '        headers["Range"] = f"bytes={sink.size}-"\n',
                "        pass\n",
                "tests/runtime/hub/test_snapshot.py"
                "::test_a_download_whose_process_is_killed_goes_on_where_it_stopped",
            ),
        ),
    ),
)
