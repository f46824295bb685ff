"""The wire format of chat completions, which most servers of open models speak: requests and streams."""
