from __future__ import annotations

from structlog.testing import capture_logs

from worker.recording_log import RecordingLog


def test_a_long_recording_is_told_at_intervals_and_at_its_end() -> None:
    now_s = 100.0
    progress = RecordingLog(lambda: now_s)
    with capture_logs() as logs:
        for done in range(11):
            progress(done, 10)
            now_s += 0.9
    told = [(entry["event"], entry.get("done")) for entry in logs]
    assert told == [*(("recording_decodes", done) for done in (3, 6, 9)), ("decodes_recorded", None)]
    assert logs[-1]["seconds"] == 9.0
