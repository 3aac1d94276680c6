"""What Baton claims of its scheduling, measured claim by claim: `python -m benchmarks claims`."""
