"""The front door: takes requests, decides where and when they run, relays their tokens, outlives workers."""
