"""The wire format of the Responses API: the body of a request, and the reading of a stream."""
